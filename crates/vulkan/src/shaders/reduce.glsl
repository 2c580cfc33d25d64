// What the 64 invocations of a workgroup have, together.
shared float parts[64];

float all_sum(float own) {
    uint lane = gl_LocalInvocationIndex;
    barrier();
    parts[lane] = own;
    barrier();
    for (uint half_of = 32; half_of > 0; half_of /= 2) {
        if (lane < half_of) parts[lane] += parts[lane + half_of];
        barrier();
    }
    return parts[0];
}

float all_max(float own) {
    uint lane = gl_LocalInvocationIndex;
    barrier();
    parts[lane] = own;
    barrier();
    for (uint half_of = 32; half_of > 0; half_of /= 2) {
        if (lane < half_of) parts[lane] = max(parts[lane], parts[lane + half_of]);
        barrier();
    }
    return parts[0];
}

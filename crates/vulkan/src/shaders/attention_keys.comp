#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Gradients of one key and its value, of all queries that saw it.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats qkv; Floats probabilities; Floats scores; Floats upstream; Floats into; Words starts;
    Words ends;
    uint width, heads, shared_by, size, longest;
    float scale;
};

void main() {
    uint key = gl_WorkGroupID.x, group = gl_WorkGroupID.y;
    uint place = key - starts.at[key], end = ends.at[key];
    for (uint d = gl_LocalInvocationIndex; d < size; d += 64) {
        float into_key = 0, into_value = 0;
        for (uint row = key; row < end; row++)
            for (uint head = group * shared_by; head < (group + 1) * shared_by; head++) {
                uint p = (row * heads + head) * longest + place;
                into_key += scores.at[p] * qkv.at[row * width + head * size + d];
                into_value += probabilities.at[p] * upstream.at[(row * heads + head) * size + d];
            }
        uint at = key * width + (heads + group) * size + d;
        into.at[at] = scale * into_key;
        into.at[at + heads / shared_by * size] = into_value;
    }
}

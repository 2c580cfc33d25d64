#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// One query of one head a workgroup: softmax of its scores with the keys up to its own place, and
// what it mixes of their values. Probabilities stay, [rows, heads, longest].
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats qkv; Exchanged probabilities; Floats mixed; Words starts;
    uint width, heads, shared_by, size, longest;
    float scale;
};

void main() {
    uint row = gl_WorkGroupID.x, head = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    uint start = starts.at[row], count = row - start + 1;
    uint q = row * width + head * size;
    uint k = start * width + (heads + head / shared_by) * size;
    uint v = k + heads / shared_by * size;
    uint p = (row * heads + head) * longest;
    float most = -3.0e38;
    for (uint i = lane; i < count; i += 64) {
        float score = 0;
        for (uint d = 0; d < size; d++) score += qkv.at[q + d] * qkv.at[k + i * width + d];
        probabilities.at[p + i] = scale * score;
        most = max(most, scale * score);
    }
    most = all_max(most);
    float sum = 0;
    for (uint i = lane; i < count; i += 64) {
        float raised = exp(probabilities.at[p + i] - most);
        probabilities.at[p + i] = raised;
        sum += raised;
    }
    sum = all_sum(sum);
    for (uint i = lane; i < count; i += 64) probabilities.at[p + i] /= sum;
    memoryBarrierBuffer();
    barrier();
    for (uint d = lane; d < size; d += 64) {
        float value = 0;
        for (uint i = 0; i < count; i++) value += probabilities.at[p + i] * qkv.at[v + i * width + d];
        mixed.at[(row * heads + head) * size + d] = value;
    }
}

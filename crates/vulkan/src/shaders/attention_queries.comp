#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// Gradients of the scores of one query of one head, and of the query.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats qkv; Floats probabilities; Exchanged scores; Floats upstream; Floats into; Words starts;
    uint width, heads, shared_by, size, longest;
    float scale;
};

void main() {
    uint row = gl_WorkGroupID.x, head = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex;
    uint start = starts.at[row], count = row - start + 1;
    uint k = start * width + (heads + head / shared_by) * size;
    uint v = k + heads / shared_by * size;
    uint p = (row * heads + head) * longest, u = (row * heads + head) * size;
    float sum = 0;
    for (uint i = lane; i < count; i += 64) {
        float slope = 0;
        for (uint d = 0; d < size; d++) slope += upstream.at[u + d] * qkv.at[v + i * width + d];
        scores.at[p + i] = slope;
        sum += slope * probabilities.at[p + i];
    }
    sum = all_sum(sum);
    for (uint i = lane; i < count; i += 64)
        scores.at[p + i] = probabilities.at[p + i] * (scores.at[p + i] - sum);
    memoryBarrierBuffer();
    barrier();
    for (uint d = lane; d < size; d += 64) {
        float value = 0;
        for (uint i = 0; i < count; i++) value += scores.at[p + i] * qkv.at[k + i * width + d];
        into.at[row * width + head * size + d] = scale * value;
    }
}

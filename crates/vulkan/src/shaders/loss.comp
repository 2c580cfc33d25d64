#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// Cross-entropy of a row of logits, which become its gradient.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Exchanged logits; Words targets; Floats losses;
    uint width;
};

void main() {
    uint row = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex, first = row * width;
    float most = -3.0e38;
    for (uint i = lane; i < width; i += 64) most = max(most, logits.at[first + i]);
    most = all_max(most);
    float sum = 0;
    for (uint i = lane; i < width; i += 64) sum += exp(logits.at[first + i] - most);
    sum = all_sum(sum);
    uint target = targets.at[row];
    if (lane == 0) losses.at[row] = log(sum) + most - logits.at[first + target];
    memoryBarrierBuffer();
    barrier();
    for (uint i = lane; i < width; i += 64)
        logits.at[first + i] = exp(logits.at[first + i] - most) / sum - (i == target ? 1 : 0);
}

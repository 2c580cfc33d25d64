#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// Adds the gradient of a norm's input.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats upstream; Floats x; Floats weight; Floats inverses; Floats into;
    uint width;
    float offset;
};

void main() {
    uint row = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
    float inverse = inverses.at[row], dot_of = 0;
    for (uint i = lane; i < width; i += 64) {
        uint k = row * width + i;
        dot_of += upstream.at[k] * (offset + weight.at[i]) * x.at[k];
    }
    float shift = all_sum(dot_of) * inverse * inverse * inverse / float(width);
    for (uint i = lane; i < width; i += 64) {
        uint k = row * width + i;
        into.at[k] += inverse * upstream.at[k] * (offset + weight.at[i]) - shift * x.at[k];
    }
}

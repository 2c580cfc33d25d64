#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// One row a workgroup: x / rms(x) (offset + weight), and the inverse of the rms.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats x; Floats weight; Floats result; Floats inverses;
    uint width;
    float epsilon, offset;
};

void main() {
    uint row = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
    float squares = 0;
    for (uint i = lane; i < width; i += 64) squares += x.at[row * width + i] * x.at[row * width + i];
    float inverse = inversesqrt(all_sum(squares) / float(width) + epsilon);
    for (uint i = lane; i < width; i += 64)
        result.at[row * width + i] = x.at[row * width + i] * inverse * (offset + weight.at[i]);
    if (lane == 0) inverses.at[row] = inverse;
}

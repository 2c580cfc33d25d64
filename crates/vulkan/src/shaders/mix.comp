#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// to = keep to + scale from
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats from; Floats to;
    uint count;
    float scale, keep;
};

void main() {
    uint index = line();
    if (index >= count) return;
    float before = keep == 0 ? 0 : keep * to.at[index];
    to.at[index] = before + (scale == 0 ? 0 : scale * from.at[index]);
}

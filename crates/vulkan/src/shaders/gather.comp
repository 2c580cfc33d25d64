#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Rows of a table, a value an invocation.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats table; Words rows; Floats result;
    uint count, width;
    float scale;
};

void main() {
    uint index = line();
    if (index >= count * width) return;
    result.at[index] = scale * table.at[rows.at[index / width] * width + index % width];
}

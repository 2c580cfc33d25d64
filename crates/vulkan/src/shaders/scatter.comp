#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Adds rows to those of a table; of the same one in their order. A column an invocation.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats from; Words rows; Floats table;
    uint count, width, left_out;
    float scale;
};

void main() {
    uint column = line();
    if (column >= width) return;
    for (uint i = 0; i < count; i++)
        if (rows.at[i] != left_out)
            table.at[rows.at[i] * width + column] += scale * from.at[i * width + column];
}

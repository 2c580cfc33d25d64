#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Adds the gradient of a norm's weight, a column an invocation.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats upstream; Floats x; Floats inverses; Floats into;
    uint rows, width;
};

void main() {
    uint column = line();
    if (column >= width) return;
    float sum = 0;
    for (uint row = 0; row < rows; row++)
        sum += upstream.at[row * width + column] * x.at[row * width + column] * inverses.at[row];
    into.at[column] += sum;
}

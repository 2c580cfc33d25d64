#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Gradients of gates and ups, and the activation again.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats up; Floats upstream; Floats into; Floats activated;
    uint rows, width;
};

void main() {
    uint index = line();
    if (index >= rows * width) return;
    uint at = index / width * 2 * width + index % width;
    float gate = up.at[at], other = up.at[at + width], u = upstream.at[index];
    float part = 1 / (1 + exp(-gate)), silu = gate * part;
    activated.at[index] = silu * other;
    into.at[at] = u * other * part * (1 + gate * (1 - part));
    into.at[at + width] = u * silu;
}

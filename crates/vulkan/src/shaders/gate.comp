#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// silu(gate) up, a value an invocation; rows have all gates and then all ups.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats up; Floats activated;
    uint rows, width;
};

void main() {
    uint index = line();
    if (index >= rows * width) return;
    uint at = index / width * 2 * width + index % width;
    float gate = up.at[at];
    activated.at[index] = gate / (1 + exp(-gate)) * up.at[at + width];
}

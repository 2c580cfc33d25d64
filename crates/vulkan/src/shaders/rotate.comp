#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Turns the two halves of heads by the angles of their positions, a pair an invocation.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants {
    Floats values; Floats cosines; Floats sines; Words positions;
    uint rows, width, heads, pairs;
    float turn;
};

void main() {
    uint index = line();
    if (index >= rows * heads * pairs) return;
    uint pair = index % pairs, head = index / pairs % heads, row = index / pairs / heads;
    uint at = row * width + head * 2 * pairs + pair, angle = positions.at[row] * pairs + pair;
    float cosine = cosines.at[angle], sine = turn * sines.at[angle];
    float low = values.at[at], high = values.at[at + pairs];
    values.at[at] = low * cosine - high * sine;
    values.at[at + pairs] = high * cosine + low * sine;
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// c = keep c + scale a b; a workgroup has 32 by 32 values of c, an invocation four of them.
layout(local_size_x = 16, local_size_y = 16) in;
layout(push_constant) uniform Constants {
    Floats a; Floats b; Floats c;
    uint rows, inner, columns, a_row, a_inner, b_inner, b_column, c_row;
    float scale, keep;
};

shared float a_tile[32][17];
shared float b_tile[16][33];

void main() {
    uint row = gl_WorkGroupID.y * 32, column = gl_WorkGroupID.x * 32;
    uint y = gl_LocalInvocationID.y, x = gl_LocalInvocationID.x;
    float sums[2][2] = float[2][2](float[2](0, 0), float[2](0, 0));
    for (uint first = 0; first < inner; first += 16) {
        for (uint i = gl_LocalInvocationIndex; i < 512; i += 256) {
            uint r = row + i / 16, k = first + i % 16;
            a_tile[i / 16][i % 16] = r < rows && k < inner ? a.at[r * a_row + k * a_inner] : 0;
        }
        for (uint i = gl_LocalInvocationIndex; i < 512; i += 256) {
            uint k = first + i / 32, j = column + i % 32;
            b_tile[i / 32][i % 32] = k < inner && j < columns ? b.at[k * b_inner + j * b_column] : 0;
        }
        barrier();
        for (uint k = 0; k < 16; k++)
            for (uint i = 0; i < 2; i++)
                for (uint j = 0; j < 2; j++)
                    sums[i][j] += a_tile[y + 16 * i][k] * b_tile[k][x + 16 * j];
        barrier();
    }
    for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 2; j++) {
            uint r = row + y + 16 * i, k = column + x + 16 * j;
            if (r < rows && k < columns) {
                float before = keep == 0 ? 0 : keep * c.at[r * c_row + k];
                c.at[r * c_row + k] = before + scale * sums[i][j];
            }
        }
}

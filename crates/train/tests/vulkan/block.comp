#version 450
// A block for a device: rows are normalised (RMS), then multiplied with a matrix.
//
//   glslangValidator -g0 -V --target-env vulkan1.1 block.comp -o block.spv
//
// One workgroup computes 16 rows by 16 outputs, whose inputs go through shared memory by tiles.

layout(local_size_x = 16, local_size_y = 16) in;

layout(push_constant) uniform Sizes {
    uint rows;
    uint inputs;
    uint outputs;
    float epsilon;
};

layout(std430, binding = 0) readonly buffer X { float x[]; };            // [rows, inputs]
layout(std430, binding = 1) readonly buffer NormWeight { float norm_weight[]; }; // [inputs]
layout(std430, binding = 2) readonly buffer Weight { float weight[]; };  // [outputs, inputs]
layout(std430, binding = 3) writeonly buffer Y { float y[]; };           // [rows, outputs]

shared float x_tile[16][16];
shared float weight_tile[16][17];
shared float squares[16][16];

void main() {
    uint column = gl_LocalInvocationID.x;
    uint line = gl_LocalInvocationID.y;
    uint row = gl_WorkGroupID.y * 16 + line;
    uint first_output = gl_WorkGroupID.x * 16;

    float square = 0.0;
    for (uint i = column; row < rows && i < inputs; i += 16) {
        float value = x[row * inputs + i];
        square += value * value;
    }
    squares[line][column] = square;
    barrier();
    float mean = 0.0;
    for (uint i = 0; i < 16; i++) {
        mean += squares[line][i];
    }
    float inverse = inversesqrt(mean / float(inputs) + epsilon);

    float sum = 0.0;
    for (uint first = 0; first < inputs; first += 16) {
        uint i = first + column;
        uint own = first_output + line;
        bool inside = i < inputs;
        x_tile[line][column] =
            inside && row < rows ? x[row * inputs + i] * inverse * norm_weight[i] : 0.0;
        weight_tile[line][column] = inside && own < outputs ? weight[own * inputs + i] : 0.0;
        barrier();
        for (uint k = 0; k < 16; k++) {
            sum += x_tile[line][k] * weight_tile[column][k];
        }
        barrier();
    }
    if (row < rows && first_output + column < outputs) {
        y[row * outputs + first_output + column] = sum;
    }
}

// Buffers are addresses: whoever launches a shader adds where in a buffer to begin.
#extension GL_EXT_buffer_reference : require

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
// Read by other invocations of a workgroup than wrote it.
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Exchanged { float at[]; };

// The number of an invocation of many in a line: what exceeds one axis goes on along the other.
uint line() {
    return gl_GlobalInvocationID.y * gl_NumWorkGroups.x * 64 + gl_GlobalInvocationID.x;
}

// Matrices of 16 x 16 that the 32 invocations of a subgroup hold together: factors, and sums of their products.
#define MatrixA coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MatrixB coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define Sums coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// HELD is what an invocation holds of a factor; HOLD makes a factor of that, in whichever kernel. They count on eight
// components per invocation (as dot_parts.comp does of sums), and on each being the same element in all kernels. Vulkan
// leaves both to devices: `Caps::bfloat16_matrix` is for NVIDIA's alone, whose units have it so.
#define HELD(x) \
    uvec4(packFloat2x16(f16vec2(x[0], x[1])), packFloat2x16(f16vec2(x[2], x[3])), packFloat2x16(f16vec2(x[4], x[5])), packFloat2x16(f16vec2(x[6], x[7])))
#define HOLD(matrix, held) { \
    f16vec2 pair = unpackFloat2x16(held[0]); \
    matrix[0] = pair[0]; \
    matrix[1] = pair[1]; \
    pair = unpackFloat2x16(held[1]); \
    matrix[2] = pair[0]; \
    matrix[3] = pair[1]; \
    pair = unpackFloat2x16(held[2]); \
    matrix[4] = pair[0]; \
    matrix[5] = pair[1]; \
    pair = unpackFloat2x16(held[3]); \
    matrix[6] = pair[0]; \
    matrix[7] = pair[1]; \
}

// The words of a first factor in memory, and from there in a matrix: NVIDIA's units take them from registers in this
// order, so that one load brings them there without a move.
#define FIRST(held) (held).xzyw

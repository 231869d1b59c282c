//! name = "dot_own_{TILE_M}x{TILE_N}{form}"
//! choices.form = { "" = {}, _bordered = { BORDERED = "1" } }
//! matrix.form = ["", "_bordered"]
//! matrix."TILE_M TILE_N OWN_M OWN_N AHEAD" = ["64 64 32 32 1", "64 128 32 64 0"]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
// Batched product of f16 or bf16 matrices with f32 sums on matrix units: TILE_M x TILE_N results per workgroup,
// OWN_M x OWN_N per subgroup of 32, 64 contracted elements per step. Elements go from memory to the units without
// shared memory and its barriers, right from operands that are contiguous along k, or from what split.comp wrote.
// Invocations hold matrices as NVIDIA's do, which `Engine::takes_own_numbers` makes sure of: invocation 4 g + t
// has of row (or column) g, and then of row g + 8, elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9 along k. Which of 32
// elements along k these are is free, as long as it is the same for both operands: here they are the eight neighbours
// from 8 t on, four for each of two matrices, so that an invocation loads 16 bytes at once.
// float16_t stands for bf16, too, which the linker makes of it.
// Parameters: rows m, columns n, contracted k, batches, elements of k per split (a multiple of 64), splits, and for A
// and for B: uvec4 from 16 rows to the next, from 8 to the next 8 of them, from a row to the next, from 32 elements
// along k to the next; batches of the inner axis, and uvec4 from an outer one and an inner one to the next. Operands
// with other axes, as windows of an image have, are found through slot_a_free and slot_a_depth (slot_b_...).
// BORDERED: one operand is the windows of an image that reach beyond it, where zeros are multiplied; another parameter
// is by how many uvec4 the first element of the first window would lie before the image.
#include "params.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)
// 16 rows and 32 columns of a subgroup's results on their way out. More shared memory would keep workgroups away:
// NVIDIA's driver gives a multiprocessor little more than the 48 KB that one of them may have.
#define STRIP 9
#define ROOM (16 * STRIP)

layout(local_size_x = SUBGROUPS * 32) in;

// Whether four neighbouring results are stored at a time.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether what comes with a store is so much code that it stands once.
layout(constant_id = 5) const uint STORE_IN_LOOP = 0u;
// Whether eight are, which have the type of the operands.
layout(constant_id = 11) const uint STORE_BY_EIGHT = 0u;
// Whether that is bf16, to which drivers don't promise to round to the nearest.
layout(constant_id = 12) const uint TO_BF16 = 0u;

#include "own_operands.glsl"
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}
// Eight neighbours; `at` counts groups of eight.
void slot_store_eight(const in uint at, const in uvec4 value) {}

// While products are added up: where eights along k lie, those of A before those of B. Then the results.
shared uvec4 tiles[SUBGROUPS * ROOM];

#include "matrix_fragments.glsl"

#define R4 vec4
#include "dot_store.glsl"

#include "own_numbers.glsl"

void main() {
#include "dot_tile.glsl"
    uint slices = (depth + 63u) / 64u * 2u, first = split * (chunk / 32u), end = min(first + chunk / 32u, slices);

#include "own_places.glsl"

    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0.0);

// Rows g and g + 8 of each 16, 32 elements along k.
#define FETCH(a, b, slice) { \
    uint a_line = LINE(A_BY_AXES, 0u, slice, a_at, a_32), b_line = LINE(B_BY_AXES, A_BY_AXES * eights / 4u, slice, b_at, b_32); \
    TAKE_POSITIONS(a_line, b_line) \
    [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_M; ++r) a[r] = A_BLOCK(a_line + ROW(a_rows, A_BY_AXES, r, a_16, a_8), r); \
    [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_N; ++r) b[r] = B_BLOCK(b_line + ROW(b_rows, B_BY_AXES, r, b_16, b_8), r); \
    if (ENDS_EARLY != 0u) { \
        uint mask = (slice) * 32u + t * 8u < depth ? ~0u : 0u; \
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_M; ++r) a[r] &= uvec4(mask); \
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_N; ++r) b[r] &= uvec4(mask); \
    } \
}
#define MULTIPLY(a, b) \
    [[unroll]] for (uint k = 0u; k < 2u; ++k) { \
        MatrixA x[FRAGMENTS_M]; \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) { \
            uvec4 held = HALF(a[2u * i], a[2u * i + 1u], k); \
            HOLD(x[i], held) \
        } \
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) { \
            uvec4 held = HALF(b[2u * j], b[2u * j + 1u], k); \
            MatrixB y; \
            HOLD(y, held) \
            [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) sums[i][j] = coopMatMulAdd(x[i], y, sums[i][j]); \
        } \
    }

#if AHEAD
    // Two slices are on their way while others are multiplied. Two sets of registers take turns, since copies would
    // take time.
    uvec4 a_even[2 * FRAGMENTS_M], b_even[2 * FRAGMENTS_N], a_odd[2 * FRAGMENTS_M], b_odd[2 * FRAGMENTS_N];
    if (first < end) {
        FETCH(a_even, b_even, first)
        FETCH(a_odd, b_odd, first + 1u)
    }
    [[dont_unroll]] for (uint slice = first; slice < end; slice += 2u) {
        bool more = slice + 2u < end;
        MULTIPLY(a_even, b_even)
        if (more) {
            FETCH(a_even, b_even, slice + 2u)
        }
        MULTIPLY(a_odd, b_odd)
        if (more) {
            FETCH(a_odd, b_odd, slice + 3u)
        }
    }
#else
    // Other workgroups stand in for those that wait.
    [[dont_unroll]] for (uint slice = first; slice < end; ++slice) {
        uvec4 a[2 * FRAGMENTS_M], b[2 * FRAGMENTS_N];
        FETCH(a, b, slice)
        MULTIPLY(a, b)
    }
#endif

    if (A_BY_AXES != 0u || B_BY_AXES != 0u) barrier();

#include "own_eights.glsl"

#define WAIT() subgroupBarrier()
#define RESULTS(value, m, n)
#include "matrix_results.glsl"
}

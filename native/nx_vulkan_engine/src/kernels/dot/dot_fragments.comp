//! name = "dot_fragments_{TILE_M}x{TILE_N}"
//! matrix = { "TILE_M TILE_N OWN_M OWN_N" = ["128 128 64 64", "128 64 64 32"] }
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
// Batched product of f16 or bf16 matrices with f32 sums on matrix units: TILE_M x TILE_N results per workgroup,
// OWN_M x OWN_N per subgroup of 32, 16 contracted elements per step. Both operands are what split_copy.comp wrote as
// FRAGMENTS: what an invocation holds of 16 x 16 elements is one load of 16 bytes, those of a subgroup lie together,
// and words are in the order in which NVIDIA's units take them from registers. The contracted elements of a matrix, and
// with them all bits of the results, are those of dot_own.comp. float16_t stands for bf16, too, which the linker makes
// of it. Parameters: rows m, columns n, contracted k, batches, elements of k per split (a multiple of 64), splits,
// uvec4 between 16 rows and batches of A, and between 16 columns and batches of B.
#include "params.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)
// 16 rows and 32 columns of a subgroup's results on their way out.
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

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}
// Eight neighbours; `at` counts groups of eight.
void slot_store_eight(const in uint at, const in uvec4 value) {}

shared uvec4 tiles[SUBGROUPS * ROOM];

#include "matrix_fragments.glsl"

#define R4 vec4
#include "dot_store.glsl"

#include "own_numbers.glsl"

void main() {
#include "dot_tile.glsl"
    uint blocks = (depth + 63u) / 64u * 4u;
    uint first = split * (chunk / 16u), end = min(first + chunk / 16u, blocks);

    // Rows and columns past the end repeat the last 16, and are not stored.
    uint own_m = gl_SubgroupID / (TILE_N / OWN_N) * OWN_M, own_n = gl_SubgroupID % (TILE_N / OWN_N) * OWN_N;
    uint g = gl_SubgroupInvocationID / 4u, t = gl_SubgroupInvocationID % 4u;
    uint a_at[FRAGMENTS_M], b_at[FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        a_at[i] = batch * nx_param(7u) + min((m0 + own_m) / 16u + i, (rows - 1u) / 16u) * nx_param(6u) + gl_SubgroupInvocationID;
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
        b_at[j] = batch * nx_param(9u) + min((n0 + own_n) / 16u + j, (columns - 1u) / 16u) * nx_param(8u) + gl_SubgroupInvocationID;

    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0.0);

#define FETCH(a, b, block) \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) a[i] = slot_a_block(a_at[i] + (block) * 32u); \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) b[j] = slot_b_block(b_at[j] + (block) * 32u);
#define MULTIPLY(a, b) { \
    MatrixA x[FRAGMENTS_M]; \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) { \
        uvec4 held = FIRST(a[i]); \
        HOLD(x[i], held) \
    } \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) { \
        uvec4 held = b[j]; \
        MatrixB y; \
        HOLD(y, held) \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) sums[i][j] = coopMatMulAdd(x[i], y, sums[i][j]); \
    } \
}
// The step `of` the loop: fetches one set of registers for two steps ahead, and multiplies another. That the loop may
// end behind each keeps NVIDIA's compiler from moving the next loads up, which would take a copy of each register.
#define STEP(of, a_fetched, b_fetched, a_held, b_held) { \
    uint next = min(block + (of) + 2u, last); \
    FETCH(a_fetched, b_fetched, next) \
    MULTIPLY(a_held, b_held) \
    if (block + (of) == last) break; \
}

    if (first < end) {
        // Three sets of registers take turns, since copies would take time.
        uvec4 a_0[FRAGMENTS_M], b_0[FRAGMENTS_N], a_1[FRAGMENTS_M], b_1[FRAGMENTS_N], a_2[FRAGMENTS_M], b_2[FRAGMENTS_N];
        uint last = end - 1u;
        FETCH(a_0, b_0, first)
        FETCH(a_1, b_1, min(first + 1u, last))
        [[dont_unroll]] for (uint block = first;; block += 3u) {
            STEP(0u, a_2, b_2, a_0, b_0)
            STEP(1u, a_0, b_0, a_1, b_1)
            STEP(2u, a_1, b_1, a_2, b_2)
        }
    }

#include "own_eights.glsl"

#define WAIT() subgroupBarrier()
#define RESULTS(value, m, n)
#include "matrix_results.glsl"
}

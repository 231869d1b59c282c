//! name = "dot_residues_{TILE_M}x{TILE_N}"
//! matrix = { "TILE_M TILE_N OWN_M OWN_N" = ["128 128 64 64", "64 64 32 32"] }
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
// Batched products of bytes with a sign and sums of 32 bits on matrix units, one for each plane that residues_split.comp
// wrote: TILE_M x TILE_N sums per workgroup, OWN_M x OWN_N per subgroup of 32, 32 contracted elements per step. What is
// left of a sum when it is divided by the plane's modulus is stored as a byte, four columns to a word, in the order in
// which invocations hold sums: [plane][part][batch][16 rows][16 columns][invocation][half of the rows]. Sums of coarse
// values are stored as they are. Parameters: rows, columns, contracted k, batches, elements of k per part (a multiple of
// 32), parts, planes, the first of them, planes in all.
#include "params.glsl"
#include "residues_moduli.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)

layout(local_size_x = SUBGROUPS * 32) in;

// Whether the plane is that of coarse values. Else nothing is done if a word was raised.
layout(constant_id = 0) const uint COARSE = 0u;

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
uint slot_raised() { return 0u; }
void slot_store(const in uint at, const in uvec2 value) {}
void slot_store_sums(const in uint at, const in uvec4 value) {}

#define MatrixA coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA>
#define MatrixB coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB>
#define Sums coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// They count on 16 components per invocation, each the same element in all kernels: `Engine::multiplies_bytes`.
// Indices of components are constants before any loop is unrolled, as in matrix_fragments.glsl.
#define HOLD_FOUR(matrix, held, w) { \
    i8vec4 four = unpack8(int(held[w])); \
    matrix[4 * w] = four[0]; \
    matrix[4 * w + 1] = four[1]; \
    matrix[4 * w + 2] = four[2]; \
    matrix[4 * w + 3] = four[3]; \
}
#define HOLD(matrix, held) { HOLD_FOUR(matrix, held, 0) HOLD_FOUR(matrix, held, 1) HOLD_FOUR(matrix, held, 2) HOLD_FOUR(matrix, held, 3) }
// As in matrix_fragments.glsl.
#define FIRST(held) (held).xzyw

#include "residues_store.glsl"

void main() {
    if (COARSE == 0u && slot_raised() != 0u) return;
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint chunk = nx_param(4u), parts = nx_param(5u), planes = nx_param(6u), first_plane = nx_param(7u);
    uint tiles_m = (rows + TILE_M - 1u) / TILE_M, tiles_n = (columns + TILE_N - 1u) / TILE_N;
    uint job = nx_group();
    if (job >= tiles_m * tiles_n * batches * parts * planes) return;
    // Neighbouring workgroups share operands in the cache: groups of eight tile rows walk along the columns.
    uint rest = job / (tiles_m * tiles_n), tile = job - rest * (tiles_m * tiles_n);
    uint band = tile / (8u * tiles_n), band_rows = min(8u, tiles_m - band * 8u), in_band = tile - band * 8u * tiles_n;
    uint m0 = (band * 8u + in_band % band_rows) * TILE_M, n0 = in_band / band_rows * TILE_N;
    uint batch = rest % batches, part = rest / batches % parts, plane = first_plane + rest / batches / parts;

    uint blocks = (depth + 31u) / 32u, begin = part * (chunk / 32u), end = min(begin + chunk / 32u, blocks);
    uint sixteens_m = (rows + 15u) / 16u, sixteens_n = (columns + 15u) / 16u;
    // Rows and columns past the end repeat the last 16, and are not stored.
    uint own_m = (m0 + gl_SubgroupID / (TILE_N / OWN_N) * OWN_M) / 16u, own_n = (n0 + gl_SubgroupID % (TILE_N / OWN_N) * OWN_N) / 16u;
    uint a_at[FRAGMENTS_M], b_at[FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        a_at[i] = ((plane * batches + batch) * sixteens_m + min(own_m + i, sixteens_m - 1u)) * blocks * 32u + gl_SubgroupInvocationID;
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
        b_at[j] = ((plane * batches + batch) * sixteens_n + min(own_n + j, sixteens_n - 1u)) * blocks * 32u + gl_SubgroupInvocationID;

    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0);

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
// As in dot_fragments.comp.
#define STEP(of, a_fetched, b_fetched, a_held, b_held) { \
    uint next = min(block + (of) + 2u, last); \
    FETCH(a_fetched, b_fetched, next) \
    MULTIPLY(a_held, b_held) \
    if (block + (of) == last) break; \
}
    if (begin < end) {
        uvec4 a_0[FRAGMENTS_M], b_0[FRAGMENTS_N], a_1[FRAGMENTS_M], b_1[FRAGMENTS_N], a_2[FRAGMENTS_M], b_2[FRAGMENTS_N];
        uint last = end - 1u;
        FETCH(a_0, b_0, begin)
        FETCH(a_1, b_1, min(begin + 1u, last))
        [[dont_unroll]] for (uint block = begin;; block += 3u) {
            STEP(0u, a_2, b_2, a_0, b_0)
            STEP(1u, a_0, b_0, a_1, b_1)
            STEP(2u, a_1, b_1, a_2, b_2)
        }
    }

    uint to = ((plane - first_plane) * parts + part) * batches + batch;
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) {
            uint at = ((to * sixteens_m + own_m + i) * sixteens_n + own_n + j) * 32u + gl_SubgroupInvocationID;
            uvec4 halves[2];
            [[unroll]] for (uint c = 0u; c < 8u; ++c) halves[c / 4u][c % 4u] = uint(sums[i][j][c]);
            if (own_m + i < sixteens_m && own_n + j < sixteens_n) store_sums(at, plane, halves);
        }
}

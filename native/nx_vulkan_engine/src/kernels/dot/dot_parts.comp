//! variants = [{ name = "dot_matrix_64x64_3", defines = { TILE_M = "64", TILE_N = "64", OWN_M = "32", OWN_N = "32" } }]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
// Batched matrix product of f32 on matrix units: TILE_M x TILE_N results per workgroup, OWN_M x OWN_N per subgroup of
// 32, 16 contracted elements per step. Elements are the three bf16 numbers that split_parts.comp wrote, in the order in
// which invocations hold them, so that they go from memory to the units without shared memory and its barriers. Where
// an operand's elements have fewer parts, as bf16 and f16 have, there are fewer products. Where sums leave the range,
// though no product does, the subgroup computes its results anew from the elements, one multiplication after the other.
// float16_t stands for bf16, which the linker makes of it. Parameters: rows m, columns n, contracted k, batches,
// elements of k per split (a multiple of 16), splits, uvec4 between 16 rows and batches of A, and between 16 columns
// and batches of B.
#include "params.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)
// 16 rows and 32 columns of a subgroup's results on their way out, or the parts of 16 x 16 elements of both operands.
#define STRIP 9
#if 16 * STRIP < 192
#define ROOM 192
#else
#define ROOM (16 * STRIP)
#endif

layout(local_size_x = SUBGROUPS * 32) in;

// Whether four neighbouring results are stored at a time.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether what comes with a store is so much code that it stands once.
layout(constant_id = 5) const uint STORE_IN_LOOP = 0u;
// Parts of the elements of an operand that are no zeros, whatever they are.
layout(constant_id = 14) const uint A_PARTS = 3u;
layout(constant_id = 15) const uint B_PARTS = 3u;

#include "parts_products.glsl"

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}

shared uvec4 tiles[SUBGROUPS * ROOM];

#include "matrix_fragments.glsl"

#define R4 vec4
#include "dot_guard.glsl"
#include "dot_store.glsl"

// An element of the 16 x 16 whose parts lie in shared memory.
float element(const in uint from, const in uint line, const in uint k) {
    uint at = from + line * 2u + k / 8u, word = k / 2u % 4u, shift = (k & 1u) * 16u;
    uint high = tiles[at][word] >> shift & 0xffffu, middle = tiles[at + 32u][word] >> shift & 0xffffu;
    uint low = tiles[at + 64u][word] >> shift & 0xffffu;
    return ((uintBitsToFloat(high << 16) + uintBitsToFloat(middle << 16)) + uintBitsToFloat(low << 16)) * (1.0 / 65536.0);
}

void main() {
    if (!is_for_units()) return;
#include "dot_tile.glsl"
    uint blocks = (depth + 15u) / 16u;
    uint first = split * (chunk / 16u), end = min(first + chunk / 16u, blocks);

    // Rows and columns past the end repeat the last 16, and are not stored.
    uint own_m = gl_SubgroupID / (TILE_N / OWN_N) * OWN_M, own_n = gl_SubgroupID % (TILE_N / OWN_N) * OWN_N;
    uint a_at[FRAGMENTS_M], b_at[FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        a_at[i] = batch * nx_param(7u) + min((m0 + own_m) / 16u + i, (rows - 1u) / 16u) * nx_param(6u) + gl_SubgroupInvocationID;
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
        b_at[j] = batch * nx_param(9u) + min((n0 + own_n) / 16u + j, (columns - 1u) / 16u) * nx_param(8u) + gl_SubgroupInvocationID;

    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0.0);

    // The next step's parts are fetched while the current ones are multiplied. Two sets of registers take turns, since
    // copies would take time, and that the loop may end behind each step keeps compilers from moving loads further up.
#define FETCH(a, b, block) \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) \
        [[unroll]] for (uint part = 0u; part < 3u; ++part) \
            if (part < A_PARTS) a[3u * i + part] = slot_a_block(a_at[i] + (block) * 96u + part * 32u); \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) \
        [[unroll]] for (uint part = 0u; part < 3u; ++part) \
            if (part < B_PARTS) b[3u * j + part] = slot_b_block(b_at[j] + (block) * 96u + part * 32u);
#define MULTIPLY(a, b) { \
    MatrixA x[FRAGMENTS_M][3]; \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) \
        [[unroll]] for (uint part = 0u; part < 3u; ++part) { \
            uvec4 held = FIRST(a[3u * i + part]); \
            HOLD(x[i][part], held) \
        } \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) { \
        MatrixB y[3]; \
        [[unroll]] for (uint part = 0u; part < 3u; ++part) HOLD(y[part], b[3u * j + part]) \
        ADD_PRODUCTS(j) \
    } \
}
#define STEP(of, a_fetched, b_fetched, a_held, b_held) { \
    uint next = min(block + (of) + 1u, last); \
    FETCH(a_fetched, b_fetched, next) \
    MULTIPLY(a_held, b_held) \
    if (block + (of) == last) break; \
}

    uvec4 a_0[FRAGMENTS_M * 3], b_0[FRAGMENTS_N * 3], a_1[FRAGMENTS_M * 3], b_1[FRAGMENTS_N * 3];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M * 3; ++i) a_0[i] = a_1[i] = uvec4(0u);
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N * 3; ++j) b_0[j] = b_1[j] = uvec4(0u);
    if (first < end) {
        uint last = end - 1u;
        FETCH(a_0, b_0, first)
        [[dont_unroll]] for (uint block = first;; block += 2u) {
            STEP(0u, a_1, b_1, a_0, b_0)
            STEP(1u, a_0, b_0, a_1, b_1)
        }
    }

    float scale = SCALE_OF_SUMS;
    HAS_SPECIAL(special)
    if (subgroupAny(special >= 0x7f800000u)) {
        scale = 1.0;
        uint room = gl_SubgroupID * ROOM, line = gl_SubgroupInvocationID / 2u, from = gl_SubgroupInvocationID % 2u * 8u;
        [[dont_unroll]] for (uint fragment = 0u; fragment < FRAGMENTS_M * FRAGMENTS_N; ++fragment) {
            uint a_from = batch * nx_param(7u) + min((m0 + own_m) / 16u + fragment / FRAGMENTS_N, (rows - 1u) / 16u) * nx_param(6u);
            uint b_from = batch * nx_param(9u) + min((n0 + own_n) / 16u + fragment % FRAGMENTS_N, (columns - 1u) / 16u) * nx_param(8u);
            float exact[8];
            [[unroll]] for (uint c = 0u; c < 8u; ++c) exact[c] = 0.0;
            [[dont_unroll]] for (uint block = first; block < end; ++block) {
                subgroupBarrier();
                [[unroll]] for (uint part = 0u; part < 3u; ++part) {
                    uint at = block * 96u + part * 32u + gl_SubgroupInvocationID;
                    uvec4 held = FIRST(slot_a_block(a_from + at));
                    MatrixA x;
                    HOLD(x, held)
                    coopMatStore(x, tiles, room + part * 32u, 2, gl_CooperativeMatrixLayoutRowMajor);
                    held = slot_b_block(b_from + at);
                    MatrixB y;
                    HOLD(y, held)
                    coopMatStore(y, tiles, room + 96u + part * 32u, 2, gl_CooperativeMatrixLayoutColumnMajor);
                }
                subgroupBarrier();
                [[dont_unroll]] for (uint k = 0u; k < 16u; ++k) {
                    float factor = element(room, line, k);
                    [[unroll]] for (uint c = 0u; c < 8u; ++c) exact[c] = fma(factor, element(room + 96u, from + c, k), exact[c]);
                }
            }
            subgroupBarrier();
            PUT_SUMS(exact, room, line, from)
        }
    }

// With barriers of a subgroup, products of 4096 rows take a tenth longer on an H100.
#define WAIT() barrier()
#define RESULTS(value, m, n) value *= scale;
#include "matrix_results.glsl"
}

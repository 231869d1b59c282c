//! name = "dot_matrix_{TILE_M}x{TILE_N}_{PLANES}"
//! matrix."PLANES BLOCK TILE_M TILE_N OWN_M OWN_N" = [
//!   "1 64 64 64 32 32",
//!   "1 64 128 128 64 32",
//!   "2 32 64 64 32 32",
//!   "2 32 128 128 32 64",
//! ]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
// Batched matrix product of f16 numbers with f32 sums on matrix units: TILE_M x TILE_N results per workgroup, OWN_M x
// OWN_N per subgroup of 32, BLOCK contracted elements per step. Operands lie as rows of A and columns of B along k,
// eight f16 to a uvec4, or with one plane along m and n. PLANES == 2: rows are blocks of hi[BLOCK], lo[BLOCK]; an
// element is hi + lo / 2048 times the scale of its row or column. Matrix units cut off instead of rounding, so that
// sums are taken out of them at every step. Nothing is done where the split lost digits. Parameters: rows m, columns n,
// contracted k, batches, elements of k per split (a multiple of BLOCK), splits, uvec4 between rows (or contracted
// elements) and batches of A, and columns (or contracted elements) and batches of B.
#include "params.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define INVOCATIONS (SUBGROUPS * 32)
// uvec4 in a step of a row, which are one more in shared memory, so that rows begin in different banks.
#define WIDTH (PLANES * BLOCK / 8)
#define PITCH (WIDTH + 1)
// The same where operands lie along m or n.
#define ACROSS_A (TILE_M / 8)
#define ACROSS_B (TILE_N / 8)
#define LOADS_A (TILE_M * WIDTH / INVOCATIONS)
#define LOADS_B (TILE_N * WIDTH / INVOCATIONS)
#define STEPS (BLOCK / 16)
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)
// 16 rows and 32 columns of a subgroup's results on their way out.
#define STRIP 9
#define ROOM (16 * STRIP)
#if (TILE_M + TILE_N) * PITCH < SUBGROUPS * ROOM
#define SHARED (SUBGROUPS * ROOM)
#else
#define SHARED ((TILE_M + TILE_N) * PITCH)
#endif

layout(local_size_x = INVOCATIONS) in;

// Whether the contiguous axis of an operand is k.
layout(constant_id = 0) const uint A_ALONG_K = 1u;
layout(constant_id = 1) const uint B_ALONG_K = 1u;
// Whether four neighbouring results are stored at a time, and whether operands were scaled, and may have lost digits.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether what comes with a store is so much code that it stands once.
layout(constant_id = 5) const uint STORE_IN_LOOP = 0u;
layout(constant_id = 7) const uint SCALED = 1u;
// Whether the low parts of B come first. Where they do so if there are more columns than rows, and only then, a
// transposed product of transposed operands has the same bits.
layout(constant_id = 8) const uint LOW_B_FIRST = 0u;

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
float slot_a_scale(const in uint at) { return float(at); }
float slot_b_scale(const in uint at) { return float(at + 1u); }
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}

shared uvec4 tiles[SHARED];

#include "matrix_fragments.glsl"

#define R4 vec4
#include "dot_guard.glsl"
#include "dot_store.glsl"

void main() {
    if (SCALED != 0u && !is_for_units()) return;
#include "dot_tile.glsl"
    uint first = split * (chunk / BLOCK), end = min(first + chunk / BLOCK, (depth + BLOCK - 1u) / BLOCK);

    uint id = gl_LocalInvocationID.x;
    bool a_turned = PLANES == 1 && A_ALONG_K == 0u, b_turned = PLANES == 1 && B_ALONG_K == 0u;
    // What this invocation loads of a step: where in shared memory, in memory, and from which contracted element on.
    // Rows and columns past the end repeat the last ones, and are not stored.
    uint a_column = a_turned ? id % ACROSS_A : id % WIDTH, a_row = a_turned ? id / ACROSS_A : id / WIDTH;
    uint b_column = b_turned ? id % ACROSS_B : id % WIDTH, b_row = b_turned ? id / ACROSS_B : id / WIDTH;
    uint a_pitch = a_turned ? ACROSS_A + 1u : PITCH, b_pitch = b_turned ? ACROSS_B + 1u : PITCH;
    uint a_rows = a_turned ? INVOCATIONS / ACROSS_A : INVOCATIONS / WIDTH, b_rows = b_turned ? INVOCATIONS / ACROSS_B : INVOCATIONS / WIDTH;
    uint a_to = a_row * a_pitch + a_column, b_to = TILE_M * PITCH + b_row * b_pitch + b_column;
    uint a_step = a_turned ? BLOCK * nx_param(6u) : WIDTH, b_step = b_turned ? BLOCK * nx_param(8u) : WIDTH;
    uint a_at[LOADS_A], b_at[LOADS_B];
    [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) {
        uint row = a_row + i * a_rows;
        a_at[i] = batch * nx_param(7u) + (a_turned ? row * nx_param(6u) + min(m0 / 8u + a_column, rows / 8u - 1u)
                                                   : min(m0 + row, rows - 1u) * nx_param(6u) + a_column);
    }
    [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) {
        uint row = b_row + i * b_rows;
        b_at[i] = batch * nx_param(9u) + (b_turned ? row * nx_param(8u) + min(n0 / 8u + b_column, columns / 8u - 1u)
                                                   : min(n0 + row, columns - 1u) * nx_param(8u) + b_column);
    }
    uvec4 a_next[LOADS_A], b_next[LOADS_B];

// Fetches a step. Contracted elements past the end are zeros, which they are already where operands were written for
// this.
#define FETCH(block) \
    [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) { \
        uint k = block * BLOCK + (a_turned ? a_row + i * a_rows : a_column * 8u); \
        a_next[i] = PLANES == 2 || k < depth ? slot_a_block(a_at[i] + block * a_step) : uvec4(0u); \
    } \
    [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) { \
        uint k = block * BLOCK + (b_turned ? b_row + i * b_rows : b_column * 8u); \
        b_next[i] = PLANES == 2 || k < depth ? slot_b_block(b_at[i] + block * b_step) : uvec4(0u); \
    }

    if (first < end) {
        FETCH(first)
    }
    uint own_m = gl_SubgroupID / (TILE_N / OWN_N) * OWN_M, own_n = gl_SubgroupID % (TILE_N / OWN_N) * OWN_N;
    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0.0);

    for (uint block = first; block < end; ++block) {
        barrier();
        [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) tiles[a_to + i * a_rows * a_pitch] = a_next[i];
        [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) tiles[b_to + i * b_rows * b_pitch] = b_next[i];
        barrier();
        if (block + 1u < end) {
            FETCH((block + 1u))
        }
#if PLANES == 1
        [[unroll]] for (uint k = 0u; k < STEPS; ++k) {
            MatrixA x[FRAGMENTS_M];
            [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
                uint m = own_m + 16u * i;
                if (A_ALONG_K != 0u) {
                    coopMatLoad(x[i], tiles, m * PITCH + 2u * k, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                } else {
                    coopMatLoad(x[i], tiles, 16u * k * (ACROSS_A + 1) + m / 8u, ACROSS_A + 1, gl_CooperativeMatrixLayoutColumnMajor);
                }
            }
            [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) {
                MatrixB y;
                uint n = own_n + 16u * j, from = TILE_M * PITCH;
                if (B_ALONG_K != 0u) {
                    coopMatLoad(y, tiles, from + n * PITCH + 2u * k, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                } else {
                    coopMatLoad(y, tiles, from + 16u * k * (ACROSS_B + 1) + n / 8u, ACROSS_B + 1, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) sums[i][j] = coopMatMulAdd(x[i], y, sums[i][j]);
            }
        }
#else
        uint a_from = own_m * PITCH, b_from = (TILE_M + own_n) * PITCH;
        MatrixA x[FRAGMENTS_M][STEPS], x_low[FRAGMENTS_M][STEPS];
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
            [[unroll]] for (uint k = 0u; k < STEPS; ++k) {
                uint at = a_from + 16u * i * PITCH + 2u * k;
                coopMatLoad(x[i][k], tiles, at, PITCH, gl_CooperativeMatrixLayoutRowMajor);
                coopMatLoad(x_low[i][k], tiles, at + BLOCK / 8, PITCH, gl_CooperativeMatrixLayoutRowMajor);
            }
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) {
            MatrixB y[STEPS], y_low[STEPS];
            [[unroll]] for (uint k = 0u; k < STEPS; ++k) {
                uint at = b_from + 16u * j * PITCH + 2u * k;
                coopMatLoad(y[k], tiles, at, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
                coopMatLoad(y_low[k], tiles, at + BLOCK / 8, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            }
            [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
                Sums part = Sums(0.0);
                if (LOW_B_FIRST != 0u) {
                    [[unroll]] for (uint k = 0u; k < STEPS; ++k) part = coopMatMulAdd(x[i][k], y_low[k], part);
                    [[unroll]] for (uint k = 0u; k < STEPS; ++k) part = coopMatMulAdd(x_low[i][k], y[k], part);
                } else {
                    [[unroll]] for (uint k = 0u; k < STEPS; ++k) part = coopMatMulAdd(x_low[i][k], y[k], part);
                    [[unroll]] for (uint k = 0u; k < STEPS; ++k) part = coopMatMulAdd(x[i][k], y_low[k], part);
                }
                part = part * (1.0 / 2048.0);
                [[unroll]] for (uint k = 0u; k < STEPS; ++k) part = coopMatMulAdd(x[i][k], y[k], part);
                sums[i][j] = sums[i][j] + part;
            }
        }
#endif
    }

#define WAIT() barrier()
#define RESULTS(value, m, n) \
    if (SCALED != 0u) { \
        float scale = slot_a_scale(batch * rows + m); \
        [[unroll]] for (uint j = 0u; j < 4u; ++j) value[j] = value[j] * scale * slot_b_scale(batch * columns + min(n + j, columns - 1u)); \
    }
    barrier();
#include "matrix_results.glsl"
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Batched f32 matrix product for large operands: TILE_M x TILE_N results per workgroup (16,384 in all), 8 x 8 per invocation,
// operands loaded four at a time along their contiguous axis, the next tiles fetched into registers while the current ones are used.
// Needs sizes along contiguous axes that are multiples of 4.
// Parameters: rows m, columns n, contracted k, batches, elements of k per split (a multiple of DEPTH), splits.
#include "params.glsl"
layout(local_size_x = 256) in;

#define DEPTH 16u
#define STRIDE_A (TILE_M / 4u + 1u)
#define STRIDE_B (TILE_N / 4u + 1u)
// Invocations along the columns, and groups of four that each invocation loads.
#define ACROSS (TILE_N / 8u)
#define LOADS_A (TILE_M / 64u)
#define LOADS_B (TILE_N / 64u)

// Whether the contiguous axis of an operand is k.
layout(constant_id = 0) const uint A_ALONG_K = 1u;
layout(constant_id = 1) const uint B_ALONG_K = 0u;

// Four neighbours along the contiguous axis, the first at (m, k) or (k, n).
vec4 slot_a(const in uint batch, const in uint m, const in uint k) { return vec4(batch + m + k); }
vec4 slot_b(const in uint batch, const in uint k, const in uint n) { return vec4(batch + k + n); }
// Four neighbours of a row of the result; `at` counts groups of four.
void slot_store(const in uint at, const in vec4 value) {}

shared vec4 a_tile[DEPTH * STRIDE_A];
shared vec4 b_tile[DEPTH * STRIDE_B];

void put(const in bool is_a, const in uint k, const in uint x, const in float value) {
    if (is_a) a_tile[k * STRIDE_A + (x >> 2u)][x & 3u] = value; else b_tile[k * STRIDE_B + (x >> 2u)][x & 3u] = value;
}

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint chunk = nx_param(4u), splits = nx_param(5u);
    uint tiles_m = (rows + TILE_M - 1u) / TILE_M, tiles_n = (columns + TILE_N - 1u) / TILE_N;
    uint job = nx_group();
    if (job >= tiles_m * tiles_n * batches * splits) return;
    // Neighbouring workgroups share operands in the cache: groups of eight tile rows walk along the columns.
    uint plane = job / (tiles_m * tiles_n);
    uint tile = job - plane * (tiles_m * tiles_n);
    uint band = tile / (8u * tiles_n);
    uint band_rows = min(8u, tiles_m - band * 8u);
    uint in_band = tile - band * 8u * tiles_n;
    uint m0 = (band * 8u + in_band % band_rows) * TILE_M;
    uint n0 = in_band / band_rows * TILE_N;
    uint batch = plane % batches;
    uint split = plane / batches;
    uint begin = min(split * chunk, depth);
    uint end = min(begin + chunk, depth);

    uint id = gl_LocalInvocationID.x;
    uint tx = id % ACROSS, ty = id / ACROSS;
    vec4 sums[8][2];
    [[unroll]] for (uint i = 0u; i < 8u; ++i) { sums[i][0] = vec4(0.0); sums[i][1] = vec4(0.0); }

    // Groups of four along k: 4 of them x rows or columns; else rows or columns / 4 x 16 k.
    vec4 a_next[LOADS_A], b_next[LOADS_B];
    uint a_k[LOADS_A], a_m[LOADS_A], b_k[LOADS_B], b_n[LOADS_B];
    [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) {
        uint e = id + 256u * i;
        a_k[i] = A_ALONG_K != 0u ? e % 4u * 4u : e / (TILE_M / 4u);
        a_m[i] = A_ALONG_K != 0u ? e / 4u : e % (TILE_M / 4u) * 4u;
        a_next[i] = vec4(0.0);
        if (m0 + a_m[i] < rows && begin + a_k[i] < end) a_next[i] = slot_a(batch, m0 + a_m[i], begin + a_k[i]);
    }
    [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) {
        uint e = id + 256u * i;
        b_k[i] = B_ALONG_K != 0u ? e % 4u * 4u : e / (TILE_N / 4u);
        b_n[i] = B_ALONG_K != 0u ? e / 4u : e % (TILE_N / 4u) * 4u;
        b_next[i] = vec4(0.0);
        if (n0 + b_n[i] < columns && begin + b_k[i] < end) b_next[i] = slot_b(batch, begin + b_k[i], n0 + b_n[i]);
    }
    for (uint k0 = begin; k0 < end; k0 += DEPTH) {
        [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) {
            if (A_ALONG_K != 0u) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) put(true, a_k[i] + j, a_m[i], a_next[i][j]);
            } else {
                a_tile[a_k[i] * STRIDE_A + a_m[i] / 4u] = a_next[i];
            }
        }
        [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) {
            if (B_ALONG_K != 0u) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) put(false, b_k[i] + j, b_n[i], b_next[i][j]);
            } else {
                b_tile[b_k[i] * STRIDE_B + b_n[i] / 4u] = b_next[i];
            }
        }
        barrier();
        uint k1 = k0 + DEPTH;
        [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) {
            a_next[i] = vec4(0.0);
            if (m0 + a_m[i] < rows && k1 + a_k[i] < end) a_next[i] = slot_a(batch, m0 + a_m[i], k1 + a_k[i]);
        }
        [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) {
            b_next[i] = vec4(0.0);
            if (n0 + b_n[i] < columns && k1 + b_k[i] < end) b_next[i] = slot_b(batch, k1 + b_k[i], n0 + b_n[i]);
        }
        [[unroll]] for (uint k = 0u; k < DEPTH; ++k) {
            vec4 a0 = a_tile[k * STRIDE_A + ty], a1 = a_tile[k * STRIDE_A + TILE_M / 8u + ty];
            vec4 b0 = b_tile[k * STRIDE_B + tx], b1 = b_tile[k * STRIDE_B + TILE_N / 8u + tx];
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                sums[i][0] = fma(vec4(a0[i]), b0, sums[i][0]);
                sums[i][1] = fma(vec4(a0[i]), b1, sums[i][1]);
                sums[4u + i][0] = fma(vec4(a1[i]), b0, sums[4u + i][0]);
                sums[4u + i][1] = fma(vec4(a1[i]), b1, sums[4u + i][1]);
            }
        }
        barrier();
    }
    uint base = (split * batches + batch) * rows;
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint m = m0 + (i / 4u) * (TILE_M / 2u) + ty * 4u + i % 4u;
        [[unroll]] for (uint j = 0u; j < 2u; ++j) {
            uint n = n0 + j * (TILE_N / 2u) + tx * 4u;
            if (m < rows && n < columns) slot_store(((base + m) * columns + n) / 4u, sums[i][j]);
        }
    }
}

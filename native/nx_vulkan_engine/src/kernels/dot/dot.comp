//! name = "dot_{WORDS}"
//! matrix = { "WORDS TILE" = ["1 64u", "2 32u", "4 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Batched matrix product, TILE x TILE results per workgroup, each invocation a square of them. Values are WORDS 32-bit
// words; slots know their type. The contracted axis may be cut in splits, whose partial sums go to separate results.
// Parameters: rows m, columns n, contracted k, batches, elements of k per split, splits.
#include "params.glsl"
layout(local_size_x = 256) in;

#if WORDS == 1
#define T uint
#elif WORDS == 2
#define T uvec2
#else
#define T uvec4
#endif
#define DEPTH 16u
#define PER (TILE / 16u)

// Whether neighbouring invocations load neighbours along k.
layout(constant_id = 0) const uint A_ALONG_K = 1u;
layout(constant_id = 1) const uint B_ALONG_K = 0u;

T slot_a(const in uint batch, const in uint m, const in uint k) { return T(batch + m + k); }
T slot_b(const in uint batch, const in uint k, const in uint n) { return T(batch + k + n); }
T slot_multiply_add(const in T a, const in T b, const in T sum) { return a + b + sum; }
T slot_add(const in T a, const in T b) { return a + b; }
void slot_store(const in uint at, const in T value) {}

shared T a_tile[DEPTH][TILE + 1u];
shared T b_tile[DEPTH][TILE + 1u];

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint chunk = nx_param(4u), splits = nx_param(5u);
    uint tiles_m = (rows + TILE - 1u) / TILE, tiles_n = (columns + TILE - 1u) / TILE;
    uint job = nx_group();
    if (job >= tiles_m * tiles_n * batches * splits) return;
    uint n0 = job % tiles_n * TILE;
    job /= tiles_n;
    uint m0 = job % tiles_m * TILE;
    job /= tiles_m;
    uint batch = job % batches;
    uint split = job / batches;
    uint begin = min(split * chunk, depth);
    uint end = min(begin + chunk, depth);

    uint id = gl_LocalInvocationID.x;
    uint tx = id % 16u, ty = id / 16u;
    T sums[PER][PER];
    for (uint i = 0u; i < PER; ++i) for (uint j = 0u; j < PER; ++j) sums[i][j] = T(0u);

    for (uint k0 = begin; k0 < end; k0 += DEPTH) {
        for (uint e = id; e < TILE * DEPTH; e += 256u) {
            uint k = A_ALONG_K != 0u ? e % DEPTH : e / TILE;
            uint m = A_ALONG_K != 0u ? e / DEPTH : e % TILE;
            T value = T(0u);
            if (m0 + m < rows && k0 + k < end) value = slot_a(batch, m0 + m, k0 + k);
            a_tile[k][m] = value;
        }
        for (uint e = id; e < TILE * DEPTH; e += 256u) {
            uint k = B_ALONG_K != 0u ? e % DEPTH : e / TILE;
            uint n = B_ALONG_K != 0u ? e / DEPTH : e % TILE;
            T value = T(0u);
            if (n0 + n < columns && k0 + k < end) value = slot_b(batch, k0 + k, n0 + n);
            b_tile[k][n] = value;
        }
        barrier();
        uint last = min(DEPTH, end - k0);
        // Each tile on its own: long sums of short sums lose fewer digits.
        T part[PER][PER];
        for (uint i = 0u; i < PER; ++i) for (uint j = 0u; j < PER; ++j) part[i][j] = T(0u);
        for (uint k = 0u; k < last; ++k) {
            T a[PER], b[PER];
            for (uint i = 0u; i < PER; ++i) a[i] = a_tile[k][ty + 16u * i];
            for (uint j = 0u; j < PER; ++j) b[j] = b_tile[k][tx + 16u * j];
            for (uint i = 0u; i < PER; ++i) for (uint j = 0u; j < PER; ++j) part[i][j] = slot_multiply_add(a[i], b[j], part[i][j]);
        }
        for (uint i = 0u; i < PER; ++i) for (uint j = 0u; j < PER; ++j) sums[i][j] = slot_add(sums[i][j], part[i][j]);
        barrier();
    }
    for (uint i = 0u; i < PER; ++i) {
        for (uint j = 0u; j < PER; ++j) {
            uint m = m0 + ty + 16u * i, n = n0 + tx + 16u * j;
            if (m < rows && n < columns) slot_store(((split * batches + batch) * rows + m) * columns + n, sums[i][j]);
        }
    }
}

//! name = "dot_lanes_{tile}_{of}"
//! matrix = [
//!   { tile = ["32x4", "16x2", "8x2", "8x1"], of = ["f32"] },
//!   { tile = ["32x4", "16x2", "8x2"], of = ["f32_paired"] },
//!   { tile = ["16x2", "8x2", "8x1"], of = ["f64"] },
//!   { tile = ["8x2", "8x1"], of = ["1", "2", "4"] },
//! ]
//!
//! [choices.tile]
//! 32x4 = { ROWS = "32u", VECTORS = "4u", BLOCK = "4u" }
//! 16x2 = { ROWS = "16u", VECTORS = "2u" }
//! 8x2 = { ROWS = "8u", VECTORS = "2u" }
//! 8x1 = { ROWS = "8u", VECTORS = "1u" }
//!
//! [choices.of]
//! f32 = { REAL = "float" }
//! f32_paired = { REAL = "float", PAIRED = "1" }
//! f64 = { REAL = "double" }
//! 1 = { WORDS = "1" }
//! 2 = { WORDS = "2" }
//! 4 = { WORDS = "4" }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_ballot : require
#ifdef PAIRED
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
// Batched matrix product for devices whose lanes are those of a CPU's vectors: a workgroup is LANES invocations of one
// subgroup, which hold a tile of ROWS x (VECTORS * LANES) results in registers. A step of LANES contracted elements
// loads one of them per lane and row, and gives them to all lanes one after the other. No shared memory and no
// barriers, whose accesses would each be a branch per lane there. Values are REAL, or WORDS 32-bit words, of which
// slots know the type. PAIRED: each access takes two neighbours of an operand, which lie along the contracted axis or
// the other one, at even places. Parameters: rows m, columns n, contracted k, batches, elements of k per split, splits.
#include "params.glsl"

#define LANES 8u
#define TILE_M ROWS
#define TILE_N (VECTORS * LANES)
// Rows that are computed at once: their sums fit in the registers of a core.
#ifndef BLOCK
#define BLOCK 8u
#endif
layout(local_size_x = 8) in;

#ifdef REAL
#define T REAL
#elif WORDS == 1
#define T uint
#elif WORDS == 2
#define T uvec2
#else
#define T uvec4
#endif

// Positions of a row or column and of a contracted element; the element at their sum.
uint slot_a_free(const in uint batch, const in uint m) { return batch + m; }
uint slot_b_free(const in uint batch, const in uint n) { return batch - n; }
uint slot_a_depth(const in uint k) { return k; }
uint slot_b_depth(const in uint k) { return k + 1u; }
T slot_a(const in uint at) { return T(at); }
T slot_b(const in uint at) { return T(at + 1u); }
// Rows that are stored one after the other before others move up.
#ifdef PAIRED
#define STORED 4u
layout(constant_id = 0) const bool A_ALONG_K = true;
layout(constant_id = 1) const bool B_ALONG_K = true;
layout(constant_id = 4) const bool STORES_PAIRS = true;
vec2 slot_a_pair(const in uint at) { return vec2(at); }
vec2 slot_b_pair(const in uint at) { return vec2(at + 1u); }
void slot_store_pair(const in uint at, const in vec2 value) {}
#else
#define STORED 1u
#endif
// Contracted element i of a block's row r, for all lanes. A shuffle by lanes that compilers don't know is one
// instruction of lavapipe's, a broadcast two.
#ifdef PAIRED
#define A_OF(r, i) (A_ALONG_K ? subgroupShuffle(a[r / 2u][i % 2u], zero + r % 2u * (LANES / 2u) + i / 2u) : subgroupShuffle(a[r / 2u][r % 2u], zero + i))
#else
#define A_OF(r, i) subgroupBroadcast(a[r], i)
#endif
void slot_store(const in uint at, const in T value) {}
#ifdef REAL
#define MULTIPLY_ADD(a, b, sum) fma(a, b, sum)
#else
T slot_multiply_add(const in T a, const in T b, const in T sum) { return a + b + sum; }
#define MULTIPLY_ADD(a, b, sum) slot_multiply_add(a, b, sum)
#endif

// The column of a lane's vector v.
uint column(const in uint v, const in uint lane) {
#ifdef PAIRED
    if (!B_ALONG_K) return v / 2u * (2u * LANES) + 2u * lane + v % 2u;
#endif
    return v * LANES + lane;
}

void main() {
#include "dot_tile.glsl"
    uint begin = min(split * chunk, depth);
    uint end = min(begin + chunk, depth);
    uint lane = gl_SubgroupInvocationID;
#ifdef PAIRED
    uint zero = rows >> 31u;
#endif

    // Rows and columns past the end repeat the last ones, and are not stored.
    T sums[ROWS][VECTORS];
    uint b_at[VECTORS];
#ifdef PAIRED
    // Two rows each: half of the lanes has either, or each lane has both.
    uint a_at[ROWS / 2u];
    [[unroll]] for (uint r = 0u; r < ROWS; r += LANES) {
        uint row = min(m0 + r + lane, rows - 1u);
        uint at = slot_a_free(batch, A_ALONG_K ? row : row & ~1u);
        [[unroll]] for (uint i = 0u; i < LANES; i += 2u) {
            uint first = subgroupBroadcast(at, i), second = subgroupBroadcast(at, i + 1u);
            a_at[(r + i) / 2u] = A_ALONG_K && lane >= LANES / 2u ? second : first;
        }
    }
    [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
        uint last = B_ALONG_K ? columns - 1u : columns - 2u + v % 2u;
        b_at[v] = slot_b_free(batch, min(n0 + column(v, lane), last));
    }
#else
    uint a_at[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r += LANES) {
        uint at = slot_a_free(batch, min(m0 + r + lane, rows - 1u));
        [[unroll]] for (uint i = 0u; i < LANES; ++i) a_at[r + i] = subgroupBroadcast(at, i);
    }
    [[unroll]] for (uint v = 0u; v < VECTORS; ++v) b_at[v] = slot_b_free(batch, min(n0 + column(v, lane), columns - 1u));
#endif
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) [[unroll]] for (uint v = 0u; v < VECTORS; ++v) sums[r][v] = T(0);

    for (uint k = begin; k < end; k += LANES) {
        // Elements past the end are zeros in both operands: either may have infinities where they would be read.
        uint own = min(k + lane, end - 1u);
        // Loads stand before what takes them, as each is a branch per lane that divides the code around it.
        T b[LANES][VECTORS];
#ifdef PAIRED
        uint a_own = A_ALONG_K ? k + 2u * (lane % (LANES / 2u)) : k + lane;
        uint a_depth = slot_a_depth(min(a_own, A_ALONG_K ? end - 2u : end - 1u)), b_depth = slot_b_depth(own);
        if (B_ALONG_K) {
            [[unroll]] for (uint i = 0u; i < LANES; i += 2u) {
                uint at = subgroupBroadcast(b_depth, i);
                [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
                    vec2 pair = slot_b_pair(b_at[v] + at);
                    b[i][v] = k + i < end ? pair.x : 0.0;
                    b[i + 1u][v] = k + i < end ? pair.y : 0.0;
                }
            }
        } else {
            [[unroll]] for (uint i = 0u; i < LANES; ++i) {
                uint at = subgroupBroadcast(b_depth, i);
                [[unroll]] for (uint v = 0u; v < VECTORS; v += 2u) {
                    vec2 pair = slot_b_pair(b_at[v] + at);
                    b[i][v] = k + i < end ? pair.x : 0.0;
                    b[i][v + 1u] = k + i < end ? pair.y : 0.0;
                }
            }
        }
#else
        uint a_depth = slot_a_depth(own), b_depth = slot_b_depth(own);
        [[unroll]] for (uint i = 0u; i < LANES; ++i) {
            uint at = subgroupBroadcast(b_depth, i);
            [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
                T value = slot_b(b_at[v] + at);
                b[i][v] = k + i < end ? value : T(0);
            }
        }
#endif
        [[unroll]] for (uint first = 0u; first < ROWS; first += BLOCK) {
#ifdef PAIRED
            vec2 a[BLOCK / 2u];
            [[unroll]] for (uint r = 0u; r < BLOCK / 2u; ++r) {
                vec2 pair = slot_a_pair(a_at[first / 2u + r] + a_depth);
                a[r] = a_own < end ? pair : vec2(0.0);
            }
#else
            T a[BLOCK];
            [[unroll]] for (uint r = 0u; r < BLOCK; ++r) {
                T value = slot_a(a_at[first + r] + a_depth);
                a[r] = k + lane < end ? value : T(0);
            }
#endif
            [[unroll]] for (uint i = 0u; i < LANES; ++i) {
                [[unroll]] for (uint r = 0u; r < BLOCK; ++r) {
                    T one = A_OF(r, i);
                    [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
                        sums[first + r][v] = MULTIPLY_ADD(one, b[i][v], sums[first + r][v]);
                    }
                }
            }
        }
    }

    // The first rows of sums are stored and the others move up: registers have no index.
    uint base = ((split * batches + batch) * rows + m0) * columns;
    uint stored = min(ROWS, rows - m0);
    [[dont_unroll]] for (uint first = 0u; first < stored; first += STORED) {
        [[unroll]] for (uint q = 0u; q < STORED; ++q) {
            uint row = base + (first + q) * columns;
            bool exists = first + q < stored;
#ifdef PAIRED
            if (STORES_PAIRS && !B_ALONG_K) {
                [[unroll]] for (uint v = 0u; v < VECTORS; v += 2u) {
                    uint n = n0 + column(v, lane);
                    if (exists && n < columns) slot_store_pair(row + n, vec2(sums[q][v], sums[q][v + 1u]));
                }
            } else
#endif
            {
                [[unroll]] for (uint v = 0u; v < VECTORS; ++v) {
                    uint n = n0 + column(v, lane);
                    if (exists && n < columns) slot_store(row + n, sums[q][v]);
                }
            }
        }
        [[unroll]] for (uint q = STORED; q < ROWS; ++q) {
            [[unroll]] for (uint v = 0u; v < VECTORS; ++v) sums[q - STORED][v] = sums[q][v];
        }
    }
}

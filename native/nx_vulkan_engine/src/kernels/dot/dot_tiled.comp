//! name = "dot_tiled_{TILE_M}x{TILE_N}_{PER_M}x{PER_N}_{SLICES}x{DEPTH}{form}"
//! choices.form = { "" = {}, _steps = { STEPS = "1" }, _f64 = { DOUBLE = "1" } }
//!
//! [[matrix]]
//! form = ["", "_steps"]
//! "TILE_M TILE_N PER_M PER_N SLICES DEPTH" = [
//!   "256 128 16 8 1 8",
//!   "256 64 8 8 1 8",
//!   "128 128 8 8 1 16",
//!   "128 128 8 8 1 8",
//!   "128 64 8 8 1 16",
//!   "64 256 8 8 1 8",
//!   "64 128 8 8 1 16",
//!   "64 64 8 8 2 16",
//!   "64 64 8 8 1 16",
//!   "64 64 8 4 2 16",
//!   "64 64 8 4 1 16",
//!   "64 64 4 4 1 16",
//!   "64 32 8 4 4 8",
//!   "64 32 8 4 2 16",
//!   "64 32 8 4 1 16",
//!   "64 32 4 4 2 16",
//!   "64 32 4 4 1 16",
//!   "64 16 4 4 4 8",
//!   "32 64 8 4 4 8",
//!   "32 64 8 4 2 16",
//!   "32 64 8 4 1 16",
//!   "32 64 4 4 2 16",
//!   "32 64 4 4 1 16",
//!   "32 32 4 4 4 16",
//!   "32 32 4 4 4 8",
//!   "32 16 4 4 8 8",
//!   "16 64 4 4 4 8",
//!   "16 32 4 4 8 8",
//!   "16 16 4 4 16 4",
//! ]
//!
//! [[matrix]]
//! form = ["_f64"]
//! "TILE_M TILE_N PER_M PER_N SLICES DEPTH" = [
//!   "128 128 8 8 1 8",
//!   "128 64 8 4 1 8",
//!   "64 64 8 4 1 8",
//!   "64 64 4 4 1 16",
//!   "64 64 4 4 1 8",
//!   "32 32 4 4 4 8",
//! ]
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Batched matrix product of f32 or f64 sums: TILE_M x TILE_N results per workgroup, PER_M x PER_N (multiples of 4) per
// invocation. SLICES teams of invocations share out the contracted elements of each step, DEPTH apiece, and their sums
// are added in order at the end. The next step's operands are fetched into registers while the current ones are used,
// and then put into the other half of shared memory, with one barrier per step. Fetches stand before that barrier,
// behind which compilers would move them to where they are used. With STEPS, elements of operands may take steps on the
// way to shared memory: what is computed at once would wait for its fetch. It is a define since with a constant in its
// place, products without steps were slower on an H200. Parameters: rows m, columns n, contracted k, batches, elements
// of k per split (a multiple of BLOCK), splits.
#include "params.glsl"

#ifdef DOUBLE
#define R double
#define R4 dvec4
#else
#define R float
#define R4 vec4
#endif
#define ACROSS (TILE_N / PER_N)
#define DOWN (TILE_M / PER_M)
#define TEAM (ACROSS * DOWN)
#define INVOCATIONS (TEAM * SLICES)
#define BLOCK (DEPTH * SLICES)
// Groups of four: of a row of either tile, of each invocation, that each invocation loads.
#define WIDTH_A (TILE_M / 4)
#define WIDTH_B (TILE_N / 4)
#define GROUPS_M (PER_M / 4)
#define GROUPS_N (PER_N / 4)
#define TOTAL_A (BLOCK * WIDTH_A)
#define TOTAL_B (BLOCK * WIDTH_B)
#define LOADS_A ((TOTAL_A + INVOCATIONS - 1) / INVOCATIONS)
#define LOADS_B ((TOTAL_B + INVOCATIONS - 1) / INVOCATIONS)
// Groups of four along k that neighbours load where that is the contiguous axis.
#if BLOCK < 16
#define RUN (BLOCK / 4)
#else
#define RUN 4
#endif
#define STAGE (TOTAL_A + TOTAL_B)
#define RESULTS (TILE_M * WIDTH_B)
#if SLICES > 1 && SLICES * RESULTS > 2 * STAGE
#define SHARED (SLICES * RESULTS)
#else
#define SHARED (2 * STAGE)
#endif

layout(local_size_x = INVOCATIONS) in;

// Whether the contiguous axis of an operand is k, and whether it is loaded four elements at a time.
layout(constant_id = 0) const uint A_ALONG_K = 1u;
layout(constant_id = 1) const uint B_ALONG_K = 0u;
layout(constant_id = 2) const uint A_BY_FOUR = 1u;
layout(constant_id = 3) const uint B_BY_FOUR = 1u;
// Whether rows of results are stored four at a time.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether what comes with a store is so much code that it stands once.
layout(constant_id = 5) const uint STORE_IN_LOOP = 0u;
// Whether this only takes over where matrix units can't take the product.
layout(constant_id = 6) const uint GUARDED = 0u;
#ifdef STEPS
// Whether elements of an operand take steps before they are multiplied.
layout(constant_id = 9) const uint A_HAS_STEPS = 0u;
layout(constant_id = 10) const uint B_HAS_STEPS = 0u;
#endif

// Positions of a row or column and of a contracted element; the element at their sum, and four neighbours from it on.
uint slot_a_free(const in uint batch, const in uint m) { return batch + m; }
uint slot_b_free(const in uint batch, const in uint n) { return batch - n; }
uint slot_a_depth(const in uint k) { return k; }
uint slot_b_depth(const in uint k) { return k + 1u; }
R slot_a(const in uint at) { return R(at); }
R slot_b(const in uint at) { return R(at + 1u); }
R4 slot_a_four(const in uint at) { return R4(at); }
R4 slot_b_four(const in uint at) { return R4(at + 1u); }
#ifdef STEPS
// Four elements as they are multiplied.
R4 slot_a_steps(const in R4 fetched) { return fetched + R4(1.0); }
R4 slot_b_steps(const in R4 fetched) { return fetched + R4(2.0); }
#endif
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in R value) {}
void slot_store_four(const in uint at, const in R4 value) {}

shared R4 tiles[SHARED];

// Rows of a tile are turned by a number that differs between groups of four along k, so that neither what is put along
// k nor what is read along rows meets in one bank.
uint turned(const in uint k, const in uint group, const in uint width) { return group ^ (((k >> 2) & 3u) * 2u & (width - 1u)); }

#include "dot_guard.glsl"
#include "dot_store.glsl"

void main() {
    if (GUARDED != 0u && is_for_units()) return;
#include "dot_tile.glsl"
    uint begin = min(split * chunk, depth);
    uint end = min(begin + chunk, depth);

    uint id = gl_LocalInvocationID.x;
    uint slice = id / TEAM, member = id % TEAM;
#if ACROSS % 8 == 0 && DOWN % 4 == 0
    // 32 neighbours make a block of 4 x 8, 16 of them one of 2 x 8: so few different groups are read at once.
    uint lane = member % 32u, block = member / 32u;
    uint tx = block % (ACROSS / 8) * 8u + (lane >> 1 & 7u), ty = block / (ACROSS / 8) * 4u + (lane & 1u) + (lane >> 4) * 2u;
#else
    uint tx = member % ACROSS, ty = member / ACROSS;
#endif

    R4 sums[PER_M][GROUPS_N];
    [[unroll]] for (uint i = 0u; i < PER_M; ++i) [[unroll]] for (uint j = 0u; j < GROUPS_N; ++j) sums[i][j] = R4(0.0);

    // What this invocation loads: groups of four along k, RUN of them x rows or columns at a time; else rows or columns
    // / 4 x k. Of the number of a load, id + INVOCATIONS * i, either part is a multiple of what the other one is below,
    // as far as they share a tile. Rows and columns past the end repeat the last ones, and are not stored.
    R4 a_next[LOADS_A], b_next[LOADS_B];
    uint a_k[LOADS_A], a_x[LOADS_A], a_at[LOADS_A], a_to[LOADS_A], b_k[LOADS_B], b_x[LOADS_B], b_at[LOADS_B], b_to[LOADS_B];
    [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) {
        uint e = uint(INVOCATIONS) * i;
        a_k[i] = A_ALONG_K != 0u ? (id % RUN + id / (RUN * TILE_M) * RUN + e / (RUN * TILE_M) * RUN) * 4u : id / WIDTH_A + e / WIDTH_A;
        a_x[i] = A_ALONG_K != 0u ? id / RUN % TILE_M + e % (RUN * TILE_M) / RUN : (id % WIDTH_A + e % WIDTH_A) * 4u;
        a_to[i] = a_k[i] * WIDTH_A + turned(a_k[i], a_x[i] >> 2, WIDTH_A);
        uint last = A_ALONG_K == 0u && A_BY_FOUR != 0u ? rows - 4u : rows - 1u;
        a_at[i] = slot_a_free(batch, min(m0 + a_x[i], last));
    }
    [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) {
        uint e = uint(INVOCATIONS) * i;
        b_k[i] = B_ALONG_K != 0u ? (id % RUN + id / (RUN * TILE_N) * RUN + e / (RUN * TILE_N) * RUN) * 4u : id / WIDTH_B + e / WIDTH_B;
        b_x[i] = B_ALONG_K != 0u ? id / RUN % TILE_N + e % (RUN * TILE_N) / RUN : (id % WIDTH_B + e % WIDTH_B) * 4u;
        b_to[i] = uint(TOTAL_A) + b_k[i] * WIDTH_B + turned(b_k[i], b_x[i] >> 2, WIDTH_B);
        uint last = B_ALONG_K == 0u && B_BY_FOUR != 0u ? columns - 4u : columns - 1u;
        b_at[i] = slot_b_free(batch, min(n0 + b_x[i], last));
    }

// Fetches the step that begins at k1. Elements past the end are zeros.
#define FETCH(k1) \
    [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) { \
        uint k = k1 + a_k[i]; \
        a_next[i] = R4(0.0); \
        if (k < end && (TOTAL_A % INVOCATIONS == 0 || id + INVOCATIONS * i < TOTAL_A)) { \
            if (A_BY_FOUR != 0u) { \
                a_next[i] = slot_a_four(a_at[i] + slot_a_depth(k)); \
            } else if (A_ALONG_K != 0u) { \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) if (k + j < end) a_next[i][j] = slot_a(a_at[i] + slot_a_depth(k + j)); \
            } else { \
                uint at = slot_a_depth(k); \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) a_next[i][j] = slot_a(at + slot_a_free(batch, min(m0 + a_x[i] + j, rows - 1u))); \
            } \
        } \
    } \
    [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) { \
        uint k = k1 + b_k[i]; \
        b_next[i] = R4(0.0); \
        if (k < end && (TOTAL_B % INVOCATIONS == 0 || id + INVOCATIONS * i < TOTAL_B)) { \
            if (B_BY_FOUR != 0u) { \
                b_next[i] = slot_b_four(b_at[i] + slot_b_depth(k)); \
            } else if (B_ALONG_K != 0u) { \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) if (k + j < end) b_next[i][j] = slot_b(b_at[i] + slot_b_depth(k + j)); \
            } else { \
                uint at = slot_b_depth(k); \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) b_next[i][j] = slot_b(at + slot_b_free(batch, min(n0 + b_x[i] + j, columns - 1u))); \
            } \
        } \
    }

// Takes four elements through their steps, of which the first is contracted element k. Those past the end stay zeros.
#ifdef STEPS
#define TAKE_STEPS(wanted, fetched, steps, k, along_k) \
    if (wanted != 0u) { \
        fetched = steps(fetched); \
        [[unroll]] for (uint j = 0u; j < 4u; ++j) if ((k) + (along_k != 0u ? j : 0u) >= end) fetched[j] = R(0.0); \
    }
#else
#define TAKE_STEPS(wanted, fetched, steps, k, along_k)
#endif

// Puts what was fetched of the step that begins at k1 into the half of shared memory that begins at `half`. Groups
// along k are turned alike.
#define PUT(half, k1) \
    [[unroll]] for (uint i = 0u; i < LOADS_A; ++i) { \
        if (TOTAL_A % INVOCATIONS != 0 && id + INVOCATIONS * i >= TOTAL_A) break; \
        TAKE_STEPS(A_HAS_STEPS, a_next[i], slot_a_steps, k1 + a_k[i], A_ALONG_K) \
        if (A_ALONG_K != 0u) { \
            [[unroll]] for (uint j = 0u; j < 4u; ++j) tiles[half + a_to[i] + j * WIDTH_A][a_x[i] & 3u] = a_next[i][j]; \
        } else { \
            tiles[half + a_to[i]] = a_next[i]; \
        } \
    } \
    [[unroll]] for (uint i = 0u; i < LOADS_B; ++i) { \
        if (TOTAL_B % INVOCATIONS != 0 && id + INVOCATIONS * i >= TOTAL_B) break; \
        TAKE_STEPS(B_HAS_STEPS, b_next[i], slot_b_steps, k1 + b_k[i], B_ALONG_K) \
        if (B_ALONG_K != 0u) { \
            [[unroll]] for (uint j = 0u; j < 4u; ++j) tiles[half + b_to[i] + j * WIDTH_B][b_x[i] & 3u] = b_next[i][j]; \
        } else { \
            tiles[half + b_to[i]] = b_next[i]; \
        } \
    }

    FETCH(begin)
    uint current = 0u;
    for (uint k0 = begin; k0 < end; k0 += BLOCK) {
        PUT(current, k0)
        FETCH(k0 + BLOCK)
        barrier();
        uint a_row = current + slice * (DEPTH * WIDTH_A);
        uint b_row = current + TOTAL_A + slice * (DEPTH * WIDTH_B);
        [[unroll]] for (uint k = 0u; k < DEPTH; ++k) {
            R4 a[GROUPS_M], b[GROUPS_N];
            // Of the slices' first elements, only the lowest 16 turn rows.
            uint turning = DEPTH % 16 == 0 ? k : slice * DEPTH + k;
            [[unroll]] for (uint i = 0u; i < GROUPS_M; ++i) a[i] = tiles[a_row + k * WIDTH_A + turned(turning, i * DOWN + ty, WIDTH_A)];
            [[unroll]] for (uint j = 0u; j < GROUPS_N; ++j) b[j] = tiles[b_row + k * WIDTH_B + turned(turning, j * ACROSS + tx, WIDTH_B)];
            [[unroll]] for (uint i = 0u; i < PER_M; ++i)
                [[unroll]] for (uint j = 0u; j < GROUPS_N; ++j) sums[i][j] = fma(R4(a[i / 4u][i % 4u]), b[j], sums[i][j]);
        }
        current = uint(STAGE) - current;
    }
    uint base = (split * batches + batch) * rows;
#if SLICES > 1
    barrier();
    [[unroll]] for (uint i = 0u; i < PER_M; ++i) {
        uint m = (i / 4u * DOWN + ty) * 4u + i % 4u;
        [[unroll]] for (uint j = 0u; j < GROUPS_N; ++j) tiles[(slice * TILE_M + m) * WIDTH_B + j * ACROSS + tx] = sums[i][j];
    }
    barrier();
    for (uint e = id; e < RESULTS; e += INVOCATIONS) {
        R4 sum = tiles[e];
        [[unroll]] for (uint s = 1u; s < SLICES; ++s) sum += tiles[e + s * RESULTS];
        uint m = m0 + e / WIDTH_B, n = n0 + e % WIDTH_B * 4u;
        if (m < rows) store(base + m, n, columns, sum);
    }
#else
    if (STORE_IN_LOOP != 0u) {
        // The first of the sums is stored and the others move up: registers have no index.
        [[dont_unroll]] for (uint r = 0u; r < PER_M * GROUPS_N; ++r) {
            uint i = r / GROUPS_N, j = r % GROUPS_N;
            uint m = m0 + (i / 4u * DOWN + ty) * 4u + i % 4u;
            if (m < rows) store(base + m, n0 + (j * ACROSS + tx) * 4u, columns, sums[0][0]);
            [[unroll]] for (uint q = 1u; q < PER_M * GROUPS_N; ++q)
                sums[(q - 1u) / GROUPS_N][(q - 1u) % GROUPS_N] = sums[q / GROUPS_N][q % GROUPS_N];
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < PER_M; ++i) {
        uint m = m0 + (i / 4u * DOWN + ty) * 4u + i % 4u;
        [[unroll]] for (uint j = 0u; j < GROUPS_N; ++j) if (m < rows) store(base + m, n0 + (j * ACROSS + tx) * 4u, columns, sums[i][j]);
    }
#endif
}

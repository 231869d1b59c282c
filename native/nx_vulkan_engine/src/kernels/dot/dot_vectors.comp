//! name = "dot_vectors_{COUNT}_{LANES}x{TEAMS}{of}"
//! choices.of = { "" = {}, _pair = { PAIR = "1" } }
//! matrix = [
//!   { LANES = ["8"], TEAMS = ["32"], COUNT = ["1", "2", "4"], of = ["", "_pair"] },
//!   { LANES = ["8"], TEAMS = ["32"], COUNT = ["8"], of = [""] },
//!   { LANES = ["8"], TEAMS = ["128"], COUNT = ["1", "2", "4"], of = ["", "_pair"] },
//!   { LANES = ["4"], TEAMS = ["256"], COUNT = ["1", "2", "4"], of = ["", "_pair"] },
//! ]
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Batched product of a matrix and up to COUNT vectors, of f32 sums. A workgroup computes what 4 LANES rows of the
// matrix give. TEAMS teams of LANES invocations share out the contracted elements: an invocation takes four of them of
// four rows at a time, or twice four where elements are narrow, straight from memory, and the teams' sums are added up in
// pairs. Which elements a team takes depends on nothing but TEAMS and the type, so that no bits depend on how operands
// lie; of a matrix that is computed it may take four times four, as many as AT_ONCE says. Parameters: rows m, columns n,
// contracted k, batches, elements of k per split (a multiple of STEP), splits. Either the rows or the columns are the
// matrix's, the other ones are the vectors. With PAIR, two matrices that lie alike are multiplied, each as it is alone,
// and the results of both are stored together.
#include "params.glsl"

#define ROWS (4u * LANES)
#define STEP (4u * TEAMS)
#define INVOCATIONS (LANES * TEAMS)
// Vectors that are loaded at once, and whose sums are added up at once.
#if COUNT < 4
#define NEAR COUNT
#else
#define NEAR 4
#endif
#ifdef PAIR
#define ADDED 1
#define RESULTS (ROWS * 2)
#else
#if COUNT < 2
#define ADDED COUNT
#else
#define ADDED 2
#endif
#define RESULTS (ROWS * ADDED)
#endif

layout(local_size_x = LANES * TEAMS) in;

// Whether the contiguous axis of the matrix, and of the vectors, is k, and whether each is loaded four at a time.
layout(constant_id = 0) const uint MATRIX_ALONG_K = 1u;
layout(constant_id = 1) const uint VECTORS_ALONG_K = 1u;
layout(constant_id = 2) const uint MATRIX_BY_FOUR = 1u;
layout(constant_id = 3) const uint VECTORS_BY_FOUR = 1u;
// Whether the vectors are the rows of the product.
layout(constant_id = 13) const uint VECTORS_FIRST = 0u;
// Whether an invocation takes eight neighbours along k before those of the next step, and not four.
layout(constant_id = 17) const uint EIGHTS = 0u;
// Whether all that an invocation takes in a step lies before the end, if the first of it does: branches around loads
// would make it wait for each.
layout(constant_id = 18) const uint WHOLE = 0u;
// How many neighbours are computed at once: 16 or 8, or four.
layout(constant_id = 19) const uint AT_ONCE = 0u;
#define WITHIN(k) (WHOLE != 0u || (k) < end)

// Positions of a row or vector and of a contracted element, that of the matrix so many behind k; the element at both,
// and four neighbours from it on.
uint slot_matrix_free(const in uint batch, const in uint m) { return batch + m; }
uint slot_vectors_free(const in uint batch, const in uint n) { return batch - n; }
uint slot_matrix_depth(const in uint k, const in uint behind) { return k + behind; }
uint slot_vectors_depth(const in uint k) { return k + 1u; }
float slot_matrix(const in uint free, const in uint depth) { return float(free + depth); }
float slot_vectors(const in uint at) { return float(at + 1u); }
vec4 slot_matrix_four(const in uint free, const in uint depth, const in uint behind) {
    return vec4(free + depth - behind);
}
mat2x4 slot_matrix_eight(const in uint free, const in uint depth) { return mat2x4(float(free + depth)); }
mat4 slot_matrix_sixteen(const in uint free, const in uint depth) { return mat4(float(free + depth)); }
#ifdef PAIR
float slot_other(const in uint free, const in uint depth) { return float(free + depth + 2u); }
vec4 slot_other_four(const in uint free, const in uint depth, const in uint behind) {
    return vec4(free + depth + behind);
}
#endif
vec4 slot_vectors_four(const in uint at) { return vec4(at + 1u); }
#ifdef PAIR
void slot_store_pair(const in uint at, const in float value, const in float other) {}
#else
void slot_store(const in uint at, const in float value) {}
#endif

// The sums of a team lie turned by its number, so that those of all teams for one row are in different banks.
shared float partial[TEAMS * RESULTS];
uint place(const in uint team, const in uint result) { return team * RESULTS + (result + team) % RESULTS; }

void main() {
    uint depth = nx_param(2u), batches = nx_param(3u), chunk = nx_param(4u), splits = nx_param(5u);
    uint rows = VECTORS_FIRST != 0u ? nx_param(1u) : nx_param(0u), vectors = VECTORS_FIRST != 0u ? nx_param(0u) : nx_param(1u);
    uint tiles = (rows + ROWS - 1u) / ROWS;
    uint job = nx_group();
    if (job >= tiles * batches * splits) return;
    uint plane = job / tiles;
    uint first = (job - plane * tiles) * ROWS;
    uint batch = plane % batches;
    uint begin = min(plane / batches * chunk, depth);
    uint end = min(begin + chunk, depth);

    // Neighbours read neighbours of the matrix. Along k, they are eight teams: if more were, each would read its
    // elements of the vectors from other lines.
    uint id = gl_LocalInvocationID.x;
    uint team = MATRIX_ALONG_K != 0u ? id / (8u * LANES) * 8u + id % 8u : id / LANES;
    uint own = (MATRIX_ALONG_K != 0u ? id / 8u % LANES : id % LANES) * 4u;
    // Rows past the end repeat the last ones, and are not stored.
    uint at[4];
    uint last = MATRIX_ALONG_K == 0u && MATRIX_BY_FOUR != 0u ? rows - 4u : rows - 1u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) at[i] = slot_matrix_free(batch, min(first + own + i, last));

    float sums[4][COUNT];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) [[unroll]] for (uint n = 0u; n < COUNT; ++n) sums[i][n] = 0.0;
#ifdef PAIR
    float others[4][COUNT];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) [[unroll]] for (uint n = 0u; n < COUNT; ++n) others[i][n] = 0.0;
#endif

// Fetches four elements from `behind` those at k on, of four rows: a vector for each row, or where rows are neighbours
// for each element. Those past the end are zeros.
#define FETCH(fetched, k, behind, element_of, four_of) \
    vec4 fetched[4]; \
    [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
        fetched[i] = vec4(0.0); \
        if (MATRIX_ALONG_K != 0u) { \
            if (MATRIX_BY_FOUR != 0u) { \
                if (WITHIN(k + behind)) fetched[i] = four_of(at[i], slot_matrix_depth(k, behind), behind); \
            } else { \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) \
                    if (WITHIN(k + behind + j)) fetched[i][j] = element_of(at[i], slot_matrix_depth(k + behind + j, 0u)); \
            } \
        } else if (WITHIN(k + behind + i)) { \
            uint element = slot_matrix_depth(k + behind + i, 0u); \
            if (MATRIX_BY_FOUR != 0u) { \
                fetched[i] = four_of(at[0], element, 0u); \
            } else { \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) fetched[i][j] = element_of(at[j], element); \
            } \
        } \
    }

// Multiplies them with those of the vectors.
#define ADD(sums, fetched, k) \
    [[unroll]] for (uint n = 0u; n < COUNT; n += NEAR) { \
        vec4 factors[NEAR]; \
        [[unroll]] for (uint v = 0u; v < NEAR; ++v) factors[v] = vec4(0.0); \
        if (VECTORS_BY_FOUR != 0u && VECTORS_ALONG_K != 0u) { \
            [[unroll]] for (uint v = 0u; v < NEAR; ++v) \
                if (WITHIN(k)) factors[v] = slot_vectors_four(slot_vectors_free(batch, min(n + v, vectors - 1u)) + slot_vectors_depth(k)); \
        } else if (VECTORS_BY_FOUR != 0u) { \
            [[unroll]] for (uint j = 0u; j < 4u; ++j) { \
                if (WITHIN(k + j)) { \
                    vec4 four = slot_vectors_four(slot_vectors_free(batch, min(n, vectors - 4u)) + slot_vectors_depth(k + j)); \
                    [[unroll]] for (uint v = 0u; v < NEAR; ++v) factors[v][j] = four[v]; \
                } \
            } \
        } else { \
            [[unroll]] for (uint v = 0u; v < NEAR; ++v) \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) \
                    if (WITHIN(k + j)) factors[v][j] = slot_vectors(slot_vectors_free(batch, min(n + v, vectors - 1u)) + slot_vectors_depth(k + j)); \
        } \
        [[unroll]] for (uint j = 0u; j < 4u; ++j) \
            [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
                float element = MATRIX_ALONG_K != 0u ? fetched[i][j] : fetched[j][i]; \
                [[unroll]] for (uint v = 0u; v < NEAR; ++v) sums[i][n + v] = fma(element, factors[v][j], sums[i][n + v]); \
            } \
    }

// Computes so many fours of four rows at once, and multiplies them.
#define COMPUTE(fours_of, slot, fours) \
    fours_of all[4]; \
    [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
        all[i] = fours_of(0.0); \
        if (WITHIN(k)) all[i] = slot(at[i], slot_matrix_depth(k, 0u)); \
    } \
    [[unroll]] for (uint four = 0u; four < fours; ++four) { \
        vec4 fetched[4]; \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) fetched[i] = all[i][four]; \
        ADD(sums, fetched, k + 4u * four) \
    }

    // Two fours at once, or one of both matrices, so that enough of them is on its way.
    const uint together = AT_ONCE > 8u ? AT_ONCE : EIGHTS != 0u ? 8u : 4u;
#ifdef PAIR
    for (uint k = begin + team * together; k < end; k += together * TEAMS) {
        FETCH(one, k, 0u, slot_matrix, slot_matrix_four)
        FETCH(other, k, 0u, slot_other, slot_other_four)
        ADD(sums, one, k)
        ADD(others, other, k)
        if (EIGHTS != 0u) {
            FETCH(next, k, 4u, slot_matrix, slot_matrix_four)
            FETCH(next_other, k, 4u, slot_other, slot_other_four)
            ADD(sums, next, k + 4u)
            ADD(others, next_other, k + 4u)
        }
    }
#else
    for (uint k = begin + team * together; k < end; k += max(together, 8u) * TEAMS) {
        if (AT_ONCE == 16u) {
            COMPUTE(mat4, slot_matrix_sixteen, 4u)
            continue;
        }
        if (AT_ONCE == 8u) {
            COMPUTE(mat2x4, slot_matrix_eight, 2u)
            continue;
        }
        uint second = EIGHTS != 0u ? k : k + STEP;
        const uint behind = EIGHTS != 0u ? 4u : 0u;
        FETCH(one, k, 0u, slot_matrix, slot_matrix_four)
        FETCH(other, second, behind, slot_matrix, slot_matrix_four)
        ADD(sums, one, k)
        ADD(sums, other, second + behind)
    }
#endif

    uint base = (plane / batches * batches + batch) * (VECTORS_FIRST != 0u ? vectors : rows);
    [[unroll]] for (uint n = 0u; n < COUNT; n += ADDED) {
        [[unroll]] for (uint v = 0u; v < ADDED; ++v)
            [[unroll]] for (uint i = 0u; i < 4u; ++i) partial[place(team, v * ROWS + own + i)] = sums[i][n + v];
#ifdef PAIR
        [[unroll]] for (uint i = 0u; i < 4u; ++i) partial[place(team, ROWS + own + i)] = others[i][n];
#endif
        barrier();
        for (uint half_of = TEAMS / 2u; half_of > 0u; half_of /= 2u) {
            for (uint e = id; e < half_of * RESULTS; e += INVOCATIONS) {
                uint to = e / RESULTS, result = e % RESULTS;
                partial[place(to, result)] += partial[place(to + half_of, result)];
            }
            barrier();
        }
        uint row = first + id % ROWS, vector = n + id / ROWS;
        if (id < ROWS * ADDED && row < rows && vector < vectors) {
            uint to = VECTORS_FIRST != 0u ? (base + vector) * rows + row : (base + row) * vectors + vector;
#ifdef PAIR
            slot_store_pair(to, partial[place(0u, id)], partial[place(0u, ROWS + id)]);
#else
            slot_store(to, partial[place(0u, id)]);
#endif
        }
        if (n + ADDED < COUNT) barrier();
    }
}

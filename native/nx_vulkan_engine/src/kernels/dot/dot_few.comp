//! variants = [{ name = "dot_few", defines = { TEAMS = "8" } }]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
// Batched product of a matrix and few vectors of f16 or bf16 with f32 sums on matrix units, which takes as long as it
// takes to read the matrix. A workgroup computes what 64 rows of the matrix give with eight or 16 vectors: TEAMS
// subgroups of 32 share out the contracted elements, each with all rows, and their sums are added up in order at the
// end. Elements go from memory to the units as in dot_own.comp, and invocations hold matrices as told there: invocation
// 4 g + t has of row (or vector) g, and of row g + 8, eight neighbours from 8 t on of 32 along k, four for each of two
// matrices. Which rows make up a matrix is free. Along k they are neighbours; where rows lie together, an invocation
// loads eight of them at each of its eight elements along k, which it turns, and has two of these in each of four
// matrices. So no bits depend on how operands lie. float16_t stands for bf16, too, which the linker makes of it.
// Parameters: rows m, columns n, contracted k, batches, elements of k per split (a multiple of 64), splits. Either the
// rows or the columns are the matrix's, the other ones are the vectors.
#include "params.glsl"

#define ROWS 64u
#define INVOCATIONS (TEAMS * 32)
// Floats from one row of 16 sums to the next on their way out, and those of two matrices of them.
#define PITCH 20
#define ROOM (32 * PITCH)

layout(local_size_x = INVOCATIONS) in;

// Whether neighbours of the matrix lie along k, and not along its rows. Those of vectors always do.
layout(constant_id = 0) const uint MATRIX_ALONG_K = 1u;
// Whether four neighbouring results are stored at a time.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether the vectors are the rows of the product.
layout(constant_id = 13) const uint VECTORS_FIRST = 0u;
// Whether operands end within 64 contracted elements, behind which zeros are to be.
layout(constant_id = 16) const uint ENDS_EARLY = 0u;
// The vectors of a workgroup: eight, or 16.
layout(constant_id = 17) const uint VECTORS = 16u;

// Positions of a row or vector and of a contracted element; eight neighbours, `at` counts groups of eight.
uint slot_matrix_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_matrix_depth(const in uint k) { return k; }
uint slot_vectors_free(const in uint batch, const in uint vector) { return batch + vector + 1u; }
uint slot_vectors_depth(const in uint k) { return k + 1u; }
uvec4 slot_matrix_block(const in uint at) { return uvec4(at); }
uvec4 slot_vectors_block(const in uint at) { return uvec4(at + 1u); }
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}

// Of each team the sums of two matrices.
shared float parts[TEAMS * ROOM];

#include "matrix_fragments.glsl"
#include "own_half.glsl"

#define R4 vec4
#include "dot_store.glsl"

// The first or the second element of two pairs.
uint turned(const in uint one, const in uint other, const in uint which) {
    return which == 0u ? (one & 0xffffu) | other << 16 : one >> 16 | (other & 0xffff0000u);
}

void main() {
    uint depth = nx_param(2u), batches = nx_param(3u), chunk = nx_param(4u), splits = nx_param(5u);
    uint rows = VECTORS_FIRST != 0u ? nx_param(1u) : nx_param(0u);
    uint vectors = VECTORS_FIRST != 0u ? nx_param(0u) : nx_param(1u);
    uint tiles_m = (rows + ROWS - 1u) / ROWS, tiles_n = (vectors + VECTORS - 1u) / VECTORS;
    uint job = nx_group();
    if (job >= tiles_m * tiles_n * batches * splits) return;
    uint plane = job / (tiles_m * tiles_n), tile = job - plane * (tiles_m * tiles_n);
    uint m0 = tile / tiles_n * ROWS, n0 = tile % tiles_n * VECTORS;
    uint batch = plane % batches, split = plane / batches;
    uint id = gl_LocalInvocationID.x, g = gl_SubgroupInvocationID / 4u, t = gl_SubgroupInvocationID % 4u;

    // Rows past the end repeat the last ones, and are not stored.
    uint at[8], vector_at[2];
    if (MATRIX_ALONG_K != 0u) {
        [[unroll]] for (uint r = 0u; r < 8u; ++r) at[r] = slot_matrix_free(batch, min(m0 + 8u * r + g, rows - 1u)) / 8u;
    } else {
        at[0] = slot_matrix_free(batch, min(m0 + 8u * g, rows - 8u)) / 8u;
    }
    [[unroll]] for (uint v = 0u; v < 2u; ++v)
        vector_at[v] = slot_vectors_free(batch, min(n0 + 8u * v + g, vectors - 1u)) / 8u;

    Sums sums[4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) sums[i] = Sums(0.0);

// Eights of the matrix and of vectors g and g + 8 of 32 elements along k. What lies past the end is zeros, also where a
// row goes on there.
#define FETCH(a, b, slice) { \
    uint k = (slice) * 32u + t * 8u; \
    uint eighth = ENDS_EARLY != 0u ? min(k, (depth - 1u) / 8u * 8u) : k; \
    if (MATRIX_ALONG_K != 0u) { \
        uint line = slot_matrix_depth(eighth) / 8u; \
        [[unroll]] for (uint r = 0u; r < 8u; ++r) a[r] = slot_matrix_block(line + at[r]); \
    } else { \
        [[unroll]] for (uint r = 0u; r < 8u; ++r) { \
            uint element = ENDS_EARLY != 0u ? min(k + r, depth - 1u) : k + r; \
            a[r] = slot_matrix_block(slot_matrix_depth(element) / 8u + at[0]); \
        } \
    } \
    uint vector_line = slot_vectors_depth(eighth) / 8u; \
    b[0] = slot_vectors_block(vector_line + vector_at[0]); \
    b[1] = VECTORS > 8u ? slot_vectors_block(vector_line + vector_at[1]) : uvec4(0u); \
    if (ENDS_EARLY != 0u) { \
        [[unroll]] for (uint r = 0u; r < 8u; ++r) \
            if (k + (MATRIX_ALONG_K != 0u ? 0u : r) >= depth) a[r] = uvec4(0u); \
        if (k >= depth) { \
            b[0] = uvec4(0u); \
            b[1] = uvec4(0u); \
        } \
    } \
}
// Elements k and k + 1 of row r, of eights of rows.
#define TURNED(a, r, k) turned(a[k][(r) / 2u], a[(k) + 1u][(r) / 2u], (r) % 2u)
#define TURNED_ROW(a, r, k) uvec2(TURNED(a, r, k), TURNED(a, r, (k) + 2u))
#define MULTIPLY(a, b) \
    [[unroll]] for (uint k = 0u; k < 2u; ++k) { \
        uvec4 of_vectors = HALF(b[0], b[1], k); \
        MatrixB y; \
        HOLD(y, of_vectors) \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) { \
            uvec4 held; \
            if (MATRIX_ALONG_K != 0u) { \
                held = HALF(a[2u * i], a[2u * i + 1u], k); \
            } else { \
                held = uvec4(TURNED_ROW(a, 2u * i, 4u * k), TURNED_ROW(a, 2u * i + 1u, 4u * k)); \
            } \
            MatrixA x; \
            HOLD(x, held) \
            sums[i] = coopMatMulAdd(x, y, sums[i]); \
        } \
    }

    uint first = split * (chunk / 32u), end = min(first + chunk / 32u, (depth + 31u) / 32u);
    // Other subgroups stand in for those that wait.
    [[dont_unroll]] for (uint slice = first + gl_SubgroupID; slice < end; slice += TEAMS) {
        uvec4 a[8], b[2];
        FETCH(a, b, slice)
        MULTIPLY(a, b)
    }

    // Two matrices of sums at a time: 32 rows.
    uint base = (split * batches + batch) * (VECTORS_FIRST != 0u ? vectors : rows);
    [[dont_unroll]] for (uint round = 0u; round < 2u; ++round) {
        if (round > 0u) barrier();
        uint room = gl_SubgroupID * ROOM;
        coopMatStore(sums[0], parts, room, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        coopMatStore(sums[1], parts, room + 16u * PITCH, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        // The others move up: matrices have no index.
        sums[0] = sums[2];
        sums[1] = sums[3];
        barrier();
        if (id < 128u) {
            // Four neighbours of the results: of a vector, where vectors are rows of the product, else of a row.
            uint row = VECTORS_FIRST != 0u ? id % 8u * 4u : id / 4u;
            uint vector = VECTORS_FIRST != 0u ? id / 8u : id % 4u * 4u;
            uint places[4];
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                uint m = VECTORS_FIRST != 0u ? row + j : row, n = VECTORS_FIRST != 0u ? vector : vector + j;
                // Of rows that lie together, four neighbours are in rows g and g + 8 of two matrices.
                uint line = MATRIX_ALONG_K != 0u ? m : m % 4u / 2u * 16u + m % 2u * 8u + m / 4u;
                places[j] = line * PITCH + n;
            }
            vec4 value = vec4(parts[places[0]], parts[places[1]], parts[places[2]], parts[places[3]]);
            [[unroll]] for (uint team = 1u; team < TEAMS; ++team)
                [[unroll]] for (uint j = 0u; j < 4u; ++j) value[j] += parts[team * ROOM + places[j]];
            row = m0 + (MATRIX_ALONG_K != 0u ? 32u * round + row : row / 4u * 8u + 4u * round + row % 4u);
            vector += n0;
            if (VECTORS_FIRST != 0u) {
                if (vector < vectors && vector < n0 + VECTORS) store(base + vector, row, rows, value);
            } else if (row < rows) {
                if (vector < n0 + VECTORS) store(base + row, vector, vectors, value);
            }
        }
    }
}

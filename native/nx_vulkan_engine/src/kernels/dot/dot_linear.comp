//! name = "dot_linear_{TEAMS}"
//! matrix.TEAMS = ["8", "16"]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// Product of few vectors of f16 or bf16 with a matrix that lies nowhere: numbers of few bits, times a scale and plus an
// offset that 32 contracted elements share. Matrix units multiply the numbers, which 16 bits hold, and the sums of 32
// products are scaled in f32, in place of elements. What the offset adds is it times the sum of the vector's elements,
// which units add up as well, by a matrix of ones. A workgroup computes what 16 rows of the matrix give with eight or 16
// vectors: TEAMS subgroups of 32 share out the contracted elements, 128 at a time, and their sums are added up in order
// at the end. Invocations hold matrices as dot_own.comp tells: invocation 4 g + t has of row (or vector) g, and of row
// g + 8, eight neighbours from 8 t on of 32 along k, in pairs of which a word holds what is sooner found so: four words,
// two for each of two matrices. The factors of the four times 32 elements are found by one invocation each. float16_t
// stands for bf16, too, which the linker makes of it.
// A sum that is no finite number is computed again element by element: a number 0 times an infinite element is none,
// where the element of the matrix may be another one.
// Parameters: rows m, columns n, contracted k (a multiple of 32), batches, elements of k per split (a multiple of 128),
// splits. Either the rows or the columns are the matrix's, the other ones are the vectors.
#include "params.glsl"

#define ROWS 16u
#define STEP 128u
#define INVOCATIONS (TEAMS * 32)

layout(local_size_x = INVOCATIONS) in;

// Whether numbers are bf16.
layout(constant_id = 12) const uint TO_BF16 = 0u;
// Whether the vectors are the rows of the product.
layout(constant_id = 13) const uint VECTORS_FIRST = 0u;
// Whether the contracted elements end within a subgroup's 128, of which those behind are zeros.
layout(constant_id = 16) const uint ENDS_EARLY = 1u;
// The vectors of a workgroup: eight, or 16.
layout(constant_id = 17) const uint VECTORS = 16u;
// Whether there are offsets.
layout(constant_id = 20) const uint HAS_OFFSET = 1u;
// Whether numbers come as floats, and not as words of pairs.
layout(constant_id = 21) const uint AS_FLOATS = 0u;
// Whether pairs are of numbers two apart, those of the first four before those of the others, and not four apart.
layout(constant_id = 22) const uint OF_FOURS = 0u;

// Positions of a row or vector and of a contracted element; eight numbers from there on; scale and offset; an element.
uint slot_matrix_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_matrix_depth(const in uint k) { return k; }
uint slot_vectors_free(const in uint batch, const in uint vector) { return batch + vector + 1u; }
uint slot_vectors_depth(const in uint k) { return k + 1u; }
uvec4 slot_matrix_pairs(const in uint free, const in uint depth) { return uvec4(free + depth); }
mat2x4 slot_matrix_numbers(const in uint free, const in uint depth) { return mat2x4(float(free + depth)); }
vec2 slot_matrix_factors(const in uint free, const in uint depth) { return vec2(free + depth); }
float slot_matrix(const in uint free, const in uint depth) { return float(free + depth); }
// Eight neighbours; `at` counts groups of eight.
uvec4 slot_vectors_block(const in uint at) { return uvec4(at + 1u); }
void slot_store(const in uint at, const in float value) {}

// The sums of each team.
shared float parts[TEAMS * 16 * 16];

#include "matrix_fragments.glsl"
#include "own_half.glsl"

// One of two numbers of 16 bits as a float.
float number_of(const in uint pair, const in uint which) {
    if (TO_BF16 != 0u) return uintBitsToFloat(which == 0u ? pair << 16 : pair & 0xffff0000u);
    return unpackFloat2x16(pair)[which];
}

// Two numbers, which 16 bits hold, as a word.
uint pair_of(const in float one, const in float other) {
    if (TO_BF16 == 0u) return packFloat2x16(f16vec2(one, other));
    return floatBitsToUint(one) >> 16 | (floatBitsToUint(other) & 0xffff0000u);
}

uvec4 numbers_of(const in uint free, const in uint depth) {
    if (AS_FLOATS == 0u) return slot_matrix_pairs(free, depth);
    mat2x4 numbers = slot_matrix_numbers(free, depth);
    uvec4 pairs;
    [[unroll]] for (uint j = 0u; j < 4u; ++j) pairs[j] = pair_of(numbers[0][j], numbers[1][j]);
    return pairs;
}

// Eight neighbours in pairs as those of numbers are.
uvec4 paired(const in uvec4 eight) {
    if (OF_FOURS != 0u)
        return uvec4((eight.x & 0xffffu) | eight.y << 16, eight.x >> 16 | (eight.y & 0xffff0000u),
                     (eight.z & 0xffffu) | eight.w << 16, eight.z >> 16 | (eight.w & 0xffff0000u));
    return uvec4((eight.x & 0xffffu) | eight.z << 16, eight.x >> 16 | (eight.z & 0xffff0000u),
                 (eight.y & 0xffffu) | eight.w << 16, eight.y >> 16 | (eight.w & 0xffff0000u));
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
    uint id = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, g = lane / 4u, t = lane % 4u;
    uint begin = min(split * chunk, depth), end = min(begin + chunk, depth);

    // Rows past the end repeat the last one, and are not stored.
    uint at[2], vector_at[2];
    [[unroll]] for (uint r = 0u; r < 2u; ++r) {
        at[r] = slot_matrix_free(batch, min(m0 + 8u * r + g, rows - 1u));
        vector_at[r] = slot_vectors_free(batch, min(n0 + 8u * r + g, vectors - 1u)) / 8u;
    }
    MatrixA ones;
    uvec4 all_ones = uvec4(TO_BF16 != 0u ? 0x3f803f80u : 0x3c003c00u);
    HOLD(ones, all_ones)

    // Of row g and of row g + 8: vectors 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
    float sums[8];
    [[unroll]] for (uint c = 0u; c < 8u; ++c) sums[c] = 0.0;
    [[dont_unroll]] for (uint k = begin + gl_SubgroupID * STEP; k < end; k += TEAMS * STEP) {
        // Past the end the last 32 elements are found again, and multiplied with zeros.
#define BEFORE_END(from) (ENDS_EARLY != 0u ? min(from, end - 32u) : from)
        vec2 factors[2];
        uint own = slot_matrix_depth(BEFORE_END(k + 32u * t));
        [[unroll]] for (uint r = 0u; r < 2u; ++r) factors[r] = slot_matrix_factors(at[r], own);
        uvec4 a[8], b[8];
        [[unroll]] for (uint s = 0u; s < 4u; ++s) {
            uint eight = BEFORE_END(k + 32u * s) + 8u * t;
            [[unroll]] for (uint r = 0u; r < 2u; ++r) a[2u * s + r] = numbers_of(at[r], slot_matrix_depth(eight));
            uint line = slot_vectors_depth(eight) / 8u;
            b[2u * s] = slot_vectors_block(line + vector_at[0]);
            b[2u * s + 1u] = VECTORS > 8u ? slot_vectors_block(line + vector_at[1]) : uvec4(0u);
        }
        [[unroll]] for (uint s = 0u; s < 4u; ++s) {
            uvec4 one = paired(b[2u * s]), other = paired(b[2u * s + 1u]);
            if (ENDS_EARLY != 0u) {
                // A choice by a branch would make the loads wait for each other.
                uint inside = 0u - uint(k + 32u * s < end);
                one &= uvec4(inside);
                other &= uvec4(inside);
            }
            Sums products = Sums(0.0), totals = Sums(0.0);
            [[unroll]] for (uint h = 0u; h < 2u; ++h) {
                MatrixA x;
                MatrixB y;
                uvec4 of_matrix = HALF(a[2u * s], a[2u * s + 1u], h);
                uvec4 of_vectors = HALF(one, other, h);
                HOLD(x, of_matrix)
                HOLD(y, of_vectors)
                products = coopMatMulAdd(x, y, products);
                if (HAS_OFFSET != 0u) totals = coopMatMulAdd(ones, y, totals);
            }
            [[unroll]] for (uint r = 0u; r < 2u; ++r) {
                vec2 shared_by = subgroupShuffle(factors[r], 4u * g + s);
                [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                    if (c < 2u || VECTORS > 8u) {
                        uint place = 4u * r + c;
                        sums[place] = fma(shared_by.x, products[place], sums[place]);
                        if (HAS_OFFSET != 0u) sums[place] = fma(shared_by.y, totals[place], sums[place]);
                    }
                }
            }
        }
    }

    [[unroll]] for (uint c = 0u; c < 8u; ++c) {
        uint row = g + c / 4u * 8u, vector = c / 2u % 2u * 8u + 2u * t + c % 2u;
        if (vector < VECTORS) parts[(gl_SubgroupID * 16u + row) * 16u + vector] = sums[c];
    }
    barrier();
    uint base = (split * batches + batch) * (VECTORS_FIRST != 0u ? vectors : rows);
    [[dont_unroll]] for (uint e = id; e < ROWS * VECTORS; e += INVOCATIONS) {
        // Neighbours of the results.
        uint row = VECTORS_FIRST != 0u ? e % ROWS : e / VECTORS, vector = VECTORS_FIRST != 0u ? e / ROWS : e % VECTORS;
        if (m0 + row >= rows || n0 + vector >= vectors) continue;
        float sum = 0.0;
        [[unroll]] for (uint team = 0u; team < TEAMS; ++team) sum += parts[(team * 16u + row) * 16u + vector];
        if ((floatBitsToUint(sum) & 0x7f800000u) == 0x7f800000u) {
            sum = 0.0;
            uint free = slot_matrix_free(batch, m0 + row), vector_free = slot_vectors_free(batch, n0 + vector) / 8u;
            [[dont_unroll]] for (uint k = begin; k < end; ++k) {
                uvec4 eight = slot_vectors_block(slot_vectors_depth(k / 8u * 8u) / 8u + vector_free);
                sum = fma(slot_matrix(free, slot_matrix_depth(k)), number_of(eight[k % 8u / 2u], k % 2u), sum);
            }
        }
        uint to = VECTORS_FIRST != 0u ? (base + n0 + vector) * rows + m0 + row : (base + m0 + row) * vectors + n0 + vector;
        slot_store(to, sum);
    }
}

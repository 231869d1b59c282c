//! name = "attention_own_{SLICES}x{GROUPS}"
//! matrix."SLICES GROUPS BLOCK" = ["2 1 2", "3 2 1", "4 2 1"]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
// Attention of f16 or bf16 on matrix units: softmax(steps(Q K^T)) V, without scores in memory. Each subgroup has
// FRAGMENTS times 16 rows of queries, goes over the keys in blocks of 32 or 16, and holds the sums of values that
// belong to the largest score so far: where a larger one comes, they are made smaller. Subgroups wait for each other
// only where they share out keys. Invocations hold matrices as those of dot_own.comp do: invocation 4 g + t has of row
// (or column) g, and then of row g + 8, elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9 along the contracted axis. So what
// holds scores holds a factor of the second product. Its columns are free: here column c of matrix j is element 8 c + j
// of 64 elements of a value, so that an invocation loads eight neighbours of a value, and stores eight of a result.
// float16_t stands for bf16, too, which the linker makes of it. Parameters: batches, rows, keys, elements of a query,
// elements of a value, uvec4 from one row of Q, K, V and of results to the next.
#include "params.glsl"

#define SUBGROUPS 4
#define FRAGMENTS 2
#define OWN_ROWS (16 * FRAGMENTS)
#define KEYS (16u * BLOCK)

layout(local_size_x = SUBGROUPS * 32) in;

// Whether results and weights are bf16.
layout(constant_id = 0) const uint TO_BF16 = 0u;
// Whether keys come in whole blocks, and elements of queries and values in whole slices.
layout(constant_id = 1) const uint WHOLE_KEYS = 0u;
layout(constant_id = 2) const uint WHOLE_DEPTH = 0u;
layout(constant_id = 3) const uint WHOLE_WIDTH = 0u;
// Whether keys behind the row of a query have no weight, where a score of the row is above LOW.
layout(constant_id = 4) const uint CAUSAL = 0u;
// The bits of what makes a score of a product, in powers of 2; 0 where slot_score does.
layout(constant_id = 5) const uint FACTOR = 0u;
// Whether the subgroups of a workgroup share out the keys of the same rows, and not rows.
layout(constant_id = 6) const uint SHARE_KEYS = 0u;
// Where all scores of a row are below this, keys that are masked may have weights.
layout(constant_id = 7) const float LOW = -60000.0;
// Whether some weights are dropped, and what the others are multiplied with.
layout(constant_id = 8) const uint DROPS = 0u;
layout(constant_id = 9) const float KEPT_SCALE = 1.0;
const uint ROWS = SHARE_KEYS != 0u ? OWN_ROWS : SUBGROUPS * OWN_ROWS;

// Where a batch begins, in uvec4.
uint slot_q_batch(const in uint batch) { return batch; }
uint slot_k_batch(const in uint batch) { return batch + 1u; }
uint slot_v_batch(const in uint batch) { return batch + 2u; }
uint slot_out_batch(const in uint batch) { return batch + 3u; }
uvec4 slot_q(const in uint at) { return uvec4(at); }
uvec4 slot_k(const in uint at) { return uvec4(at + 1u); }
uvec4 slot_v(const in uint at) { return uvec4(at + 2u); }
// The score of a product.
float slot_score(const in uint batch, const in uint row, const in uint key, const in float product) { return product + float(batch + row * key); }
// Whether a weight is kept.
uint slot_kept(const in uint batch, const in uint row, const in uint key) { return batch + row * key; }
// Eight neighbours of a result; `at` counts groups of eight.
void slot_store(const in uint at, const in uvec4 value) {}

#include "../dot/matrix_fragments.glsl"

// What half of the subgroups hand over to the others: components of results, and of each row the largest score and the
// sum.
#define COMPONENTS (FRAGMENTS * 4 * GROUPS * 8)
#define HANDED (COMPONENTS + 4 * FRAGMENTS)
shared float handed[SHARE_KEYS != 0u ? SUBGROUPS / 2 * HANDED * 32 : 1];

// Below all scores: one that is -Inf has no weight.
const float LEAST = -3.4028234663852886e38;
const float LOG2_E = 1.44269504088896340736;

#include "../dot/own_numbers.glsl"

// Two weights, which lie from 0 to 1: ties may go away from 0, and what becomes of a NaN is told by the sum of weights.
uint weights(const in vec2 x) {
    if (TO_BF16 == 0u) return packFloat2x16(f16vec2(x));
    uvec2 bits = floatBitsToUint(x) + 0x8000u;
    return bits.x >> 16 | (bits.y & 0xffff0000u);
}

// The same words as a factor of the second product takes them: the lower or upper halves of two words.
uint lower(const in uint a, const in uint b) { return (a & 0xffffu) | b << 16; }
uint upper(const in uint a, const in uint b) { return a >> 16 | (b & 0xffff0000u); }

#define QUAD(value, combine) \
    value = combine(value, subgroupShuffleXor(value, 1u)); \
    value = combine(value, subgroupShuffleXor(value, 2u));
#define SUM(a, b) (a + b)

void main() {
    uint batches = nx_param(0u), rows = nx_param(1u), keys = nx_param(2u), depth = nx_param(3u), width = nx_param(4u);
    uint q_step = nx_param(5u), k_step = nx_param(6u), v_step = nx_param(7u);
    uint tiles = (rows + ROWS - 1u) / ROWS, job = nx_group();
    if (job >= tiles * batches) return;
    // Those with the most keys first.
    uint batch = job % batches, m0 = (tiles - 1u - job / batches) * ROWS;
    if (SHARE_KEYS == 0u) m0 += gl_SubgroupID * OWN_ROWS;
    if (m0 >= rows) return;
    uint g = gl_SubgroupInvocationID / 4u, t = gl_SubgroupInvocationID % 4u;

    MatrixA queries[FRAGMENTS][2 * SLICES];
    uint q_at = slot_q_batch(batch) + t, k_at = slot_k_batch(batch) + t, v_at = slot_v_batch(batch) + g;
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) {
        uint low_at = q_at + min(m0 + 16u * i + g, rows - 1u) * q_step, high_at = q_at + min(m0 + 16u * i + 8u + g, rows - 1u) * q_step;
        [[unroll]] for (uint slice = 0u; slice < SLICES; ++slice) {
            uvec4 low = uvec4(0u), high = uvec4(0u);
            if (WHOLE_DEPTH != 0u || slice * 32u + t * 8u < depth) {
                low = slot_q(low_at + 4u * slice);
                high = slot_q(high_at + 4u * slice);
            }
            [[unroll]] for (uint k = 0u; k < 2u; ++k) {
                uvec4 held = HALF(low, high, k);
                HOLD(queries[i][2u * slice + k], held)
            }
        }
    }

    Sums results[FRAGMENTS][4 * GROUPS];
    // Of rows g and g + 8 of each fragment: the largest score, and the sum of this invocation's weights.
    float largest[2 * FRAGMENTS], total[2 * FRAGMENTS];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i)
        [[unroll]] for (uint j = 0u; j < 4u * GROUPS; ++j) results[i][j] = Sums(0.0);
    [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) {
        largest[r] = FACTOR != 0u ? 0.25 * LEAST : LEAST;
        total[r] = 0.0;
    }

#define MULTIPLY(scores) { \
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) { \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) scores[i][j] = Sums(0.0); \
        [[unroll]] for (uint slice = 0u; slice < SLICES; ++slice) { \
            [[unroll]] for (uint k = 0u; k < 2u; ++k) { \
                uvec4 held = HALF(k_held[2u * j][slice], k_held[2u * j + 1u][slice], k); \
                MatrixB y; \
                HOLD(y, held) \
                [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) \
                    scores[i][j] = coopMatMulAdd(queries[i][2u * slice + k], y, scores[i][j]); \
            } \
        } \
    } \
}
#define SOFTMAX(scores, n0) { \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) { \
        float of_row[2]; \
        [[unroll]] for (uint r = 0u; r < 2u; ++r) of_row[r] = largest[2u * i + r]; \
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) { \
            [[unroll]] for (uint e = 0u; e < 8u; ++e) { \
                uint r = e / 4u, row = m0 + 16u * i + 8u * r + g, key = n0 + 16u * j + e / 2u % 2u * 8u + 2u * t + e % 2u; \
                float score = scores[i][j][e]; \
                if (FACTOR == 0u) { \
                    score = slot_score(batch, min(row, rows - 1u), WHOLE_KEYS == 0u ? min(key, keys - 1u) : key, score); \
                } else if (CAUSAL != 0u) { \
                    score = key > row ? -1.0 / 0.0 : score; \
                } \
                if (WHOLE_KEYS == 0u) score = key >= keys ? -1.0 / 0.0 : score; \
                scores[i][j][e] = score; \
                of_row[r] = max(of_row[r], score); \
            } \
        } \
        float smaller[2]; \
        precise float most[2]; \
        [[unroll]] for (uint r = 0u; r < 2u; ++r) { \
            QUAD(of_row[r], max) \
            most[r] = of_row[r] * factor; \
            /* Exactly 1 where no larger one came: errors would grow with the keys. */ \
            precise float before = largest[2u * i + r] * factor; \
            precise float step_down = before - most[r]; \
            smaller[r] = exp2(FACTOR != 0u ? step_down : (largest[2u * i + r] - of_row[r]) * LOG2_E); \
            largest[2u * i + r] = of_row[r]; \
            total[2u * i + r] *= smaller[r]; \
        } \
        [[unroll]] for (uint j = 0u; j < BLOCK; ++j) { \
            uvec4 held; \
            [[unroll]] for (uint p = 0u; p < 4u; ++p) { \
                vec2 pair = vec2(scores[i][j][2u * p], scores[i][j][2u * p + 1u]); \
                pair = FACTOR != 0u ? exp2(fma(pair, vec2(factor), vec2(-most[p / 2u]))) : exp2((pair - of_row[p / 2u]) * LOG2_E); \
                total[2u * i + p / 2u] += pair.x + pair.y; \
                if (DROPS != 0u) { \
                    uint row = min(m0 + 16u * i + p / 2u * 8u + g, rows - 1u), key = n0 + 16u * j + p % 2u * 8u + 2u * t; \
                    [[unroll]] for (uint k = 0u; k < 2u; ++k) \
                        if (slot_kept(batch, row, WHOLE_KEYS == 0u ? min(key + k, keys - 1u) : key + k) == 0u) pair[k] = 0.0; \
                } \
                held[p] = weights(pair); \
            } \
            HOLD(factors[i][j], held) \
        } \
        [[unroll]] for (uint j = 0u; j < 4u * GROUPS; ++j) \
            [[unroll]] for (uint e = 0u; e < 8u; ++e) results[i][j][e] *= smaller[e / 4u]; \
    } \
}
#define ADD() { \
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) { \
        [[unroll]] for (uint c = 0u; c < GROUPS; ++c) { \
            [[unroll]] for (uint w = 0u; w < 4u; ++w) { \
                uvec4 held = uvec4(lower(v_held[j][c][0][w], v_held[j][c][1][w]), lower(v_held[j][c][2][w], v_held[j][c][3][w]), \
                                   upper(v_held[j][c][0][w], v_held[j][c][1][w]), upper(v_held[j][c][2][w], v_held[j][c][3][w])); \
                MatrixB y; \
                HOLD(y, held) \
                [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) \
                    results[i][4u * c + w] = coopMatMulAdd(factors[i][j], y, results[i][4u * c + w]); \
            } \
        } \
    } \
}
#define FETCH_KEYS(n) { \
    [[unroll]] for (uint j = 0u; j < 2u * BLOCK; ++j) { \
        uint key = min((n) + 8u * j + g, keys - 1u); \
        [[unroll]] for (uint slice = 0u; slice < SLICES; ++slice) { \
            k_held[j][slice] = uvec4(0u); \
            if (WHOLE_DEPTH != 0u || slice * 32u + t * 8u < depth) k_held[j][slice] = slot_k(k_at + key * k_step + 4u * slice); \
        } \
    } \
}
#define FETCH_VALUES(n) { \
    [[unroll]] for (uint j = 0u; j < BLOCK; ++j) { \
        [[unroll]] for (uint r = 0u; r < 4u; ++r) { \
            uint key = (n) + 16u * j + r / 2u * 8u + 2u * t + r % 2u; \
            uint at = v_at + (WHOLE_KEYS != 0u ? key : min(key, keys - 1u)) * v_step; \
            [[unroll]] for (uint c = 0u; c < GROUPS; ++c) { \
                uvec4 value = uvec4(0u); \
                if (WHOLE_WIDTH != 0u || 64u * c + 8u * g < width) value = slot_v(at + 8u * c); \
                if (WHOLE_KEYS == 0u) value &= uvec4(key < keys ? ~0u : 0u); \
                v_held[j][c][r] = value; \
            } \
        } \
    } \
}

    float factor = FACTOR != 0u ? uintBitsToFloat(FACTOR) : 1.0;
    uint end = CAUSAL != 0u ? min(keys, m0 + OWN_ROWS) : keys;
    uvec4 k_held[2 * BLOCK][SLICES];
    uvec4 v_held[BLOCK][GROUPS][4];
    MatrixA factors[FRAGMENTS][BLOCK];
    uint first = SHARE_KEYS != 0u ? gl_SubgroupID * KEYS : 0u, step = SHARE_KEYS != 0u ? SUBGROUPS * KEYS : KEYS;
    FETCH_KEYS(first)
#define BLOCKS(end) \
    [[dont_unroll]] for (; n < end; n += step) { \
        Sums scores[FRAGMENTS][BLOCK]; \
        FETCH_VALUES(n) \
        MULTIPLY(scores) \
        FETCH_KEYS(n + step) \
        SOFTMAX(scores, n) \
        ADD() \
    }
    uint n = first;
    BLOCKS(end)
    if (CAUSAL != 0u && FACTOR == 0u) {
        // Rows that are masked wholly have weights everywhere.
        if (SHARE_KEYS != 0u) {
            [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r)
                handed[(gl_SubgroupID * 2u * FRAGMENTS + r) * 32u + gl_SubgroupInvocationID] = largest[r];
            barrier();
        }
        bool low = false;
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) {
            float most = largest[r];
            if (SHARE_KEYS != 0u) {
                [[unroll]] for (uint s = 0u; s < SUBGROUPS; ++s)
                    most = max(most, handed[(s * 2u * FRAGMENTS + r) * 32u + gl_SubgroupInvocationID]);
            }
            low = low || most < LOW;
        }
        uint rest = subgroupAny(low) ? keys : end;
        BLOCKS(rest)
    }

    if (SHARE_KEYS != 0u) {
        [[unroll]] for (uint others = SUBGROUPS / 2u; others > 0u; others /= 2u) {
            uint at = (gl_SubgroupID % others) * HANDED * 32u + gl_SubgroupInvocationID;
            barrier();
            if (gl_SubgroupID >= others && gl_SubgroupID < 2u * others) {
                [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i)
                    [[unroll]] for (uint j = 0u; j < 4u * GROUPS; ++j)
                        [[unroll]] for (uint e = 0u; e < 8u; ++e)
                            handed[at + ((i * 4u * GROUPS + j) * 8u + e) * 32u] = results[i][j][e];
                [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) {
                    handed[at + (COMPONENTS + r) * 32u] = largest[r];
                    handed[at + (COMPONENTS + 2u * FRAGMENTS + r) * 32u] = total[r];
                }
            }
            barrier();
            // The others take nothing of it: what they have is not used anymore.
            float own[2 * FRAGMENTS], other[2 * FRAGMENTS];
            [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) {
                float before = largest[r], theirs = handed[at + (COMPONENTS + r) * 32u];
                largest[r] = max(before, theirs);
                float unit = FACTOR != 0u ? factor : LOG2_E;
                own[r] = exp2((before - largest[r]) * unit);
                other[r] = exp2((theirs - largest[r]) * unit);
                total[r] = total[r] * own[r] + handed[at + (COMPONENTS + 2u * FRAGMENTS + r) * 32u] * other[r];
            }
            [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i)
                [[unroll]] for (uint j = 0u; j < 4u * GROUPS; ++j)
                    [[unroll]] for (uint e = 0u; e < 8u; ++e)
                        results[i][j][e] = results[i][j][e] * own[2u * i + e / 4u]
                                         + handed[at + ((i * 4u * GROUPS + j) * 8u + e) * 32u] * other[2u * i + e / 4u];
        }
        if (gl_SubgroupID != 0u) return;
    }

    uint out_at = slot_out_batch(batch);
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) {
        [[unroll]] for (uint r = 0u; r < 2u; ++r) {
            uint row = m0 + 16u * i + 8u * r + g;
            float all = total[2u * i + r];
            QUAD(all, SUM)
            if (DROPS != 0u) all /= KEPT_SCALE;
            [[unroll]] for (uint c = 0u; c < GROUPS; ++c) {
                [[unroll]] for (uint half_ = 0u; half_ < 2u; ++half_) {
                    uvec4 eight;
                    [[unroll]] for (uint w = 0u; w < 4u; ++w)
                        eight[w] = rounded(vec2(results[i][4u * c + w][4u * r + half_], results[i][4u * c + w][4u * r + 2u + half_]) / all);
                    uint at = 64u * c + 16u * t + 8u * half_;
                    if (row < rows && (WHOLE_WIDTH != 0u || at < width)) slot_store(out_at + row * nx_param(8u) + at / 8u, eight);
                }
            }
        }
    }
}

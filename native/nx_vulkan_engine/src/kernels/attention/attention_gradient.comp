//! name = "attention_gradient_{SLICES}x{GROUPS}"
//! matrix."SLICES GROUPS FRAGMENTS" = ["2 1 2", "3 2 1", "4 2 1"]
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
// Gradients of attention of f16 or bf16 by queries, keys or values, on matrix units, without weights in memory. Of each
// row of queries there are its largest score, the inverse of its sum of exponentials, and the mean of the gradients of
// its weights by these; the kernel of gradients by queries finds them in a first pass over the keys and stores them for
// the others. Then weights are computed again, block by block: exponentials times that inverse. The gradient of a score
// is its weight times what the gradient of that is above the mean. by     rows      others    scores      gradients of
// weights   result query  queries   keys      Q K^T       G V^T                  gradients of scores times K key
// keys      queries   K Q^T       V G^T                  the same transposed times Q value  keys      queries   K Q^T
// weights transposed times G A subgroup has FRAGMENTS times 16 rows, and goes over the others by 16. Who holds what of
// a matrix is as in attention_own.comp. float16_t stands for bf16, too, which the linker makes of it. Parameters:
// batches, queries, keys, elements of a query, elements of a value, uvec4 from one row of X, Y, U, W and of results to
// the next.
#include "params.glsl"

#define SUBGROUPS 4
#define OWN_ROWS (16 * FRAGMENTS)
#define OTHERS 16u

layout(local_size_x = SUBGROUPS * 32) in;

// Whether numbers are bf16.
layout(constant_id = 0) const uint TO_BF16 = 0u;
// Whether the others come in whole blocks, and elements of queries and values in whole slices.
layout(constant_id = 1) const uint WHOLE_OTHERS = 0u;
layout(constant_id = 2) const uint WHOLE_DEPTH = 0u;
layout(constant_id = 3) const uint WHOLE_WIDTH = 0u;
// Whether keys behind the row of a query have no weight, where a score of the row is above LOW.
layout(constant_id = 4) const uint CAUSAL = 0u;
// The bits of what makes a score of a product, in powers of 2; 0 where slot_score does.
layout(constant_id = 5) const uint FACTOR = 0u;
// What the gradient is by.
layout(constant_id = 6) const uint BY = 0u;
// What the gradient of a score is multiplied with to be that of its product.
layout(constant_id = 7) const float SCALE = 1.0;
// Where all scores of a row are below this, keys that are masked may have weights.
layout(constant_id = 8) const float LOW = -60000.0;
// Whether some weights are dropped, and what the others are multiplied with.
layout(constant_id = 9) const uint DROPS = 0u;
layout(constant_id = 10) const float KEPT_SCALE = 1.0;
const uint ROWS = SUBGROUPS * OWN_ROWS;
const uint QUERY = 0u, VALUE = 2u;

// Where a batch begins, in uvec4: of rows and others whose products are scores, of those whose products are gradients
// of weights, of the numbers of rows, and of results.
uint slot_x_batch(const in uint batch) { return batch; }
uint slot_y_batch(const in uint batch) { return batch + 1u; }
uint slot_u_batch(const in uint batch) { return batch + 2u; }
uint slot_w_batch(const in uint batch) { return batch + 3u; }
uint slot_out_batch(const in uint batch) { return batch + 4u; }
uvec4 slot_x(const in uint at) { return uvec4(at); }
uvec4 slot_y(const in uint at) { return uvec4(at + 1u); }
uvec4 slot_u(const in uint at) { return uvec4(at + 2u); }
uvec4 slot_w(const in uint at) { return uvec4(at + 3u); }
// The score of a product.
float slot_score(const in uint batch, const in uint row, const in uint key, const in float product) { return product + float(batch + row * key); }
// Whether a weight is kept.
uint slot_kept(const in uint batch, const in uint row, const in uint key) { return batch + row * key; }
// The numbers of a row of queries.
uvec4 slot_numbers(const in uint at) { return uvec4(at + 4u); }
void slot_store_numbers(const in uint at, const in uvec4 value) {}
// Eight neighbours of a result; `at` counts groups of eight.
void slot_store(const in uint at, const in uvec4 value) {}

#include "../dot/matrix_fragments.glsl"

// Below all scores: one that is -Inf has no weight.
const float LEAST = -3.4028234663852886e38;
const float LOG2_E = 1.44269504088896340736;

#include "../dot/own_numbers.glsl"

// The same words as a factor of the last product takes them: the lower or upper halves of two words.
uint lower(const in uint a, const in uint b) { return (a & 0xffffu) | b << 16; }
uint upper(const in uint a, const in uint b) { return a >> 16 | (b & 0xffff0000u); }

#define QUAD(value, combine) \
    value = combine(value, subgroupShuffleXor(value, 1u)); \
    value = combine(value, subgroupShuffleXor(value, 2u));
#define SUM(a, b) (a + b)

float score_of(const in uint batch, const in uint row, const in uint key, const in float product) {
    if (FACTOR == 0u) return slot_score(batch, row, key, product);
    return CAUSAL != 0u && key > row ? -1.0 / 0.0 : product;
}

void main() {
    uint batches = nx_param(0u), queries = nx_param(1u), keys = nx_param(2u), depth = nx_param(3u), width = nx_param(4u);
    uint x_step = nx_param(5u), y_step = nx_param(6u), u_step = nx_param(7u), w_step = nx_param(8u), out_step = nx_param(9u);
    uint rows = BY == QUERY ? queries : keys, others = BY == QUERY ? keys : queries;
    uint tiles = (rows + ROWS - 1u) / ROWS, job = nx_group();
    if (job >= tiles * batches) return;
    // Those with the most others first.
    uint batch = job % batches, tile = BY == QUERY ? tiles - 1u - job / batches : job / batches;
    uint m0 = tile * ROWS + gl_SubgroupID * OWN_ROWS;
    if (m0 >= rows) return;
    uint g = gl_SubgroupInvocationID / 4u, t = gl_SubgroupInvocationID % 4u;

#define LOAD_ROWS(held_rows, slot, at, step, whole, elements) { \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) { \
        uint low_at = (at) + min(m0 + 16u * i + g, rows - 1u) * (step), high_at = (at) + min(m0 + 16u * i + 8u + g, rows - 1u) * (step); \
        [[unroll]] for (uint slice = 0u; slice < SLICES; ++slice) { \
            uvec4 low = uvec4(0u), high = uvec4(0u); \
            if (whole != 0u || slice * 32u + t * 8u < elements) { \
                low = slot(low_at + 4u * slice); \
                high = slot(high_at + 4u * slice); \
            } \
            [[unroll]] for (uint k = 0u; k < 2u; ++k) { \
                uvec4 held = HALF(low, high, k); \
                HOLD(held_rows[i][2u * slice + k], held) \
            } \
        } \
    } \
}
    MatrixA xs[FRAGMENTS][2 * SLICES], us[FRAGMENTS][2 * SLICES];
    LOAD_ROWS(xs, slot_x, slot_x_batch(batch) + t, x_step, WHOLE_DEPTH, depth)
    if (BY != VALUE) LOAD_ROWS(us, slot_u, slot_u_batch(batch) + t, u_step, WHOLE_WIDTH, width)
    uint y_at = slot_y_batch(batch), w_at = slot_w_batch(batch);

    float factor = FACTOR != 0u ? uintBitsToFloat(FACTOR) : 1.0;
    // Of a row of queries: the largest score, the inverse of the sum, the mean of gradients.
    float largest[2 * FRAGMENTS], inverse[2 * FRAGMENTS], mean[2 * FRAGMENTS];
    uvec4 y_held[2][SLICES], w_held[2][SLICES];
    Sums scores[FRAGMENTS], gradients[FRAGMENTS];

#define FETCH(array, slot, at, step, n, whole, elements) { \
    [[unroll]] for (uint j = 0u; j < 2u; ++j) { \
        uint other = min((n) + 8u * j + g, others - 1u); \
        [[unroll]] for (uint slice = 0u; slice < SLICES; ++slice) { \
            array[j][slice] = uvec4(0u); \
            if (whole != 0u || slice * 32u + t * 8u < elements) array[j][slice] = slot((at) + t + other * (step) + 4u * slice); \
        } \
    } \
}
#define MULTIPLY(sums, held_rows, array) { \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) sums[i] = Sums(0.0); \
    [[unroll]] for (uint slice = 0u; slice < SLICES; ++slice) { \
        [[unroll]] for (uint k = 0u; k < 2u; ++k) { \
            uvec4 held = HALF(array[0][slice], array[1][slice], k); \
            MatrixB y; \
            HOLD(y, held) \
            [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) sums[i] = coopMatMulAdd(held_rows[i][2u * slice + k], y, sums[i]); \
        } \
    } \
}
// Scores, where there are any, of the block from n0 on.
#define SCORES(n0) { \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) { \
        [[unroll]] for (uint e = 0u; e < 8u; ++e) { \
            uint own = min(m0 + 16u * i + e / 4u * 8u + g, rows - 1u), other = (n0) + e / 2u % 2u * 8u + 2u * t + e % 2u; \
            uint known = WHOLE_OTHERS != 0u ? other : min(other, others - 1u); \
            float score = scores[i][e]; \
            if (FACTOR == 0u || CAUSAL != 0u) score = score_of(batch, BY == QUERY ? own : known, BY == QUERY ? known : own, score); \
            if (WHOLE_OTHERS == 0u) score = other >= others ? -1.0 / 0.0 : score; \
            scores[i][e] = score; \
        } \
    } \
}
// What is of weights that are dropped becomes 0.
#define DROP(sums, n0) { \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) { \
        [[unroll]] for (uint e = 0u; e < 8u; ++e) { \
            uint own = min(m0 + 16u * i + e / 4u * 8u + g, rows - 1u), other = (n0) + e / 2u % 2u * 8u + 2u * t + e % 2u; \
            uint known = WHOLE_OTHERS != 0u ? other : min(other, others - 1u); \
            bool is_kept = slot_kept(batch, BY == QUERY ? own : known, BY == QUERY ? known : own) != 0u; \
            sums[i][e] = is_kept ? sums[i][e] * KEPT_SCALE : 0.0; \
        } \
    } \
}
#define EXPONENTIAL(score, most) (FACTOR != 0u ? exp2(fma(score, factor, -(most) * factor)) : exp2(((score) - (most)) * LOG2_E))

    uint first = 0u, end = others;
    if (CAUSAL != 0u) {
        if (BY == QUERY) end = min(keys, m0 + OWN_ROWS);
        else if (FACTOR != 0u) first = min(m0, others) / OTHERS * OTHERS;
    }

    if (BY == QUERY) {
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) {
            largest[r] = FACTOR != 0u ? 0.25 * LEAST : LEAST;
            inverse[r] = 0.0;
            mean[r] = 0.0;
        }
        FETCH(y_held, slot_y, y_at, y_step, 0u, WHOLE_DEPTH, depth)
#define FIND(until) \
        [[dont_unroll]] for (; n < until; n += OTHERS) { \
            FETCH(w_held, slot_w, w_at, w_step, n, WHOLE_WIDTH, width) \
            MULTIPLY(scores, xs, y_held) \
            FETCH(y_held, slot_y, y_at, y_step, n + OTHERS, WHOLE_DEPTH, depth) \
            MULTIPLY(gradients, us, w_held) \
            if (DROPS != 0u) DROP(gradients, n) \
            SCORES(n) \
            [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) { \
                [[unroll]] for (uint r = 0u; r < 2u; ++r) { \
                    float most = largest[2u * i + r]; \
                    [[unroll]] for (uint e = 0u; e < 4u; ++e) most = max(most, scores[i][4u * r + e]); \
                    QUAD(most, max) \
                    float smaller = EXPONENTIAL(largest[2u * i + r], most); \
                    /* Exactly 1 where no larger one came: errors would grow with the keys. */ \
                    if (most == largest[2u * i + r]) smaller = 1.0; \
                    float total = inverse[2u * i + r] * smaller, weighted = mean[2u * i + r] * smaller; \
                    [[unroll]] for (uint e = 0u; e < 4u; ++e) { \
                        float exponential = EXPONENTIAL(scores[i][4u * r + e], most); \
                        total += exponential; \
                        weighted = fma(exponential, gradients[i][4u * r + e], weighted); \
                    } \
                    largest[2u * i + r] = most; \
                    inverse[2u * i + r] = total; \
                    mean[2u * i + r] = weighted; \
                } \
            } \
        }
        uint n = 0u;
        FIND(end)
        if (CAUSAL != 0u && FACTOR == 0u) {
            // Rows that are masked wholly have weights everywhere.
            bool low = false;
            [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) low = low || largest[r] < LOW;
            if (subgroupAny(low)) {
                end = keys;
                FIND(end)
            }
        }
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS; ++r) {
            float total = inverse[r], weighted = mean[r];
            QUAD(total, SUM)
            QUAD(weighted, SUM)
            inverse[r] = 1.0 / total;
            mean[r] = weighted / total;
            uint row = m0 + 8u * r + g;
            if (t == 0u && row < rows)
                slot_store_numbers(batch * rows + row, floatBitsToUint(vec4(largest[r], inverse[r], mean[r], 0.0)));
        }
    }

    Sums results[FRAGMENTS][4 * GROUPS];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i)
        [[unroll]] for (uint j = 0u; j < 4u * GROUPS; ++j) results[i][j] = Sums(0.0);
    // Others as columns: an invocation has eight neighbours of four.
    uvec4 columns[GROUPS][4];
    // Numbers of the queries of a block.
    vec4 numbers[4];
    MatrixA factors[FRAGMENTS];
    [[dont_unroll]] for (uint n = first; n < end; n += OTHERS) {
        if (BY != QUERY) {
            [[unroll]] for (uint r = 0u; r < 4u; ++r) {
                uint query = min(n + r / 2u * 8u + 2u * t + r % 2u, queries - 1u);
                numbers[r] = uintBitsToFloat(slot_numbers(batch * queries + query));
            }
            if (CAUSAL != 0u && FACTOR == 0u && n + OTHERS <= m0) {
                // No query of the block sees a key, unless one sees none at all.
                bool low = false;
                [[unroll]] for (uint r = 0u; r < 4u; ++r) low = low || numbers[r].x < LOW;
                if (!subgroupAny(low)) continue;
            }
        }
        FETCH(y_held, slot_y, y_at, y_step, n, WHOLE_DEPTH, depth)
        if (BY != VALUE) FETCH(w_held, slot_w, w_at, w_step, n, WHOLE_WIDTH, width)
        [[unroll]] for (uint r = 0u; r < 4u; ++r) {
            uint other = n + r / 2u * 8u + 2u * t + r % 2u, known = WHOLE_OTHERS != 0u ? other : min(other, others - 1u);
            [[unroll]] for (uint c = 0u; c < GROUPS; ++c) {
                uvec4 value = uvec4(0u);
                if (BY == VALUE) {
                    if (WHOLE_WIDTH != 0u && SLICES == 2 * GROUPS || 64u * c + 8u * g < width) value = slot_w(w_at + g + known * w_step + 8u * c);
                } else {
                    if (WHOLE_DEPTH != 0u && SLICES == 2 * GROUPS || 64u * c + 8u * g < depth) value = slot_y(y_at + g + known * y_step + 8u * c);
                }
                if (WHOLE_OTHERS == 0u) value &= uvec4(other < others ? ~0u : 0u);
                columns[c][r] = value;
            }
        }
        MULTIPLY(scores, xs, y_held)
        if (BY != VALUE) MULTIPLY(gradients, us, w_held)
        else [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) gradients[i] = Sums(1.0);
        if (DROPS != 0u) DROP(gradients, n)
        SCORES(n)
        [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) {
            uvec4 held;
            [[unroll]] for (uint p = 0u; p < 4u; ++p) {
                vec2 pair;
                [[unroll]] for (uint k = 0u; k < 2u; ++k) {
                    uint e = 2u * p + k;
                    vec3 of_row = BY == QUERY ? vec3(largest[2u * i + p / 2u], inverse[2u * i + p / 2u], mean[2u * i + p / 2u]) : numbers[p % 2u * 2u + k].xyz;
                    float value = EXPONENTIAL(scores[i][e], of_row.x) * of_row.y;
                    if (BY != VALUE) value *= gradients[i][e] - of_row.z;
                    else if (DROPS != 0u) value = gradients[i][e] != 0.0 ? value * gradients[i][e] : 0.0;
                    if (WHOLE_OTHERS == 0u) value = n + p % 2u * 8u + 2u * t + k < others ? value : 0.0;
                    pair[k] = value;
                }
                held[p] = rounded(pair);
            }
            HOLD(factors[i], held)
        }
        [[unroll]] for (uint c = 0u; c < GROUPS; ++c) {
            [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                uvec4 held = uvec4(lower(columns[c][0][w], columns[c][1][w]), lower(columns[c][2][w], columns[c][3][w]),
                                   upper(columns[c][0][w], columns[c][1][w]), upper(columns[c][2][w], columns[c][3][w]));
                MatrixB y;
                HOLD(y, held)
                [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i)
                    results[i][4u * c + w] = coopMatMulAdd(factors[i], y, results[i][4u * c + w]);
            }
        }
    }

    uint out_at = slot_out_batch(batch), elements = BY == VALUE ? width : depth;
    [[unroll]] for (uint i = 0u; i < FRAGMENTS; ++i) {
        [[unroll]] for (uint r = 0u; r < 2u; ++r) {
            uint row = m0 + 16u * i + 8u * r + g;
            [[unroll]] for (uint c = 0u; c < GROUPS; ++c) {
                [[unroll]] for (uint half_ = 0u; half_ < 2u; ++half_) {
                    uvec4 eight;
                    [[unroll]] for (uint w = 0u; w < 4u; ++w)
                        eight[w] = rounded(vec2(results[i][4u * c + w][4u * r + half_], results[i][4u * c + w][4u * r + 2u + half_]) * SCALE);
                    uint at = 64u * c + 16u * t + 8u * half_;
                    if (row < rows && at < elements) slot_store(out_at + row * out_step + at / 8u, eight);
                }
            }
        }
    }
}

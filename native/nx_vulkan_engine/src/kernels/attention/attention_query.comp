//! name = "attention_query_{COUNT}x{UNIT}"
//! matrix = { COUNT = ["1u", "2u", "4u", "8u"], UNIT = ["4", "8"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Attention of few queries, of f32 sums: softmax(steps(Q K^T)) V. A workgroup has up to COUNT queries that read the
// same keys and values, and a share of these, each of which it reads once, UNIT elements (16 bytes) at a time. Scores
// of the share lie in shared memory. Where there are several shares, attention_merge.comp puts together what they give.
// Parameters: batches, queries of a batch, keys, elements of a query, elements of a value, elements from one key to the
// next, from one value to the next, keys of a share, shares.
#include "params.glsl"

#define LOCAL 256u
// Invocations that look after the scores of a query.
#define TEAM (LOCAL / COUNT)
// Scores that a workgroup has room for.
#define SCORES 1536u
#define LENGTH (SCORES / COUNT)
// Room for what the invocations have of one query's products, and for one element of what they have of its values, with
// some to spare, so that neighbours are in different banks.
#define PLANE (LOCAL + LOCAL / 8u)
#define ELEMENTS (LOCAL + 8u)
// Units of values that an invocation fetches at once.
#define AHEAD 2u

layout(local_size_x = 256) in;

// Units of a query and of a value, the last of which may be in part past the end.
layout(constant_id = 0) const uint K_UNITS = 8u;
layout(constant_id = 1) const uint V_UNITS = 8u;
// Whether units are whole and aligned.
layout(constant_id = 2) const uint WIDE_Q = 1u;
layout(constant_id = 3) const uint WIDE_K = 1u;
layout(constant_id = 4) const uint WIDE_V = 1u;
// Whether there are several shares.
layout(constant_id = 5) const uint SPLIT = 0u;
// Keys and values that the workgroup reads at once, of the latter a multiple of 4.
const uint KEYS = LOCAL / K_UNITS;
const uint VALUES = LOCAL / V_UNITS / 4u * 4u;
const uint PITCH = K_UNITS < 8u ? K_UNITS : K_UNITS | 1u;

// Where a query begins, and the first key, the first value and the result that belong to it, in elements.
uint slot_q_begin(const in uint batch, const in uint query) { return batch + query; }
uint slot_k_begin(const in uint batch) { return batch + 1u; }
uint slot_v_begin(const in uint batch) { return batch + 2u; }
uint slot_out_begin(const in uint batch, const in uint query) { return batch - query; }
// Units by their number, single elements, and the two of a word.
uvec4 slot_q(const in uint unit) { return uvec4(unit); }
uvec4 slot_k(const in uint unit) { return uvec4(unit + 1u); }
uvec4 slot_v(const in uint unit) { return uvec4(unit + 2u); }
float slot_q_one(const in uint at) { return float(at); }
float slot_k_one(const in uint at) { return float(at + 1u); }
float slot_v_one(const in uint at) { return float(at + 2u); }
vec2 slot_pair(const in uint word) { return vec2(word); }
// The score of a product.
float slot_score(const in uint batch, const in uint query, const in uint key, const in float product) {
    return product + float(batch + query * key);
}
float slot_exp(const in float x) { return exp(x); }
float slot_quotient(const in float a, const in float b) { return a / b; }
// A result, and what a share gives of it.
void slot_store(const in uint at, const in float value) {}
void slot_store_part(const in uint at, const in float value) {}

shared float scores[SCORES];
shared float partial[COUNT * PLANE > UNIT * ELEMENTS ? COUNT * PLANE : UNIT * ELEMENTS];

// Below all scores: one that is -Inf has no weight.
const float LEAST = -3.4028234663852886e38;

// Adds a number to a sum. What sums of f32 lose adds up apart, because errors of large scores are errors of weights; it
// is NaN where a sum is not finite.
#define WHOLE(sum, lost) ((lost) == (lost) ? (sum) + (lost) : (sum))
#if UNIT == 4
#define ADD(sum, lost, x) { \
    float more = sum + (x), taken = more - sum; \
    lost += (sum - (more - taken)) + ((x) - taken); \
    sum = more; \
}
#define ADD_PRODUCT(sum, lost, a, b) { \
    float term = (a) * (b); \
    lost += fma(a, b, -term); \
    ADD(sum, lost, term) \
}
#else
#define ADD(sum, lost, x) sum += (x);
#define ADD_PRODUCT(sum, lost, a, b) sum = fma(a, b, sum);
#endif

// Combines terms in four parts: sums are more exact, and wait less for each other. Terms up to the next multiple of 4
// must not matter.
#define PLUS(a, b) ((a) + (b))
#define FOLD(to, combine, none, terms, term) { \
    float four[4] = float[](none, none, none, none); \
    for (uint j = 0u; j < (terms); j += 4u) \
        [[unroll]] for (uint i = 0u; i < 4u; ++i) four[i] = combine(four[i], term(j + i)); \
    to = combine(combine(four[0], four[1]), combine(four[2], four[3])); \
}

// The elements of a unit, from its words or one by one. Those past the end are zeros.
#if UNIT == 4
#define OF_WORDS(to, words) [[unroll]] for (uint w = 0u; w < 4u; ++w) to[w] = uintBitsToFloat(words[w]);
#else
#define OF_WORDS(to, words) \
    [[unroll]] for (uint w = 0u; w < 4u; ++w) { \
        vec2 two = slot_pair(words[w]); \
        to[2u * w] = two.x; \
        to[2u * w + 1u] = two.y; \
    }
#endif
#define ONE_BY_ONE(to, slot, at, left) \
    [[unroll]] for (uint e = 0u; e < UNIT; ++e) { \
        to[e] = 0.0; \
        if (e < left) to[e] = slot(at + e); \
    }

void main() {
    uint batches = nx_param(0u), queries = nx_param(1u), keys = nx_param(2u);
    uint depth = nx_param(3u), width = nx_param(4u);
    uint k_step = nx_param(5u), v_step = nx_param(6u), length = nx_param(7u), shares = nx_param(8u);
    uint blocks = (queries + COUNT - 1u) / COUNT, job = nx_group();
    if (job >= blocks * shares * batches) return;
    uint first = job % blocks * COUNT, share = job / blocks % shares, batch = job / blocks / shares;
    uint begin = share * length, count = min(begin + length, keys) - begin;
    uint id = gl_LocalInvocationID.x;

    // The first values are on their way while scores are computed.
    uint v_row = id / V_UNITS, v_unit = id % V_UNITS * UNIT;
    if (v_row >= VALUES) v_row = keys;
    uint v_at = slot_v_begin(batch) + begin * v_step + v_unit;
    uvec4 v_next[AHEAD];
#define FETCH_VALUES(from) \
    [[unroll]] for (uint i = 0u; i < AHEAD; ++i) { \
        uint row = (from) + i * VALUES; \
        v_next[i] = uvec4(0u); \
        if (WIDE_V != 0u && row < count) v_next[i] = slot_v((v_at + row * v_step) / UNIT); \
    }
    FETCH_VALUES(v_row)

    uint k_row = id / K_UNITS, lane = id % K_UNITS, k_unit = lane * UNIT;
    if (k_row >= KEYS) k_row = keys;
    uint k_at = slot_k_begin(batch) + begin * k_step + k_unit;
    uvec4 k_next = uvec4(0u);
    if (WIDE_K != 0u && k_row < count) k_next = slot_k((k_at + k_row * k_step) / UNIT);
    float q[COUNT][UNIT];
    [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
        // Queries past the end repeat the last one, and have no results.
        uint at = slot_q_begin(batch, min(first + n, queries - 1u)) + k_unit;
        if (WIDE_Q != 0u) {
            uvec4 words = slot_q(at / UNIT);
            OF_WORDS(q[n], words)
        } else {
            ONE_BY_ONE(q[n], slot_q_one, at, depth - k_unit)
        }
    }

    uint team = id / TEAM, member = id % TEAM, query = min(first + team, queries - 1u);
    float largest = LEAST;
    for (uint from = 0u; from < count; from += KEYS) {
        uint row = from + k_row;
        if (row < count) {
            float k[UNIT];
            if (WIDE_K != 0u) {
                OF_WORDS(k, k_next)
            } else {
                ONE_BY_ONE(k, slot_k_one, k_at + row * k_step, depth - k_unit)
            }
            [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
                float product = 0.0, lost = 0.0;
                [[unroll]] for (uint e = 0u; e < UNIT; ++e) ADD_PRODUCT(product, lost, q[n][e], k[e])
                partial[n * PLANE + k_row * PITCH + lane] = WHOLE(product, lost);
            }
        }
        if (WIDE_K != 0u && row + KEYS < count) k_next = slot_k((k_at + (row + KEYS) * k_step) / UNIT);
        barrier();
        for (uint key = member; key < min(KEYS, count - from); key += TEAM) {
            float product = 0.0, lost = 0.0;
            for (uint l = 0u; l < K_UNITS; ++l) {
                float term = partial[team * PLANE + key * PITCH + l];
                ADD(product, lost, term)
            }
            float score = slot_score(batch, query, begin + from + key, WHOLE(product, lost));
            largest = max(largest, score);
            scores[team * LENGTH + from + key] = score;
        }
        barrier();
    }

    // The largest score of each query, then the sum of its weights.
    partial[id] = largest;
    barrier();
#define LARGEST(member) partial[team * TEAM + (member)]
    FOLD(largest, max, LEAST, min(TEAM, KEYS), LARGEST)
    float weights = 0.0;
    for (uint key = member; key < count; key += TEAM) {
        float weight = slot_exp(scores[team * LENGTH + key] - largest);
        scores[team * LENGTH + key] = weight;
        weights += weight;
    }
    partial[LOCAL + id] = weights;
    barrier();
#define WEIGHTS(member) partial[LOCAL + team * TEAM + (member)]
    float total;
    FOLD(total, PLUS, 0.0, min(TEAM, count), WEIGHTS)
    // Of keys without any weight others may have some.
    float divisor = SPLIT != 0u && total == 0.0 ? 1.0 : total;
    for (uint key = member; key < count; key += TEAM) {
        uint at = team * LENGTH + key;
        scores[at] = slot_quotient(scores[at], divisor);
    }
    barrier();

    float results[COUNT][UNIT];
    [[unroll]] for (uint n = 0u; n < COUNT; ++n)
        [[unroll]] for (uint e = 0u; e < UNIT; ++e) results[n][e] = 0.0;
    for (uint from = v_row; from < count; from += AHEAD * VALUES) {
        uvec4 v_now[AHEAD] = v_next;
        FETCH_VALUES(from + AHEAD * VALUES)
        [[unroll]] for (uint i = 0u; i < AHEAD; ++i) {
            uint row = from + i * VALUES;
            if (row < count) {
                float v[UNIT];
                if (WIDE_V != 0u) {
                    OF_WORDS(v, v_now[i])
                } else {
                    ONE_BY_ONE(v, slot_v_one, v_at + row * v_step, width - v_unit)
                }
                [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
                    float weight = scores[n * LENGTH + row];
                    [[unroll]] for (uint e = 0u; e < UNIT; ++e) results[n][e] = fma(weight, v[e], results[n][e]);
                }
            }
        }
    }

    [[unroll]] for (uint n = 0u; n < COUNT; ++n) {
        [[unroll]] for (uint e = 0u; e < UNIT; ++e) partial[e * ELEMENTS + id] = results[n][e];
        barrier();
        uint own = first + n;
        if (own < queries) {
            uint part = ((batch * queries + own) * shares + share) * (width + 2u) + 2u, at = slot_out_begin(batch, own);
            for (uint r = id; r < V_UNITS * UNIT; r += LOCAL) {
                uint e = r / V_UNITS, unit = r % V_UNITS, element = unit * UNIT + e;
                float result;
#define RESULT(row) partial[e * ELEMENTS + (row) * V_UNITS + unit]
                FOLD(result, PLUS, 0.0, min(VALUES, count), RESULT)
                if (element < width) {
                    if (SPLIT != 0u) slot_store_part(part + element, result); else slot_store(at + element, result);
                }
            }
        }
        if (n + 1u < COUNT) barrier();
    }
    if (SPLIT != 0u && member == 0u && first + team < queries) {
        uint part = ((batch * queries + query) * shares + share) * (width + 2u);
        slot_store_part(part, largest);
        slot_store_part(part + 1u, total);
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Puts together what shares of keys give of one query's attention. Each share has the largest score, the sum of the
// weights that belong to that, and the result of its own keys. A workgroup has one query, and teams of invocations
// divide the shares among them.
// Parameters: batches, queries of a batch, elements of a result, shares.
#include "params.glsl"

#define LOCAL 256u

layout(local_size_x = 256) in;

// Invocations of a team, each of which has one element.
layout(constant_id = 0) const uint TEAM = 64u;
const uint TEAMS = LOCAL / TEAM;

uint slot_out_begin(const in uint batch, const in uint query) { return batch + query; }
float slot_part(const in uint at) { return float(at); }
float slot_exp(const in float x) { return exp(x); }
float slot_quotient(const in float a, const in float b) { return a / b; }
void slot_store(const in uint at, const in float value) {}

shared float partial[LOCAL];
shared float sums[LOCAL];

const float LEAST = -3.4028234663852886e38;

void main() {
    uint batches = nx_param(0u), queries = nx_param(1u), width = nx_param(2u), shares = nx_param(3u);
    uint job = nx_group();
    if (job >= batches * queries) return;
    uint id = gl_LocalInvocationID.x, pitch = width + 2u, base = job * shares * pitch;

    float largest = LEAST;
    for (uint share = id; share < shares; share += LOCAL) largest = max(largest, slot_part(base + share * pitch));
    partial[id] = largest;
    barrier();
    for (uint l = 0u; l < min(LOCAL, shares); ++l) largest = max(largest, partial[l]);
    float weights = 0.0;
    for (uint share = id; share < shares; share += LOCAL) {
        uint at = base + share * pitch;
        weights += slot_part(at + 1u) * slot_exp(slot_part(at) - largest);
    }
    sums[id] = weights;
    barrier();
    float total = 0.0;
    for (uint l = 0u; l < min(LOCAL, shares); ++l) total += sums[l];

    uint team = id / TEAM, element = id % TEAM;
    float result = 0.0;
    for (uint from = 0u; from < shares; from += LOCAL) {
        uint share = from + id;
        float weight = 0.0;
        if (share < shares) {
            uint at = base + share * pitch;
            weight = slot_quotient(slot_part(at + 1u) * slot_exp(slot_part(at) - largest), total);
        }
        barrier();
        partial[id] = weight;
        barrier();
        if (element < width) {
            for (uint l = team; l < min(LOCAL, shares - from); l += TEAMS)
                result = fma(partial[l], slot_part(base + (from + l) * pitch + 2u + element), result);
        }
    }
    barrier();
    partial[id] = result;
    barrier();
    if (id < width) {
        for (uint t = 1u; t < TEAMS; ++t) result += partial[t * TEAM + id];
        slot_store(slot_out_begin(job / queries, job % queries) + id, result);
    }
}

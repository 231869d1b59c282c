//! name = "scan_{ACC_WORDS}"
//! matrix = { "ACC_WORDS ITEMS" = ["1 8u", "2 8u", "4 4u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Running reductions of contiguous rows. A team of TEAM invocations scans one chunk of a row, a step of TEAM * ITEMS
// elements at a time: ITEMS neighbours per invocation one after another, then a scan over the invocations whose shape
// depends on TEAM only. Nothing is combined with an identity: complex products would not keep infinities.
// Parameters: rows, elements per row, elements per chunk, chunks per row, whether rows run from their end.
// Teams of fewer than 256 invocations take rows of one chunk and one step.
#include "params.glsl"
#include "accumulator.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TEAM = 256u;
// Stores the total of each chunk, at `row * chunks + chunk`, rather than the elements' running reductions.
layout(constant_id = 1) const uint TOTALS = 0u;
// Starts every chunk but a row's first from the reduction of all before it.
layout(constant_id = 2) const uint CARRY = 0u;

// The reduction of a row's chunks up to and including the given one.
ACC slot_carry(const in uint job) { return ACC(job); }

// Rows of ITEMS elements start in different banks.
#define AT(i) ((i) + ((i) >> 5u))
shared ACC tile[AT(256u * ITEMS)];
shared ACC totals[256];

void main() {
    uint rows = nx_param(0u), elements = nx_param(1u), chunk = nx_param(2u), chunks = nx_param(3u);
    bool backwards = nx_param(4u) != 0u;
    uint id = gl_LocalInvocationID.x, lane = id % TEAM, team = id / TEAM;
    uint teams = 256u / TEAM;
    uint first_job = nx_group() * teams;
    if (first_job >= rows * chunks) return;
    uint jobs = min(teams, rows * chunks - first_job);
    uint row = first_job / chunks;
    uint begin = (first_job - row * chunks) * chunk;
    uint end = min(begin + chunk, elements);
    bool carries = CARRY != 0u && begin > 0u;
    ACC carry = ACC(0u);
    if (carries) carry = slot_carry(first_job - 1u);
    for (; begin < end; begin += TEAM * ITEMS) {
        uint count = min(end - begin, TEAM * ITEMS);
        for (uint e = id; e < jobs * count; e += 256u) {
            uint r = teams == 1u ? 0u : e / count;
            uint i = begin + e - r * count;
            if (backwards) i = elements - 1u - i;
            tile[AT(e)] = slot_load((row + r) * elements + i, 0u);
        }
        barrier();
        uint start = lane * ITEMS;
        uint mine = team < jobs && start < count ? min(count - start, ITEMS) : 0u;
        start += team * count;
        ACC acc = ACC(0u);
        for (uint k = 0u; k < mine; ++k) {
            acc = k == 0u ? tile[AT(start)] : slot_combine(acc, tile[AT(start + k)]);
            tile[AT(start + k)] = acc;
        }
        totals[id] = acc;
        for (uint step = 1u; step < TEAM; step <<= 1u) {
            barrier();
            if (lane >= step) acc = slot_combine(totals[id - step], acc);
            barrier();
            totals[id] = acc;
        }
        barrier();
        if (TOTALS == 0u && mine > 0u && (lane > 0u || carries)) {
            ACC before;
            if (lane == 0u) before = carry;
            else if (carries) before = slot_combine(carry, totals[id - 1u]);
            else before = totals[id - 1u];
            for (uint k = 0u; k < mine; ++k) tile[AT(start + k)] = slot_combine(before, tile[AT(start + k)]);
        }
        ACC total = totals[team * TEAM + (count - 1u) / ITEMS];
        if (carries) total = slot_combine(carry, total);
        carry = total;
        carries = true;
        barrier();
        if (TOTALS == 0u) {
            for (uint e = id; e < jobs * count; e += 256u) {
                uint r = teams == 1u ? 0u : e / count;
                uint i = begin + e - r * count;
                if (backwards) i = elements - 1u - i;
                slot_store((row + r) * elements + i, tile[AT(e)]);
            }
            barrier();
        }
    }
    if (TOTALS != 0u && id == 0u) slot_store(first_job, carry);
}

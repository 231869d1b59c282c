//! name = "scan{by}_{ACC_WORDS}"
//! choices.by = { "" = {}, _shuffled = { SHUFFLED = "1" } }
//! matrix = { by = ["", "_shuffled"], "ACC_WORDS ITEMS" = ["1 8u", "2 8u", "4 4u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SHUFFLED
#extension GL_KHR_shader_subgroup_shuffle_relative : require
#endif
// Running reductions of contiguous rows. A team of TEAM invocations scans one chunk of a row, a step of TEAM * ITEMS
// elements at a time: ITEMS neighbours per invocation one after another, then a scan over each SEGMENT of invocations
// (SHUFFLED: by shuffles, where subgroups are whole segments), then over the segments. The shape depends on TEAM only.
// Nothing is combined with an identity: complex products would not keep infinities.
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
// Invocations load and store four of their neighbours at once: rows are multiples of four.
layout(constant_id = 3) const uint FOURS = 0u;
#define SEGMENT 32u

// The reduction of a row's chunks up to and including the given one.
ACC slot_carry(const in uint job) { return ACC(job); }
// Four neighbours, whose values have one word each, and what becomes of such a word.
uvec4 slot_load_four(const in uint four) { return uvec4(four); }
ACC slot_lift(const in uint word) { return ACC(word); }
uint slot_lower(const in ACC acc) { return uint(acc != ACC(0u)); }
void slot_store_four(const in uint four, const in uvec4 words) {}

// Neighbouring invocations start in different banks, and so do neighbouring elements.
#define AT(i) ((i) + (i) / ITEMS)
shared ACC tile[FOURS != 0u ? 1u : AT(256u * ITEMS)];
shared ACC totals[256];
// What comes before the end of each segment, and what was carried to its team.
shared ACC ends[256u / SEGMENT];

// Where element `e` of a step lies, of which each row has `count` from `begin` on.
uint place_of(
    const in uint e, const in uint count, const in uint begin, const in uint row, const in uint elements,
    const in bool backwards
) {
    uint r = TEAM == 256u ? 0u : e / count;
    uint i = begin + e - r * count;
    return (row + r) * elements + (backwards ? elements - 1u - i : i);
}
#define PLACE(e) place_of(e, count, begin, row, elements, backwards)

void main() {
    uint rows = nx_param(0u), elements = nx_param(1u), chunk = nx_param(2u), chunks = nx_param(3u);
    bool backwards = nx_param(4u) != 0u;
#ifdef SHUFFLED
    uint id = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    uint id = gl_LocalInvocationID.x;
#endif
    uint lane = id % TEAM, team = id / TEAM;
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
        uint start = lane * ITEMS;
        uint mine = team < jobs && start < count ? min(count - start, ITEMS) : 0u;
        // The first of an invocation's fours, and from one to the next.
        uint four = backwards ? elements - 4u - begin - start : begin + start;
        four = ((row + team) * elements + four) / 4u;
        uint next = backwards ? 0xffffffffu : 1u;
        ACC values[ITEMS];
        if (FOURS != 0u) {
            uvec4 words[ITEMS / 4u];
            [[unroll]] for (uint q = 0u; q < ITEMS / 4u; ++q) {
                words[q] = uvec4(0u);
                if (4u * q < mine) words[q] = slot_load_four(four + q * next);
                if (backwards) words[q] = words[q].wzyx;
            }
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) values[k] = slot_lift(words[k / 4u][k % 4u]);
        } else {
#ifdef SHUFFLED
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
                uint e = id + k * 256u;
                values[k] = ACC(0u);
                if (e < jobs * count) values[k] = slot_load(PLACE(e), 0u);
            }
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) tile[AT(id + k * 256u)] = values[k];
#else
            // CPU devices go through all of a loop that is written out, whatever there is to load.
            for (uint e = id; e < jobs * count; e += 256u) tile[AT(e)] = slot_load(PLACE(e), 0u);
#endif
            barrier();
            start += team * count;
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
                if (k < mine) values[k] = tile[AT(start + k)];
            }
        }
        ACC acc = values[0];
        [[unroll]] for (uint k = 1u; k < ITEMS; ++k) {
            if (k < mine) acc = slot_combine(acc, values[k]);
            values[k] = acc;
        }
#ifdef SHUFFLED
        [[unroll]] for (uint step = 1u; step < SEGMENT; step <<= 1u) {
            ACC before = subgroupShuffleUp(acc, step);
            if (lane % SEGMENT >= step) acc = slot_combine(before, acc);
        }
        totals[id] = acc;
#else
        totals[id] = acc;
        for (uint step = 1u; step < min(TEAM, SEGMENT); step <<= 1u) {
            barrier();
            if (lane % SEGMENT >= step) acc = slot_combine(totals[id - step], acc);
            barrier();
            totals[id] = acc;
        }
#endif
        barrier();
        uint segment = lane / SEGMENT;
        if (TEAM > SEGMENT) {
            if (id < 256u / SEGMENT) {
                uint first = id / max(TEAM / SEGMENT, 1u) * TEAM, last = id * SEGMENT + SEGMENT - 1u;
                ACC acc = totals[first + SEGMENT - 1u];
                for (uint at = first + 2u * SEGMENT - 1u; at <= last; at += SEGMENT) {
                    acc = slot_combine(acc, totals[at]);
                }
                if (carries) acc = slot_combine(carry, acc);
                ends[id] = acc;
            }
            barrier();
        }
        ACC before = carry;
        bool follows = carries || segment > 0u;
        if (segment > 0u) before = ends[id / SEGMENT - 1u];
        if (TOTALS == 0u) {
            if (lane % SEGMENT > 0u) {
                ACC other = totals[id - 1u];
                if (follows) other = slot_combine(before, other);
                before = other;
                follows = true;
            }
            if (follows) {
                [[unroll]] for (uint k = 0u; k < ITEMS; ++k) values[k] = slot_combine(before, values[k]);
            }
        }
        if (TEAM == 256u) {
            uint last = (count - 1u) / ITEMS;
            ACC total = totals[last];
            if (last >= SEGMENT) total = slot_combine(ends[last / SEGMENT - 1u], total);
            else if (carries) total = slot_combine(carry, total);
            carry = total;
            carries = true;
        }
        if (TOTALS == 0u && FOURS != 0u) {
            [[unroll]] for (uint q = 0u; q < ITEMS / 4u; ++q) {
                uvec4 words;
                [[unroll]] for (uint k = 0u; k < 4u; ++k) words[k] = slot_lower(values[4u * q + k]);
                if (backwards) words = words.wzyx;
                if (4u * q < mine) slot_store_four(four + q * next, words);
            }
        } else if (TOTALS == 0u) {
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
                if (k < mine) tile[AT(start + k)] = values[k];
            }
            barrier();
            for (uint e = id; e < jobs * count; e += 256u) slot_store(PLACE(e), tile[AT(e)]);
        }
        barrier();
    }
    if (TOTALS != 0u && id == 0u) slot_store(first_job, carry);
}

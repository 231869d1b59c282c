//! name = "rows_{LOCAL}"
//! matrix = { LOCAL = ["128u", "256u", "512u", "1024u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Whole rows in registers: a team of TEAM invocations takes a row, each some of its elements, and reduces it as often
// as it needs to by trees over shared memory whose shape depends on TEAM only. Invocations of a team are APART apart:
// 1, or the number of teams in the workgroup where neighbouring rows, not elements, are neighbours in memory.
// Parameters: rows, elements per row.
#include "params.glsl"
layout(local_size_x = LOCAL) in;
layout(constant_id = 0) const uint TEAM = LOCAL;
layout(constant_id = 1) const uint APART = 1u;

shared uvec4 partial[LOCAL];
shared uint found;

uint nx_lane() { return gl_LocalInvocationID.x / APART % TEAM; }

// The accumulators of a team combined, for all of its invocations: a tree that joins each half with the other, three
// levels of it between barriers.
#define HALVE(combine, count) [[unroll]] for (uint k = 0u; k < count; ++k) v[k] = combine(v[k], v[k + count]);
#define TREE(combine, tree) \
    uvec4 combine(const in uvec4 a, const in uvec4 b) { return a + b; } \
    uvec4 tree(const in uvec4 acc) { \
        uint id = gl_LocalInvocationID.x, lane = nx_lane(), first = id - lane * APART; \
        uvec4 v[8]; \
        uint left = TEAM; \
        partial[id] = acc; \
        while (left > 8u) { \
            barrier(); \
            left >>= 3; \
            if (lane < left) { \
                [[unroll]] for (uint k = 0u; k < 8u; ++k) v[k] = partial[id + k * left * APART]; \
                HALVE(combine, 4u) HALVE(combine, 2u) HALVE(combine, 1u) \
                partial[id] = v[0]; \
            } \
        } \
        barrier(); \
        [[unroll]] for (uint k = 0u; k < 8u; ++k) v[k] = partial[first + min(k, left - 1u) * APART]; \
        if (left > 4u) { HALVE(combine, 4u) } \
        if (left > 2u) { HALVE(combine, 2u) } \
        if (left > 1u) { HALVE(combine, 1u) } \
        barrier(); \
        return v[0]; \
    }
TREE(slot_combine_0, nx_tree_0)
TREE(slot_combine_1, nx_tree_1)
TREE(slot_combine_2, nx_tree_2)
TREE(slot_combine_3, nx_tree_3)
TREE(slot_combine_4, nx_tree_4)
TREE(slot_combine_5, nx_tree_5)

// Whether it is so of an invocation of the workgroup, for all of them.
bool nx_any(const in bool one) {
    if (gl_LocalInvocationID.x == 0u) found = 0u;
    barrier();
    if (one) atomicOr(found, 1u);
    barrier();
    return found != 0u;
}

// Computes row `row` with the other invocations of the team; stores nothing unless it is live.
void slot_row(const in uint row, const in uint lane, const in bool live) {
    uvec4 a = nx_tree_0(uvec4(row)) + nx_tree_1(uvec4(lane)) + nx_tree_2(uvec4(0u));
    if (nx_any(live)) a += row;
    partial[0] = a + nx_tree_3(uvec4(live)) + nx_tree_4(uvec4(1u)) + nx_tree_5(uvec4(2u));
}

void main() {
    uint id = gl_LocalInvocationID.x;
    uint rows = nx_param(0u);
    uint row = nx_group() * (LOCAL / TEAM) + (APART == 1u ? id / TEAM : id % APART);
    slot_row(min(row, rows - 1u), nx_lane(), row < rows);
}

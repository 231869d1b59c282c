#version 460
#extension GL_GOOGLE_include_directive : require
// Whole rows in registers: a team of TEAM invocations takes a row, each some of its elements, and reduces it as often as it
// needs to by trees over shared memory whose shape depends on TEAM only. Invocations of a team are APART apart: 1, or the number
// of teams in the workgroup where neighbouring rows, not elements, are neighbours in memory.
// Parameters: rows, elements per row.
#include "params.glsl"
layout(local_size_x = LOCAL) in;
layout(constant_id = 0) const uint TEAM = LOCAL;
layout(constant_id = 1) const uint APART = 1u;

shared uvec4 partial[LOCAL];

uint nx_lane() { return gl_LocalInvocationID.x / APART % TEAM; }

// The accumulators of a team combined, for all of its invocations.
#define TREE(combine, tree) \
    uvec4 combine(const in uvec4 a, const in uvec4 b) { return a + b; } \
    uvec4 tree(const in uvec4 acc) { \
        uint id = gl_LocalInvocationID.x, lane = nx_lane(); \
        partial[id] = acc; \
        for (uint step = TEAM / 2u; step > 0u; step >>= 1u) { \
            barrier(); \
            if (lane < step) partial[id] = combine(partial[id], partial[id + step * APART]); \
        } \
        barrier(); \
        uvec4 whole = partial[id - lane * APART]; \
        barrier(); \
        return whole; \
    }
TREE(slot_combine_0, nx_tree_0)
TREE(slot_combine_1, nx_tree_1)
TREE(slot_combine_2, nx_tree_2)
TREE(slot_combine_3, nx_tree_3)
TREE(slot_combine_4, nx_tree_4)
TREE(slot_combine_5, nx_tree_5)

// Computes row `row` with the other invocations of the team; stores nothing unless it is live.
void slot_row(const in uint row, const in uint lane, const in bool live) {
    uvec4 a = nx_tree_0(uvec4(row)) + nx_tree_1(uvec4(lane)) + nx_tree_2(uvec4(0u));
    partial[0] = a + nx_tree_3(uvec4(live)) + nx_tree_4(uvec4(1u)) + nx_tree_5(uvec4(2u));
}

void main() {
    uint id = gl_LocalInvocationID.x;
    uint rows = nx_param(0u);
    uint row = nx_group() * (LOCAL / TEAM) + (APART == 1u ? id / TEAM : id % APART);
    slot_row(min(row, rows - 1u), nx_lane(), row < rows);
}

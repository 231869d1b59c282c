#version 460
#extension GL_GOOGLE_include_directive : require
// Writes updates whose targets are sorted, those with equal targets in the order of the updates: the last one of each
// target is stored.
// Parameters: inner elements per row, updates.
#include "params.glsl"
layout(local_size_x = 256) in;
#define OUTSIDE 0xffffffffu

// The row that a sorted update goes to, or OUTSIDE.
uint slot_target(const in uint at) { return at; }
// Stores inner element `inner` of sorted update `at` in the row at `target`.
void slot_apply(const in uint inner, const in uint target, const in uint at) {}

void main() {
    uint inner = nx_param(0u), updates = nx_param(1u);
    uint job = nx_group() * 256u + gl_LocalInvocationID.x;
    uint at = job / inner;
    if (at >= updates) return;
    uint target = slot_target(at);
    if (target == OUTSIDE || (at + 1u < updates && slot_target(at + 1u) == target)) return;
    slot_apply(job - at * inner, target, at);
}

//! name = "segment_steps_{acc}"
//! matrix = { acc = ["1", "2", "4"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Adds updates whose targets are sorted, those with equal targets in the order of the updates, one after another: sums
// are rounded after each. One invocation per run of equal targets and inner element; BATCH updates are on their way at
// once. Parameters: inner elements per row, updates.
#include "params.glsl"
#include "accumulator.glsl"
layout(local_size_x = 256) in;
#define BATCH (16u / ACC_WORDS)
#define OUTSIDE 0xffffffffu

// The row that a sorted update goes to, or OUTSIDE.
uint slot_target(const in uint at) { return at; }
// The update's place before they were sorted, by which it is loaded.
uint slot_update(const in uint at) { return at; }
// Inner element of the row before the updates, and after them.
ACC slot_begin(const in uint inner, const in uint target) { return ACC(inner + target); }
void slot_apply(const in uint inner, const in uint target, const in ACC sum) {}

void main() {
    uint inner = nx_param(0u), updates = nx_param(1u);
    uint job = nx_group() * 256u + gl_LocalInvocationID.x;
    uint first = job / inner;
    if (first >= updates) return;
    uint target = slot_target(first);
    if (target == OUTSIDE || (first > 0u && slot_target(first - 1u) == target)) return;
    uint i = job - first * inner;
    uint update = slot_update(first);
    ACC sum = slot_combine(slot_begin(i, target), slot_load(update, i));
    for (uint at = first + 1u; at < updates && slot_target(at) == target; at += BATCH) {
        ACC values[BATCH];
        uint live = 0u;
        [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
            uint next = min(at + k, updates - 1u);
            uint own = slot_update(next);
            bool is_same = slot_target(next) == target;
            live += uint(is_same) & uint(next == at + k);
            // Others load what lies in the cache.
            values[k] = slot_load(is_same ? own : update, i);
        }
        // Without branches: with them an H100 takes twice as long, as if it loaded one after the other.
        [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
            ACC next = slot_combine(sum, values[k]);
            sum = k < live ? next : sum;
        }
    }
    slot_apply(i, target, sum);
}

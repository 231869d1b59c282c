#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Sorts updates by their targets, those with equal targets in the order of the updates: each one's place is the number
// of updates that come before it, which LANES invocations count. Parameters: updates, the target as which all beyond it
// are ordered.
#include "params.glsl"
layout(local_size_x = 256) in;
#define LANES 16u
#define GROUP_UPDATES (256u / LANES)
#define LOADS 2u
#define TILE (256u * LOADS)
#define PADDING 0xffffffffu

// Of four updates each.
shared uvec4 targets[TILE];
shared uint counts[256];

// The row that an update goes to, or 0xffffffff outside of the tensor: beyond all others, and ordered below PADDING.
uint slot_target(const in uint update) { return update; }
// Update `update` of this target comes to `place`.
void slot_store(const in uint place, const in uint target, const in uint update) {}

uint target_of(const in uint update) { return min(slot_target(update), nx_param(1u)); }

void main() {
    uint updates = nx_param(0u);
    uint id = gl_LocalInvocationID.x;
    uint lane = id % LANES;
    uint own = nx_group() * GROUP_UPDATES + id / LANES;
    uint target = target_of(min(own, updates - 1u));
    uint before = 0u;
    for (uint first = 0u; first < updates; first += 4u * TILE) {
        barrier();
        [[unroll]] for (uint k = 0u; k < LOADS; ++k) {
            uvec4 loaded;
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                uint at = first + 4u * (k * 256u + id) + c;
                uint other = target_of(min(at, updates - 1u));
                loaded[c] = at < updates ? other : PADDING;
            }
            targets[k * 256u + id] = loaded;
        }
        barrier();
        uint live = min((updates - first + 3u) / 4u, TILE);
        for (uint k = lane; k < live; k += LANES) {
            // Equal ones count where all four are earlier.
            uint bound = target + uint(first + 4u * k + 3u < own);
            uvec4 others = targets[k];
            [[unroll]] for (uint c = 0u; c < 4u; ++c) before += uint(others[c] < bound);
        }
    }
    counts[id] = before;
    barrier();
    if (lane != 0u || own >= updates) return;
    for (uint k = 1u; k < LANES; ++k) before += counts[id + k];
    for (uint at = own & ~3u; at < own; ++at) before += uint(target_of(at) == target);
    slot_store(before, slot_target(own), own);
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Writes updates into a tensor in the order of the updates, without atomics: every target row belongs to one of
// OWNERS invocations per inner element, and that one applies the row's updates one after another.
// Parameters: inner elements per row, updates, owners.
#include "params.glsl"
layout(local_size_x = 256) in;

// Position of an update's row, or ~0 outside of the tensor.
uint slot_target(const in uint update) { return update; }
void slot_apply(const in uint inner, const in uint position, const in uint update) {}

void main() {
    uint inner = nx_param(0u), updates = nx_param(1u), owners = nx_param(2u);
    uint job = nx_group() * 256u + gl_LocalInvocationID.x;
    if (job >= inner * owners) return;
    uint owner = job / inner;
    uint i = job - owner * inner;
    for (uint u = 0u; u < updates; ++u) {
        uint position = slot_target(u);
        // Rows are usually a power of two apart: a multiplicative hash spreads them over the owners.
        if (position != 0xffffffffu && ((position * 2654435761u) >> 12) % owners == owner) slot_apply(i, position, u);
    }
}

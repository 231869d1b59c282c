#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies of groups of 16 bytes between layouts whose fastest axis is the same. Each invocation takes four.
// Parameters: groups.
#include "params.glsl"
layout(local_size_x = 256) in;

uvec4 slot_load(const in uint at) { return uvec4(at); }
void slot_store(const in uint at, const in uvec4 value) {}

void main() {
    uint count = nx_param(0u), first = nx_group() * 1024u + gl_LocalInvocationID.x;
    uvec4 group[4];
    [[unroll]] for (uint k = 0u; k < 4u; ++k) group[k] = slot_load(min(first + k * 256u, count - 1u));
    [[unroll]] for (uint k = 0u; k < 4u; ++k) {
        if (first + k * 256u < count) slot_store(first + k * 256u, group[k]);
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Each invocation computes ITEMS elements 256 apart, or WIDTH neighbours at once where every operand allows it.
// Parameters: word 0 is the number of elements.
#include "params.glsl"
layout(local_size_x = 256) in;

void slot_element(const in uint i) {}
#ifdef WIDTH
void slot_vector(const in uint i) {}
#endif

void main() {
    uint n = nx_param(0u);
#ifdef WIDTH
    uint v = nx_group() * 256u + gl_LocalInvocationID.x;
    uint i = v * WIDTH;
    if (i + WIDTH <= n) {
        slot_vector(v);
    } else {
        for (; i < n; ++i) slot_element(i);
    }
#else
    uint i = nx_group() * (256u * ITEMS) + gl_LocalInvocationID.x;
    for (uint k = 0u; k < ITEMS; ++k) {
        if (i < n) slot_element(i);
        i += 256u;
    }
#endif
}

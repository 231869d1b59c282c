//! name = "fold_{acc}"
//! matrix = { acc = ["1", "2", "4"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Folds with a function that may be anything: each invocation applies it to one output's elements in order.
// Parameters: outputs, elements per output.
#include "params.glsl"
layout(local_size_x = 256) in;

#if ACC_WORDS == 1
#define ACC uint
#elif ACC_WORDS == 2
#define ACC uvec2
#else
#define ACC uvec4
#endif

ACC slot_initial() { return ACC(0u); }
// The accumulator after element `r` of output `o`.
ACC slot_apply(const in ACC acc, const in uint o, const in uint r) { return acc + ACC(o + r); }
void slot_store(const in uint o, const in ACC value) {}

void main() {
    uint outputs = nx_param(0u), elements = nx_param(1u);
    uint o = nx_group() * 256u + gl_LocalInvocationID.x;
    if (o >= outputs) return;
    ACC acc = slot_initial();
    for (uint r = 0u; r < elements; ++r) acc = slot_apply(acc, o, r);
    slot_store(o, acc);
}

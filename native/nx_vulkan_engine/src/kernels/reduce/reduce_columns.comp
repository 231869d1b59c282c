//! name = "reduce_columns_{acc}"
//! matrix = { acc = ["1", "2", "4", "several"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Reductions along an outer axis: neighbouring invocations take neighbouring outputs, each one chunk of its elements.
// Parameters: outputs, elements per output, elements per chunk, chunks per output. Result `chunk * outputs + output`.
#include "params.glsl"
#include "accumulator.glsl"
layout(local_size_x = 256) in;

// What all elements of an output have in common.
void slot_begin(const in uint o) {}

void main() {
    uint outputs = nx_param(0u), elements = nx_param(1u), chunk = nx_param(2u), chunks = nx_param(3u);
    uint job = nx_group() * 256u + gl_LocalInvocationID.x;
    if (job >= outputs * chunks) return;
    uint c = job / outputs;
    uint o = job - c * outputs;
    uint begin = min(c * chunk, elements);
    uint end = min(begin + chunk, elements);
    slot_begin(o);
    ACC acc = slot_identity();
    uint r = begin;
    for (; r + 4u <= end; r += 4u) {
        ACC a = slot_load(o, r), b = slot_load(o, r + 1u), c = slot_load(o, r + 2u), d = slot_load(o, r + 3u);
        acc = slot_combine(acc, slot_combine(slot_combine(a, b), slot_combine(c, d)));
    }
    for (; r < end; ++r) acc = slot_combine(acc, slot_load(o, r));
    slot_store(job, acc);
}

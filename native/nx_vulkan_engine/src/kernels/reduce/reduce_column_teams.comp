//! name = "reduce_column_teams_{acc}"
//! matrix = { acc = ["1", "2", "4", "several"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Reductions along an outer axis, of few outputs. A team of TEAM invocations reduces one chunk of one output's
// elements, each every TEAM-th and eight at once, as loads take long; invocations of neighbouring teams read neighbours
// in memory. Then a tree over shared memory. Parameters: outputs, elements per output, elements per chunk, chunks per
// output. Result `chunk * outputs + output`.
#include "params.glsl"
#include "accumulator.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TEAM = 32u;
#include "team_total.glsl"

// What all elements of an output have in common.
void slot_begin(const in uint o) {}

void main() {
    uint outputs = nx_param(0u), elements = nx_param(1u), chunk = nx_param(2u), chunks = nx_param(3u);
    uint teams = 256u / TEAM;
    uint lane = gl_LocalInvocationID.x / teams;
    uint job = nx_group() * teams + gl_LocalInvocationID.x % teams;
    bool live = job < outputs * chunks;
    ACC none = slot_identity();
    ACC acc = none;
    if (live) {
        uint c = job / outputs;
        uint o = job - c * outputs;
        uint begin = min(c * chunk, elements);
        uint end = min(begin + chunk, elements);
        slot_begin(o);
        for (uint first = begin + lane; first < end; first += 8u * TEAM) {
            ACC v[8];
            [[unroll]] for (uint k = 0u; k < 8u; ++k) {
                v[k] = slot_load(o, min(first + k * TEAM, end - 1u));
            }
            if (first + 7u * TEAM >= end) {
                [[unroll]] for (uint k = 1u; k < 8u; ++k) {
                    if (first + k * TEAM >= end) v[k] = none;
                }
            }
            HALVE(v, 4u)
            HALVE(v, 2u)
            HALVE(v, 1u)
            acc = slot_combine(acc, v[0]);
        }
    }
    ACC total = team_total(lane, teams, acc);
    if (live && lane == 0u) slot_store(job, total);
}

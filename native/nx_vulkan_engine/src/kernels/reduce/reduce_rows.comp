//! name = "reduce_rows_{acc}{width}"
//! matrix = [
//!   { acc = ["1", "2", "several"], width = ["", "_v2", "_v4"] },
//!   { acc = ["4"], width = ["", "_v2"] },
//! ]
//! choices.width = { "" = {}, _v2 = { WIDTH = "2u" }, _v4 = { WIDTH = "4u" } }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Reductions along the innermost axis. A team of TEAM neighbouring invocations reduces one chunk of one output's
// elements: each invocation takes every TEAM-th group of WIDTH, then a tree over shared memory whose shape depends
// on TEAM only.
// Parameters: outputs, elements per output, elements per chunk (a multiple of WIDTH), chunks per output.
// Result `output * chunks + chunk`.
#include "params.glsl"
#include "accumulator.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TEAM = 256u;

#ifdef WIDTH
ACC slot_load_vector(const in uint o, const in uint r) { return ACC_OF(o + r); }
#endif

#include "team_total.glsl"

// What all elements of an output have in common.
void slot_begin(const in uint o) {}

void main() {
    uint outputs = nx_param(0u), elements = nx_param(1u), chunk = nx_param(2u), chunks = nx_param(3u);
    uint id = gl_LocalInvocationID.x;
    uint lane = id % TEAM;
    uint job = nx_group() * (256u / TEAM) + id / TEAM;
    bool live = job < outputs * chunks;
    ACC acc = slot_identity();
    if (live) {
        uint o = job / chunks;
        uint begin = min((job - o * chunks) * chunk, elements);
        uint end = min(begin + chunk, elements);
        slot_begin(o);
#ifdef WIDTH
        uint whole = begin + (end - begin) / WIDTH * WIDTH;
        for (uint r = begin + lane * WIDTH; r < whole; r += TEAM * WIDTH) {
            acc = slot_combine(acc, slot_load_vector(o, r));
        }
        for (uint r = whole + lane; r < end; r += TEAM) acc = slot_combine(acc, slot_load(o, r));
#else
        for (uint r = begin + lane; r < end; r += TEAM) acc = slot_combine(acc, slot_load(o, r));
#endif
    }
    ACC total = team_total(lane, 1u, acc);
    if (live && lane == 0u) slot_store(job, total);
}

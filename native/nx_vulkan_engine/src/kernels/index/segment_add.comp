//! name = "segment_add_{acc}"
//! matrix = { acc = ["1", "2", "4"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Adds up runs of updates with equal targets, which are sorted. One invocation per chunk of CHUNK updates and inner
// element: runs inside of a chunk go to their row, its first and its last run become updates 2c and 2c + 1 of the next
// level. The LAST level has one chunk, whose runs all go to their rows. Parameters: inner elements per row, updates,
// chunks.
#include "params.glsl"
#include "accumulator.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LAST = 0u;
// Updates are words that lie in the order of their targets: four are loaded at once.
layout(constant_id = 1) const uint CARRIED = 0u;
#define CHUNK 32u
#define BATCH 8u
#define OUTSIDE 0xffffffffu

// The row that a sorted update goes to, or OUTSIDE: then it counts for nothing.
uint slot_target(const in uint at) { return at; }
// Four neighbours: their targets, and their words, of each of which comes an update.
uvec4 slot_target_four(const in uint four) { return uvec4(four); }
uvec4 slot_load_four(const in uint four) { return uvec4(~four); }
ACC slot_lift(const in uint word) { return ACC(word); }
void slot_apply(const in uint inner, const in uint target, const in ACC sum) {}
// The target of an update of the next level.
void slot_mark(const in uint at, const in uint target) {}

void main() {
    uint inner = nx_param(0u), updates = nx_param(1u), chunks = nx_param(2u);
    uint job = nx_group() * 256u + gl_LocalInvocationID.x;
    uint chunk = job / inner;
    if (chunk >= chunks) return;
    uint i = job - chunk * inner;
    uint end = min(chunk * CHUNK + CHUNK, updates);
    uint run = OUTSIDE;
    uint last_run = chunk * 2u;
    ACC sum = ACC(0u);
    for (uint first = chunk * CHUNK; first < end; first += BATCH) {
        // On their way at once; those beyond the end count for nothing.
        uint targets[BATCH];
        ACC values[BATCH];
        if (CARRIED != 0u && first + BATCH <= end) {
            uvec4 words[BATCH / 4u], rows[BATCH / 4u];
            [[unroll]] for (uint q = 0u; q < BATCH / 4u; ++q) {
                rows[q] = slot_target_four(first / 4u + q);
                words[q] = slot_load_four(first / 4u + q);
            }
            [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
                targets[k] = rows[k / 4u][k % 4u];
                values[k] = slot_lift(words[k / 4u][k % 4u]);
            }
        } else {
            [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
                uint at = min(first + k, end - 1u);
                uint target = slot_target(at);
                targets[k] = first + k < end ? target : OUTSIDE;
                values[k] = slot_load(at, i);
            }
        }
        [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
            if (targets[k] == OUTSIDE) continue;
            if (targets[k] == run) {
                sum = slot_combine(sum, values[k]);
                continue;
            }
            if (run != OUTSIDE) {
                if (LAST != 0u || last_run != chunk * 2u) {
                    slot_apply(i, run, sum);
                } else {
                    slot_store(last_run * inner + i, sum);
                    if (i == 0u) slot_mark(last_run, run);
                }
                last_run = chunk * 2u + 1u;
            }
            run = targets[k];
            sum = values[k];
        }
    }
    if (LAST != 0u) {
        if (run != OUTSIDE) slot_apply(i, run, sum);
        return;
    }
    slot_store(last_run * inner + i, sum);
    if (i == 0u) {
        slot_mark(last_run, run);
        if (last_run == chunk * 2u) slot_mark(last_run + 1u, OUTSIDE);
    }
}

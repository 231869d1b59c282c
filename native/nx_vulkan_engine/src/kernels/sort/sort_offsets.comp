#version 460
#extension GL_GOOGLE_include_directive : require
// Second and third dispatch of a radix pass. One invocation per digit turns the counts of a span of tiles into how many
// elements with that digit come before. The spans' totals are the next level, which has one entry more per row: there
// the LAST level, of one span per row, stores where each digit starts. Parameters: rows, entries per row, entries per
// span, spans per row.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LAST = 0u;
#define BATCH 16u

uint slot_load(const in uint at) { return at; }
void slot_store(const in uint at, const in uint count) {}
void slot_total(const in uint at, const in uint count) {}

shared uint starts[256];

void main() {
    uint rows = nx_param(0u), entries = nx_param(1u), span = nx_param(2u), spans = nx_param(3u);
    uint job = nx_group();
    if (job >= rows * spans) return;
    uint row = job / spans;
    uint begin = (job - row * spans) * span;
    uint end = min(begin + span, entries);
    uint digit = gl_LocalInvocationID.x;
    uint first = row * (entries + LAST);
    uint sum = 0u;
    for (uint i = begin; i < end; i += BATCH) {
        // All loads of a batch are under way at once.
        uint counts[BATCH];
        for (uint k = 0u; k < BATCH; ++k) counts[k] = i + k < end ? slot_load((first + i + k) * 256u + digit) : 0u;
        for (uint k = 0u; k < BATCH; ++k) {
            if (i + k < end) slot_store((first + i + k) * 256u + digit, sum);
            sum += counts[k];
        }
    }
    if (LAST == 0u) {
        slot_total((job + row) * 256u + digit, sum);
        return;
    }
    uint running = sum;
    starts[digit] = running;
    for (uint step = 1u; step < 256u; step <<= 1u) {
        barrier();
        if (digit >= step) running += starts[digit - step];
        barrier();
        starts[digit] = running;
    }
    slot_store((first + entries) * 256u + digit, running - sum);
}

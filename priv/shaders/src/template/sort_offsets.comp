#version 460
#extension GL_GOOGLE_include_directive : require
// Second and third dispatch of a radix pass. One invocation per digit turns the counts of a span of tiles into how many
// elements with that digit come before. The span's totals go one level up, where LAST adds where the digit starts.
// Parameters: rows, entries per row, entries per span, spans per row.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LAST = 0u;

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
    uint sum = 0u;
    for (uint i = begin; i < end; ++i) {
        uint at = (row * entries + i) * 256u + digit;
        uint count = slot_load(at);
        slot_store(at, sum);
        sum += count;
    }
    if (LAST == 0u) {
        slot_total(job * 256u + digit, sum);
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
    uint start = running - sum;
    for (uint i = begin; i < end; ++i) {
        uint at = (row * entries + i) * 256u + digit;
        slot_store(at, slot_load(at) + start);
    }
}

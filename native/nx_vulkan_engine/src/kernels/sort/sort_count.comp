//! name = "sort_count_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// First dispatch of a radix pass: how many elements of each tile have each digit. Parameters after those of the key:
// rows, elements per row, tiles per row, the digit's lowest bit, elements per tile.
#include "params.glsl"
#include "sort_key.glsl"
layout(local_size_x = 256) in;
// Loads that are under way at once.
#define BATCH 8u

KEY slot_load(const in uint at) { return KEY(at); }
void slot_store(const in uint at, const in uint count) {}

shared uint counts[256];

void main() {
    uint rows = nx_param(4u), elements = nx_param(5u), tiles = nx_param(6u), shift = nx_param(7u), size = nx_param(8u);
    uint job = nx_group();
    if (job >= rows * tiles) return;
    uint row = job / tiles;
    uint begin = (job - row * tiles) * size;
    uint end = min(begin + size, elements);
    uint id = gl_LocalInvocationID.x;
    counts[id] = 0u;
    barrier();
    for (uint i = begin + id; i < end; i += 256u * BATCH) {
        KEY raw[BATCH];
        [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
            raw[k] = KEY(0u);
            if (i + k * 256u < end) raw[k] = slot_load(row * elements + i + k * 256u);
        }
        [[unroll]] for (uint k = 0u; k < BATCH; ++k) {
            if (i + k * 256u < end) atomicAdd(counts[digit_of(key_of(raw[k]), shift)], 1u);
        }
    }
    barrier();
    slot_store(job * 256u + id, counts[id]);
}

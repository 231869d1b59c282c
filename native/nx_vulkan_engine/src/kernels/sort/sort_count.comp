//! name = "sort_count_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// First dispatch of a radix pass: how often each digit occurs in each tile of a row, at `(row * tiles + tile) * 256 +
// digit`. Parameters after those of the key: rows, elements per row, tiles per row, the digit's lowest bit.
#include "params.glsl"
#include "sort_key.glsl"
layout(local_size_x = 256) in;
#define TILE 4096u

KEY slot_load(const in uint at) { return KEY(at); }
void slot_store(const in uint at, const in uint count) {}

shared uint counts[256];

void main() {
    uint rows = nx_param(4u), elements = nx_param(5u), tiles = nx_param(6u), shift = nx_param(7u);
    uint job = nx_group();
    if (job >= rows * tiles) return;
    uint row = job / tiles;
    uint begin = (job - row * tiles) * TILE;
    uint end = min(begin + TILE, elements);
    uint id = gl_LocalInvocationID.x;
    counts[id] = 0u;
    barrier();
    for (uint i = begin + id; i < end; i += 256u) {
        atomicAdd(counts[digit_of(key_of(slot_load(row * elements + i)), shift)], 1u);
    }
    barrier();
    slot_store(job * 256u + id, counts[id]);
}

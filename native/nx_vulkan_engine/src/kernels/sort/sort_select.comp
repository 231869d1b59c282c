//! name = "sort_select_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Finds the first elements of each chunk of a row, sorted. Elements that come before the last of the best so far wait
// in shared memory until there are enough of them to sort: most elements are only read. A step takes runs of elements
// from all over the chunk, so that the first one knows what the chunk has: in rows that are sorted the other way, each
// step in their order would be better than all before it. Parameters after those of the key: rows, elements per row,
// chunks per row, elements kept per chunk (fewer than a chunk has, and at most 512).
#include "params.glsl"
#include "sort_key.glsl"
#include "sort_network.glsl"
layout(local_size_x = 256) in;
#define STEP 1024u
// Neighbours that a step takes from each place.
#define RUN 32u

KEY slot_load(const in uint at) { return KEY(at); }
// The element at `from` becomes element `to` of the result; `place` counts from the row's first element.
void slot_store(const in uint to, const in uint from, const in uint place) {}

shared uint waiting;

void main() {
    uint rows = nx_param(4u), elements = nx_param(5u), chunks = nx_param(6u), kept = nx_param(7u);
    uint job = nx_group();
    if (job >= rows * chunks) return;
    uint row = job / chunks;
    uint chunk = job - row * chunks;
    // The first chunks take one of the elements that are left over.
    uint size = elements / chunks;
    uint left = elements - size * chunks;
    uint begin = chunk * size + min(chunk, left);
    uint end = begin + size + (chunk < left ? 1u : 0u);
    uint id = gl_LocalInvocationID.x;
    for (uint i = id; i < TILE; i += 256u) {
        keys[i] = LAST_KEY;
        places[i] = 0xffffffffu;
    }
    if (id == 0u) waiting = 0u;
    barrier();
    // The last of the best so far.
    KEY limit = LAST_KEY;
    uint limit_place = 0xffffffffu;
    uint steps = (end - begin + STEP - 1u) / STEP;
    for (uint step = 0u; step < steps; ++step) {
        for (uint k = 0u; k < STEP; k += 256u) {
            uint i = begin + ((k + id) / RUN * steps + step) * RUN + id % RUN;
            if (i < end) {
                KEY key = key_of(slot_load(row * elements + i));
                if (is_after(limit, key) || (key == limit && i < limit_place)) {
                    uint slot = kept + atomicAdd(waiting, 1u);
                    keys[slot] = key;
                    places[slot] = i;
                }
            }
        }
        barrier();
        uint used = kept + waiting;
        barrier();
        if (used + STEP > TILE || step + 1u == steps) {
            uint padded = 2u << findMSB(max(used, 2u) - 1u);
            sort_shared(id, padded, padded);
            limit = keys[kept - 1u];
            limit_place = places[kept - 1u];
            barrier();
            for (uint i = kept + id; i < TILE; i += 256u) {
                keys[i] = LAST_KEY;
                places[i] = 0xffffffffu;
            }
            if (id == 0u) waiting = 0u;
            barrier();
        }
    }
    for (uint i = id; i < kept; i += 256u) {
        slot_store(job * kept + i, row * elements + places[i], places[i]);
    }
}

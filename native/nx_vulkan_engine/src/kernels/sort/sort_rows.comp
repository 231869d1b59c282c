//! name = "sort_rows_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Sorts contiguous rows of at most TILE elements, several rows per workgroup. The first `kept` elements of each row are
// stored. Parameters after those of the key: rows, elements per row, the next power of two, elements kept per row.
#include "params.glsl"
#include "sort_key.glsl"
#include "sort_network.glsl"
layout(local_size_x = 256) in;

KEY slot_load(const in uint at) { return KEY(at); }
// The element at `from` becomes element `to` of the result; `place` counts from the row's first element.
void slot_store(const in uint to, const in uint from, const in uint place) {}

void main() {
    uint rows = nx_param(4u), elements = nx_param(5u), padded = nx_param(6u), kept = nx_param(7u);
    uint per_group = TILE / padded;
    uint first = nx_group() * per_group;
    if (first >= rows) return;
    uint live = min(per_group, rows - first);
    uint used = live * padded;
    uint id = gl_LocalInvocationID.x;
    for (uint e = id; e < used; e += 256u) {
        uint r = e / padded;
        uint i = e - r * padded;
        keys[e] = LAST_KEY;
        places[e] = i;
        if (i < elements) keys[e] = key_of(slot_load((first + r) * elements + i));
    }
    sort_shared(id, used, padded);
    for (uint e = id; e < live * kept; e += 256u) {
        uint r = e / kept;
        uint i = e - r * kept;
        uint place = places[r * padded + i];
        slot_store((first + r) * kept + i, (first + r) * elements + place, place);
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Sorts contiguous rows of at most TILE elements, several rows per workgroup: a bitonic network on (key, place in the
// row), so that elements with equal keys keep their order. The first `kept` elements of each row are stored.
// Parameters: rows, elements per row, the next power of two, elements kept per row.
#include "params.glsl"
#include "sort_key.glsl"
layout(local_size_x = 256) in;
#define TILE 2048u

KEY slot_load(const in uint at) { return KEY(at); }
// The element at `from` becomes element `to` of the result; `place` counts from the row's first element.
void slot_store(const in uint to, const in uint from, const in uint place) {}

shared KEY keys[TILE];
shared uint places[TILE];

void main() {
    uint rows = nx_param(0u), elements = nx_param(1u), padded = nx_param(2u), kept = nx_param(3u);
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
    for (uint size = 2u; size <= padded; size <<= 1u) {
        for (uint span = size; span > 1u; span >>= 1u) {
            uint half_span = span >> 1u;
            barrier();
            for (uint p = id; p < used / 2u; p += 256u) {
                uint low = ((p & ~(half_span - 1u)) << 1u) | (p & (half_span - 1u));
                // The first step of a size meets the halves end to end: both are ascending.
                uint high = span == size ? low ^ (size - 1u) : low + half_span;
                KEY a = keys[low], b = keys[high];
                uint i = places[low], j = places[high];
                if (is_after(a, b) || (a == b && i > j)) {
                    keys[low] = b;
                    keys[high] = a;
                    places[low] = j;
                    places[high] = i;
                }
            }
        }
    }
    barrier();
    for (uint e = id; e < live * kept; e += 256u) {
        uint r = e / kept;
        uint i = e - r * kept;
        uint place = places[r * padded + i];
        slot_store((first + r) * kept + i, (first + r) * elements + place, place);
    }
}

//! name = "sort_search_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// How many elements of a sorted row come before each value: one invocation halves the row for it. Parameters after
// those of the key: values, values that share a row, elements per row, whether equal elements come before a value.
#include "params.glsl"
#include "sort_key.glsl"
layout(local_size_x = 256) in;

KEY slot_load(const in uint at) { return KEY(at); }
KEY slot_value(const in uint at) { return KEY(at); }
void slot_store(const in uint at, const in uint place) {}

void main() {
    uint values = nx_param(4u), per_row = nx_param(5u), elements = nx_param(6u);
    bool right = nx_param(7u) != 0u;
    uint at = nx_group() * 256u + gl_LocalInvocationID.x;
    if (at >= values) return;
    KEY value = key_of(slot_value(at));
    uint row = at / per_row * elements;
    // What comes before the place is known, and of the `left` elements behind it nothing.
    uint place = 0u;
    uint left = elements;
    while (left > 0u) {
        uint middle = left >> 1u;
        KEY key = key_of(slot_load(row + place + middle));
        bool before = right ? !is_after(key, value) : is_after(value, key);
        place = before ? place + middle + 1u : place;
        left = before ? left - middle - 1u : middle;
    }
    slot_store(at, place);
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Adds each window's source to the window's chosen element, seen from the elements: each invocation adds up the sources
// of the windows that cover its element and chose it, in the order of the windows. Sums are pairs of words of which the
// second may be unused. Parameters: elements of the result, windows that may cover one.
#include "params.glsl"
layout(local_size_x = 256) in;

// The number of the `cover`-th window that may cover element `i`, and the element's number in it; ~0 for no window.
uvec2 slot_window(const in uint i, const in uint cover) { return uvec2(i, cover); }
uint slot_chosen(const in uint window) { return window; }
uvec2 slot_initial() { return uvec2(0u); }
uvec2 slot_add(const in uvec2 sum, const in uint window) { return sum + uvec2(window); }
void slot_store(const in uint i, const in uvec2 sum) {}

void main() {
    uint count = nx_param(0u), covers = nx_param(1u);
    uint i = nx_group() * 256u + gl_LocalInvocationID.x;
    if (i >= count) return;
    uvec2 sum = slot_initial();
    for (uint cover = 0u; cover < covers; ++cover) {
        uvec2 place = slot_window(i, cover);
        if (place.x != 0xffffffffu && slot_chosen(place.x) == place.y) sum = slot_add(sum, place.x);
    }
    slot_store(i, sum);
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Adds each window's source to the window's extreme element, seen from the elements: each invocation looks at the windows
// that cover its element in their order, finds each one's extreme, and adds the source where that is its own element.
// Elements and sums are pairs of words of which the second may be unused.
// Parameters: elements of the result, windows that may cover one, elements of a window.
#include "params.glsl"
layout(local_size_x = 256) in;

// The number of the `cover`-th window that may cover element `i`, and the element's number in it; ~0 for no window.
uvec2 slot_window(const in uint i, const in uint cover) { return uvec2(i, cover); }
uvec2 slot_element(const in uint window, const in uint element) { return uvec2(window, element); }
// Whether `element` takes the place of the extreme so far.
uint slot_replaces(const in uvec2 element, const in uvec2 extreme) { return element.x + extreme.x; }
uvec2 slot_initial() { return uvec2(0u); }
uvec2 slot_add(const in uvec2 sum, const in uint window) { return sum + uvec2(window); }
void slot_store(const in uint i, const in uvec2 sum) {}

void main() {
    uint count = nx_param(0u), covers = nx_param(1u), elements = nx_param(2u);
    uint i = nx_group() * 256u + gl_LocalInvocationID.x;
    if (i >= count) return;
    uvec2 sum = slot_initial();
    for (uint cover = 0u; cover < covers; ++cover) {
        uvec2 place = slot_window(i, cover);
        if (place.x == 0xffffffffu) continue;
        uvec2 extreme = slot_element(place.x, 0u);
        uint chosen = 0u;
        for (uint e = 1u; e < elements; ++e) {
            uvec2 element = slot_element(place.x, e);
            if (slot_replaces(element, extreme) != 0u) {
                extreme = element;
                chosen = e;
            }
        }
        if (chosen == place.y) sum = slot_add(sum, place.x);
    }
    slot_store(i, sum);
}

#version 460
#extension GL_GOOGLE_include_directive : require
// The number of each window's extreme element: one window per invocation. Elements are pairs of words of which the
// second may be unused. Parameters: windows, elements of a window.
#include "params.glsl"
layout(local_size_x = 256) in;

// Where a window starts, and its elements from there.
uint slot_base(const in uint window) { return window; }
uvec2 slot_element(const in uint base, const in uint element) { return uvec2(base, element); }
// Whether `element` takes the place of the extreme so far.
uint slot_replaces(const in uvec2 element, const in uvec2 extreme) { return element.x + extreme.x; }
void slot_store(const in uint window, const in uint chosen) {}

void main() {
    uint windows = nx_param(0u), elements = nx_param(1u);
    uint window = nx_group() * 256u + gl_LocalInvocationID.x;
    if (window >= windows) return;
    uint base = slot_base(window);
    uvec2 extreme = slot_element(base, 0u);
    uint chosen = 0u;
    for (uint e = 1u; e < elements; ++e) {
        uvec2 element = slot_element(base, e);
        if (slot_replaces(element, extreme) != 0u) {
            extreme = element;
            chosen = e;
        }
    }
    slot_store(window, chosen);
}

//! name = "eigh_rotate_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Applies the rotations of a node to its vectors, the last one first. One invocation per column.
// Parameters: rows of a node, nodes, columns. Operands: state, places, vectors.
#include "params.glsl"
#include "linalg_divide.glsl"
layout(local_size_x = 64) in;

T slot_load0(const in uint at) { return T(float(at)); }
uint slot_load1(const in uint at) { return at; }
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}

void main() {
    uint m = nx_param(0u), columns = nx_param(2u), job = nx_group() * 64u + gl_LocalInvocationID.x;
    uint node = job / columns, j = job % columns;
    if (node >= nx_param(1u)) return;
    for (uint k = min(slot_load1(dc_rotations(node, m)), m); k > 0u; --k) {
        R c = slot_load0(dc_state(node, COSINE, m) + k - 1u), s = slot_load0(dc_state(node, SINE, m) + k - 1u);
        uint first = min(slot_load1(dc_places(node, ROTATED, m) + k - 1u), m - 1u);
        uint second = min(slot_load1(dc_places(node, KEPT_ROTATED, m) + k - 1u), m - 1u);
        uint first_at = (node * m + first) * columns + j, second_at = (node * m + second) * columns + j;
        R a = slot_load2(first_at), b = slot_load2(second_at);
        slot_store2(first_at, c * a - s * b);
        slot_store2(second_at, s * a + c * b);
    }
}

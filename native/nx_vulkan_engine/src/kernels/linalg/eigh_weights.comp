//! name = "eigh_weights_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// The weights for which the new eigenvalues of a node are exact, so that its vectors are orthogonal. One workgroup per
// weight. Parameters: columns of a node, nodes. Operands: state, places.
#include "params.glsl"
#include "linalg_divide.glsl"
layout(local_size_x = 64) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store0(const in uint at, const in T value) {}
uint slot_load1(const in uint at) { return at; }

shared R part[64];

void main() {
    uint m = nx_param(0u), node = nx_group() / m, i = nx_group() % m, id = gl_LocalInvocationID.x;
    if (node >= nx_param(1u)) return;
    uint kept = min(slot_load1(dc_kept(node, m)), m), pole0 = dc_state(node, POLE, m);
    if (i >= kept) return;
    R pole = slot_load0(pole0 + i), product = R(1);
    for (uint j = id; j < kept; j += 64u) {
        uint origin = min(slot_load1(dc_places(node, ORIGIN, m) + j), m - 1u);
        R difference = (pole - slot_load0(pole0 + origin)) - slot_load0(dc_state(node, DISTANCE, m) + j);
        product *= i == j ? difference : slot_divide_real(difference, pole - slot_load0(pole0 + j));
    }
    part[id] = product;
    for (uint step = 32u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] *= part[id + step];
    }
    if (id != 0u) return;
    R size = slot_sqrt(la_magnitude(part[0]));
    slot_store0(dc_state(node, NEW_WEIGHT, m) + i, slot_load0(dc_state(node, WEIGHT, m) + i) < R(0) ? -size : size);
}

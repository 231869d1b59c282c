//! name = "eigh_vectors_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// The vectors of a node in terms of those of its halves, before its rotations. One workgroup per vector. Parameters:
// columns of a node, nodes, first column, columns that are made. Operands: state, places, vectors as columns.
#include "params.glsl"
#include "linalg_divide.glsl"
layout(local_size_x = 64) in;

T slot_load0(const in uint at) { return T(float(at)); }
uint slot_load1(const in uint at) { return at; }
void slot_store2(const in uint at, const in T value) {}

shared R part[64];

R element(const in uint node, const in uint m, const in uint i, const in R origin, const in R distance) {
    R difference = (slot_load0(dc_state(node, POLE, m) + i) - origin) - distance;
    return slot_divide_real(slot_load0(dc_state(node, NEW_WEIGHT, m) + i), difference);
}

void main() {
    uint m = nx_param(0u), columns = nx_param(3u), node = nx_group() / columns, own = nx_group() % columns;
    uint j = nx_param(2u) + own, id = gl_LocalInvocationID.x;
    if (node >= nx_param(1u)) return;
    uint kept = min(slot_load1(dc_kept(node, m)), m);
    bool is_new = j < kept;
    R origin = R(0), distance = R(1), sum = R(0);
    if (is_new) {
        uint place = min(slot_load1(dc_places(node, ORIGIN, m) + j), m - 1u);
        origin = slot_load0(dc_state(node, POLE, m) + place);
        distance = slot_load0(dc_state(node, DISTANCE, m) + j);
        for (uint i = id; i < kept; i += 64u) {
            R x = element(node, m, i, origin, distance);
            sum += x * x;
        }
    }
    part[id] = sum;
    for (uint step = 32u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] += part[id + step];
    }
    barrier();
    R norm = slot_sqrt(part[0]);
    for (uint i = id; i < m; i += 64u) {
        R x = R(!is_new && i == j ? 1 : 0);
        if (is_new && i < kept) x = slot_divide_real(element(node, m, i, origin, distance), norm);
        uint row = min(slot_load1(dc_places(node, COLUMN, m) + i), m - 1u);
        slot_store2((node * m + row) * columns + own, x);
    }
}

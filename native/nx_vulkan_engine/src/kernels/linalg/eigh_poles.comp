//! name = "eigh_poles_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Sorts the eigenvalues of both halves of a node, with their weights. One workgroup per 256 eigenvalues. Parameters:
// order, columns of a node, nodes per matrix, nodes. Operands: diagonals and what is beside them, eigenvalues, vectors
// of the halves from the last row of a half on, state, places.
#include "params.glsl"
#include "linalg_divide.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}
void slot_store4(const in uint at, const in uint value) {}

#if defined(F32)
#define ROOT_OF_HALF R(0.70710678)
#else
#define ROOT_OF_HALF R(0.70710678118654752LF)
#endif

shared R tile[256];

void main() {
    uint m = nx_param(1u), h = m / 2u, id = gl_LocalInvocationID.x, tiles = (m + 255u) / 256u;
    uint node = nx_group() / tiles, i = nx_group() % tiles * 256u + id;
    if (node >= nx_param(3u)) return;
    R value = i < m ? slot_load1(node * m + i) : R(0);
    uint rank = 0u;
    for (uint base = 0u; base < m; base += 256u) {
        barrier();
        tile[id] = base + id < m ? slot_load1(node * m + base + id) : R(0);
        barrier();
        uint count = min(256u, m - base);
        for (uint k = 0u; k < count; ++k) rank += uint(tile[k] < value || tile[k] == value && base + k < i);
    }
    if (i >= m) return;
    // The first row of the other half follows.
    R z = slot_load2(node * m * h + i);
    uint at;
    if (i >= h && dc_coupling(node, m, nx_param(2u), nx_param(0u), at) && slot_load0(at) < R(0)) z = -z;
    slot_store3(dc_state(node, POLE, m) + rank, value);
    slot_store3(dc_state(node, WEIGHT, m) + rank, z * ROOT_OF_HALF);
    slot_store4(dc_places(node, ORIGIN, m) + rank, i);
}

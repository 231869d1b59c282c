//! name = "svd_norm_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// The norms of the columns that one-sided Jacobi rotations have made orthogonal; one workgroup per column.
// Parameters: order, even order, matrices. Operands: columns (rows in memory), norms.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 128) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}

shared R part[128];

void main() {
    uint n = nx_param(0u), id = gl_LocalInvocationID.x;
    uint row = nx_group();
    if (row >= nx_param(1u) * nx_param(2u)) return;
    R largest = R(0);
    for (uint i = id; i < n; i += 128u) largest = la_largest(largest, slot_load0(row * n + i));
    part[id] = largest;
    for (uint step = 64u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] = la_largest(part[id], la_make(part[id + step]));
    }
    barrier();
    R scale = la_power_scale(part[0]), unscale = la_power_unscale(part[0]), sum = R(0);
    barrier();
    for (uint i = id; i < n; i += 128u) sum += la_square(la_scale(slot_load0(row * n + i), scale));
    part[id] = sum;
    for (uint step = 64u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] += part[id + step];
    }
    if (id == 0u) slot_store1(row, la_make(slot_sqrt(part[0]) * unscale));
}

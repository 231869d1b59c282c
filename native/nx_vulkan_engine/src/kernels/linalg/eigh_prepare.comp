//! name = "eigh_prepare_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// The Hermitian matrix of what lies on and above the diagonal, scaled by a power of two. All is NaN where it is not
// finite. Parameters: order, matrices. Operands: matrices, their largest absolute elements, results.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}

void main() {
    uint n = nx_param(0u);
    uint e = nx_group() * 256u + gl_LocalInvocationID.x;
    uint batch = e / (n * n), i = e / n % n, j = e % n;
    if (batch >= nx_param(1u)) return;
    R largest = la_real(slot_load1(batch));
    T value = i <= j ? slot_load0(e) : la_conj(slot_load0((batch * n + j) * n + i));
    if (i == j) value = la_make(la_real(value));
    slot_store2(e, la_is_nan_real(largest - largest) ? la_not_a_number() : la_scale(value, la_power_scale(largest)));
}

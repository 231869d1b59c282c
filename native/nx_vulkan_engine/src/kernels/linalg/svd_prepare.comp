//! name = "svd_prepare_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// What one-sided Jacobi rotations start from: the columns of square matrices as rows, scaled by a power of two and
// filled to an even number, and the identity. All is NaN where the matrix is not finite. Parameters: order of the
// matrices, even order, elements between rows, between matrices, matrices. Operands: matrices, their largest absolute
// elements, columns, vectors.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}
void slot_store3(const in uint at, const in T value) {}

void main() {
    uint n = nx_param(0u), order = nx_param(1u);
    uint e = nx_group() * 256u + gl_LocalInvocationID.x;
    uint batch = e / (order * n), j = e / n % order, i = e % n;
    if (batch >= nx_param(4u)) return;
    R largest = la_real(slot_load1(batch));
    T value = la_zero();
    if (j < n) value = la_scale(slot_load0(batch * nx_param(3u) + i * nx_param(2u) + j), la_power_scale(largest));
    T unit = i == j ? la_one() : la_zero();
    if (la_is_nan_real(largest - largest)) {
        value = la_not_a_number();
        unit = value;
    }
    slot_store2(e, value);
    slot_store3(e, unit);
}

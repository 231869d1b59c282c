//! name = "eigh_prepare_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// The Hermitian matrix of what lies on and above the diagonal, scaled by a power of two. All is NaN where it is not
// finite. Parameters: order, matrices, first row, first column, rows and columns that are computed. Operands: matrices,
// from there on and from where that is mirrored at the diagonal, their largest absolute elements, results from there
// on.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}

void main() {
    uint n = nx_param(0u), first_row = nx_param(2u), first_column = nx_param(3u);
    uint rows = nx_param(4u), columns = nx_param(5u);
    uint e = nx_group() * 256u + gl_LocalInvocationID.x;
    uint batch = e / (rows * columns), i = e / columns % rows, j = e % columns;
    if (batch >= nx_param(1u)) return;
    R largest = la_real(slot_load2(batch));
    uint own = (batch * n + i) * n + j, row = first_row + i, column = first_column + j;
    T value = row <= column ? slot_load0(own) : la_conj(slot_load1((batch * n + j) * n + i));
    if (row == column) value = la_make(la_real(value));
    slot_store3(own, la_is_nan_real(largest - largest) ? la_not_a_number() : la_scale(value, la_power_scale(largest)));
}

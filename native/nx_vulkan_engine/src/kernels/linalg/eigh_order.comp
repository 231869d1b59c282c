//! name = "eigh_order_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Eigenvalues in descending order of their size, and their vectors as columns, without those of the rows past the
// order. One workgroup per vector. Parameters: order, order with the rows past it, matrices, rows of the vectors that
// are written. Operands: eigenvalues, vectors from the first of these rows on, vectors from the rows past the order on,
// largest elements of the matrices before scaling, eigenvalues in order, vectors in order from that first row on.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
T slot_load3(const in uint at) { return T(float(at)); }
void slot_store4(const in uint at, const in T value) {}
void slot_store5(const in uint at, const in T value) {}

shared uint rank;

// Whether an eigenvalue of 0 is one of the rows past the order: its vector is a unit vector there.
bool is_extra(const in uint batch, const in uint column, const in uint n, const in uint rows) {
    for (uint row = 0u; row < rows - n; ++row) {
        if (la_magnitude(la_real(slot_load2((batch * rows + row) * rows + column))) > R(0.5)) return true;
    }
    return false;
}

void main() {
    uint n = nx_param(0u), rows = nx_param(1u), id = gl_LocalInvocationID.x;
    uint batch = nx_group() / rows, column = nx_group() % rows;
    if (batch >= nx_param(2u)) return;
    R largest = la_real(slot_load3(batch)), value = la_real(slot_load0(batch * rows + column)), size = la_magnitude(value);
    bool is_bad = la_is_nan_real(largest - largest);
    if (!is_bad && value == R(0) && is_extra(batch, column, n, rows)) return;
    if (id == 0u) rank = 0u;
    barrier();
    uint before = 0u;
    for (uint k = id; k < rows; k += 256u) {
        R other = la_magnitude(la_real(slot_load0(batch * rows + k)));
        if (other > size) before += 1u;
        if (other == size && k < column && (other != R(0) || !is_extra(batch, k, n, rows))) before += 1u;
    }
    atomicAdd(rank, before);
    barrier();
    uint to = is_bad ? column : rank;
    if (to >= n) return;
    if (id == 0u) slot_store4(batch * n + to, is_bad ? la_not_a_number() : la_make(value * la_power_unscale(largest)));
    for (uint row = id; row < nx_param(3u); row += 256u) {
        T x = is_bad ? la_not_a_number() : slot_load1((batch * rows + row) * rows + column);
        slot_store5((batch * n + row) * n + to, x);
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
// Eigenvalues in descending order of their size, and their vectors as columns. One workgroup per vector.
// Parameters: order of the matrices, even order, turn, matrices. Operands: rotated matrices, rows of vectors, largest elements of
// the matrices before scaling, eigenvalues, vectors.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}
void slot_store4(const in uint at, const in T value) {}

shared uint rank;

void main() {
    uint n = nx_param(0u), order = nx_param(1u), turn = nx_param(2u), id = gl_LocalInvocationID.x;
    uint batch = nx_group() / n, position = nx_group() % n;
    if (batch >= nx_param(3u)) return;
    uint base = batch * order * order, pairs = order / 2u;
    uint element = la_element(position, turn, pairs);
    R value = la_real(slot_load0(base + element * order + element));
    R size = la_magnitude(value);
    if (id == 0u) rank = 0u;
    barrier();
    uint before = 0u;
    for (uint k = id; k < n; k += 256u) {
        uint other = la_element(k, turn, pairs);
        R other_size = la_magnitude(la_real(slot_load0(base + other * order + other)));
        before += uint(other_size > size || other_size == size && k < position);
    }
    atomicAdd(rank, before);
    barrier();
    uint column = la_is_nan_real(value) ? position : rank;
    if (id == 0u) slot_store3(batch * n + column, la_make(value * la_power_unscale(la_real(slot_load2(batch)))));
    for (uint row = id; row < n; row += 256u) {
        slot_store4((batch * n + row) * n + column, la_conj(slot_load1(base + element * order + row)));
    }
}

//! name = "svd_finish_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Singular values in descending order, left vectors (columns over their norms, zero where the norm is) and right
// vectors, all as rows. Values of the size of rounding errors are 0. One workgroup per vector. Parameters: order, even
// order, turn, matrices, multiple of the rounding error of the largest value that is 0 (as an f32). Operands: columns,
// vectors, norms, largest elements of the matrices before scaling, left vectors, singular values, right vectors,
// marks: one per singular value, VANISHED where it is 0.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 128) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
T slot_load3(const in uint at) { return T(float(at)); }
void slot_store4(const in uint at, const in T value) {}
void slot_store5(const in uint at, const in T value) {}
void slot_store6(const in uint at, const in T value) {}
void slot_store7(const in uint at, const in uint value) {}

#define VANISHED 2u

shared uint rank;
shared R greatest_of[128];

void main() {
    uint n = nx_param(0u), order = nx_param(1u), turn = nx_param(2u), id = gl_LocalInvocationID.x;
    uint batch = nx_group() / n, position = nx_group() % n;
    if (batch >= nx_param(3u)) return;
    uint pairs = order / 2u;
    uint element = la_element(position, turn, pairs);
    R norm = la_real(slot_load2(batch * order + element));
    if (id == 0u) rank = 0u;
    barrier();
    uint before = 0u;
    R greatest = R(0);
    for (uint k = id; k < n; k += 128u) {
        R other = la_real(slot_load2(batch * order + la_element(k, turn, pairs)));
        if (other > greatest) greatest = other;
        before += uint(other > norm || other == norm && k < position);
    }
    atomicAdd(rank, before);
    greatest_of[id] = greatest;
    for (uint step = 64u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step && greatest_of[id + step] > greatest_of[id]) greatest_of[id] = greatest_of[id + step];
    }
    barrier();
    uint row = batch * n + (la_is_nan_real(norm) ? position : rank);
    R zero = R(uintBitsToFloat(nx_param(4u))) * LA_ROUNDING * greatest_of[0];
    R value = norm <= zero ? R(0) : norm * la_power_unscale(la_real(slot_load3(batch)));
    if (id == 0u) slot_store5(row, la_make(value));
    if (id == 0u && norm <= zero) slot_store7(nx_group(), VANISHED);
    uint from = (batch * order + element) * n;
    for (uint i = id; i < n; i += 128u) {
        T left = slot_load0(from + i);
        if (norm > R(0)) left = la_make(slot_divide_real(la_real(left), norm));
        slot_store4(row * n + i, left);
        slot_store6(row * n + i, slot_load1(from + i));
    }
}

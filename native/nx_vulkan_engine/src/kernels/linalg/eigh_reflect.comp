//! name = "eigh_reflect_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// w of a column but for a multiple of v, of which it sums up parts of w^H v, and the next column of the panel but for
// what that w takes from it. One workgroup per 64 rows. Parameters: order, column, first column of the panel, matrices,
// elements of `vectors`, workgroups per matrix, whether the next column belongs to the panel. Operands: the row of
// matrices that is the next column's conjugate, Y, X, `vectors`.
#include "params.glsl"
#include "linalg_tridiagonal.glsl"
layout(local_size_x = 64) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}
T slot_load3(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}

shared T products[2u * NB];
shared T beside[2u * NB];
shared T part[64];

void main() {
    uint n = nx_param(0u), i = nx_param(1u), l = i - nx_param(2u), groups = nx_param(5u), id = gl_LocalInvocationID.x;
    uint batch = nx_group() / groups, group = nx_group() % groups;
    if (batch >= nx_param(3u)) return;
    bool next = nx_param(6u) != 0u;
    uint x0 = batch * 2u * NB * n, vectors = batch * nx_param(4u), r = i + 1u + group * 64u + id;
    if (id % NB < l) {
        products[id] = slot_load3(vectors + td_products(n) + id);
        beside[id] = slot_load1(x0 + id * n + i + 1u);
    }
    barrier();
    T sum = la_zero();
    if (r < n) {
        T w = slot_load3(vectors + r), a = la_zero();
        if (next) a = la_conj(slot_load0(batch * n * n + r));
        for (uint k = 0u; k < l; ++k) {
            T xv = -slot_load2(x0 + k * n + r), xw = -slot_load2(x0 + (NB + k) * n + r);
            w = la_mad(xv, products[k], w);
            w = la_mad(xw, products[NB + k], w);
            a = la_mad(xv, beside[k], a);
            a = la_mad(xw, beside[NB + k], a);
        }
        w = la_mul(slot_load3(vectors + td_tau(n)), w);
        slot_store2(x0 + (NB + l) * n + r, w);
        if (next) slot_store3(vectors + td_column(n) + r, a);
        sum = la_mul(la_conj(w), slot_load2(x0 + l * n + r));
    }
    part[id] = sum;
    for (uint step = 32u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] += part[id + step];
    }
    if (id == 0u) slot_store3(vectors + td_parts(n) + group, part[0]);
}

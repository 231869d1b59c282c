//! name = "eigh_reflect_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
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

// Rows of X that are loaded at once.
#define AT_ONCE 8u

shared T products[2u * NB];
shared T beside[2u * NB];
shared T part[64];

void main() {
    uint n = nx_param(0u), i = nx_param(1u), l = i - nx_param(2u), groups = nx_param(5u), id = gl_LocalInvocationID.x;
    uint batch = nx_group() / groups, group = nx_group() % groups;
    if (batch >= nx_param(3u)) return;
    bool next = nx_param(6u) != 0u;
    uint x0 = batch * 2u * NB * n, vectors = batch * nx_param(4u), r = i + 1u + group * 64u + id;
    T w = la_zero(), a = la_zero(), v = la_zero(), product = la_zero(), own_beside = la_zero();
    if (id % NB < l) product = slot_load3(vectors + td_products(n) + id);
    if (id % NB < l) own_beside = slot_load1(x0 + id * n + i + 1u);
    if (r < n) w = slot_load3(vectors + r);
    if (r < n) v = slot_load2(x0 + l * n + r);
    if (r < n && next) a = la_conj(slot_load0(batch * n * n + r));
    T tau = slot_load3(vectors + td_tau(n));
    products[id] = product;
    beside[id] = own_beside;
    barrier();
    T sum = la_zero();
    if (r < n) {
        // Rows past the column's own count for nothing.
        for (uint k0 = 0u; k0 < l; k0 += AT_ONCE) {
            T xv[AT_ONCE], xw[AT_ONCE];
            [[unroll]] for (uint k = 0u; k < AT_ONCE; ++k) {
                xv[k] = la_zero();
                xw[k] = la_zero();
                if (k0 + k < l) xv[k] = -slot_load2(x0 + (k0 + k) * n + r);
                if (k0 + k < l) xw[k] = -slot_load2(x0 + (NB + k0 + k) * n + r);
            }
            [[unroll]] for (uint k = 0u; k < AT_ONCE; ++k) {
                w = la_mad(xv[k], products[k0 + k], w);
                w = la_mad(xw[k], products[NB + k0 + k], w);
                a = la_mad(xv[k], beside[k0 + k], a);
                a = la_mad(xw[k], beside[NB + k0 + k], a);
            }
        }
        w = la_mul(tau, w);
        slot_store2(x0 + (NB + l) * n + r, w);
        if (next) slot_store3(vectors + td_column(n) + r, a);
        sum = la_mul(la_conj(w), v);
    }
    part[id] = sum;
    for (uint step = 32u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] += part[id + step];
    }
    if (id == 0u) slot_store3(vectors + td_parts(n) + group, part[0]);
}

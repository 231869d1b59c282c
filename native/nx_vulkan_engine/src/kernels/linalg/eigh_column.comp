//! name = "eigh_column_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Finishes w of the column before, and makes the reflection of a column. One workgroup per matrix. Parameters: order,
// column, first column of the panel, matrices, flags, elements of `vectors`, parts of w^H v. Operands: the row of
// matrices that is that column's conjugate, X, Y, the triangular factors T of the panel's reflections I - V T V^H,
// `vectors`, diagonals and what is beside them. Source: the formulas of LAPACK's zlatrd, zlarfg and zlarft.
#include "params.glsl"
#include "linalg_tridiagonal.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in T value) {}
T slot_load3(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}
T slot_load4(const in uint at) { return T(float(at)); }
void slot_store4(const in uint at, const in T value) {}
void slot_store5(const in uint at, const in T value) {}

#define FINISH 1u
#define START 2u

shared T part[256];
shared R squares[256];
shared T pivot;
shared T coupling;

void main() {
    uint n = nx_param(0u), i = nx_param(1u), first = nx_param(2u), flags = nx_param(4u), id = gl_LocalInvocationID.x;
    uint batch = nx_group();
    if (batch >= nx_param(3u)) return;
    uint a0 = batch * n * n, x0 = batch * 2u * NB * n, t0 = batch * NB * NB, vectors = batch * nx_param(5u);
    uint column = vectors + td_column(n);

    T alpha = la_zero();
    if ((flags & FINISH) != 0u) {
        uint l = i - 1u - first, w0 = x0 + (NB + l) * n;
        T tau = slot_load4(vectors + td_tau(n));
        T sum = la_zero();
        for (uint k = id; k < nx_param(6u); k += 256u) sum += slot_load4(vectors + td_parts(n) + k);
        part[id] = sum;
        // Read before its owner changes it.
        if (id == 0u) pivot = slot_load1(w0 + i);
        for (uint step = 128u; step > 0u; step >>= 1u) {
            barrier();
            if (id < step) part[id] += part[id + step];
        }
        barrier();
        alpha = la_scale(la_mul(tau, part[0]), R(-0.5));
        if (id < NB) {
            T value = id == l ? tau : la_zero();
            if (id < l) {
                for (uint k = id; k < l; ++k) {
                    value = la_mad(slot_load3(t0 + id * NB + k), slot_load4(vectors + td_products(n) + NB + k), value);
                }
                value = -la_mul(tau, value);
            }
            slot_store3(t0 + id * NB + l, value);
        }
        T beside = la_conj(pivot + alpha);
        for (uint r = i + id; r < n; r += 256u) {
            T v = slot_load1(x0 + l * n + r), w = la_mad(alpha, v, slot_load1(w0 + r));
            slot_store1(w0 + r, w);
            slot_store2(x0 + l * n + r, la_conj(w));
            if ((flags & START) != 0u) slot_store4(column + r, slot_load4(column + r) - la_mul(v, beside) - w);
        }
    }
    if ((flags & START) == 0u) return;

    uint l = i - first;
    R below = R(0);
    for (uint r = i + id; r < n; r += 256u) {
        T value = l == 0u ? la_conj(slot_load0(a0 + r)) : slot_load4(column + r);
        if (l == 0u) slot_store4(column + r, value);
        if (r == i) slot_store5(batch * 2u * n + i, la_make(la_real(value)));
        if (r == i + 1u) coupling = value;
        if (r > i + 1u) below += la_square(value);
    }
    if (i + 1u >= n) return;
    squares[id] = below;
    for (uint step = 128u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) squares[id] += squares[id + step];
    }
    barrier();
    below = squares[0];
    T x = coupling;
    R re = la_real(x), beta = re;
    T tau = la_zero(), pole = la_one();
    bool nothing = below <= NOTHING;
#ifdef COMPLEX
    bool done = nothing && x.y * x.y <= NOTHING;
#else
    bool done = nothing;
#endif
    if (!done) {
        R norm = slot_sqrt(la_square(x) + below);
        beta = re < R(0) ? norm : -norm;
        pole = x - la_make(beta);
#ifdef COMPLEX
        tau = T(slot_divide_real(beta - re, beta), slot_divide_real(-x.y, beta));
#else
        tau = slot_divide_real(beta - re, beta);
#endif
    }
    for (uint r = first + id; r <= i + 1u; r += 256u) {
        T v = r == i + 1u ? la_one() : la_zero();
        slot_store1(x0 + l * n + r, v);
        slot_store2(x0 + (NB + l) * n + r, v);
    }
    for (uint r = i + id; r < n; r += 256u) {
        if (r <= i + 1u) continue;
        T v = nothing ? la_zero() : slot_divide(slot_load4(column + r), pole);
        slot_store1(x0 + l * n + r, v);
        slot_store2(x0 + (NB + l) * n + r, la_conj(v));
    }
    if (id == 0u) {
        slot_store4(vectors + td_tau(n), tau);
        slot_store5(batch * 2u * n + n + i, la_make(beta));
    }
}

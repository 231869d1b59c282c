//! name = "eigh_column_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Finishes w of the column before, and makes the reflection of a column. One workgroup per matrix. Parameters: order,
// column, first column of the panel, matrices, flags, elements of `vectors`, parts of w^H v. Operands: the row of
// matrices that is that column's conjugate, X, Y, the triangular factors T of the panel's reflections I - V T V^H,
// `vectors`, diagonals and what is beside them. Source: the formulas of LAPACK's zlatrd, zlarfg and zlarft.
#include "params.glsl"
#include "linalg_tridiagonal.glsl"
layout(local_size_x_id = 1) in;
#define LOCAL gl_WorkGroupSize.x

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

// Rows of an invocation that are in registers at once: loads do not wait for one another. Chunks of as many rows of
// each invocation follow one another where the column is longer.
#define HELD 4u
#define EACH [[unroll]] for (uint k = 0u; k < HELD; ++k)
#define CHUNK (HELD * LOCAL)

// Parts of w^H v that are added up by as many invocations.
#define SUMS 32u
// Invocations that make an element of the column of T.
#define LANES ((LOCAL < 256u ? LOCAL : 256u) / NB)
shared T part[SUMS];
shared T parts_of_t[LANES * NB];
shared R squares[LOCAL];
shared T pivot;
shared T coupling;

// What all invocations add up to: eight sums become one between barriers.
R total(const in uint id, const in R own) {
    squares[id] = own;
    uint count = LOCAL;
    for (; count > 8u; count /= 8u) {
        barrier();
        if (id < count / 8u) {
            R sum = R(0);
            [[unroll]] for (uint k = 0u; k < 8u; ++k) sum += squares[id + k * (count / 8u)];
            squares[id] = sum;
        }
    }
    barrier();
    R sum = R(0);
    for (uint k = 0u; k < count; ++k) sum += squares[k];
    return sum;
}

void main() {
    uint n = nx_param(0u), i = nx_param(1u), first = nx_param(2u), flags = nx_param(4u), id = gl_LocalInvocationID.x;
    uint batch = nx_group();
    if (batch >= nx_param(3u)) return;
    uint a0 = batch * n * n, x0 = batch * 2u * NB * n, t0 = batch * NB * NB, vectors = batch * nx_param(5u);
    uint column = vectors + td_column(n), l = i - first;
    bool finishes = (flags & FINISH) != 0u, starts = (flags & START) != 0u;
    // Of the column before.
    uint v0 = x0 + (l - 1u) * n, w0 = x0 + (NB + l - 1u) * n;

    T v[HELD], w[HELD], value[HELD];
    EACH {
        uint r = i + id + k * LOCAL;
        v[k] = la_zero();
        w[k] = la_zero();
        value[k] = la_zero();
        if (finishes && r < n) v[k] = slot_load1(v0 + r);
        if (finishes && r < n) w[k] = slot_load1(w0 + r);
        if (starts && finishes && r < n) value[k] = slot_load4(column + r);
        if (starts && !finishes && r < n) value[k] = la_conj(slot_load0(a0 + r));
    }
    // The column of T.
    T of_t = la_zero();
    [[unroll]] for (uint k = 0u; k < NB / LANES; ++k) {
        uint to = id / LANES, at = id % LANES + k * LANES;
        T left = la_zero(), right = la_zero();
        if (finishes && to <= at && at + 1u < l) left = slot_load3(t0 + to * NB + at);
        if (finishes && to <= at && at + 1u < l) right = slot_load4(vectors + td_products(n) + NB + at);
        of_t = la_mad(left, right, of_t);
    }
    if (finishes) {
        if (id < LANES * NB) parts_of_t[id] = of_t;
        T tau = slot_load4(vectors + td_tau(n));
        T sum = la_zero();
        for (uint k = id; id < SUMS && k < nx_param(6u); k += SUMS) sum += slot_load4(vectors + td_parts(n) + k);
        if (id < SUMS) part[id] = sum;
        // Read before its owner changes it.
        if (id == 0u) pivot = w[0];
        barrier();
        sum = la_zero();
        [[unroll]] for (uint k = 0u; k < SUMS; ++k) sum += part[k];
        T alpha = la_scale(la_mul(tau, sum), R(-0.5)), beside = la_conj(pivot + alpha);
        if (id < NB) {
            T of_t = la_zero();
            [[unroll]] for (uint k = 0u; k < LANES; ++k) of_t += parts_of_t[id * LANES + k];
            of_t = id + 1u < l ? -la_mul(tau, of_t) : id + 1u == l ? tau : la_zero();
            slot_store3(t0 + id * NB + l - 1u, of_t);
        }
        for (uint base = i + id; base < n; base += CHUNK) {
            EACH {
                uint r = base + k * LOCAL;
                if (r >= n) continue;
                if (base >= i + CHUNK) {
                    v[k] = slot_load1(v0 + r);
                    w[k] = slot_load1(w0 + r);
                }
                T finished = la_mad(alpha, v[k], w[k]);
                slot_store1(w0 + r, finished);
                slot_store2(v0 + r, la_conj(finished));
                if (!starts) continue;
                T next = base < i + CHUNK ? value[k] : slot_load4(column + r);
                next = next - la_mul(v[k], beside) - finished;
                if (base < i + CHUNK) value[k] = next; else slot_store4(column + r, next);
            }
        }
    }
    if (!starts) return;

    R below = R(0);
    for (uint base = i + id; base < n; base += CHUNK) {
        EACH {
            uint r = base + k * LOCAL;
            if (r >= n) continue;
            T x = value[k];
            if (base >= i + CHUNK) {
                x = finishes ? slot_load4(column + r) : la_conj(slot_load0(a0 + r));
                if (!finishes) slot_store4(column + r, x);
            }
            if (r == i) slot_store5(batch * 2u * n + i, la_make(la_real(x)));
            if (r == i + 1u) coupling = x;
            if (r > i + 1u) below += la_square(x);
        }
    }
    if (i + 1u >= n) return;
    below = total(id, below);
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
    for (uint r = first + id; r <= i + 1u; r += LOCAL) {
        T v = r == i + 1u ? la_one() : la_zero();
        slot_store1(x0 + l * n + r, v);
        slot_store2(x0 + (NB + l) * n + r, v);
    }
    for (uint base = i + id; base < n; base += CHUNK) {
        EACH {
            uint r = base + k * LOCAL;
            if (r >= n || r <= i + 1u) continue;
            T own = base < i + CHUNK ? value[k] : slot_load4(column + r);
            own = nothing ? la_zero() : slot_divide(own, pole);
            slot_store1(x0 + l * n + r, own);
            slot_store2(x0 + (NB + l) * n + r, la_conj(own));
        }
    }
    if (id == 0u) {
        slot_store4(vectors + td_tau(n), tau);
        slot_store5(batch * 2u * n + n + i, la_make(beta));
    }
}

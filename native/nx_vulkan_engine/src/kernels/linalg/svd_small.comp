//! name = "svd_small{lanes}_{type}"
//! matrix = [
//!   { lanes = [""], "type ORDER LANES" = ["f32 40u 160u", "f64 28u 112u"] },
//!   { lanes = ["_short"], "type ORDER LANES" = ["f32 16u 32u", "f64 16u 32u"] },
//! ]
//! choices.lanes = { "" = {}, _short = {} }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Singular values and vectors of small square matrices by one-sided Jacobi rotations (Hestenes 1958) in shared memory,
// one workgroup per matrix and GROUP invocations per pair of columns. Results are those of svd_finish. Parameters:
// order, elements between rows, between matrices, matrices, multiples of the rounding error: that count as orthogonal,
// of the largest singular value that are 0 (both as an f32). Operands: matrices, left vectors, singular values, right
// vectors (vectors are rows), marks: one per matrix, of the bits below.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = LANES) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in T value) {}
void slot_store3(const in uint at, const in T value) {}
void slot_store4(const in uint at, const in uint value) {}

// Sweeps after which a matrix counts as one that does not converge; ten are usual.
#define SWEEPS 60u

// Marks.
#define DIVERGED 1u
#define VANISHED 2u

#define GROUP (2u * LANES / ORDER)
#define PER ((ORDER + GROUP - 1u) / GROUP)
// Columns begin at different banks.
#define STRIDE (ORDER + 1u)

shared T a[ORDER * STRIDE];
shared T v[ORDER * STRIDE];
shared R upper_of[LANES];
shared R lower_of[LANES];
shared T off_of[LANES];
shared uint largest;
shared uint rotated;
shared uint marks;

// The upper word of a number without its sign: numbers of one binade differ in nothing else that counts here.
#if defined(F32)
uint top(const in R x) { return floatBitsToUint(x) & 0x7fffffffu; }
R from_top(const in uint word) { return uintBitsToFloat(word); }
#define NOT_FINITE 0x7f800000u
#else
uint top(const in R x) { return unpackDouble2x32(x).y & 0x7fffffffu; }
R from_top(const in uint word) { return packDouble2x32(uvec2(0u, word)); }
#define NOT_FINITE 0x7ff00000u
#endif

// The norm of a column.
R norm_of(const in uint column, const in uint n) {
    R most = R(0), sum = R(0);
    for (uint i = 0u; i < n; ++i) most = la_largest(most, a[column * STRIDE + i]);
    R scale = la_power_scale(most);
    for (uint i = 0u; i < n; ++i) sum += la_square(la_scale(a[column * STRIDE + i], scale));
    return slot_sqrt(sum) * la_power_unscale(most);
}

void main() {
    uint n = nx_param(0u), id = gl_LocalInvocationID.x, batch = nx_group();
    if (batch >= nx_param(3u)) return;
    uint pairs = (n + 1u) / 2u, ring = 2u * pairs - 1u;

    if (id == 0u) {
        largest = 0u;
        marks = 0u;
    }
    barrier();
    uint most = 0u;
    for (uint e = id; e < n * n; e += LANES) {
        uint i = e / n, j = e % n;
        T value = slot_load0(batch * nx_param(2u) + i * nx_param(1u) + j);
        most = max(most, top(value));
        a[j * STRIDE + i] = value;
        v[j * STRIDE + i] = i == j ? la_one() : la_zero();
    }
    atomicMax(largest, most);
    barrier();
    bool is_finite = largest < NOT_FINITE;
    R scale = la_power_scale(from_top(largest)), unscale = la_power_unscale(from_top(largest));
    for (uint e = id; e < n * n; e += LANES) {
        uint at = e / n * STRIDE + e % n;
        a[at] = la_scale(a[at], scale);
    }

    uint pair = id / GROUP, lane = id % GROUP;
    uvec2 places = la_places(pair, 0u, pairs);
    R enough = R(uintBitsToFloat(nx_param(4u)));
    bool converged = false;
    for (uint sweep = 0u; sweep < SWEEPS && is_finite && !converged; ++sweep) {
        barrier();
        if (id == 0u) rotated = 0u;
        for (uint round = 0u; round < ring; ++round) {
            barrier();
            uvec2 pq = pair < pairs ? la_pair_at(pair, places, pairs) : uvec2(n);
            places = uvec2(places.x == 0u ? ring - 1u : places.x - 1u, places.y == 0u ? ring - 1u : places.y - 1u);
            bool exists = pq.x < n && pq.y < n;
            uint p = pq.x * STRIDE + lane, q = pq.y * STRIDE + lane;
            T x[PER], y[PER];
            R upper = R(0), lower = R(0);
            T off = la_zero();
            [[unroll]] for (uint k = 0u; k < PER; ++k) {
                bool has = exists && lane + k * GROUP < n;
                x[k] = la_zero();
                y[k] = la_zero();
                if (has) {
                    x[k] = a[p + k * GROUP];
                    y[k] = a[q + k * GROUP];
                }
                upper += la_square(x[k]);
                lower += la_square(y[k]);
                off = la_mad(la_conj(x[k]), y[k], off);
            }
            upper_of[id] = upper;
            lower_of[id] = lower;
            off_of[id] = off;
            barrier();
            upper = R(0);
            lower = R(0);
            off = la_zero();
            [[unroll]] for (uint k = 0u; k < GROUP; ++k) {
                upper += upper_of[id - lane + k];
                lower += lower_of[id - lane + k];
                off += off_of[id - lane + k];
            }
            R square = la_square(off), scale = LA_ROUNDING * LA_ROUNDING * upper * lower;
            Rotation rotation = la_no_rotation();
            if (exists && square > R(4) * scale) rotation = la_rotation(upper, off, lower, false);
            // A rotation that underflows changes nothing any more.
            if (rotation.t != R(0)) {
                if (square > enough * enough * scale) atomicOr(rotated, 1u);
                [[unroll]] for (uint k = 0u; k < PER; ++k) {
                    if (lane + k * GROUP >= n) continue;
                    a[p + k * GROUP] = la_rotate_upper(x[k], y[k], rotation.c, rotation.s);
                    a[q + k * GROUP] = la_rotate_lower(x[k], y[k], rotation.c, rotation.s);
                    T upper_v = v[p + k * GROUP], lower_v = v[q + k * GROUP];
                    v[p + k * GROUP] = la_rotate_upper(upper_v, lower_v, rotation.c, rotation.s);
                    v[q + k * GROUP] = la_rotate_lower(upper_v, lower_v, rotation.c, rotation.s);
                }
            }
        }
        barrier();
        converged = rotated == 0u;
    }
    barrier();

    // Norms stand where sums stood.
    if (id < n) upper_of[id] = norm_of(id, n);
    barrier();
    if (is_finite && id == 0u && !converged) atomicOr(marks, DIVERGED);
    R greatest = R(0);
    for (uint k = 0u; k < n; ++k) greatest = upper_of[k] > greatest ? upper_of[k] : greatest;
    R zero = R(uintBitsToFloat(nx_param(5u))) * LA_ROUNDING * greatest;
    if (id < n) {
        uint rank = id;
        R norm = upper_of[id];
        if (is_finite) {
            rank = 0u;
            for (uint k = 0u; k < n; ++k) rank += uint(upper_of[k] > norm || upper_of[k] == norm && k < id);
            if (norm <= zero) atomicOr(marks, VANISHED);
        }
        T value = la_make(norm <= zero ? R(0) : norm * unscale);
        slot_store2(batch * n + rank, is_finite ? value : la_not_a_number());
        lower_of[id] = R(rank);
    }
    barrier();
    for (uint e = id; e < n * n; e += LANES) {
        uint column = e / n, i = e % n, at = column * STRIDE + i, to = (batch * n + uint(lower_of[column])) * n + i;
        R norm = upper_of[column];
        T left = a[at], right = v[at];
        if (norm > R(0)) left = la_make(slot_divide_real(la_real(left), norm));
        if (!is_finite) {
            left = la_not_a_number();
            right = la_not_a_number();
        }
        slot_store1(to, left);
        slot_store3(to, right);
    }
    if (id == 0u) slot_store4(batch, marks);
}

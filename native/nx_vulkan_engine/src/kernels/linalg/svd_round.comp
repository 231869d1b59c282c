//! name = "svd_round{lanes}_{type}"
//! matrix = { lanes = ["", "_short"], type = ["f32", "f64"] }
//! choices.lanes = { "" = { LANES = "128u" }, _short = { LANES = "32u" } }
#version 460
#extension GL_GOOGLE_include_directive : require
// One round of one-sided Jacobi rotations (Hestenes 1958): every workgroup makes one pair of columns orthogonal, and
// rotates the vectors with them. Columns and vectors are rows in memory. Parameters: order, even order, turn, matrices,
// number to mark rotations with, multiple of the rounding error that counts as orthogonal (as an f32). Operands:
// columns, vectors, marks: one per matrix and pair.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = LANES) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store0(const in uint at, const in T value) {}
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in uint value) {}

shared R upper_of[LANES];
shared R lower_of[LANES];
shared T off_of[LANES];
shared Rotation shared_rotation;

void main() {
    uint n = nx_param(0u), order = nx_param(1u), id = gl_LocalInvocationID.x;
    uint pairs = order / 2u;
    uint job = nx_group();
    uint pair = job % pairs, batch = job / pairs;
    if (batch >= nx_param(3u)) return;
    uvec2 pq = la_pair(pair, nx_param(2u), pairs);
    // The column that fills an odd order is zero.
    if (pq.x >= n || pq.y >= n) return;
    uint p = (batch * order + pq.x) * n, q = (batch * order + pq.y) * n;

    R upper = R(0), lower = R(0);
    T off = la_zero();
    for (uint i = id; i < n; i += LANES) {
        T x = slot_load0(p + i), y = slot_load0(q + i);
        upper += la_square(x);
        lower += la_square(y);
        off = la_mad(la_conj(x), y, off);
    }
    upper_of[id] = upper;
    lower_of[id] = lower;
    off_of[id] = off;
    for (uint step = LANES / 2u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) {
            upper_of[id] += upper_of[id + step];
            lower_of[id] += lower_of[id + step];
            off_of[id] += off_of[id + step];
        }
    }
    if (id == 0u) {
        upper = upper_of[0];
        lower = lower_of[0];
        off = off_of[0];
        R square = la_square(off), scale = LA_ROUNDING * LA_ROUNDING * upper * lower;
        Rotation rotation = la_no_rotation();
        if (square > R(4) * scale) rotation = la_rotation(upper, off, lower, false);
        R enough = R(uintBitsToFloat(nx_param(5u)));
        // A rotation that underflows changes nothing any more.
        if (square > enough * enough * scale && rotation.t != R(0)) slot_store2(batch * pairs + pair, nx_param(4u));
        shared_rotation = rotation;
    }
    barrier();
    Rotation rotation = shared_rotation;
    if (rotation.t == R(0)) return;
    for (uint i = id; i < n; i += LANES) {
        T x = slot_load0(p + i), y = slot_load0(q + i);
        slot_store0(p + i, la_rotate_upper(x, y, rotation.c, rotation.s));
        slot_store0(q + i, la_rotate_lower(x, y, rotation.c, rotation.s));
        x = slot_load1(p + i);
        y = slot_load1(q + i);
        slot_store1(p + i, la_rotate_upper(x, y, rotation.c, rotation.s));
        slot_store1(q + i, la_rotate_lower(x, y, rotation.c, rotation.s));
    }
}

//! name = "eigh_small{lanes}_{type}"
//! matrix = { lanes = ["", "_short"], type = ["f32", "f64", "c64", "c128"] }
//! choices.lanes = { "" = { LANES = "256u" }, _short = { LANES = "32u" } }
#version 460
#extension GL_GOOGLE_include_directive : require
// Eigenvalues and eigenvectors of small Hermitian matrices by cyclic Jacobi rotations in shared memory, one workgroup
// per matrix. Reads what lies on and above the diagonal. Eigenvalues come in descending order of their size.
// Parameters: order, matrices.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = LANES) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in T value) {}

// Sweeps after which a matrix counts as one that does not converge; ten are usual.
#define SWEEPS 64u

// Up to this order the results have the digits of Nx's default implementation, which takes small eigenvalues for zeros:
// here those of the size of rounding errors.
#define NX_DIGITS 4u
#define NX_ZERO (R(8) * LA_ROUNDING)

// Two matrices and the rest fit the 16 KiB that every device has.
#if defined(F32)
#define ORDER 40u
#elif defined(C128)
#define ORDER 20u
#else
#define ORDER 28u
#endif

// Rows begin at different banks.
shared T a[ORDER * (ORDER + 1u)];
shared T v[ORDER * (ORDER + 1u)];
shared Rotation rotations[ORDER / 2u];
shared uvec2 pairs_of[ORDER / 2u];
shared R largest_of[LANES];
shared R sizes[ORDER];
shared uint rotated;
shared uint is_bad;

// Row and column of an element, and of the one that is `step` further.
uvec2 place(const in uint element, const in uint width) { return uvec2(element / width, element % width); }
uvec2 next(const in uvec2 at, const in uvec2 step, const in uint width) {
    uvec2 to = at + step;
    return to.y < width ? to : uvec2(to.x + 1u, to.y - width);
}

void main() {
    uint n = nx_param(0u), id = gl_LocalInvocationID.x;
    uint batch = nx_group();
    if (batch >= nx_param(1u)) return;
    uint pairs = (n + 1u) / 2u, order = 2u * pairs, stride = order + 1u;

    if (id == 0u) is_bad = 0u;
    barrier();
    R largest = R(0);
    for (uint e = id; e < order * order; e += LANES) {
        uint i = e / order, j = e % order;
        T value = la_zero();
        if (i < n && j < n) value = i <= j ? slot_load0((batch * n + i) * n + j) : la_conj(slot_load0((batch * n + j) * n + i));
        if (i == j) value = la_make(la_real(value));
        if (la_is_nan(value - value)) atomicOr(is_bad, 1u);
        a[i * stride + j] = value;
        v[i * stride + j] = i == j ? la_one() : la_zero();
        largest = la_largest(largest, value);
    }
    largest_of[id] = largest;
    for (uint step = LANES / 2u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) largest_of[id] = la_largest(largest_of[id], la_make(largest_of[id + step]));
    }
    barrier();
    R scale = la_power_scale(largest_of[0]), unscale = la_power_unscale(largest_of[0]);
    for (uint e = id; e < order * order; e += LANES) {
        uint at = e / order * stride + e % order;
        a[at] = la_scale(a[at], scale);
    }

    uvec2 first_of_pairs = place(id, pairs), step_of_pairs = place(LANES, pairs);
    uvec2 first_of_rows = place(id, order), step_of_rows = place(LANES, order);
    uint turn = 0u;
    bool converged = false;
    for (uint sweep = 0u; sweep < SWEEPS && !converged && is_bad == 0u; ++sweep) {
        barrier();
        if (id == 0u) rotated = 0u;
        for (uint round = 0u; round < n; ++round) {
            barrier();
            if (id < pairs) {
                uvec2 pq = la_pair(id, turn, pairs);
                T off = a[pq.x * stride + pq.y];
                R upper = la_real(a[pq.x * stride + pq.x]), lower = la_real(a[pq.y * stride + pq.y]);
                R size = slot_abs(off), bound = LA_ROUNDING * R(0.25);
                Rotation rotation = la_no_rotation();
                if (size > LA_NEGLIGIBLE && size * size > bound * bound * la_magnitude(upper) * la_magnitude(lower)) {
                    rotation = la_rotation(upper, off, lower, n <= NX_DIGITS);
                    if (rotation.t != R(0)) atomicOr(rotated, 1u);
                }
                rotations[id] = rotation;
                pairs_of[id] = pq;
            }
            barrier();
            for (uvec2 at = first_of_pairs; at.x < pairs; at = next(at, step_of_pairs, pairs)) {
                uint i = at.x, j = at.y;
                Rotation rows = rotations[i], columns = rotations[j];
                uvec2 r = pairs_of[i], c = pairs_of[j];
                uint tl_at = r.x * stride + c.x, tr_at = r.x * stride + c.y, bl_at = r.y * stride + c.x, br_at = r.y * stride + c.y;
                T tl = a[tl_at], tr = a[tr_at], bl = a[bl_at], br = a[br_at];
                if (i == j) {
                    if (rows.t != R(0)) {
                        a[tl_at] = la_make(la_real(tl) - rows.t * rows.off);
                        a[br_at] = la_make(la_real(br) + rows.t * rows.off);
                        a[tr_at] = la_zero();
                        a[bl_at] = la_zero();
                    }
                    continue;
                }
                T top_left = la_rotate_upper(tl, bl, rows.c, rows.s), bottom_left = la_rotate_lower(tl, bl, rows.c, rows.s);
                T top_right = la_rotate_upper(tr, br, rows.c, rows.s), bottom_right = la_rotate_lower(tr, br, rows.c, rows.s);
                T s = la_conj(columns.s);
                a[tl_at] = la_rotate_upper(top_left, top_right, columns.c, s);
                a[tr_at] = la_rotate_lower(top_left, top_right, columns.c, s);
                a[bl_at] = la_rotate_upper(bottom_left, bottom_right, columns.c, s);
                a[br_at] = la_rotate_lower(bottom_left, bottom_right, columns.c, s);
            }
            for (uvec2 at = first_of_rows; at.x < pairs; at = next(at, step_of_rows, order)) {
                uint i = at.x, column = at.y;
                Rotation rows = rotations[i];
                uvec2 r = pairs_of[i];
                T upper = v[r.x * stride + column], lower = v[r.y * stride + column];
                v[r.x * stride + column] = la_rotate_upper(upper, lower, rows.c, rows.s);
                v[r.y * stride + column] = la_rotate_lower(upper, lower, rows.c, rows.s);
            }
            turn = (turn + 1u) % (order - 1u);
        }
        barrier();
        converged = rotated == 0u;
    }
    barrier();

    // Elements in the order of their positions: upper ones, then lower ones; the one that fills an odd order is last.
    if (id < n) {
        uint element = la_element(id, turn, pairs);
        sizes[id] = la_magnitude(la_real(a[element * stride + element]));
    }
    barrier();
    bool good = converged && is_bad == 0u;
    for (uint e = id; e < n * n; e += LANES) {
        uint position = e / n, row = e % n;
        uint element = la_element(position, turn, pairs);
        uint rank = 0u;
        R size = sizes[position], greatest = R(0);
        for (uint k = 0u; k < n; ++k) {
            if (sizes[k] > greatest) greatest = sizes[k];
            rank += uint(sizes[k] > size || sizes[k] == size && k < position);
        }
        if (!good) rank = position;
        T vector = la_conj(v[element * stride + row]);
        if (!good) vector = la_not_a_number();
        slot_store2((batch * n + row) * n + rank, vector);
        if (row == 0u) {
            T value = la_scale(a[element * stride + element], unscale);
            if (n <= NX_DIGITS && size <= NX_ZERO * greatest) value = la_zero();
            if (!good) value = la_not_a_number();
            slot_store1(batch * n + rank, value);
        }
    }
}

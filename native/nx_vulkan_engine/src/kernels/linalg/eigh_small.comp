//! name = "eigh_small{lanes}_{type}"
//! matrix = { lanes = ["", "_short"], type = ["f32", "f64", "c64", "c128"] }
//! choices.lanes = { "" = { LANES = "256u" }, _short = { LANES = "32u" } }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
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

// Pairs of pairs, and pairs of rows in a column, that an invocation takes in a round.
#define OF_PAIRS 2u
#define OF_ROWS 4u
#define EACH_PAIR [[unroll]] for (uint q = 0u; q < OF_PAIRS; ++q)
#define EACH_ROW [[unroll]] for (uint q = 0u; q < OF_ROWS; ++q)

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

    // Which pairs an invocation takes, of all times all and of all in a column: `pairs` where there is none.
    uvec2 of_pairs[OF_PAIRS], of_rows[OF_ROWS];
    EACH_PAIR of_pairs[q] = uvec2((id + LANES * q) / pairs, (id + LANES * q) % pairs);
    EACH_ROW of_rows[q] = uvec2((id + LANES * q) / order, (id + LANES * q) % order);
    uint turn = 0u;
    uvec2 ring = la_places(id, 0u, pairs);
    bool converged = false;
    for (uint sweep = 0u; sweep < SWEEPS && !converged && is_bad == 0u; ++sweep) {
        barrier();
        if (id == 0u) rotated = 0u;
        for (uint round = 0u; round < n; ++round) {
            barrier();
            if (id < pairs) {
                uvec2 pq = la_pair_at(id, ring, pairs);
                ring = uvec2(ring.x == 0u ? order - 2u : ring.x - 1u, ring.y == 0u ? order - 2u : ring.y - 1u);
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
            // All is loaded before something of it is stored.
            T tl[OF_PAIRS], tr[OF_PAIRS], bl[OF_PAIRS], br[OF_PAIRS], upper[OF_ROWS], lower[OF_ROWS];
            uvec4 at[OF_PAIRS];
            uvec2 at_row[OF_ROWS];
            EACH_PAIR {
                if (of_pairs[q].x >= pairs) continue;
                uvec2 r = pairs_of[of_pairs[q].x] * stride, c = pairs_of[of_pairs[q].y];
                at[q] = uvec4(r.x + c.x, r.x + c.y, r.y + c.x, r.y + c.y);
                tl[q] = a[at[q].x];
                tr[q] = a[at[q].y];
                bl[q] = a[at[q].z];
                br[q] = a[at[q].w];
            }
            EACH_ROW {
                if (of_rows[q].x >= pairs) continue;
                at_row[q] = pairs_of[of_rows[q].x] * stride + of_rows[q].y;
                upper[q] = v[at_row[q].x];
                lower[q] = v[at_row[q].y];
            }
            EACH_PAIR {
                uint i = of_pairs[q].x, j = of_pairs[q].y;
                if (i >= pairs) continue;
                Rotation rows = rotations[i], columns = rotations[j];
                T top_left = la_rotate_upper(tl[q], bl[q], rows.c, rows.s);
                T bottom_left = la_rotate_lower(tl[q], bl[q], rows.c, rows.s);
                T top_right = la_rotate_upper(tr[q], br[q], rows.c, rows.s);
                T bottom_right = la_rotate_lower(tr[q], br[q], rows.c, rows.s);
                T s = la_conj(columns.s);
                T top = la_rotate_upper(top_left, top_right, columns.c, s);
                T right = la_rotate_lower(top_left, top_right, columns.c, s);
                T left = la_rotate_upper(bottom_left, bottom_right, columns.c, s);
                T bottom = la_rotate_lower(bottom_left, bottom_right, columns.c, s);
                bool clears = i == j && rows.t != R(0), stays = i == j && rows.t == R(0);
                if (stays) continue;
                a[at[q].x] = la_choose(clears, la_make(la_real(tl[q]) - rows.t * rows.off), top);
                a[at[q].y] = la_choose(clears, la_zero(), right);
                a[at[q].z] = la_choose(clears, la_zero(), left);
                a[at[q].w] = la_choose(clears, la_make(la_real(br[q]) + rows.t * rows.off), bottom);
            }
            EACH_ROW {
                if (of_rows[q].x >= pairs) continue;
                Rotation rows = rotations[of_rows[q].x];
                v[at_row[q].x] = la_rotate_upper(upper[q], lower[q], rows.c, rows.s);
                v[at_row[q].y] = la_rotate_lower(upper[q], lower[q], rows.c, rows.s);
            }
            turn = turn + 2u < order ? turn + 1u : 0u;
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

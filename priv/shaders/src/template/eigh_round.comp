#version 460
#extension GL_GOOGLE_include_directive : require
// One round of Jacobi rotations of Hermitian matrices of an even order: every pair of rows and columns at once. A workgroup
// applies the rotations of 16 pairs of rows and 16 pairs of columns, which it computes itself, and writes to another matrix
// than it reads.
// Parameters: order, turn, matrices, number to mark rotations with. Operands: matrices, matrices after the round, vectors (rows
// rotate in place), marks: one per matrix and 16 pairs.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}
void slot_store3(const in uint at, const in uint value) {}

#define TILE 16u

shared Rotation rotations[2u * TILE];
shared uvec2 elements[2u * TILE];
shared uint rotated;

void main() {
    uint order = nx_param(0u), turn = nx_param(1u), id = gl_LocalInvocationID.x;
    uint pairs = order / 2u, tiles = (pairs + TILE - 1u) / TILE;
    uint job = nx_group();
    if (job >= tiles * tiles * nx_param(2u)) return;
    uint row_tile = job / tiles % tiles, column_tile = job % tiles, batch = job / (tiles * tiles);
    uint base = batch * order * order;

    if (id == 0u) rotated = 0u;
    barrier();
    if (id < 2u * TILE) {
        uint pair = id < TILE ? row_tile * TILE + id : column_tile * TILE + id - TILE;
        Rotation rotation = la_no_rotation();
        uvec2 pq = uvec2(0u);
        if (pair < pairs) {
            pq = la_pair(pair, turn, pairs);
            T off = slot_load0(base + pq.x * order + pq.y);
            R upper = la_real(slot_load0(base + pq.x * order + pq.x)), lower = la_real(slot_load0(base + pq.y * order + pq.y));
            R size = slot_abs(off), bound = LA_ROUNDING * R(0.25);
            // The largest element lies between 1 and 2.
            if (size > LA_ROUNDING * R(0.015625) && size * size > bound * bound * la_magnitude(upper) * la_magnitude(lower)) {
                rotation = la_rotation(upper, off, lower, false);
                if (rotation.t != R(0)) atomicOr(rotated, 1u);
            }
        }
        rotations[id] = rotation;
        elements[id] = pq;
    }
    barrier();
    if (id == 0u && row_tile == column_tile && rotated != 0u) slot_store3(batch * tiles + row_tile, nx_param(3u));

    uint i = id / TILE, j = id % TILE;
    Rotation rows = rotations[i], columns = rotations[TILE + j];
    uvec2 r = elements[i], c = elements[TILE + j];
    if (row_tile * TILE + i >= pairs) return;
    if (column_tile * TILE + j < pairs) {
        uint tl_at = base + r.x * order + c.x, tr_at = base + r.x * order + c.y;
        uint bl_at = base + r.y * order + c.x, br_at = base + r.y * order + c.y;
        T tl = slot_load0(tl_at), tr = slot_load0(tr_at), bl = slot_load0(bl_at), br = slot_load0(br_at);
        if (r == c) {
            if (rows.t != R(0)) {
                tl = la_make(la_real(tl) - rows.t * rows.off);
                br = la_make(la_real(br) + rows.t * rows.off);
                tr = la_zero();
                bl = la_zero();
            }
        } else {
            T top_left = la_rotate_upper(tl, bl, rows.c, rows.s), bottom_left = la_rotate_lower(tl, bl, rows.c, rows.s);
            T top_right = la_rotate_upper(tr, br, rows.c, rows.s), bottom_right = la_rotate_lower(tr, br, rows.c, rows.s);
            T s = la_conj(columns.s);
            tl = la_rotate_upper(top_left, top_right, columns.c, s);
            tr = la_rotate_lower(top_left, top_right, columns.c, s);
            bl = la_rotate_upper(bottom_left, bottom_right, columns.c, s);
            br = la_rotate_lower(bottom_left, bottom_right, columns.c, s);
        }
        slot_store1(tl_at, tl);
        slot_store1(tr_at, tr);
        slot_store1(bl_at, bl);
        slot_store1(br_at, br);
    }
    for (uint k = 0u; k < 2u; ++k) {
        uint column = (2u * column_tile + k) * TILE + j;
        if (column >= order) continue;
        uint upper_at = base + r.x * order + column, lower_at = base + r.y * order + column;
        T upper = slot_load2(upper_at), lower = slot_load2(lower_at);
        slot_store2(upper_at, la_rotate_upper(upper, lower, rows.c, rows.s));
        slot_store2(lower_at, la_rotate_lower(upper, lower, rows.c, rows.s));
    }
}

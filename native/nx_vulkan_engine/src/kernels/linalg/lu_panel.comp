//! name = "lu_panel_{LOCAL}_{type}"
//! matrix = { LOCAL = ["32", "256", "1024"], "type BLOCK" = ["f32 32u", "f64 32u", "c64 32u", "c128 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// LU with partial pivoting of one panel of columns, one workgroup per matrix. Matrices are stored transposed: element
// (r, c) lies at c * n + r, so that the rows of a column are neighbours. An invocation owns every LOCAL-th row; what
// others need of a row goes through shared memory. Rows stay where they are: `position` tells where a row belongs, and
// lu_rows moves them later. Operands: A in place, from the panel's first column on, the pivot rows' elements in the
// panel (BLOCK * BLOCK per matrix), per matrix and column the row that became the pivot, per matrix and row its
// position, per matrix and position its row, row exchanges so far. Numbers: columns of the panel, first column, n,
// batches.
#include "params.glsl"
#include "linalg.glsl"
#include "linalg_pivot.glsl"
layout(local_size_x = LOCAL) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
void slot_store0(const in uint at, const in T value) {}
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in uint value) {}
uint slot_load3(const in uint at) { return at; }
void slot_store3(const in uint at, const in uint value) {}
void slot_store4(const in uint at, const in uint value) {}
uint slot_load5(const in uint at) { return at; }
void slot_store5(const in uint at, const in uint value) {}

// Elements of a row that an invocation loads at once.
#define CHUNK 8u

shared T pivot[BLOCK];

void main() {
    uint size = nx_param(0u), first = nx_param(1u), n = nx_param(2u), batches = nx_param(3u);
    uint batch = nx_group();
    if (batch >= batches) return;
    uint id = gl_LocalInvocationID.x;
    uint base = batch * n * n, rows = batch * n;
    uint exchanges = first == 0u ? 0u : slot_load5(batch);

    for (uint r = first + id; r < n; r += uint(LOCAL)) slot_store3(rows + r, r);
    for (uint k = 0u; k < size; ++k) {
        uint column = base + k * n;
        uvec4 best = uvec4(0u);
        for (uint r = first + id; r < n; r += uint(LOCAL)) {
            uint position = slot_load3(rows + r);
            if (position < first + k) continue;
            uvec4 other = candidate_row(slot_abs(slot_load0(column + r)), position, r);
            if (better(other, best)) best = other;
        }
        best = best_of_all(id, best);
        uint row = best.w, place = position_of(best.x, best.z);
        if ((row - first) % uint(LOCAL) == id) {
            for (uint j = 0u; j < size; j += CHUNK) {
                T values[CHUNK];
                [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
                    if (j + i < size) values[i] = slot_load0(base + (j + i) * n + row);
                }
                [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
                    if (j + i >= size) continue;
                    pivot[j + i] = values[i];
                    slot_store1((batch * BLOCK + k) * BLOCK + j + i, values[i]);
                }
            }
            slot_store2(rows + first + k, row);
        }
        if (place != first + k) exchanges += 1u;
        barrier();
        T diagonal = pivot[k];
        bool divides = !la_is_zero(diagonal);
        T reciprocal = la_zero();
        if (divides) reciprocal = slot_divide(la_one(), diagonal);
        for (uint r = first + id; r < n; r += uint(LOCAL)) {
            uint position = slot_load3(rows + r);
            if (r == row) {
                slot_store3(rows + r, first + k);
                continue;
            }
            if (position < first + k) continue;
            if (position == first + k) slot_store3(rows + r, place);
            T factor = slot_load0(column + r);
            if (divides) {
                factor = la_quotient(factor, diagonal, reciprocal, n <= BLOCK);
                slot_store0(column + r, factor);
            }
            for (uint j = k + 1u; j < size; j += CHUNK) {
                uint at = column + (j - k) * n + r;
                T values[CHUNK];
                [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
                    if (j + i < size) values[i] = slot_load0(at + i * n);
                }
                [[unroll]] for (uint i = 0u; i < CHUNK; ++i) {
                    if (j + i < size) slot_store0(at + i * n, la_subtract_product(values[i], factor, pivot[j + i]));
                }
            }
        }
    }
    for (uint r = first + id; r < n; r += uint(LOCAL)) slot_store4(rows + slot_load3(rows + r), r);
    if (id == 0u) slot_store5(batch, exchanges);
}

//! name = "solve_block_{type}"
//! matrix = { "type BLOCK COLUMNS" = ["f32 32u 32u", "f64 32u 16u", "c64 32u 16u", "c128 16u 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One block of a triangular system A X = B, in place: COLUMNS columns of X per workgroup. Blocks above have been
// subtracted from X already. Backward systems (A upper triangular) are solved from the last row up. Operands: A and X
// (row-major), from the block's first row on and A from its first column on. Numbers: rows of the block, n, columns of
// X, batches, strides of A (batch, row, column), flags (1: ones on the diagonal, 2: backward, 4: conjugate A, 8: round
// every quotient once, rather than multiply by the reciprocal).
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
T slot_load1(const in uint at) { return la_make(R(at + 1u)); }
void slot_store1(const in uint at, const in T value) {}

#define OF_BLOCK (BLOCK * BLOCK / 256u)
#define PER (BLOCK * COLUMNS / 256u)

shared T block[BLOCK * BLOCK];
shared T x[BLOCK * COLUMNS];
shared T reciprocals[BLOCK];
shared uint has_extremes;

void main() {
    uint rows = nx_param(0u), n = nx_param(1u), columns = nx_param(2u), batches = nx_param(3u);
    uint a_batch = nx_param(4u), a_row = nx_param(5u), a_column = nx_param(6u), flags = nx_param(7u);
    bool divides = (flags & 8u) != 0u;
    bool unit = (flags & 1u) != 0u, backward = (flags & 2u) != 0u, conjugate = (flags & 4u) != 0u;
    uint tiles = (columns + COLUMNS - 1u) / COLUMNS;
    uint job = nx_group();
    if (job >= tiles * batches) return;
    uint batch = job / tiles;
    uint id = gl_LocalInvocationID.x;
    if (id == 0u) has_extremes = 0u;
    barrier();
    // Row `i` in the order of solving is row `last - i` of a backward system.
    uint last = rows - 1u;
    uint c = id % COLUMNS, g = id / COLUMNS;
    uint column = job % tiles * COLUMNS + c;
    uint base = batch * n * columns + column;
    // All is loaded before something of it is stored.
    T own_block[OF_BLOCK], own[PER];
    [[unroll]] for (uint q = 0u; q < OF_BLOCK; ++q) {
        uint e = id + 256u * q;
        uint i = e / BLOCK, k = e % BLOCK;
        uint at = backward ? (last - i) * a_row + (last - k) * a_column : i * a_row + k * a_column;
        own_block[q] = la_zero();
        if (i < rows && k <= i) own_block[q] = slot_load0(batch * a_batch + at);
    }
    [[unroll]] for (uint q = 0u; q < PER; ++q) {
        uint i = g + q * (256u / COLUMNS);
        own[q] = la_zero();
        if (column < columns && i < rows) own[q] = slot_load1(base + (backward ? last - i : i) * columns);
    }
    [[unroll]] for (uint q = 0u; q < OF_BLOCK; ++q) {
        uint e = id + 256u * q;
        uint i = e / BLOCK, k = e % BLOCK;
        T value = conjugate ? la_conj(own_block[q]) : own_block[q];
        block[e] = value;
        if (i == k && i < rows && !unit && !divides) {
            reciprocals[k] = slot_divide(la_one(), value);
            if (!la_is_tame_number(value)) has_extremes = 1u;
        }
    }
    [[unroll]] for (uint q = 0u; q < PER; ++q) x[(g + q * (256u / COLUMNS)) * COLUMNS + c] = own[q];
    barrier();
    divides = divides || has_extremes != 0u;
    if (!unit && g == 0u) x[c] = divides ? slot_divide(x[c], block[0]) : la_mul(x[c], reciprocals[0]);
    barrier();
    for (uint k = 0u; k + 1u < rows; ++k) {
        T value = x[k * COLUMNS + c];
        for (uint i = k + 1u + g; i < rows; i += 256u / COLUMNS) {
            T rest = la_subtract_product(x[i * COLUMNS + c], block[i * BLOCK + k], value);
            if (i == k + 1u && !unit) {
                rest = divides ? slot_divide(rest, block[i * BLOCK + i]) : la_mul(rest, reciprocals[i]);
            }
            x[i * COLUMNS + c] = rest;
        }
        barrier();
    }
    if (column >= columns) return;
    for (uint i = g; i < rows; i += 256u / COLUMNS) {
        uint row = backward ? last - i : i;
        slot_store1(base + row * columns, x[i * COLUMNS + c]);
    }
}

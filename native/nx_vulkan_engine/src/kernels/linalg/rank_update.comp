//! name = "rank_update_{type}"
//! matrix = { "type TILE DEPTH" = ["f32 64u 16u", "f64 64u 8u", "c64 64u 8u", "c128 32u 8u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// C -= A B for batches of matrices, in place, with few columns in A: TILE x TILE elements of C per workgroup. Every
// element takes its products in order, each product and difference rounded: the bits of an unblocked elimination.
// Operands: A, B, C (rows are contiguous). Numbers: rows, columns, columns of A, batches, strides of A (batch, row,
// column), of B (batch, row, column), of C (batch, row), flags (1: conjugate A, 2: leave out tiles below the diagonal).
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x = 256) in;

#define PER (TILE / 16u)
// Elements of each factor that an invocation loads at once: all before it stores one of them.
#define LOADS (TILE * DEPTH / 256u)

T slot_load0(const in uint at) { return la_make(R(at)); }
T slot_load1(const in uint at) { return la_make(R(at + 1u)); }
T slot_load2(const in uint at) { return la_make(R(at + 2u)); }
void slot_store2(const in uint at, const in T value) {}

shared T a_tile[DEPTH][TILE + 1u];
shared T b_tile[DEPTH][TILE + 1u];

// Where element `e` of a tile lies: its row or column, and its place along the depth.
uvec2 place(const in uint e, const in bool along_k) {
    return along_k ? uvec2(e / DEPTH, e % DEPTH) : uvec2(e % TILE, e / TILE);
}

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint a_row = nx_param(5u), a_k = nx_param(6u), b_k = nx_param(8u), b_column = nx_param(9u), c_row = nx_param(11u);
    uint flags = nx_param(12u);
    uint tiles_r = (rows + TILE - 1u) / TILE, tiles_c = (columns + TILE - 1u) / TILE;
    uint job = nx_group();
    if (job >= tiles_r * tiles_c * batches) return;
    uint c0 = job % tiles_c * TILE;
    job /= tiles_c;
    uint r0 = job % tiles_r * TILE;
    uint batch = job / tiles_r;
    if ((flags & 2u) != 0u && c0 + TILE <= r0) return;
    uint a_base = batch * nx_param(4u), b_base = batch * nx_param(7u), c_base = batch * nx_param(10u);
    uint id = gl_LocalInvocationID.x;
    uint tx = id % 16u, ty = id / 16u;
    T sums[PER][PER];
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        [[unroll]] for (uint j = 0u; j < PER; ++j) {
            uint r = r0 + ty + 16u * i, c = c0 + tx + 16u * j;
            sums[i][j] = la_zero();
            if (r < rows && c < columns) sums[i][j] = slot_load2(c_base + r * c_row + c);
        }
    }
    bool a_along_k = a_k < a_row, b_along_k = b_k < b_column;
    for (uint k0 = 0u; k0 < depth; k0 += DEPTH) {
        T of_a[LOADS], of_b[LOADS];
        [[unroll]] for (uint q = 0u; q < LOADS; ++q) {
            uvec2 own = place(id + 256u * q, a_along_k), other = place(id + 256u * q, b_along_k);
            uint r = r0 + own.x, c = c0 + other.x;
            of_a[q] = la_zero();
            of_b[q] = la_zero();
            if (r < rows && k0 + own.y < depth) of_a[q] = slot_load0(a_base + r * a_row + (k0 + own.y) * a_k);
            if (c < columns && k0 + other.y < depth) of_b[q] = slot_load1(b_base + (k0 + other.y) * b_k + c * b_column);
        }
        [[unroll]] for (uint q = 0u; q < LOADS; ++q) {
            uvec2 own = place(id + 256u * q, a_along_k), other = place(id + 256u * q, b_along_k);
            a_tile[own.y][own.x] = (flags & 1u) != 0u ? la_conj(of_a[q]) : of_a[q];
            b_tile[other.y][other.x] = of_b[q];
        }
        barrier();
        uint last = min(DEPTH, depth - k0);
        for (uint k = 0u; k < last; ++k) {
            T a[PER], b[PER];
            [[unroll]] for (uint i = 0u; i < PER; ++i) a[i] = a_tile[k][ty + 16u * i];
            [[unroll]] for (uint j = 0u; j < PER; ++j) b[j] = b_tile[k][tx + 16u * j];
            [[unroll]] for (uint i = 0u; i < PER; ++i) {
                [[unroll]] for (uint j = 0u; j < PER; ++j) sums[i][j] = la_subtract_product(sums[i][j], a[i], b[j]);
            }
        }
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        [[unroll]] for (uint j = 0u; j < PER; ++j) {
            uint r = r0 + ty + 16u * i, c = c0 + tx + 16u * j;
            if (r < rows && c < columns) slot_store2(c_base + r * c_row + c, sums[i][j]);
        }
    }
}

//! name = "cholesky_block_{type}"
//! matrix = { "type BLOCK COLUMNS" = ["f32 32u 32u", "f64 32u 16u", "c64 32u 16u", "c128 16u 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// One block of columns of a Cholesky factor L: every workgroup factors the diagonal block, then computes rows of L
// below it, COLUMNS at a time. Matrices are stored transposed, so that rows of L are neighbours in memory: element (i,
// j) of A and of L lies at j * n + i. A matrix of one block is computed with the roundings of Nx: sums, differences,
// roots and quotients one by one. Larger ones multiply by reciprocals. Operands: A, L, from the block's first diagonal
// element on. Numbers: columns of the block, rows from there on, n, batches, workgroups per matrix.
#include "params.glsl"
#include "linalg_cholesky.glsl"
layout(local_size_x = 256) in;

#define PER (BLOCK * BLOCK / 256u)

T slot_load0(const in uint at) { return la_make(R(at)); }
void slot_store1(const in uint at, const in T value) {}

// Element (i, j) of the factor lies at j * BLOCK + i.
shared T block[BLOCK * BLOCK];
shared T x[BLOCK * COLUMNS];
shared T reciprocals[BLOCK];

T quotient(const in T a, const in T b) {
#ifdef COMPLEX
    if (la_is_zero_real(b.y)) return T(slot_divide_real(a.x, b.x), slot_divide_real(a.y, b.x));
#endif
    return slot_divide(a, b);
}

// The root of what is left of a diagonal element, and what to multiply by in place of dividing by it.
void factor_diagonal(const in uint k, const in T rest, const in bool exact) {
    T root, reciprocal = la_zero();
    if (exact) {
#ifdef COMPLEX
        root = is_positive(rest) ? la_make(slot_sqrt(la_real(rest))) : slot_root(rest);
#else
        root = slot_root(rest);
#endif
    } else {
        root_and_reciprocal(rest, root, reciprocal);
    }
    block[k * BLOCK + k] = slot_round(root);
    reciprocals[k] = reciprocal;
}

void main() {
    uint size = nx_param(0u), rows = nx_param(1u), n = nx_param(2u), batches = nx_param(3u), tiles = nx_param(4u);
    uint job = nx_group();
    if (job >= tiles * batches) return;
    uint tile = job % tiles;
    uint base = job / tiles * n * n;
    uint id = gl_LocalInvocationID.x;

    // An invocation has elements of one row i, PER of them in columns j0, j0 + 256 / BLOCK and so on.
    uint i = id % BLOCK, j0 = id / BLOCK;
    T a[PER], sums[PER];
    for (uint q = 0u; q < PER; ++q) {
        uint j = j0 + 256u / BLOCK * q;
        sums[q] = la_zero();
        a[q] = la_zero();
        if (j <= i && i < size) a[q] = slot_load0(base + j * n + i);
    }
    bool exact = size == n;
    for (uint k = 0u; k < size; ++k) {
        bool has = false;
        T value = la_zero(), sum = la_zero();
        for (uint q = 0u; q < PER; ++q) {
            if (j0 + 256u / BLOCK * q != k) continue;
            has = i < size;
            value = a[q];
            sum = sums[q];
        }
        T rest = slot_round(value - slot_round(sum));
        if (has && i == k) factor_diagonal(k, rest, exact);
        barrier();
        if (has && i > k) {
            block[k * BLOCK + i] =
                slot_round(exact ? quotient(rest, divisor(block[k * BLOCK + k])) : la_mul(rest, reciprocals[k]));
        }
        barrier();
        for (uint q = 0u; q < PER; ++q) {
            uint j = j0 + 256u / BLOCK * q;
            if (j > k && i >= j && i < size) {
                sums[q] = sums[q] + la_mul(block[k * BLOCK + i], la_conj(block[k * BLOCK + j]));
            }
        }
    }
    if (tile == 0u) {
        for (uint j = j0; j <= i && i < size; j += 256u / BLOCK) slot_store1(base + j * n + i, block[j * BLOCK + i]);
    }

    if (exact) return;
    uint c = id % COLUMNS, g = id / COLUMNS;
    // Invocations read back only what they wrote, so that the next rows need no barrier before them.
    for (uint row0 = size + tile * COLUMNS; row0 < rows; row0 += tiles * COLUMNS) {
        uint row = row0 + c;
        for (uint j = g; j < size; j += 256u / COLUMNS) {
            x[j * COLUMNS + c] = row < rows ? slot_load0(base + j * n + row) : la_zero();
        }
        if (g == 0u) x[c] = la_mul(x[c], reciprocals[0]);
        barrier();
        for (uint k = 0u; k + 1u < size; ++k) {
            T value = x[k * COLUMNS + c];
            for (uint j = k + 1u + g; j < size; j += 256u / COLUMNS) {
                T rest = la_subtract_product(x[j * COLUMNS + c], value, la_conj(block[k * BLOCK + j]));
                if (j == k + 1u) rest = la_mul(rest, reciprocals[j]);
                x[j * COLUMNS + c] = rest;
            }
            barrier();
        }
        for (uint j = g; row < rows && j < size; j += 256u / COLUMNS) slot_store1(base + j * n + row, x[j * COLUMNS + c]);
    }
}

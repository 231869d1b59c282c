//! name = "cholesky_panel_{type}"
//! matrix = { "type BLOCK" = ["f32 32u", "f64 32u", "c64 32u", "c128 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One block of columns of a Cholesky factor L of a matrix of several blocks. Each invocation holds a row in registers:
// the first BLOCK ones those of the diagonal block, which every workgroup factors, the others rows below it. Registers
// have no index: element 0 is that of the current column, and with each column the row turns by one element, so that
// after BLOCK of them it is as it was. Quotients are products with reciprocals. Matrices are stored transposed: element
// (i, j) of A and of L lies at j * n + i. Operands: A, L, from the block's first diagonal element on. Numbers: columns
// of the block, rows from there on, n, batches, workgroups per matrix.
#include "params.glsl"
#include "linalg_cholesky.glsl"
#define LOCAL 128u
layout(local_size_x = LOCAL) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
void slot_store1(const in uint at, const in T value) {}

// A step for each element. Arrays that loops go through are no registers where a compiler leaves the loops as they are.
#define FOUR(STEP, i) STEP(i) STEP((i) + 1u) STEP((i) + 2u) STEP((i) + 3u)
#define EIGHT(STEP, i) FOUR(STEP, i) FOUR(STEP, (i) + 4u)
#if !defined(C128)
#define EACH(STEP) EIGHT(STEP, 0u) EIGHT(STEP, 8u) EIGHT(STEP, 16u) EIGHT(STEP, 24u)
#else
#define EACH(STEP) EIGHT(STEP, 0u) EIGHT(STEP, 8u)
#endif

// What is left of the current column in the diagonal block, from the diagonal on; of two columns in turns.
shared T column[2u * BLOCK];

void main() {
    uint size = nx_param(0u), rows = nx_param(1u), n = nx_param(2u), batches = nx_param(3u), tiles = nx_param(4u);
    uint job = nx_group();
    if (job >= tiles * batches) return;
    uint id = gl_LocalInvocationID.x, tile = job % tiles, base = job / tiles * n * n;
    uint row = id < BLOCK ? id : size + tile * (LOCAL - BLOCK) + id - BLOCK;
    bool exists = id < BLOCK ? id < size : row < rows;

    T own[BLOCK];
#define LOAD(i) own[i] = la_zero(); \
    if (exists && i < size && i <= row) own[i] = slot_load0(base + (i) * n + row);
    EACH(LOAD)
    [[dont_unroll]] for (uint k = 0u; k < BLOCK; ++k) {
        T value = own[0];
        uint at = k % 2u * BLOCK;
        bool is_left = k < size;
        if (is_left && id >= k && id < BLOCK) column[at + id - k] = value;
        barrier();
        T root = la_zero(), reciprocal = la_zero();
        if (is_left) root_and_reciprocal(column[at], root, reciprocal);
        if (is_left) value = id == k ? root : la_mul(value, reciprocal);
        // By eights: past the block's last column are those that went before.
#define NEXT(i) own[i] = la_choose(k + i < size, \
    la_subtract_product(own[i], value, la_conj(la_mul(column[at + i], reciprocal))), own[i]);
        if (is_left) { EIGHT(NEXT, 0u) }
        if (k + 8u < size) { EIGHT(NEXT, 8u) }
#if !defined(C128)
        if (k + 16u < size) { EIGHT(NEXT, 16u) }
        if (k + 24u < size) { EIGHT(NEXT, 24u) }
#endif
#define TURN(i) own[max(i, 1u) - 1u] = own[i];
        EACH(TURN)
        own[BLOCK - 1u] = value;
    }
    if (!exists || id < BLOCK && tile != 0u) return;
#define STORE(i) if (i < size && i <= row) slot_store1(base + (i) * n + row, own[i]);
    EACH(STORE)
}

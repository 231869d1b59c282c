//! name = "solve_registers_{type}"
//! matrix = { "type BLOCK" = ["f32 32u", "f64 32u", "c64 32u", "c128 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// One block of a triangular system A X = B of several blocks, in place, as solve_block: each invocation holds a column
// of X in registers. Registers have no index: element 0 is that of the current row, and with each row the column turns
// by one element, so that after BLOCK of them it is as it was. Operands and numbers are those of solve_block; quotients
// are products with reciprocals, but for extreme divisors.
#include "params.glsl"
#include "linalg.glsl"
#define LOCAL 64u
layout(local_size_x = LOCAL) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
T slot_load1(const in uint at) { return la_make(R(at + 1u)); }
void slot_store1(const in uint at, const in T value) {}

// A step for each element. Arrays that loops go through are no registers where a compiler leaves the loops as they are.
#define FOUR(STEP, i) STEP(i) STEP((i) + 1u) STEP((i) + 2u) STEP((i) + 3u)
#define EIGHT(STEP, i) FOUR(STEP, i) FOUR(STEP, (i) + 4u)
#if !defined(C128)
#define EACH(STEP) EIGHT(STEP, 0u) EIGHT(STEP, 8u) EIGHT(STEP, 16u) EIGHT(STEP, 24u)
#else
#define EACH(STEP) EIGHT(STEP, 0u) EIGHT(STEP, 8u)
#endif

#define OF_BLOCK (BLOCK * BLOCK / LOCAL)

// Column k of the block of A from its diagonal on, at k * BLOCK.
shared T block[BLOCK * BLOCK];
shared T reciprocals[BLOCK];
shared uint has_extremes;

void main() {
    uint rows = nx_param(0u), n = nx_param(1u), columns = nx_param(2u), batches = nx_param(3u);
    uint a_batch = nx_param(4u), a_row = nx_param(5u), a_column = nx_param(6u), flags = nx_param(7u);
    bool unit = (flags & 1u) != 0u, backward = (flags & 2u) != 0u, conjugate = (flags & 4u) != 0u;
    uint tiles = (columns + LOCAL - 1u) / LOCAL, job = nx_group();
    if (job >= tiles * batches) return;
    uint batch = job / tiles, id = gl_LocalInvocationID.x, column = job % tiles * LOCAL + id;
    uint base = batch * n * columns + column;
    bool exists = column < columns;
    if (id == 0u) has_extremes = 0u;
    barrier();
    // Row `i` in the order of solving is row `last - i` of a backward system.
    uint last = rows - 1u;
    T own[BLOCK], of_block[OF_BLOCK];
#define LOAD(i) own[i] = la_zero(); \
    if (exists && (i) < rows) own[i] = slot_load1(base + (backward ? last - (i) : (i)) * columns);
    EACH(LOAD)
    [[unroll]] for (uint q = 0u; q < OF_BLOCK; ++q) {
        uint e = id + LOCAL * q;
        uint k = e / BLOCK, i = k + e % BLOCK;
        uint at = backward ? (last - i) * a_row + (last - k) * a_column : i * a_row + k * a_column;
        of_block[q] = la_zero();
        if (i < rows) of_block[q] = slot_load0(batch * a_batch + at);
    }
    [[unroll]] for (uint q = 0u; q < OF_BLOCK; ++q) {
        uint e = id + LOCAL * q;
        T value = conjugate ? la_conj(of_block[q]) : of_block[q];
        block[e] = value;
        if (e % BLOCK != 0u) continue;
        bool divides = e / BLOCK < rows && !unit;
        reciprocals[e / BLOCK] = divides ? slot_divide(la_one(), value) : la_one();
        if (divides && !la_is_tame_number(value)) has_extremes = 1u;
    }
    barrier();
    bool divides = has_extremes != 0u;
    [[dont_unroll]] for (uint k = 0u; k < BLOCK; ++k) {
        T value = own[0];
        if (divides && k < rows) value = slot_divide(value, block[k * BLOCK]); else value = la_mul(value, reciprocals[k]);
        // By eights: past the block's last row are those that went before.
#define NEXT(i) own[i] = la_choose(k + (i) < rows, la_subtract_product(own[i], block[k * BLOCK + (i)], value), own[i]);
        EIGHT(NEXT, 0u)
        if (k + 8u < rows) { EIGHT(NEXT, 8u) }
#if !defined(C128)
        if (k + 16u < rows) { EIGHT(NEXT, 16u) }
        if (k + 24u < rows) { EIGHT(NEXT, 24u) }
#endif
#define TURN(i) own[max(i, 1u) - 1u] = own[i];
        EACH(TURN)
        own[BLOCK - 1u] = value;
    }
#define STORE(i) if (exists && (i) < rows) slot_store1(base + (backward ? last - (i) : (i)) * columns, own[i]);
    EACH(STORE)
}

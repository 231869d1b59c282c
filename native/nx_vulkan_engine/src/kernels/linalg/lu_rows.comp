//! name = "lu_rows_{type}"
//! matrix = { "type BLOCK COLUMNS" = ["f32 32u 32u", "f64 32u 16u", "c64 32u 16u", "c128 16u 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// After lu_panel: moves rows to their positions in COLUMNS columns of the matrix per workgroup, and in columns to the
// right of the panel solves for the block of U. One more workgroup per matrix moves the rows' original numbers.
// Operands: the pivot rows' elements in the panel, the row that became the pivot per column, the row per position
// (these of lu_panel), A in place (transposed) from column `left` on, the original row per position. Numbers: columns
// of the panel, first column, n, batches, workgroups per matrix, `left`, columns that are moved. Where each workgroup
// has columns to move, the rows' original numbers stay.
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
uint slot_load1(const in uint at) { return at; }
uint slot_load2(const in uint at) { return at; }
T slot_load3(const in uint at) { return la_make(R(at)); }
void slot_store3(const in uint at, const in T value) {}
uint slot_load4(const in uint at) { return at; }
void slot_store4(const in uint at, const in uint value) {}

#define NONE 0xffffffffu
#define PER (BLOCK * COLUMNS / 256u)
#define OF_BLOCK (BLOCK * BLOCK / 256u)

// Row k of the block of L; the diagonal and what is above it are U's.
shared T block[BLOCK * BLOCK];
// The pivot rows' elements in the columns.
shared T top[BLOCK * COLUMNS];
shared uint pivots[BLOCK];
shared uint sources[BLOCK];

void main() {
    uint size = nx_param(0u), first = nx_param(1u), n = nx_param(2u), batches = nx_param(3u), jobs = nx_param(4u);
    uint left = nx_param(5u), count = nx_param(6u);
    uint job = nx_group();
    if (job >= jobs * batches) return;
    uint c0 = job % jobs * COLUMNS, batch = job / jobs;
    uint id = gl_LocalInvocationID.x;
    uint rows = batch * n;
    if (id < size) {
        uint row = slot_load1(rows + first + id);
        pivots[id] = row;
        sources[id] = row >= first + size ? slot_load2(rows + row) : NONE;
    }
    barrier();
    if (c0 >= count) {
        // The first panel finds the numbers of the rows themselves.
        uint number = 0u, other = 0u;
        if (id < size) {
            number = first == 0u ? pivots[id] : slot_load4(rows + pivots[id]);
            if (sources[id] != NONE) other = first == 0u ? sources[id] : slot_load4(rows + sources[id]);
        }
        barrier();
        if (first == 0u) {
            for (uint r = size + id; r < n; r += 256u) slot_store4(rows + r, slot_load2(rows + r));
        }
        if (id < size) {
            slot_store4(rows + first + id, number);
            if (sources[id] != NONE && first != 0u) slot_store4(rows + pivots[id], other);
        }
        return;
    }

    // In columns of the panel and to the left of it, only rows move.
    bool solves = left + min(c0 + COLUMNS, count) > first + size;
    uint base = batch * n * n + c0 * n;
    uint columns = min(COLUMNS, count - c0);
    // What goes to the top, and where the pivot rows came from: all is loaded before something of it is stored.
    T above[PER], displaced[PER], own_block[OF_BLOCK];
    [[unroll]] for (uint q = 0u; q < PER; ++q) {
        uint e = id + 256u * q;
        uint c = e / BLOCK, k = e % BLOCK;
        bool has = k < size && c < columns;
        above[q] = la_zero();
        displaced[q] = la_zero();
        if (has) above[q] = slot_load3(base + c * n + pivots[k]);
        if (has && sources[k] != NONE) displaced[q] = slot_load3(base + c * n + sources[k]);
    }
    [[unroll]] for (uint q = 0u; q < OF_BLOCK; ++q) {
        uint e = id + 256u * q;
        own_block[q] = la_zero();
        if (solves && e < size * BLOCK) own_block[q] = slot_load0(batch * BLOCK * BLOCK + e);
    }
    [[unroll]] for (uint q = 0u; q < PER; ++q) {
        uint e = id + 256u * q;
        top[e % BLOCK * COLUMNS + e / BLOCK] = above[q];
    }
    [[unroll]] for (uint q = 0u; q < OF_BLOCK; ++q) block[id + 256u * q] = own_block[q];
    barrier();
    if (solves) {
        uint c = id % COLUMNS, g = id / COLUMNS;
        bool right = c < columns && left + c0 + c >= first + size;
        for (uint k = 0u; k + 1u < size; ++k) {
            T value = top[k * COLUMNS + c];
            for (uint i = k + 1u + g; right && i < size; i += 256u / COLUMNS) {
                top[i * COLUMNS + c] = la_subtract_product(top[i * COLUMNS + c], block[i * BLOCK + k], value);
            }
            barrier();
        }
    }
    for (uint q = 0u; q < PER; ++q) {
        uint e = id + 256u * q;
        uint c = e / BLOCK, k = e % BLOCK;
        if (k >= size || c >= columns) continue;
        slot_store3(base + c * n + first + k, top[k * COLUMNS + c]);
        if (sources[k] != NONE) slot_store3(base + c * n + pivots[k], displaced[q]);
    }
}

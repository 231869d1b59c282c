//! name = "lu_registers_{LOCAL}_{type}"
//! matrix = [
//!   { LOCAL = ["256", "1024"], "type BLOCK" = ["f32 32u"] },
//!   { LOCAL = ["256", "512"], "type BLOCK" = ["f64 32u", "c64 32u", "c128 16u"] },
//! ]
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
// LU with partial pivoting of one panel of up to BLOCK columns and LOCAL rows, one workgroup per matrix: as lu_panel,
// with the same operands and results, but each invocation holds its row of the panel in registers. These have no index:
// element 0 is that of the current column, and with each column the row turns by one element, so that after BLOCK of
// them it is as it was. Numbers: columns of the panel, first column, n, batches.
#include "params.glsl"
#include "linalg.glsl"
#define SUBGROUPS
#include "linalg_pivot.glsl"
layout(local_size_x = LOCAL) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
void slot_store0(const in uint at, const in T value) {}
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in uint value) {}
void slot_store4(const in uint at, const in uint value) {}
uint slot_load5(const in uint at) { return at; }
void slot_store5(const in uint at, const in uint value) {}

shared T pivot[BLOCK];

void main() {
    uint size = nx_param(0u), first = nx_param(1u), n = nx_param(2u), batches = nx_param(3u);
    uint batch = nx_group();
    if (batch >= batches) return;
    uint id = gl_LocalInvocationID.x, row = first + id;
    uint base = batch * n * n + row, rows = batch * n;
    uint exchanges = first == 0u ? 0u : slot_load5(batch);
    bool exists = row < n;
    // Where the row belongs, and the column whose pivot it became.
    uint position = row, step = NONE;

    T own[BLOCK];
    [[unroll]] for (uint i = 0u; i < BLOCK; ++i) {
        own[i] = la_zero();
        if (exists && i < size) own[i] = slot_load0(base + i * n);
    }
    [[dont_unroll]] for (uint k = 0u; k < BLOCK; ++k) {
        T factor = own[0];
        bool changes = false;
        if (k < size) {
            uint place = first + k;
            uvec4 best = uvec4(0u);
            if (exists && step == NONE) best = candidate(slot_abs(own[0]), position, row);
            best = best_of_all(best);
            if (row == best.w) {
                [[unroll]] for (uint i = 0u; i < BLOCK; ++i) pivot[i] = own[i];
                slot_store2(rows + place, row);
                step = k;
                position = place;
            } else if (position == place) {
                position = position_of(best);
            }
            if (position_of(best) != place) exchanges += 1u;
            barrier();
            changes = exists && step == NONE;
            T diagonal = pivot[0];
            if (changes && !la_is_zero(diagonal)) {
                factor = la_quotient(factor, diagonal, slot_divide(la_one(), diagonal), n <= BLOCK);
            }
        }
        // By eights: past the panel's last column are those that went before.
        [[unroll]] for (uint eight = 0u; eight < BLOCK; eight += 8u) {
            bool has = k + eight < size;
            [[unroll]] for (uint i = max(eight, 1u); i < eight + 8u; ++i) {
                if (has) own[i] = changes && k + i < size ? la_subtract_product(own[i], factor, pivot[i]) : own[i];
                own[i - 1u] = own[i];
            }
        }
        own[BLOCK - 1u] = factor;
    }
    if (exists) {
        [[unroll]] for (uint i = 0u; i < BLOCK; ++i) {
            if (i >= size) continue;
            slot_store0(base + i * n, own[i]);
            if (step != NONE) slot_store1((batch * BLOCK + step) * BLOCK + i, own[i]);
        }
        slot_store4(rows + position, row);
    }
    if (id == 0u) slot_store5(batch, exchanges);
}

//! name = "lu_registers_{type}"
//! matrix = { "type BLOCK" = ["f32 32u", "f64 32u", "c64 32u", "c128 16u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
// LU with partial pivoting of one panel of up to BLOCK columns and ROWS * LOCAL rows, one workgroup per matrix: as
// lu_panel, with the same operands and results, but each invocation holds ROWS rows of the panel in registers, WIDTH =
// BLOCK / ROWS columns of them at a time. Registers have no index: element 0 is that of the current column, and with
// each column a row turns by one element, so that after WIDTH of them it is as it was. Every element takes its products
// in order. Numbers: columns of the panel, first column, n, batches.
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x_id = 1) in;
layout(constant_id = 2) const uint ROWS = 1u;
#define LOCAL gl_WorkGroupSize.x
#define WIDTH (BLOCK / ROWS)
#define SUBGROUPS
#include "linalg_pivot.glsl"

T slot_load0(const in uint at) { return la_make(R(at)); }
void slot_store0(const in uint at, const in T value) {}
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in uint value) {}
void slot_store4(const in uint at, const in uint value) {}
uint slot_load5(const in uint at) { return at; }
void slot_store5(const in uint at, const in uint value) {}

// The elements of a pivot's row in the columns at hand.
shared T pivot[BLOCK];

#define EACH_ROW [[unroll]] for (uint m = 0u; m < ROWS; ++m)
#define EACH_COLUMN [[unroll]] for (uint i = 0u; i < WIDTH; ++i)
#define OWN(m, i) own[(m) * WIDTH + (i)]

void main() {
    uint size = nx_param(0u), first = nx_param(1u), n = nx_param(2u), batches = nx_param(3u);
    uint batch = nx_group();
    if (batch >= batches) return;
    uint id = gl_LocalInvocationID.x;
    uint base = batch * n * n, rows = batch * n;
    uint exchanges = first == 0u ? 0u : slot_load5(batch);
    // Where rows belong, and the columns whose pivots they became.
    uint row[ROWS], position[ROWS], step[ROWS];
    EACH_ROW {
        row[m] = first + m * LOCAL + id;
        position[m] = row[m];
        step[m] = NONE;
    }
    T own[BLOCK];
    [[dont_unroll]] for (uint left = 0u; left < size; left += WIDTH) {
        uint columns = min(size - left, WIDTH);
        EACH_ROW {
            EACH_COLUMN {
                OWN(m, i) = la_zero();
                if (row[m] < n && i < columns) OWN(m, i) = slot_load0(base + (left + i) * n + row[m]);
            }
        }
        // What the pivots of earlier columns change here.
        [[dont_unroll]] for (uint k = 0u; k < left; ++k) {
            T factor[ROWS];
            EACH_ROW {
                factor[m] = la_zero();
                if (row[m] < n) factor[m] = slot_load0(base + k * n + row[m]);
            }
            barrier();
            EACH_ROW {
                if (step[m] == k) {
                    EACH_COLUMN pivot[i] = OWN(m, i);
                }
            }
            barrier();
            EACH_ROW {
                bool changes = row[m] < n && step[m] > k;
                EACH_COLUMN {
                    OWN(m, i) = la_choose(changes, la_subtract_product(OWN(m, i), factor[m], pivot[i]), OWN(m, i));
                }
            }
        }
        [[dont_unroll]] for (uint k = 0u; k < WIDTH; ++k) {
            bool is_left = k < columns;
            uint place = first + left + k;
            T diagonal = la_zero(), reciprocal = la_zero();
            if (is_left) {
                uvec4 best = uvec4(0u);
                EACH_ROW {
                    if (row[m] >= n || step[m] != NONE) continue;
                    uvec4 other = candidate(slot_abs(OWN(m, 0u)), position[m], row[m]);
                    if (better(other, best)) best = other;
                }
                best = best_of_all(best);
                EACH_ROW {
                    if (row[m] == best.w) {
                        EACH_COLUMN pivot[i] = OWN(m, i);
                        slot_store2(rows + place, row[m]);
                        step[m] = left + k;
                        position[m] = place;
                    } else if (position[m] == place) {
                        position[m] = position_of(best);
                    }
                }
                if (position_of(best) != place) exchanges += 1u;
                barrier();
                diagonal = pivot[0];
                if (!la_is_zero(diagonal)) reciprocal = slot_divide(la_one(), diagonal);
            }
            EACH_ROW {
                T factor = OWN(m, 0u);
                bool changes = is_left && row[m] < n && step[m] == NONE;
                if (changes && !la_is_zero(diagonal)) factor = la_quotient(factor, diagonal, reciprocal, n <= BLOCK);
                // By eights: past the panel's last column are those that went before.
                [[unroll]] for (uint eight = 0u; eight < WIDTH; eight += 8u) {
                    if (k + eight >= columns) continue;
                    [[unroll]] for (uint i = max(eight, 1u); i < min(eight + 8u, WIDTH); ++i) {
                        T rest = la_subtract_product(OWN(m, i), factor, pivot[i]);
                        OWN(m, i) = la_choose(changes && k + i < columns, rest, OWN(m, i));
                    }
                }
                [[unroll]] for (uint i = 1u; i < WIDTH; ++i) OWN(m, i - 1u) = OWN(m, i);
                OWN(m, WIDTH - 1u) = factor;
            }
        }
        EACH_ROW {
            EACH_COLUMN {
                if (row[m] >= n || i >= columns) continue;
                slot_store0(base + (left + i) * n + row[m], OWN(m, i));
                if (step[m] != NONE) slot_store1((batch * BLOCK + step[m]) * BLOCK + left + i, OWN(m, i));
            }
        }
    }
    EACH_ROW {
        if (row[m] >= n) continue;
        slot_store4(rows + position[m], row[m]);
        // Columns that were stored before the row became a pivot's.
        uint before = step[m] == NONE ? 0u : step[m] / WIDTH * WIDTH;
        for (uint i = 0u; i < before; ++i) {
            slot_store1((batch * BLOCK + step[m]) * BLOCK + i, slot_load0(base + i * n + row[m]));
        }
    }
    if (id == 0u) slot_store5(batch, exchanges);
}

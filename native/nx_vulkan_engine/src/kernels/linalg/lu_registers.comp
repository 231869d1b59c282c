//! name = "lu_registers_{type}"
//! matrix = { "type BLOCK WIDTH" = ["f32 32u 8u", "f64 32u 8u", "c64 32u 8u", "c128 16u 4u"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// LU with partial pivoting of one panel of up to BLOCK columns and ROWS * LOCAL rows, one workgroup per matrix: as
// lu_panel, with the same operands and results, but each invocation holds ROWS rows of WIDTH columns in registers, and
// goes through the panel WIDTH columns at a time. Registers have no index: element 0 is that of the current column, and
// with each column a row turns by one element, so that after WIDTH of them it is as it was. Every element takes its
// products in order. Numbers: columns of the panel, first column, n, batches.
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x_id = 1) in;
#define LOCAL gl_WorkGroupSize.x
#include "linalg_candidate.glsl"

T slot_load0(const in uint at) { return la_make(R(at)); }
void slot_store0(const in uint at, const in T value) {}
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in uint value) {}
void slot_store4(const in uint at, const in uint value) {}
uint slot_load5(const in uint at) { return at; }
void slot_store5(const in uint at, const in uint value) {}

// A step for each row of an invocation, and for each column. Arrays that loops go through are no registers where a
// compiler leaves the loops as they are, as NVIDIA's does.
#define ROWS 4u
#define EACH_ROW(STEP) STEP(0u) STEP(1u) STEP(2u) STEP(3u)
#if !defined(C128)
#define EACH_COLUMN(STEP, m) \
    STEP(m, 0u) STEP(m, 1u) STEP(m, 2u) STEP(m, 3u) STEP(m, 4u) STEP(m, 5u) STEP(m, 6u) STEP(m, 7u)
#else
#define EACH_COLUMN(STEP, m) STEP(m, 0u) STEP(m, 1u) STEP(m, 2u) STEP(m, 3u)
#endif
// A row turns by one element.
#define TURN(m) EACH_COLUMN(TO, m)
#define TO(m, i) own[m][max(i, 1u) - 1u] = own[m][i];

// The elements of a pivot's row in the columns at hand.
shared T pivot[WIDTH];
// What says which of the largest elements is the pivot; of two columns in turns.
shared uint firsts[2];
shared uint keys[LOCAL];
// The largest of sixteen keys each, and zeros.
shared uint largest[64];

// The largest key of all invocations, for each of them. Sixteen become one between barriers.
uint largest_of_all(const in uint id, const in uint own) {
    keys[id] = own;
    barrier();
    if (id < LOCAL / 16u) {
        uint most = 0u;
        [[unroll]] for (uint k = 0u; k < 16u; ++k) most = max(most, keys[id + k * (LOCAL / 16u)]);
        largest[id] = most;
    }
    barrier();
    uint most = 0u;
    for (uint left = 0u; left < LOCAL / 16u; left += 16u) {
        [[unroll]] for (uint k = 0u; k < 16u; ++k) most = max(most, largest[left + k]);
    }
    return most;
}

void main() {
    uint size = nx_param(0u), first = nx_param(1u), n = nx_param(2u), batches = nx_param(3u);
    uint batch = nx_group();
    if (batch >= batches) return;
    uint id = gl_LocalInvocationID.x;
    uint base = batch * n * n, rows = batch * n;
    uint exchanges = first == 0u ? 0u : slot_load5(batch);
    // Where rows belong, and the columns whose pivots they became.
    uint row[ROWS], position[ROWS], step[ROWS];
    T own[ROWS][WIDTH], factor[ROWS];
#define BEGIN(m) row[m] = first + m * LOCAL + id; position[m] = row[m]; step[m] = NONE;
    EACH_ROW(BEGIN)
    if (id < 64u) largest[id] = 0u;
    if (id < 2u) firsts[id] = 0u;
    barrier();
    [[dont_unroll]] for (uint left = 0u; left < size; left += WIDTH) {
        uint columns = min(size - left, WIDTH);
#define LOAD(m, i) \
    own[m][i] = la_zero(); \
    if (row[m] < n && i < columns) own[m][i] = slot_load0(base + (left + i) * n + row[m]);
#define LOAD_ROW(m) EACH_COLUMN(LOAD, m)
        EACH_ROW(LOAD_ROW)
        // What the pivots of earlier columns change here. Factors are loaded a column ahead.
        T ahead[ROWS];
#define LOAD_AHEAD(m) \
    ahead[m] = la_zero(); \
    if (row[m] < n && next < left) ahead[m] = slot_load0(base + next * n + row[m]);
        uint next = 0u;
        EACH_ROW(LOAD_AHEAD)
        [[dont_unroll]] for (uint k = 0u; k < left; ++k) {
#define TAKE_AHEAD(m) factor[m] = ahead[m];
            EACH_ROW(TAKE_AHEAD)
            next = k + 1u;
            EACH_ROW(LOAD_AHEAD)
            barrier();
#define SHARE(m, i) pivot[i] = own[m][i];
#define SHARE_STEP(m) if (step[m] == k) { EACH_COLUMN(SHARE, m) }
            EACH_ROW(SHARE_STEP)
            barrier();
#define CHANGE(m, i) \
    own[m][i] = la_choose(changes, la_subtract_product(own[m][i], factor[m], pivot[i]), own[m][i]);
#define CHANGE_ROW(m) { bool changes = row[m] < n && step[m] > k; EACH_COLUMN(CHANGE, m) }
            EACH_ROW(CHANGE_ROW)
        }
        [[dont_unroll]] for (uint k = 0u; k < WIDTH; ++k) {
            bool is_left = k < columns;
            uint place = first + left + k;
            T diagonal = la_zero(), reciprocal = la_zero();
            if (is_left) {
                // Of the largest elements the first: sizes are compared before places.
                uint x[ROWS], y[ROWS], z[ROWS];
#define OFFER(m) { \
        uvec3 offer = candidate(slot_abs(own[m][0]), position[m]); \
        bool offers = row[m] < n && step[m] == NONE; \
        x[m] = offers ? offer.x : 0u; \
        y[m] = offers ? offer.y : 0u; \
        z[m] = offers ? offer.z : 0u; \
    }
                EACH_ROW(OFFER)
#define LARGEST(of) max(max(of[0], of[1]), max(of[2], of[3]))
                uint size_of_best = largest_of_all(id, LARGEST(x));
#define OF_SIZE(m) y[m] = x[m] == size_of_best ? y[m] : 0u; z[m] = x[m] == size_of_best ? z[m] : 0u;
                EACH_ROW(OF_SIZE)
#if !defined(F32) && !defined(C64)
                uint rest_of_best = largest_of_all(id, LARGEST(y));
#define OF_REST(m) z[m] = y[m] == rest_of_best ? z[m] : 0u;
                EACH_ROW(OF_REST)
#endif
                uint turn = (left + k) % 2u;
                if (LARGEST(z) > 0u) atomicMax(firsts[turn], LARGEST(z));
                barrier();
                uint best = position_of(size_of_best, firsts[turn]);
                if (id == 0u) firsts[turn ^ 1u] = 0u;
#define TAKE(m) \
    if (position[m] == best) { \
        EACH_COLUMN(SHARE, m) \
        slot_store2(rows + place, row[m]); \
        step[m] = left + k; \
        position[m] = place; \
    } else if (position[m] == place) { \
        position[m] = best; \
    }
                EACH_ROW(TAKE)
                if (best != place) exchanges += 1u;
                barrier();
                diagonal = pivot[0];
                if (!la_is_zero(diagonal)) reciprocal = slot_divide(la_one(), diagonal);
            }
            bool divides = is_left && !la_is_zero(diagonal);
#define DIVIDE(m) \
    factor[m] = own[m][0]; \
    if (divides && row[m] < n && step[m] == NONE) factor[m] = la_quotient(factor[m], diagonal, reciprocal, n <= BLOCK);
            EACH_ROW(DIVIDE)
#define NEXT(m, i) \
    rest = la_subtract_product(own[m][i], factor[m], pivot[i]); \
    own[m][i] = la_choose(changes && k + i < columns, rest, own[m][i]);
#define NEXT_ROW(m) { \
        bool changes = is_left && row[m] < n && step[m] == NONE; \
        T rest; \
        EACH_COLUMN(NEXT, m) \
        TURN(m) \
        own[m][WIDTH - 1u] = factor[m]; \
    }
            EACH_ROW(NEXT_ROW)
        }
#define STORE(m, i) \
    if (row[m] < n && i < columns) { \
        slot_store0(base + (left + i) * n + row[m], own[m][i]); \
        if (step[m] != NONE) slot_store1((batch * BLOCK + step[m]) * BLOCK + left + i, own[m][i]); \
    }
#define STORE_ROW(m) EACH_COLUMN(STORE, m)
        EACH_ROW(STORE_ROW)
    }
    [[dont_unroll]] for (uint m = 0u; m < ROWS; ++m) {
        uint r = first + m * LOCAL + id;
        if (r >= n) continue;
        uint place, column;
#define CHOOSE(k) if (m == k) { place = position[k]; column = step[k]; }
        EACH_ROW(CHOOSE)
        slot_store4(rows + place, r);
        // Columns that were stored before the row became a pivot's.
        uint before = column == NONE ? 0u : column / WIDTH * WIDTH;
        for (uint i = 0u; i < before; ++i) {
            slot_store1((batch * BLOCK + column) * BLOCK + i, slot_load0(base + i * n + r));
        }
    }
    if (id == 0u) slot_store5(batch, exchanges);
}

//! name = "fft_fixed{rows}_{type}"
//! matrix = { rows = ["", "_pairs"], type = ["c64", "c128"] }
//! choices.rows = { "" = {}, _pairs = { PAIRS = "1" } }
//! choices.type = { c64 = {}, c128 = { F64 = "1" } }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What fft.comp computes, to the bit, for one length that is a product of two to four radices: the first pass takes its
// elements from memory, the last one stores its results there, and all that depends on the length is known when the
// kernel is compiled. Parameters: those of fft.comp.
#include "params.glsl"
layout(local_size_x = 256) in;
// Elements of shared memory.
layout(constant_id = 0) const uint CAPACITY = 1024u;
// The radices of the passes, 1 for none in the middle.
layout(constant_id = 1) const uint FIRST = 16u;
layout(constant_id = 2) const uint SECOND = 1u;
layout(constant_id = 3) const uint THIRD = 1u;
layout(constant_id = 4) const uint LAST = 16u;
// Rows of a workgroup.
layout(constant_id = 5) const uint ROWS = 1u;
layout(constant_id = 6) const uint FLAGS = 0u;

#include "fft.glsl"

shared T data[CAPACITY];

// Before a step for each element of a butterfly.
#define EACH(RADIX) [[unroll]] for (uint k = 0u; k < 16u; ++k) if (k < RADIX)

// The butterfly of a radix, of which compilers leave nothing where the constant RADIX is another one.
#define BUTTERFLY_OF(R, RADIX) \
    if (RADIX == R) { \
        T y[R]; \
        [[unroll]] for (uint k = 0u; k < R; ++k) y[k] = x[k]; \
        dft(y); \
        [[unroll]] for (uint k = 0u; k < R; ++k) x[k] = y[k]; \
    }

#define BUTTERFLY(RADIX) \
    BUTTERFLY_OF(2u, RADIX) \
    BUTTERFLY_OF(3u, RADIX) \
    BUTTERFLY_OF(4u, RADIX) \
    BUTTERFLY_OF(5u, RADIX) \
    BUTTERFLY_OF(6u, RADIX) \
    BUTTERFLY_OF(7u, RADIX) \
    BUTTERFLY_OF(8u, RADIX) \
    BUTTERFLY_OF(9u, RADIX) \
    BUTTERFLY_OF(10u, RADIX) \
    BUTTERFLY_OF(11u, RADIX) \
    BUTTERFLY_OF(12u, RADIX) \
    BUTTERFLY_OF(13u, RADIX) \
    BUTTERFLY_OF(15u, RADIX) \
    BUTTERFLY_OF(16u, RADIX)

// Butterflies of elements in shared memory, STEP apart, then roots from ROOTS on.
#define MIDDLE_PASS(RADIX, STEP, ROOTS) \
    if (row < here) { \
        for (uint b = lane; b < n / RADIX; b += team) { \
            uint offset = b % (STEP); \
            uint begin = b / (STEP) * (RADIX * (STEP)) + offset; \
            T x[16]; \
            EACH(RADIX) x[k] = data[at(base, row, begin + k * (STEP))]; \
            BUTTERFLY(RADIX) \
            if ((STEP) > 1u) { \
                EACH(RADIX) if (k > 0u) x[k] = mul(x[k], slot_root((ROOTS) + (k - 1u) * (STEP) + offset)); \
            } \
            EACH(RADIX) data[at(base, row, begin + k * (STEP))] = x[k]; \
        } \
    } \
    barrier();

// Where the elements of butterfly b of the last pass begin, whose results are b, b + n / LAST, and so on: the digits of
// the radices before in reverse.
uint last_begin(const in uint b) {
    uint rest = b / FIRST;
    return ((b % FIRST * SECOND + rest % SECOND) * THIRD + rest / SECOND) * LAST;
}

void main() {
    const uint n = FIRST * SECOND * THIRD * LAST, pitch = (n + 15u) & ~15u, team = 256u / ROWS;
    uint rows = nx_param(0u);
    uint first_row = nx_group() * ROWS;
    if (first_row >= rows) return;
    uint here = min(ROWS, rows - first_row);
    uint id = gl_LocalInvocationID.x;

    bool by_row = (FLAGS & LOAD_ROWS) != 0u;
    uint row = by_row ? id % ROWS : id / team;
    uint lane = by_row ? id / ROWS : id % team;
    uint base = row * pitch;
    if (row < here) {
        Part part = part_of(FLAGS, first_row + row);
        // Butterflies of elements in memory, n / FIRST apart.
        const uint step = n / FIRST;
        for (uint b = lane; b < step; b += team) {
            T x[16];
            EACH(FIRST) x[k] = loaded(FLAGS, part, b + k * step);
            BUTTERFLY(FIRST)
            EACH(FIRST) if (k > 0u) x[k] = mul(x[k], slot_root((k - 1u) * step + b));
            EACH(FIRST) data[at(base, row, b + k * step)] = x[k];
        }
    }
    barrier();

    row = id / team;
    lane = id % team;
    base = row * pitch;
    if (SECOND > 1u) {
        MIDDLE_PASS(SECOND, THIRD * LAST, n - n / FIRST)
    }
    if (THIRD > 1u) {
        MIDDLE_PASS(THIRD, LAST, n - THIRD * LAST)
    }
#ifdef PAIRS
    if ((FLAGS & TAKE_APART) != 0u) {
        MIDDLE_PASS(LAST, 1u, 0u)
    }
#endif

    by_row = (FLAGS & STORE_ROWS) != 0u;
    row = by_row ? id % ROWS : id / team;
    lane = by_row ? id / ROWS : id % team;
    base = row * pitch;
    if (row >= here) return;
    Part part = part_of(FLAGS, first_row + row);
    const uint step = n / LAST;
#ifdef PAIRS
    if ((FLAGS & TAKE_APART) != 0u) {
        for (uint k = lane; k <= n / 2u; k += team) {
            uint mirrored = k == 0u ? 0u : n - k;
            T a = data[at(base, row, last_begin(k % step) + k / step)];
            T b = data[at(base, row, last_begin(mirrored % step) + mirrored / step)];
            stored_apart(FLAGS, part, n, k, a, b);
        }
        return;
    }
#endif
    // Butterflies of neighbours. Neighbouring invocations have neighbouring results.
    for (uint b = lane; b < step; b += team) {
        uint begin = last_begin(b);
        T x[16];
        EACH(LAST) x[k] = data[at(base, row, begin + k)];
        BUTTERFLY(LAST)
        EACH(LAST) stored(FLAGS, part, b + k * step, x[k]);
    }
}

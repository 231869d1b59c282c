//! name = "fft_fixed_{type}"
//! matrix = { type = ["c64", "c128"] }
//! choices.type = { c64 = {}, c128 = { F64 = "1" } }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What fft.comp computes, to the bit, for one length that is a product of two or three of the radices 8 and 16: the
// first pass takes its elements from memory, the last one stores its results there, and all that depends on the length
// is known when the kernel is compiled. Parameters: those of fft.comp.
#include "params.glsl"
layout(local_size_x = 256) in;
// Elements of shared memory.
layout(constant_id = 0) const uint CAPACITY = 1024u;
// The radices of the passes, 1 for none in the middle.
layout(constant_id = 1) const uint FIRST = 16u;
layout(constant_id = 2) const uint MIDDLE = 1u;
layout(constant_id = 3) const uint LAST = 16u;
// Rows of a workgroup.
layout(constant_id = 4) const uint ROWS = 1u;
layout(constant_id = 5) const uint FLAGS = 0u;

#include "fft.glsl"

shared T data[CAPACITY];

// Butterflies of elements in memory, n / R apart.
#define FIRST_PASS(R) \
    for (uint b = lane; b < n / R; b += team) { \
        T x[R]; \
        [[unroll]] for (uint k = 0u; k < R; ++k) x[k] = loaded(FLAGS, part, b + k * (n / R)); \
        dft(x); \
        data[at(base, row, b)] = x[0]; \
        [[unroll]] for (uint k = 1u; k < R; ++k) { \
            data[at(base, row, b + k * (n / R))] = mul(x[k], slot_root((k - 1u) * (n / R) + b)); \
        } \
    }

// Butterflies of neighbours, whose results are n / R apart. Neighbouring invocations have neighbouring results: the
// places of a butterfly's elements are those of its results with the digits of both radices before exchanged.
#define LAST_PASS(R) \
    for (uint b = lane; b < n / R; b += team) { \
        uint begin = (b % FIRST * MIDDLE + b / FIRST) * R; \
        T x[R]; \
        [[unroll]] for (uint k = 0u; k < R; ++k) x[k] = data[at(base, row, begin + k)]; \
        dft(x); \
        [[unroll]] for (uint k = 0u; k < R; ++k) stored(FLAGS, part, b + k * (n / R), x[k]); \
    }

void main() {
    const uint n = FIRST * MIDDLE * LAST, team = 256u / ROWS;
    uint rows = nx_param(0u);
    uint first_row = nx_group() * ROWS;
    if (first_row >= rows) return;
    uint here = min(ROWS, rows - first_row);
    uint id = gl_LocalInvocationID.x;

    bool by_row = (FLAGS & LOAD_ROWS) != 0u;
    uint row = by_row ? id % ROWS : id / team;
    uint lane = by_row ? id / ROWS : id % team;
    uint base = row * n;
    if (row < here) {
        Part part = part_of(FLAGS, first_row + row);
        if (FIRST == 16u) {
            FIRST_PASS(16u)
        } else {
            FIRST_PASS(8u)
        }
    }
    barrier();

    if (MIDDLE > 1u) {
        row = id / team;
        lane = id % team;
        base = row * n;
        const uint step = LAST, roots = (FIRST - 1u) * (n / FIRST);
        if (row < here) {
            if (MIDDLE == 16u) {
                PASS(16u, dft(x);)
            } else {
                PASS(8u, dft(x);)
            }
        }
        barrier();
    }

    by_row = (FLAGS & STORE_ROWS) != 0u;
    row = by_row ? id % ROWS : id / team;
    lane = by_row ? id / ROWS : id % team;
    base = row * n;
    if (row >= here) return;
    Part part = part_of(FLAGS, first_row + row);
    if (LAST == 16u) {
        LAST_PASS(16u)
    } else {
        LAST_PASS(8u)
    }
}

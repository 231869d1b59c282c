//! name = "fft_{type}"
//! matrix = { type = ["c64", "c128"] }
//! choices.type = { c64 = {}, c128 = { F64 = "1" } }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Fourier transforms of N elements in shared memory, several per workgroup: in place, decimation in frequency, mixed
// radices; results are stored by a table of where they came to lie. Lengths that are no product of radices are summed
// term by term. Longer transforms take several launches, as in D. Bailey, "FFTs in external or hierarchical memory",
// 1990. Parameters: see the names in main and in fft.glsl.
#include "params.glsl"
#define PAIRS
layout(local_size_x = 256) in;
// Elements of shared memory.
layout(constant_id = 0) const uint CAPACITY = 1024u;
// Whether there are other radices than powers of two: without them, fewer registers do.
layout(constant_id = 1) const uint ODD = 1u;

#include "fft.glsl"

shared T data[CAPACITY];

// One pass over rows in shared memory: butterflies of R elements `step` apart, in blocks of R * step, then roots from
// `roots` on.
#define PASS(R) \
    for (uint b = lane; b < n / R; b += team) { \
        uint block = b / step; \
        uint offset = b - block * step; \
        uint begin = block * R * step + offset; \
        T x[R]; \
        [[unroll]] for (uint k = 0u; k < R; ++k) x[k] = data[at(base, row, begin + k * step)]; \
        dft(x); \
        data[at(base, row, begin)] = x[0]; \
        if (step > 1u) { \
            [[unroll]] for (uint k = 1u; k < R; ++k) x[k] = mul(x[k], slot_root(roots + (k - 1u) * step + offset)); \
        } \
        [[unroll]] for (uint k = 1u; k < R; ++k) data[at(base, row, begin + k * step)] = x[k]; \
    }

void main() {
    uint rows = nx_param(0u), n = nx_param(1u), rows_per_group = nx_param(2u), radices = nx_param(3u);
    uint flags = nx_param(9u);

    uint first_row = nx_group() * rows_per_group;
    if (first_row >= rows) return;
    uint here = min(rows_per_group, rows - first_row);
    uint pitch = (n + 15u) & ~15u;
    uint id = gl_LocalInvocationID.x;
    uint team = 256u / rows_per_group;

    bool by_row = (flags & LOAD_ROWS) != 0u;
    uint row = by_row ? id % rows_per_group : id / team;
    uint lane = by_row ? id / rows_per_group : id % team;
    uint base = row * pitch;
    if (row < here) {
        Part part = part_of(flags, first_row + row);
        for (uint j = lane; j < n; j += 4u * team) {
            T v[4];
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                v[u] = T(S(0.0lf));
                if (j + u * team < n) v[u] = loaded(flags, part, j + u * team);
            }
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                if (j + u * team < n) data[at(base, row, j + u * team)] = v[u];
            }
        }
    }
    barrier();

    row = id / team;
    lane = id % team;
    base = row * pitch;
    uint step = n, roots = 0u;
    while ((flags & DIRECT) == 0u && radices != 0u) {
        uint radix = (radices & 15u) + 1u;
        radices >>= 4;
        step /= radix;
        if (row < here) {
            switch (radix) {
                case 2u: PASS(2u) break;
                case 4u: PASS(4u) break;
                case 8u: PASS(8u) break;
                case 16u: PASS(16u) break;
                default:
                    if (ODD != 0u) {
                        switch (radix) {
                            case 3u: PASS(3u) break;
                            case 5u: PASS(5u) break;
                            case 6u: PASS(6u) break;
                            case 7u: PASS(7u) break;
                            case 9u: PASS(9u) break;
                            case 10u: PASS(10u) break;
                            case 11u: PASS(11u) break;
                            case 12u: PASS(12u) break;
                            case 13u: PASS(13u) break;
                            default: PASS(15u) break;
                        }
                    }
                    break;
            }
        }
        roots += (radix - 1u) * step;
        barrier();
    }

    by_row = (flags & STORE_ROWS) != 0u;
    row = by_row ? id % rows_per_group : id / team;
    lane = by_row ? id / rows_per_group : id % team;
    base = row * pitch;
    if (row >= here) return;
    Part part = part_of(flags, first_row + row);
    if ((flags & TAKE_APART) != 0u) {
        for (uint k = lane; k <= n / 2u; k += team) {
            uint mirrored = k == 0u ? 0u : n - k;
            T a = data[at(base, row, slot_order(k))], b = data[at(base, row, slot_order(mirrored))];
            stored_apart(flags, part, n, k, a, b);
        }
        return;
    }
    for (uint k = lane; k < n && place_of(part, k) < nx_param(7u); k += team) {
        T v;
        if ((flags & DIRECT) == 0u) {
            v = data[at(base, row, slot_order(k))];
        } else {
            v = data[at(base, row, 0u)];
            uint turns = 0u;
            for (uint j = 1u; j < n; ++j) {
                turns += k;
                if (turns >= n) turns -= n;
                v += mul(data[at(base, row, j)], slot_root(turns));
            }
        }
        stored(flags, part, k, v);
    }
}

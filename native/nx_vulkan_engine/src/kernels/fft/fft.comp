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
layout(local_size_x = 256) in;
// Elements of shared memory.
layout(constant_id = 0) const uint CAPACITY = 1024u;
// Whether there are other radices than powers of two: without them, fewer registers do.
layout(constant_id = 1) const uint ODD = 1u;

#include "fft.glsl"

shared T data[CAPACITY];

#define COMBINE(R, H, COSINES, SINES) \
    T plus[H], minus[H]; \
    T first = x[0]; \
    [[unroll]] for (uint k = 0u; k < H; ++k) { \
        plus[k] = x[k + 1u] + x[R - 1u - k]; \
        minus[k] = x[k + 1u] - x[R - 1u - k]; \
        x[0] += plus[k]; \
    } \
    [[unroll]] for (uint q = 1u; q <= H; ++q) { \
        T even = first, odd = T(S(0.0lf)); \
        [[unroll]] for (uint k = 1u; k <= H; ++k) { \
            uint turns = q * k % R; \
            bool mirrored = turns > H; \
            uint i = (mirrored ? R - turns : turns) - 1u; \
            even += plus[k - 1u] * COSINES[i]; \
            odd += minus[k - 1u] * (mirrored ? -SINES[i] : SINES[i]); \
        } \
        x[q] = even + turn(odd); \
        x[R - q] = even - turn(odd); \
    }

const S C3[1] = S[](S(-0.5lf));
const S S3[1] = S[](S(0.866025403784438646764lf));
const S C7[3] = S[](
    S(0.623489801858733530525lf),
    S(-0.222520933956314404289lf),
    S(-0.900968867902419126236lf)
);
const S S7[3] = S[](
    S(0.781831482468029808708lf),
    S(0.974927912181823607018lf),
    S(0.433883739117558120476lf)
);
const S C11[5] = S[](
    S(0.841253532831181168862lf),
    S(0.415415013001886425529lf),
    S(-0.142314838273285140444lf),
    S(-0.654860733945285064057lf),
    S(-0.95949297361449738989lf)
);
const S S11[5] = S[](
    S(0.540640817455597582108lf),
    S(0.909631995354518371412lf),
    S(0.989821441880932732376lf),
    S(0.755749574354258283774lf),
    S(0.281732556841429697711lf)
);
const S C13[6] = S[](
    S(0.8854560256532098959lf),
    S(0.568064746731155802512lf),
    S(0.120536680255323053349lf),
    S(-0.35460488704253562597lf),
    S(-0.748510748171101098635lf),
    S(-0.970941817426052027157lf)
);
const S S13[6] = S[](
    S(0.464723172043768545656lf),
    S(0.82298386589365639458lf),
    S(0.992708874098053992801lf),
    S(0.93501624268541482344lf),
    S(0.663122658240795202377lf),
    S(0.239315664287557767149lf)
);

void dft5(inout T a, inout T b, inout T c, inout T d, inout T e) {
    T p = b + e, q = c + d, r = b - e, s = c - d;
    T sum = p + q, even = a - sum * S(0.25lf), difference = (p - q) * S(0.559016994374947424102lf);
    const S near = S(0.951056516295153572116lf), far = S(0.587785252292473129169lf);
    T v = turn(r * near + s * far), w = turn(r * far - s * near);
    T f = even + difference, g = even - difference;
    a += sum;
    b = f + v;
    e = f - v;
    c = g + w;
    d = g - w;
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
                case 2u: PASS(2u, dft(x);) break;
                case 3u: if (ODD != 0u) { PASS(3u, COMBINE(3u, 1u, C3, S3)) } break;
                case 4u: PASS(4u, dft(x);) break;
                case 5u: if (ODD != 0u) { PASS(5u, dft5(x[0], x[1], x[2], x[3], x[4]);) } break;
                case 7u: if (ODD != 0u) { PASS(7u, COMBINE(7u, 3u, C7, S7)) } break;
                case 8u: PASS(8u, dft(x);) break;
                case 11u: if (ODD != 0u) { PASS(11u, COMBINE(11u, 5u, C11, S11)) } break;
                case 13u: if (ODD != 0u) { PASS(13u, COMBINE(13u, 6u, C13, S13)) } break;
                default: PASS(16u, dft(x);) break;
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

//! name = "fft_{type}"
//! matrix = { type = ["c64", "c128"] }
//! choices.type = { c64 = {}, c128 = { F64 = "1" } }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Fourier transforms of N elements in shared memory, several per workgroup: in place, decimation in frequency, mixed
// radices; results are stored by a table of where they came to lie. Lengths that are no product of radices are summed
// term by term. Longer transforms take several launches, as in D. Bailey, "FFTs in external or hierarchical memory",
// 1990: an element's place in the whole transform is `element * inner + row % inner`, its batch `row / inner`.
// Parameters: see the names in main.
#include "params.glsl"
layout(local_size_x = 256) in;
// Elements of shared memory.
layout(constant_id = 0) const uint CAPACITY = 1024u;
// Whether there are other radices than powers of two: without them, fewer registers do.
layout(constant_id = 1) const uint ODD = 1u;

#ifdef F64
#define T dvec2
#define S double
#else
#define T vec2
#define S float
#endif

// Swapping the parts before and after turns a transform into the inverse one.
const uint SWAP_LOAD = 1u, SWAP_STORE = 2u, SWAP_LAST = 4u;
const uint LOAD_FACTOR = 8u, STORE_FACTOR = 16u;
// The second half of the input is the first half's mirror image, conjugated.
const uint MIRROR = 32u;
const uint DIRECT = 64u;
const uint SCALE = 128u, DIVIDE = 256u, CLEAN = 512u;
// Whether neighbouring invocations load or store the same element of neighbouring rows.
const uint LOAD_ROWS = 1024u, STORE_ROWS = 2048u;

// The element of a batch at its place in the whole transform.
T slot_load(const in uint batch, const in uint place) { return T(batch + place); }
void slot_store(const in uint batch, const in uint place, const in T value) {}
// Roots of unity: per pass, for every output but the first, those of all offsets.
T slot_root(const in uint i) { return T(i); }
// Where result i lies.
uint slot_order(const in uint i) { return i; }
T slot_load_factor(const in uint place) { return T(place); }
T slot_store_factor(const in uint place) { return T(place); }
T slot_divide(const in T value, const in T by) { return value; }

shared T data[CAPACITY];

S scalar(const in uint k) {
#ifdef F64
    return packDouble2x32(uvec2(nx_param(k), nx_param(k + 1u)));
#else
    return uintBitsToFloat(nx_param(k));
#endif
}

T mul(const in T a, const in T b) { return T(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
// -i a
T turn(const in T a) { return T(a.y, -a.x); }

// Spreads strides of 16 and 256, and neighbouring rows, over the banks.
uint at(const in uint base, const in uint row, const in uint i) {
    return base + (i ^ ((i >> 4) & 15u) ^ ((i >> 8) & 15u) ^ ((row << 2) & 15u));
}

void dft2(inout T a, inout T b) {
    T t = a - b;
    a = a + b;
    b = t;
}

void dft4(inout T a, inout T b, inout T c, inout T d) {
    T p = a + c, q = a - c, r = b + d, s = turn(b - d);
    a = p + r;
    b = q + s;
    c = p - r;
    d = q - s;
}

const S HALF_ROOT = S(0.707106781186547524401lf);

void dft8(inout T a, inout T b, inout T c, inout T d, inout T e, inout T f, inout T g, inout T h) {
    dft4(a, c, e, g);
    dft4(b, d, f, h);
    d = T(d.x + d.y, d.y - d.x) * HALF_ROOT;
    f = turn(f);
    h = T(h.y - h.x, -h.x - h.y) * HALF_ROOT;
    dft2(a, b);
    dft2(c, d);
    dft2(e, f);
    dft2(g, h);
}

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

// One pass: butterflies of R elements `step` apart, in blocks of R * step, then roots.
#define PASS(R, BUTTERFLY) \
    for (uint b = lane; b < n / R; b += team) { \
        uint block = b / step; \
        uint offset = b - block * step; \
        uint begin = block * R * step + offset; \
        T x[R]; \
        [[unroll]] for (uint k = 0u; k < R; ++k) x[k] = data[at(base, row, begin + k * step)]; \
        BUTTERFLY \
        data[at(base, row, begin)] = x[0]; \
        if (step > 1u) { \
            [[unroll]] for (uint k = 1u; k < R; ++k) x[k] = mul(x[k], slot_root(roots + (k - 1u) * step + offset)); \
        } \
        [[unroll]] for (uint k = 1u; k < R; ++k) data[at(base, row, begin + k * step)] = x[k]; \
    }

#define COLUMN(A, B, C, D, P, Q, U) \
    dft4(x[A], x[B], x[C], x[D]); \
    x[B] = mul(x[B], P); \
    x[C] = mul(x[C], Q); \
    x[D] = mul(x[D], U);

void main() {
    uint rows = nx_param(0u), n = nx_param(1u), rows_per_group = nx_param(2u), radices = nx_param(3u);
    uint in_inner = nx_param(4u), out_inner = nx_param(5u);
    // Elements that exist, of the whole transform before and after; how long the whole is before.
    uint valid = nx_param(6u), kept = nx_param(7u), full = nx_param(8u), flags = nx_param(9u);
    // Roots of the whole transform between launches: rest elements per row follow, a table of 2^shift roots and their
    // powers.
    uint rest = nx_param(10u), shift = nx_param(11u);
    S epsilon = scalar(12u), scale = scalar(14u);

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
        uint batch = (first_row + row) / in_inner;
        uint inner = (first_row + row) - batch * in_inner;
        for (uint j = lane; j < n; j += 4u * team) {
            T v[4];
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                v[u] = T(S(0.0lf));
                uint place = (j + u * team) * in_inner + inner;
                if (j + u * team < n && place < full) {
                    bool mirrored = (flags & MIRROR) != 0u && place > full / 2u;
                    uint source = mirrored ? full - place : place;
                    if (source < valid) v[u] = slot_load(batch, source);
                    if (mirrored) v[u].y = -v[u].y;
                    if ((flags & SWAP_LOAD) != 0u) v[u] = v[u].yx;
                    if ((flags & LOAD_FACTOR) != 0u) v[u] = mul(v[u], slot_load_factor(place));
                }
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
                case 2u: PASS(2u, dft2(x[0], x[1]);) break;
                case 3u: if (ODD != 0u) { PASS(3u, COMBINE(3u, 1u, C3, S3)) } break;
                case 4u: PASS(4u, dft4(x[0], x[1], x[2], x[3]);) break;
                case 5u: if (ODD != 0u) { PASS(5u, dft5(x[0], x[1], x[2], x[3], x[4]);) } break;
                case 7u: if (ODD != 0u) { PASS(7u, COMBINE(7u, 3u, C7, S7)) } break;
                case 8u: {
                    PASS(8u, dft8(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
                        T y[8] = x;
                        [[unroll]] for (uint k = 0u; k < 4u; ++k) { x[k] = y[2u * k]; x[k + 4u] = y[2u * k + 1u]; })
                    break;
                }
                case 11u: if (ODD != 0u) { PASS(11u, COMBINE(11u, 5u, C11, S11)) } break;
                case 13u: if (ODD != 0u) { PASS(13u, COMBINE(13u, 6u, C13, S13)) } break;
                default: {
                    const T w1 = T(S(0.923879532511286756128lf), S(-0.382683432365089771728lf));
                    const T w2 = T(HALF_ROOT, -HALF_ROOT), w3 = T(S(0.382683432365089771728lf), S(-0.923879532511286756128lf));
                    const T w4 = T(S(0.0lf), S(-1.0lf)), w6 = T(-HALF_ROOT, -HALF_ROOT);
                    const T w9 = T(S(-0.923879532511286756128lf), S(0.382683432365089771728lf));
                    PASS(16u,
                        dft4(x[0], x[4], x[8], x[12]);
                        COLUMN(1, 5, 9, 13, w1, w2, w3)
                        COLUMN(2, 6, 10, 14, w2, w4, w6)
                        COLUMN(3, 7, 11, 15, w3, w6, w9)
                        [[unroll]] for (uint k = 0u; k < 16u; k += 4u) dft4(x[k], x[k + 1u], x[k + 2u], x[k + 3u]);
                        T y[16] = x;
                        [[unroll]] for (uint k = 0u; k < 16u; ++k) x[k] = y[k % 4u * 4u + k / 4u];)
                    break;
                }
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
    uint batch = (first_row + row) / out_inner;
    uint inner = (first_row + row) - batch * out_inner;
    uint following = (first_row + row) % rest;
    for (uint k = lane; k < n; k += team) {
        uint place = k * out_inner + inner;
        if (place >= kept) break;
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
        if (rest > 1u) {
            uint turns = following * k;
            T root = mul(slot_store_factor(turns & ((1u << shift) - 1u)), slot_store_factor((1u << shift) + (turns >> shift)));
            v = mul(v, root);
        }
        if ((flags & SWAP_STORE) != 0u) v = v.yx;
        if ((flags & STORE_FACTOR) != 0u) v = mul(v, slot_store_factor(place));
        if ((flags & SWAP_LAST) != 0u) v = v.yx;
        if ((flags & SCALE) != 0u) v *= scale;
        if ((flags & DIVIDE) != 0u) v = slot_divide(v, T(scale));
        if ((flags & CLEAN) != 0u) {
            if (v.x <= epsilon && v.x >= -epsilon) v.x = S(0.0lf);
            if (v.y <= epsilon && v.y >= -epsilon) v.y = S(0.0lf);
        }
        slot_store(batch, place, v);
    }
}

// Elements, loads and stores of Fourier transforms: what fft.comp and fft_fixed.comp share. Parameters: see their names
// here and in main.
#ifndef FFT_GLSL
#define FFT_GLSL

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
// Whether the input and the result have all places of the whole transform.
const uint WHOLE_LOAD = 4096u, WHOLE_STORE = 8192u;
// Rows are parts of a longer transform: roots of the whole follow.
const uint PARTS = 16384u;
// Neighbouring rows are of neighbouring batches.
const uint COLUMNS = 32768u;
// Where PAIRS is defined, rows of 2 n real numbers are n complex ones: the spectrum of 2 n is taken apart after, or put
// together before. And whether the two parts are elements of their own in memory.
const uint TAKE_APART = 65536u, PUT_TOGETHER = 131072u, LOAD_PAIRS = 262144u, STORE_PAIRS = 524288u;

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

S scalar(const in uint k) {
#ifdef F64
    return packDouble2x32(uvec2(nx_param(k), nx_param(k + 1u)));
#else
    return uintBitsToFloat(nx_param(k));
#endif
}

#include "fft_butterflies.glsl"

// Spreads strides of 16 and 256, and neighbouring rows, over the banks.
uint at(const in uint base, const in uint row, const in uint i) {
    return base + (i ^ ((i >> 4) & 15u) ^ ((i >> 8) & 15u) ^ ((row << 2) & 15u));
}

// What row `row` of the launch is a part of.
struct Part {
    // The batch of the input and of the result.
    uint source, target;
    // Its first element's places of the whole transform before and after.
    uint first, kept;
};

Part part_of(const in uint flags, const in uint row) {
    // Elements of a row between its own, before and after: those of other rows of the same batch.
    uint in_inner = nx_param(4u), out_inner = nx_param(5u);
    uint batches = nx_param(10u);
    bool columns = (flags & COLUMNS) != 0u;
    Part part;
    part.target = columns ? row % batches : row / out_inner;
    part.kept = columns ? row / batches : row - part.target * out_inner;
    uint before = part.kept / in_inner;
    part.first = part.kept - before * in_inner;
    part.source = columns ? before * batches + part.target : row / in_inner;
    return part;
}

#ifdef PAIRS
T conjugate(const in T a) { return T(a.x, -a.y); }

// An element of a spectrum of real numbers, of which the first `half` + 1 can be. The ends are real.
T of_spectrum(const in bool is_whole, const in uint source, const in uint place, const in uint half_length) {
    T v = T(S(0.0lf));
    if (is_whole || place < nx_param(6u)) v = slot_load(source, place);
    if (place == 0u || place == half_length) v.y = S(0.0lf);
    return v;
}

// The real numbers at a place and after it as one complex number.
T pair_at(const in bool is_whole, const in uint source, const in uint place) {
    T v = T(S(0.0lf));
    if (is_whole || place < nx_param(6u)) v.x = slot_load(source, place).x;
    if (is_whole || place + 1u < nx_param(6u)) v.y = slot_load(source, place + 1u).x;
    return v;
}

#endif

// Element k of a part, zero where there is none.
T loaded(const in uint flags, const in Part part, const in uint k) {
    // How long the whole is before, and how many of its elements exist.
    uint full = nx_param(8u), valid = nx_param(6u);
    uint place = k * nx_param(4u) + part.first;
    T v = T(S(0.0lf));
    bool is_whole = (flags & WHOLE_LOAD) != 0u;
#ifdef PAIRS
    if ((flags & LOAD_PAIRS) != 0u) return pair_at(is_whole, part.source, 2u * place);
    if ((flags & PUT_TOGETHER) != 0u) {
        T a = of_spectrum(is_whole, part.source, place, full - 1u);
        T b = conjugate(of_spectrum(is_whole, part.source, full - 1u - place, full - 1u));
        // Swapped: i times the second sum, with the parts exchanged.
        return (a + b).yx + conjugate(mul(a - b, conjugate(slot_load_factor(place))));
    }
#endif
    if (!is_whole && place >= full) return v;
    bool mirrored = (flags & MIRROR) != 0u && place > full / 2u;
    uint source = mirrored ? full - place : place;
    if (is_whole || source < valid) v = slot_load(part.source, source);
    if (mirrored) v.y = -v.y;
    if ((flags & SWAP_LOAD) != 0u) v = v.yx;
    if ((flags & LOAD_FACTOR) != 0u) v = mul(v, slot_load_factor(place));
    return v;
}

// Where element k of a part is after the whole transform.
uint place_of(const in Part part, const in uint k) { return k * nx_param(5u) + part.kept; }

// Stores element k of a part, if its place is one of the result.
void stored(const in uint flags, const in Part part, const in uint k, const in T value) {
    uint place = place_of(part, k);
    if ((flags & WHOLE_STORE) == 0u && place >= nx_param(7u)) return;
    T v = value;
    if ((flags & PARTS) != 0u) {
        // A table of 2^shift roots, and of their powers.
        uint shift = nx_param(11u), turns = part.first * k;
        v = mul(v, mul(slot_store_factor(turns & ((1u << shift) - 1u)), slot_store_factor((1u << shift) + (turns >> shift))));
    }
    if ((flags & SWAP_STORE) != 0u) v = v.yx;
    if ((flags & STORE_FACTOR) != 0u) v = mul(v, slot_store_factor(place));
    if ((flags & SWAP_LAST) != 0u) v = v.yx;
    S scale = scalar(14u);
    if ((flags & SCALE) != 0u) v *= scale;
    if ((flags & DIVIDE) != 0u) v = slot_divide(v, T(scale));
    if ((flags & CLEAN) != 0u) {
        S epsilon = scalar(12u);
        if (v.x <= epsilon && v.x >= -epsilon) v.x = S(0.0lf);
        if (v.y <= epsilon && v.y >= -epsilon) v.y = S(0.0lf);
    }
#ifdef PAIRS
    if ((flags & STORE_PAIRS) != 0u) {
        slot_store(part.target, 2u * place, v);
        slot_store(part.target, 2u * place + 1u, v.yx);
        return;
    }
#endif
    slot_store(part.target, place, v);
}

#ifdef PAIRS
// Stores elements k and n - k of the spectrum of 2 n real numbers, of whose transform as n complex ones these are the
// elements k and n - k, and their mirror images where the result has them.
void stored_apart(
    const in uint flags, const in Part part, const in uint n, const in uint k, const in T a, const in T b
) {
    T even = (a + conjugate(b)) * S(0.5lf);
    T odd = mul(turn(a - conjugate(b)) * S(0.5lf), slot_store_factor(k));
    T first = even + odd, second = conjugate(even - odd);
    bool is_whole = nx_param(7u) > n + 1u;
    stored(flags, part, k, first);
    if (2u * k < n) stored(flags, part, n - k, second);
    if (is_whole && k > 0u) {
        stored(flags, part, 2u * n - k, conjugate(first));
        if (2u * k < n) stored(flags, part, n + k, conjugate(second));
    }
}
#endif

#endif

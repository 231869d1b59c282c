// IEEE 754 arithmetic of f64 in words, for devices without doubles: values are their bits, low word first. All is
// rounded once, to nearest even, with denormals. NaN operands come back quiet, the first before the second, and invalid
// operations give the NaN of x86, as CPUs have them.
#ifndef NX_SOFT_F64_GLSL
#define NX_SOFT_F64_GLSL
#include "nx_soft_int64.glsl"

const uint NX_SOFT_SIGN = 0x80000000u;
const uint NX_SOFT_INFINITY = 0x7ff00000u;
const uint NX_SOFT_QUIET = 0x00080000u;
const uvec2 NX_SOFT_INVALID = uvec2(0u, 0xfff80000u);

uvec2 nx_soft_magnitude(const in uvec2 a) { return uvec2(a.x, a.y & 0x7fffffffu); }

bool nx_soft_is_nan_f64(const in uvec2 a) {
    uint high = a.y & 0x7fffffffu;
    return high > NX_SOFT_INFINITY || high == NX_SOFT_INFINITY && a.x != 0u;
}

bool nx_soft_is_infinity_f64(const in uvec2 a) { return a.x == 0u && (a.y & 0x7fffffffu) == NX_SOFT_INFINITY; }
bool nx_soft_is_zero(const in uvec2 a) { return (a.x | a.y << 1) == 0u; }

// What an operation gives of which an operand is NaN.
uvec2 nx_soft_nan_of(const in uvec2 a, const in uvec2 b) {
    uvec2 nan = nx_soft_is_nan_f64(a) ? a : b;
    return uvec2(nan.x, nan.y | NX_SOFT_QUIET);
}

// Of a number that is neither infinite nor NaN: its significand, with the highest bit at 52 (0 for zeros), and the
// exponent that belongs to it.
void nx_soft_unpack(const in uvec2 a, out int exponent, out uvec2 significand) {
    uint field = a.y >> 20 & 0x7ffu;
    uvec2 fraction = uvec2(a.x, a.y & 0xfffffu);
    uint zeros = nx_soft_leading_zeros(fraction) - 11u;
    uvec2 raised = nx_soft_left_u64(fraction, zeros & 63u);
    exponent = field == 0u ? 1 - int(zeros) : int(field);
    significand = field == 0u ? raised : uvec2(fraction.x, fraction.y | 0x100000u);
}

// The f64 of 2^(exponent - 1023) times a significand whose highest bit, 62, is 1, and whose lowest one may stand for
// what is below.
uvec2 nx_soft_round(const in uint sign, const in int exponent, const in uvec2 significand) {
    uvec2 kept = nx_soft_right_sticky(significand, uint(clamp(1 - exponent, 0, 63)));
    uint low = kept.x & 0x3ffu;
    uvec2 bits = nx_soft_right_u64(kept, 10u);
    uint up = uint(low > 0x200u || low == 0x200u && (bits.x & 1u) != 0u);
    bits = nx_soft_add_u64(bits, uvec2(up, uint(max(exponent - 1, 0)) << 20));
    bool overflow = exponent >= 0x7ff || bits.y >= NX_SOFT_INFINITY;
    return overflow ? uvec2(0u, sign | NX_SOFT_INFINITY) : uvec2(bits.x, sign | bits.y);
}

uvec2 nx_soft_negate_f64(const in uvec2 a) { return uvec2(a.x, a.y ^ NX_SOFT_SIGN); }
uvec2 nx_soft_abs_f64(const in uvec2 a) { return nx_soft_magnitude(a); }

uvec2 nx_soft_add_f64(const in uvec2 a, const in uvec2 b) {
    bool turn = nx_soft_less_u64(nx_soft_magnitude(a), nx_soft_magnitude(b));
    uvec2 large = turn ? b : a;
    uvec2 small = turn ? a : b;
    uint large_field = large.y >> 20 & 0x7ffu;
    uint small_field = small.y >> 20 & 0x7ffu;
    uint sign = large.y & NX_SOFT_SIGN;
    bool differ = int(a.y ^ b.y) < 0;
    int exponent = int(max(large_field, 1u));
    uvec2 m = uvec2(large.x << 10, (large.y & 0xfffffu | (large_field == 0u ? 0u : 0x100000u)) << 10 | large.x >> 22);
    uvec2 n = uvec2(small.x << 10, (small.y & 0xfffffu | (small_field == 0u ? 0u : 0x100000u)) << 10 | small.x >> 22);
    n = nx_soft_right_sticky(n, uint(min(exponent - int(max(small_field, 1u)), 63)));
    uvec2 sum = differ ? nx_soft_subtract_u64(m, n) : nx_soft_add_u64(m, n);
    int up = int(nx_soft_leading_zeros(sum)) - 1;
    uvec2 raised = nx_soft_left_u64(sum, uint(clamp(up, 0, 63)));
    uvec2 lowered = uvec2(sum.x >> 1 | sum.y << 31 | sum.x & 1u, sum.y >> 1);
    uvec2 result = nx_soft_round(sign, exponent - up, up < 0 ? lowered : raised);
    result = (sum.x | sum.y) == 0u ? uvec2(0u, differ ? 0u : sign) : result;
    bool invalid = differ && small_field == 0x7ffu;
    uvec2 special = invalid ? NX_SOFT_INVALID : uvec2(0u, sign | NX_SOFT_INFINITY);
    special = nx_soft_is_nan_f64(a) || nx_soft_is_nan_f64(b) ? nx_soft_nan_of(a, b) : special;
    return large_field == 0x7ffu ? special : result;
}

// A NaN keeps its sign.
uvec2 nx_soft_subtract_f64(const in uvec2 a, const in uvec2 b) {
    return nx_soft_add_f64(a, nx_soft_is_nan_f64(b) ? b : nx_soft_negate_f64(b));
}

// All 128 bits, lowest word first.
uvec4 nx_soft_product(const in uvec2 a, const in uvec2 b) {
    uvec2 low;
    uvec2 middle;
    uvec2 other;
    uvec2 high;
    umulExtended(a.x, b.x, low.y, low.x);
    umulExtended(a.x, b.y, middle.y, middle.x);
    umulExtended(a.y, b.x, other.y, other.x);
    umulExtended(a.y, b.y, high.y, high.x);
    uint c0;
    uint c1;
    uint second = uaddCarry(low.y, middle.x, c0);
    second = uaddCarry(second, other.x, c1);
    uvec2 upper = nx_soft_add_u64(high, uvec2(middle.y, 0u));
    upper = nx_soft_add_u64(upper, uvec2(other.y, 0u));
    upper = nx_soft_add_u64(upper, uvec2(c0 + c1, 0u));
    return uvec4(low.x, second, upper);
}

uvec2 nx_soft_multiply_f64(const in uvec2 a, const in uvec2 b) {
    int a_exponent;
    int b_exponent;
    uvec2 m;
    uvec2 n;
    nx_soft_unpack(a, a_exponent, m);
    nx_soft_unpack(b, b_exponent, n);
    uint sign = (a.y ^ b.y) & NX_SOFT_SIGN;
    // Highest bits at 63 and 62, so that the product's is 125 or 126.
    uvec4 product = nx_soft_product(nx_soft_left_u64(m, 11u), nx_soft_left_u64(n, 10u));
    uvec2 significand = uvec2(product.z | uint((product.x | product.y) != 0u), product.w);
    bool is_short = significand.y < 0x40000000u;
    significand = is_short ? nx_soft_left_u64(significand, 1u) : significand;
    uvec2 result = nx_soft_round(sign, a_exponent + b_exponent - (is_short ? 1023 : 1022), significand);
    bool zero = nx_soft_is_zero(a) || nx_soft_is_zero(b);
    result = zero ? uvec2(0u, sign) : result;
    uvec2 special = zero ? NX_SOFT_INVALID : uvec2(0u, sign | NX_SOFT_INFINITY);
    special = nx_soft_is_nan_f64(a) || nx_soft_is_nan_f64(b) ? nx_soft_nan_of(a, b) : special;
    bool finite = (a.y & NX_SOFT_INFINITY) != NX_SOFT_INFINITY && (b.y & NX_SOFT_INFINITY) != NX_SOFT_INFINITY;
    return finite ? result : special;
}

uvec4 nx_soft_add_u128(const in uvec4 a, const in uvec4 b) {
    uvec2 low = nx_soft_add_u64(a.xy, b.xy);
    uvec2 high = nx_soft_add_u64(a.zw, b.zw);
    return uvec4(low, nx_soft_add_u64(high, uvec2(uint(nx_soft_less_u64(low, b.xy)), 0u)));
}

uvec4 nx_soft_subtract_u128(const in uvec4 a, const in uvec4 b) {
    uvec2 low = nx_soft_subtract_u64(a.xy, b.xy);
    uvec2 high = nx_soft_subtract_u64(a.zw, b.zw);
    return uvec4(low, nx_soft_subtract_u64(high, uvec2(uint(nx_soft_less_u64(a.xy, b.xy)), 0u)));
}

uvec4 nx_soft_left_u128(const in uvec4 a, const in uint places) {
    uint part = places & 63u;
    uvec2 low = nx_soft_left_u64(a.xy, part);
    // In two steps: by at most 63 each.
    uvec2 across = nx_soft_right_u64(nx_soft_right_u64(a.xy, 1u), 63u - part);
    uvec2 high = nx_soft_left_u64(a.zw, part) | across;
    return places >= 64u ? uvec4(0u, 0u, low) : uvec4(low, high);
}

// As nx_soft_right_sticky, at most by 127.
uvec4 nx_soft_right_sticky_u128(const in uvec4 a, const in uint places) {
    uint part = places & 63u;
    uvec2 high = nx_soft_right_u64(a.zw, part);
    uvec2 across = nx_soft_left_u64(nx_soft_left_u64(a.zw, 1u), 63u - part);
    uvec2 low = nx_soft_right_u64(a.xy, part) | across;
    uvec4 kept = places >= 64u ? uvec4(high, 0u, 0u) : uvec4(low, high);
    uvec4 back = nx_soft_left_u128(kept, places);
    kept.x |= uint(back != a);
    return kept;
}

uvec2 nx_soft_fma_f64(const in uvec2 a, const in uvec2 b, const in uvec2 c) {
    int a_exponent;
    int b_exponent;
    int c_exponent;
    uvec2 m;
    uvec2 n;
    uvec2 o;
    nx_soft_unpack(a, a_exponent, m);
    nx_soft_unpack(b, b_exponent, n);
    nx_soft_unpack(c, c_exponent, o);
    uint sign = (a.y ^ b.y) & NX_SOFT_SIGN;
    bool differ = int(sign ^ c.y) < 0;
    // Highest bits at 126.
    uvec4 product = nx_soft_product(nx_soft_left_u64(m, 11u), nx_soft_left_u64(n, 10u));
    bool is_short = product.w < 0x40000000u;
    product = is_short ? nx_soft_left_u128(product, 1u) : product;
    int exponent = a_exponent + b_exponent - (is_short ? 1023 : 1022);
    uvec4 addend = uvec4(0u, 0u, nx_soft_left_u64(o, 10u));
    bool no_product = (product.z | product.w) == 0u;
    bool no_addend = (addend.z | addend.w) == 0u;
    // A zero has no exponent of its own.
    exponent = no_product ? c_exponent : exponent;
    c_exponent = no_addend ? exponent : c_exponent;
    int apart = exponent - c_exponent;
    bool turn = apart < 0 || apart == 0 && nx_soft_less_u64(product.zw, addend.zw);
    uvec4 large = turn ? addend : product;
    uvec4 small = nx_soft_right_sticky_u128(turn ? product : addend, uint(min(abs(apart), 127)));
    uvec4 sum = differ ? nx_soft_subtract_u128(large, small) : nx_soft_add_u128(large, small);
    bool any_high = (sum.z | sum.w) != 0u;
    int zeros = int(any_high ? nx_soft_leading_zeros(sum.zw) : 64u + nx_soft_leading_zeros(sum.xy));
    uvec4 raised = nx_soft_left_u128(sum, uint(clamp(zeros - 1, 0, 127)));
    uvec4 lowered = nx_soft_right_sticky_u128(sum, 1u);
    uvec4 significand = zeros == 0 ? lowered : raised;
    uint sum_sign = turn ? c.y & NX_SOFT_SIGN : sign;
    significand.z |= uint((significand.x | significand.y) != 0u);
    uvec2 result = nx_soft_round(sum_sign, max(exponent, c_exponent) - zeros + 1, significand.zw);
    bool zero = (sum.x | sum.y | sum.z | sum.w) == 0u;
    result = zero ? uvec2(0u, differ ? 0u : sign) : result;
    bool infinite = (a.y & NX_SOFT_INFINITY) == NX_SOFT_INFINITY || (b.y & NX_SOFT_INFINITY) == NX_SOFT_INFINITY;
    bool infinite_addend = (c.y & NX_SOFT_INFINITY) == NX_SOFT_INFINITY;
    bool invalid = infinite && (nx_soft_is_zero(a) || nx_soft_is_zero(b) || infinite_addend && differ);
    uvec2 special = uvec2(0u, (infinite ? sign : c.y & NX_SOFT_SIGN) | NX_SOFT_INFINITY);
    special = invalid ? NX_SOFT_INVALID : special;
    special = nx_soft_is_nan_f64(c) ? uvec2(c.x, c.y | NX_SOFT_QUIET) : special;
    special = nx_soft_is_nan_f64(a) || nx_soft_is_nan_f64(b) ? nx_soft_nan_of(a, b) : special;
    return infinite || infinite_addend ? special : result;
}

// One step of a sequence (lower/sequences.rs): the sum, or the product with a sum. Bits 31, 30 and 29 of `word` say
// that a, b and c are negated, bit 28 that c is subtracted, so that a NaN keeps its sign.
uvec2 nx_soft_step_addend(const in uint word, const in uvec2 c) {
    bool keeps = (word & 0x20000000u) == 0u && ((word & 0x10000000u) == 0u || nx_soft_is_nan_f64(c));
    return uvec2(c.x, c.y ^ (keeps ? 0u : NX_SOFT_SIGN));
}
uvec2 nx_soft_sum_step_f64(const in uint word, const in uvec2 a, const in uvec2 c) {
    return nx_soft_add_f64(uvec2(a.x, a.y ^ word & NX_SOFT_SIGN), nx_soft_step_addend(word, c));
}
uvec2 nx_soft_fma_step_f64(const in uint word, const in uvec2 a, const in uvec2 b, const in uvec2 c) {
    uvec2 factor = uvec2(b.x, b.y ^ word << 1 & NX_SOFT_SIGN);
    return nx_soft_fma_f64(uvec2(a.x, a.y ^ word & NX_SOFT_SIGN), factor, nx_soft_step_addend(word, c));
}

uvec2 nx_soft_divide_f64(const in uvec2 a, const in uvec2 b) {
    int a_exponent;
    int b_exponent;
    uvec2 m;
    uvec2 n;
    nx_soft_unpack(a, a_exponent, m);
    nx_soft_unpack(b, b_exponent, n);
    uint sign = (a.y ^ b.y) & NX_SOFT_SIGN;
    bool is_short = nx_soft_less_u64(m, n);
    uvec2 rest = is_short ? nx_soft_left_u64(m, 1u) : m;
    uvec2 quotient = uvec2(0u);
    // 56 bits, the first of which is 1.
    for (int i = 0; i < 56; i++) {
        uint borrow;
        uint low = usubBorrow(rest.x, n.x, borrow);
        uint high = rest.y - n.y - borrow;
        // Both are below 2^54.
        bool fits = int(high) >= 0;
        quotient = uvec2(quotient.x << 1 | uint(fits), quotient.y << 1 | quotient.x >> 31);
        rest = fits ? uvec2(low, high) : rest;
        rest = uvec2(rest.x << 1, rest.y << 1 | rest.x >> 31);
    }
    uvec2 significand = nx_soft_left_u64(quotient, 7u) | uvec2(uint((rest.x | rest.y) != 0u), 0u);
    uvec2 result = nx_soft_round(sign, a_exponent - b_exponent + (is_short ? 1022 : 1023), significand);
    bool a_infinite = (a.y & NX_SOFT_INFINITY) == NX_SOFT_INFINITY;
    bool b_infinite = (b.y & NX_SOFT_INFINITY) == NX_SOFT_INFINITY;
    bool a_zero = nx_soft_is_zero(a);
    bool b_zero = nx_soft_is_zero(b);
    result = a_zero || b_infinite ? uvec2(0u, sign) : result;
    result = b_zero || a_infinite ? uvec2(0u, sign | NX_SOFT_INFINITY) : result;
    result = a_zero && b_zero || a_infinite && b_infinite ? NX_SOFT_INVALID : result;
    return nx_soft_is_nan_f64(a) || nx_soft_is_nan_f64(b) ? nx_soft_nan_of(a, b) : result;
}

uvec2 nx_soft_sqrt_f64(const in uvec2 a) {
    int exponent;
    uvec2 rest;
    nx_soft_unpack(a, exponent, rest);
    bool odd = (exponent & 1) == 0;
    rest = nx_soft_left_u64(rest, odd ? 2u : 1u);
    uvec2 root = uvec2(0u);
    uvec2 twice = uvec2(0u);
    uvec2 bit = uvec2(0u, 1u << 21);
    // 54 bits, the first of which is 1.
    for (int i = 0; i < 54; i++) {
        uvec2 trial = nx_soft_add_u64(twice, bit);
        bool fits = !nx_soft_less_u64(rest, trial);
        twice = fits ? nx_soft_add_u64(trial, bit) : twice;
        rest = fits ? nx_soft_subtract_u64(rest, trial) : rest;
        root = fits ? root | bit : root;
        rest = uvec2(rest.x << 1, rest.y << 1 | rest.x >> 31);
        bit = uvec2(bit.x >> 1 | bit.y << 31, bit.y >> 1);
    }
    uvec2 significand = nx_soft_left_u64(root, 9u) | uvec2(uint((rest.x | rest.y) != 0u), 0u);
    uvec2 result = nx_soft_round(0u, (exponent - 1023 >> 1) + 1023, significand);
    result = a.y == NX_SOFT_INFINITY && a.x == 0u ? a : result;
    result = int(a.y) < 0 ? NX_SOFT_INVALID : result;
    result = nx_soft_is_zero(a) ? a : result;
    return nx_soft_is_nan_f64(a) ? uvec2(a.x, a.y | NX_SOFT_QUIET) : result;
}

bool nx_soft_equal_f64(const in uvec2 a, const in uvec2 b) {
    bool same = a.x == b.x && a.y == b.y && !nx_soft_is_nan_f64(a);
    return same || nx_soft_is_zero(a) && nx_soft_is_zero(b);
}

// A number whose order as an unsigned one is that of the values.
uvec2 nx_soft_order(const in uvec2 a) { return int(a.y) < 0 ? ~a : uvec2(a.x, a.y | NX_SOFT_SIGN); }

bool nx_soft_ordered_f64(const in uvec2 a, const in uvec2 b) { return !nx_soft_is_nan_f64(a) && !nx_soft_is_nan_f64(b); }

bool nx_soft_less_f64(const in uvec2 a, const in uvec2 b) {
    bool zeros = nx_soft_is_zero(a) && nx_soft_is_zero(b);
    return nx_soft_ordered_f64(a, b) && !zeros && nx_soft_less_u64(nx_soft_order(a), nx_soft_order(b));
}

bool nx_soft_less_equal_f64(const in uvec2 a, const in uvec2 b) {
    bool zeros = nx_soft_is_zero(a) && nx_soft_is_zero(b);
    return nx_soft_ordered_f64(a, b) && (zeros || !nx_soft_less_u64(nx_soft_order(b), nx_soft_order(a)));
}

// The other where one is NaN.
uvec2 nx_soft_min_f64(const in uvec2 a, const in uvec2 b) {
    return nx_soft_is_nan_f64(a) || nx_soft_less_f64(b, a) ? b : a;
}
uvec2 nx_soft_max_f64(const in uvec2 a, const in uvec2 b) {
    return nx_soft_is_nan_f64(a) || nx_soft_less_f64(a, b) ? b : a;
}

uvec2 nx_soft_sign_f64(const in uvec2 a) {
    return nx_soft_is_zero(a) || nx_soft_is_nan_f64(a) ? a : uvec2(0u, a.y & NX_SOFT_SIGN | 0x3ff00000u);
}

// Bits below the point, of numbers whose exponent is 0 to 51.
uvec2 nx_soft_fraction_mask(const in int exponent) {
    return nx_soft_subtract_u64(nx_soft_left_u64(uvec2(1u, 0u), uint(clamp(52 - exponent, 0, 63))), uvec2(1u, 0u));
}

uvec2 nx_soft_trunc_f64(const in uvec2 a) {
    int exponent = int(a.y >> 20 & 0x7ffu) - 1023;
    uvec2 whole = exponent < 0 ? uvec2(0u, a.y & NX_SOFT_SIGN) : a & ~nx_soft_fraction_mask(exponent);
    uvec2 large = nx_soft_is_nan_f64(a) ? uvec2(a.x, a.y | NX_SOFT_QUIET) : a;
    return exponent >= 52 ? large : whole;
}

// The whole number next to `whole` away from zero, where `whole` is `a` without its fraction and is not `a`.
uvec2 nx_soft_away(const in uvec2 a, const in uvec2 whole) {
    int exponent = int(a.y >> 20 & 0x7ffu) - 1023;
    uvec2 one = nx_soft_add_u64(nx_soft_fraction_mask(exponent), uvec2(1u, 0u));
    return exponent < 0 ? uvec2(0u, a.y & NX_SOFT_SIGN | 0x3ff00000u) : nx_soft_add_u64(whole, one);
}

uvec2 nx_soft_floor_f64(const in uvec2 a) {
    uvec2 whole = nx_soft_trunc_f64(a);
    bool away = int(a.y) < 0 && !nx_soft_equal_f64(whole, a) && !nx_soft_is_nan_f64(a);
    return away ? nx_soft_away(a, whole) : whole;
}

uvec2 nx_soft_ceil_f64(const in uvec2 a) {
    uvec2 whole = nx_soft_trunc_f64(a);
    bool away = int(a.y) >= 0 && !nx_soft_equal_f64(whole, a) && !nx_soft_is_nan_f64(a);
    return away ? nx_soft_away(a, whole) : whole;
}

uvec2 nx_soft_round_even_f64(const in uvec2 a) {
    int exponent = int(a.y >> 20 & 0x7ffu) - 1023;
    uvec2 whole = nx_soft_trunc_f64(a);
    uvec2 fraction = a & nx_soft_fraction_mask(exponent);
    uvec2 half_bit = nx_soft_left_u64(uvec2(1u, 0u), uint(clamp(51 - exponent, 0, 63)));
    uvec2 unit = a & nx_soft_left_u64(half_bit, 1u);
    // The unit of numbers from 1 to 2 is the bit that is not stored.
    bool is_odd = exponent == 0 || (unit.x | unit.y) != 0u;
    bool away = nx_soft_less_u64(half_bit, fraction) || nx_soft_equal_u64(half_bit, fraction) && is_odd;
    bool small_away = exponent == -1 && (a.x | a.y & 0xfffffu) != 0u;
    away = exponent < 0 ? small_away : away && exponent < 52;
    return away ? nx_soft_away(a, whole) : whole;
}

// Between types

uvec2 nx_soft_f64_of_magnitude(const in uint sign, const in uvec2 a) {
    uint zeros = nx_soft_leading_zeros(a);
    uvec2 shifted = nx_soft_left_u64(a, zeros & 63u);
    uvec2 significand = nx_soft_right_sticky(shifted, 1u);
    return zeros == 64u ? uvec2(0u) : nx_soft_round(sign, 1023 + 63 - int(zeros), significand);
}

uvec2 nx_soft_f64_of_u64(const in uvec2 a) { return nx_soft_f64_of_magnitude(0u, a); }
uvec2 nx_soft_f64_of_i64(const in uvec2 a) { return nx_soft_f64_of_magnitude(a.y & NX_SOFT_SIGN, nx_soft_abs_i64(a)); }

// Exact.
uvec2 nx_soft_f64_of_word(const in uint sign, const in uint a) {
    uint zeros = uint(31 - findMSB(a));
    uvec2 shifted = nx_soft_left_u64(uvec2(a, 0u), zeros + 21u & 63u);
    // The highest bit, which is 1, adds 1 to the exponent.
    return a == 0u ? uvec2(0u) : uvec2(shifted.x, sign | (1022u + 31u - zeros << 20) + shifted.y);
}

uvec2 nx_soft_f64_of_u32(const in uint a) { return nx_soft_f64_of_word(0u, a); }
uvec2 nx_soft_f64_of_i32(const in int a) { return nx_soft_f64_of_word(uint(a) & NX_SOFT_SIGN, uint(abs(a))); }

// Rounded towards zero, of numbers that 64 bits hold.
uvec2 nx_soft_u64_of_f64(const in uvec2 a) {
    int exponent = int(a.y >> 20 & 0x7ffu) - 1023;
    uvec2 significand = uvec2(a.x, a.y & 0xfffffu | 0x100000u);
    uvec2 large = nx_soft_left_u64(significand, uint(clamp(exponent - 52, 0, 63)));
    uvec2 small = nx_soft_right_u64(significand, uint(clamp(52 - exponent, 0, 63)));
    uvec2 value = exponent >= 52 ? large : small;
    return int(a.y) < 0 ? nx_soft_negate_u64(value) : value;
}

uint nx_soft_u32_of_f64(const in uvec2 a) { return nx_soft_u64_of_f64(a).x; }

// Exact; what a device without denormals would make zeros of keeps its value.
uvec2 nx_soft_f64_of_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    uint sign = bits & NX_SOFT_SIGN;
    uint field = bits >> 23 & 0xffu;
    uint fraction = bits & 0x7fffffu;
    uint zeros = uint(31 - findMSB(fraction)) - 8u;
    uint raised = fraction << (zeros & 31u) & 0x7fffffu;
    uint exponent = field == 0u ? 897u - zeros : field + 896u;
    exponent = field == 0xffu ? 0x7ffu : exponent;
    uint kept = field == 0u ? raised : fraction;
    uint quiet = field == 0xffu && fraction != 0u ? NX_SOFT_QUIET : 0u;
    uvec2 value = uvec2(kept << 29, sign | exponent << 20 | kept >> 3 | quiet);
    return field == 0u && fraction == 0u ? uvec2(0u, sign) : value;
}

float nx_soft_f32_of_f64(const in uvec2 a) {
    uint sign = a.y & NX_SOFT_SIGN;
    int exponent = int(a.y >> 20 & 0x7ffu);
    uint low = uint((a.x << 10) != 0u);
    uint significand = 0x40000000u | (a.y & 0xfffffu) << 10 | a.x >> 22 | low;
    float value = nx_soft_round_f32(sign, exponent - 896, significand);
    // Denormals of f64 are far below those of f32.
    value = exponent == 0 ? uintBitsToFloat(sign) : value;
    uint nan = sign | 0x7fc00000u | (a.y & 0xfffffu) << 3 | a.x >> 29;
    uint special = nx_soft_is_nan_f64(a) ? nan : sign | 0x7f800000u;
    return exponent == 0x7ff ? uintBitsToFloat(special) : value;
}

#endif

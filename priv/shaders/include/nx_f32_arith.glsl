// Arithmetic, comparison, selection and rounding on f32.
#ifndef NX_F32_ARITH_GLSL
#define NX_F32_ARITH_GLSL
#include "nx_f32_base.glsl"

float nx_add_f32(const in float a, const in float b) { return a + b; }
float nx_subtract_f32(const in float a, const in float b) { return a - b; }
float nx_multiply_f32(const in float a, const in float b) { return a * b; }

uint nx_is_nan_f32(const in float x) { return nx_magnitude_bits_f32(x) > 0x7f800000u ? 1u : 0u; }
uint nx_is_infinity_f32(const in float x) { return nx_magnitude_bits_f32(x) == 0x7f800000u ? 1u : 0u; }
uint nx_truthy_f32(const in float x) { return nx_magnitude_bits_f32(x) != 0u ? 1u : 0u; }

float nx_negate_f32(const in float x) { return uintBitsToFloat(floatBitsToUint(x) ^ 0x80000000u); }
float nx_abs_f32(const in float x) { return uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu); }
float nx_real_f32(const in float x) { return x; }

// -1, 1, or x itself for zeros; 1 for NaN, as in BinaryBackend.
float nx_sign_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    return m == 0u ? x : nx_with_sign_f32(1.0f, m > 0x7f800000u ? 0u : floatBitsToUint(x));
}

// Orders floats as signed integers, -0.0 and 0.0 alike. Not for NaN.
int nx_order_key_f32(const in float x) {
    int m = int(nx_magnitude_bits_f32(x));
    return nx_sign_bit_f32(x) != 0u ? -m : m;
}

bool nx_unordered_f32(const in float a, const in float b) {
    return max(nx_magnitude_bits_f32(a), nx_magnitude_bits_f32(b)) > 0x7f800000u;
}

uint nx_equal_f32(const in float a, const in float b) {
    return (!nx_unordered_f32(a, b) && nx_order_key_f32(a) == nx_order_key_f32(b)) ? 1u : 0u;
}
uint nx_not_equal_f32(const in float a, const in float b) { return 1u - nx_equal_f32(a, b); }
uint nx_less_f32(const in float a, const in float b) {
    return (!nx_unordered_f32(a, b) && nx_order_key_f32(a) < nx_order_key_f32(b)) ? 1u : 0u;
}
uint nx_less_equal_f32(const in float a, const in float b) {
    return (!nx_unordered_f32(a, b) && nx_order_key_f32(a) <= nx_order_key_f32(b)) ? 1u : 0u;
}
uint nx_greater_f32(const in float a, const in float b) { return nx_less_f32(b, a); }
uint nx_greater_equal_f32(const in float a, const in float b) { return nx_less_equal_f32(b, a); }

uint nx_logical_and_f32(const in float a, const in float b) { return nx_truthy_f32(a) & nx_truthy_f32(b); }
uint nx_logical_or_f32(const in float a, const in float b) { return nx_truthy_f32(a) | nx_truthy_f32(b); }
uint nx_logical_xor_f32(const in float a, const in float b) { return nx_truthy_f32(a) ^ nx_truthy_f32(b); }

float nx_select_f32(const in uint pred, const in float a, const in float b) {
    return uintBitsToFloat(pred != 0u ? floatBitsToUint(a) : floatBitsToUint(b));
}

// NaN if either is NaN; of zeros with different signs, the first operand.
float nx_max_f32(const in float a, const in float b) {
    if (nx_unordered_f32(a, b)) {
        return nx_nan_f32();
    }
    return nx_select_f32(nx_order_key_f32(a) >= nx_order_key_f32(b) ? 1u : 0u, a, b);
}

float nx_min_f32(const in float a, const in float b) {
    if (nx_unordered_f32(a, b)) {
        return nx_nan_f32();
    }
    return nx_select_f32(nx_order_key_f32(a) <= nx_order_key_f32(b) ? 1u : 0u, a, b);
}

// Orders floats as signed integers, -0.0 below 0.0. Not for NaN.
int nx_total_key_f32(const in float x) {
    int bits = floatBitsToInt(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The largest and the least of many, in whatever order they are combined: NaN if any is, and 0.0 is above -0.0.
float nx_largest_f32(const in float a, const in float b) {
    if (nx_unordered_f32(a, b)) {
        return nx_nan_f32();
    }
    return nx_select_f32(nx_total_key_f32(a) >= nx_total_key_f32(b) ? 1u : 0u, a, b);
}

float nx_least_f32(const in float a, const in float b) {
    if (nx_unordered_f32(a, b)) {
        return nx_nan_f32();
    }
    return nx_select_f32(nx_total_key_f32(a) <= nx_total_key_f32(b) ? 1u : 0u, a, b);
}

// The bits of the largest of many, from extremes of the bits of all: the largest one as signed integers, the largest
// and the least as unsigned ones. Those of NaN are beyond those of infinity among numbers of either sign; of negative
// numbers the least is the largest.
uint nx_largest_of_extremes_f32(const in uint signed_most, const in uint most, const in uint least) {
    if (int(signed_most) > 0x7f800000 || most > 0xff800000u) {
        return floatBitsToUint(nx_nan_f32());
    }
    return int(signed_most) >= 0 ? signed_most : least;
}

uint nx_least_of_extremes_f32(const in uint signed_most, const in uint most, const in uint least) {
    if (int(signed_most) > 0x7f800000 || most > 0xff800000u) {
        return floatBitsToUint(nx_nan_f32());
    }
    return int(most) < 0 ? most : least;
}

// Keys of the bits of which the larger is that of the largest number, or of the least, and back. NaN, which is that of
// the two functions above, has the largest.
uint nx_largest_key_f32(const in uint bits) { return bits ^ (uint(int(bits) >> 31) | 0x80000000u); }
uint nx_largest_of_key_f32(const in uint key) { return key ^ (~uint(int(key) >> 31) | 0x80000000u); }

uint nx_turned_number_f32(const in uint bits) { return (bits & 0x7fffffffu) > 0x7f800000u ? bits : bits ^ 0x80000000u; }
uint nx_least_key_f32(const in uint bits) { return nx_largest_key_f32(nx_turned_number_f32(bits)); }
uint nx_least_of_key_f32(const in uint key) { return nx_turned_number_f32(nx_largest_of_key_f32(key)); }

float nx_floor_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    uint m = bits & 0x7fffffffu;
    if (m >= 0x4b000000u) {
        return x;
    }
    if (m < 0x3f800000u) {
        // Not a choice between the bits of -1 and 0: Mesa 25.0 makes -0.0 of the latter where it knows the sign.
        return nx_with_sign_f32(bits > 0x80000000u ? 1.0f : 0.0f, bits);
    }
    return floor(x);
}

float nx_ceil_f32(const in float x) { return nx_negate_f32(nx_floor_f32(nx_negate_f32(x))); }

// Half away from zero. As in BinaryBackend, which rounds to an integer, a zero result is +0.0.
float nx_round_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m >= 0x4b000000u) {
        return x;
    }
    if (m < 0x3f000000u) {
        return 0.0f;
    }
    float a = uintBitsToFloat(m);
    float t = floor(a);
    return nx_with_sign_f32(a - t >= 0.5f ? t + 1.0f : t, floatBitsToUint(x));
}

float nx_divide_exactly_f32(const in float a, const in float b) {
    uint sign = (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u;
    uint ua = nx_magnitude_bits_f32(a);
    uint ub = nx_magnitude_bits_f32(b);
    if (ua - 1u >= 0x7f7fffffu || ub - 1u >= 0x7f7fffffu) {
        if (ua > 0x7f800000u || ub > 0x7f800000u || (ua == ub)) {
            return nx_nan_f32();
        }
        return uintBitsToFloat(sign | ((ua == 0u || ub == 0x7f800000u) ? 0u : 0x7f800000u));
    }
    int ea = nx_exponent_f32(a);
    int eb = nx_exponent_f32(b);
    float fb = nx_mantissa_f32(b);
    uint ma = (floatBitsToUint(nx_mantissa_f32(a)) & 0x7fffffu) | 0x800000u;
    uint mb = (floatBitsToUint(fb) & 0x7fffffu) | 0x800000u;
    if (ma < mb) {
        ma <<= 1;
        ea -= 1;
    }
    // The quotient of the integers, floor(ma * 2^24 / mb), in [2^24, 2^25): an estimate a few units off, then the
    // exact remainder, which is small enough to be right modulo 2^32.
    float inverse = nx_rough_divide_f32(2.0f, fb);
    uint q = uint(float(ma) * inverse);
    int r = int((ma << 24) - q * mb);
    int step = int(floor(float(r) * (inverse * 5.9604645e-8f)));
    q += uint(step);
    r -= step * int(mb);
    if (r < 0) {
        q -= 1u;
        r += int(mb);
    } else if (r >= int(mb)) {
        q += 1u;
        r -= int(mb);
    }
    return nx_pack_f32(sign, ea - eb, (q << 1) | (r != 0 ? 1u : 0u));
}

// max error: 0.5 ulp (correctly rounded; checked on 2^35 pairs)
float nx_divide_f32(const in float a, const in float b) { return nx_divide_exactly_f32(a, b); }

float nx_divide_f32_rounded(const in float a, const in float b) {
    float q = a / b;
    return nx_magnitude_bits_f32(q) > 0x7f800000u ? nx_nan_f32() : q;
}

// Whether nx_divide_f32_fused_hot does not hold: where the dividend (unless it is a zero) or the quotient is denormal,
// dividends from 2^60 on, and divisors outside of 2^-60 to 2^40.
bool nx_divide_f32_fused_rare(const in float a, const in float b) {
    bool plain = abs(a) >= max(abs(b) * 2.35098870e-38f, 1.17549435e-38f) && abs(a) < 1.15292150e18f || floatBitsToUint(a) << 1 == 0u;
    bool divisor = abs(b) >= 8.67361738e-19f && abs(b) < 1.09951163e12f;
    return !(plain && divisor && (floatBitsToUint(b) & 0x7fff00u) != 0x7fff00u);
}

// The bits of a dividend with its sign last, so that +0 and -0 are 0 and 1, and others are ordered by magnitude.
uint nx_dividend_key_f32(const in float a) { return floatBitsToUint(a) << 1 | floatBitsToUint(a) >> 31; }

// The same keys, of the largest of dividends without a sign by its bits, and less one, of the least by its bits less
// one.
uint nx_most_dividend_key_f32(const in uint most) { return min(most, 0x7fffffffu) << 1; }
uint nx_least_dividend_key_f32(const in uint least) { return ((least + 1u) << 1) - 1u; }

// Whether nx_divide_f32_fused_hot does not hold for one of many dividends: by the largest of their keys, and by the
// least of the keys less one, which makes +0 the largest.
bool nx_rare_quotient_f32(const in uint most, const in uint least, const in float b) {
    return most >= 0xbb000000u || least < 0x2effffffu || nx_divide_f32_fused_rare(1.0f, b);
}

// Newton's steps, which round rightly unless the divisor's bits are nearly all ones or something on the way under- or
// overflows. Tested on 4e9 pairs, for first reciprocals up to 3 ulp off.
float nx_divide_f32_fused_hot(const in float a, const in float b) {
    // Squares of gradients are small, and means of them decay to -0: residuals of small dividends would be denormal,
    // and sums of zeros lose the sign.
    bool small = abs(a) < 8.67361738e-19f;
    float scaled = a * 18446744073709551616.0f;
    float dividend = small ? scaled : a;
    float r = nx_rough_divide_f32(1.0f, b);
    r = fma(r, fma(-b, r, 1.0f), r);
    float first = dividend * r;
    float q = fma(fma(-b, first, dividend), r, first);
    q = fma(fma(-b, q, dividend), r, q);
    scaled = q * 5.42101086e-20f;
    q = small ? scaled : q;
    return floatBitsToUint(a) << 1 == 0u ? first : q;
}

// The same for a divisor that many share, and no -0: a second step makes its reciprocal the rounded one, and one step
// is enough for the quotient. Tested with the hardest dividends, 8.7e8 in all, of every divisor.
float nx_shared_quotient_f32(const in float a, const in float b) {
    float r = nx_rough_divide_f32(1.0f, b);
    r = fma(r, fma(-b, r, 1.0f), r);
    r = fma(r, fma(-b, r, 1.0f), r);
    float q = a * r;
    return fma(fma(-b, q, a), r, q);
}

float nx_divide_f32_fused(const in float a, const in float b) {
    if (nx_divide_f32_fused_rare(a, b)) {
        return nx_divide_exactly_f32(a, b);
    }
    return nx_divide_f32_fused_hot(a, b);
}

// a / b for a constant b of 2^-40 to 2^40 and its rounded reciprocal r.
float nx_divide_by_f32(const in float a, const in float b, const in float r) { return nx_divide_exactly_f32(a, b); }

// Where the dividend (unless it is a zero) or the quotient is denormal, and dividends from 2^60 on.
bool nx_divide_by_f32_fused_rare(const in float a, const in float b, const in float r) {
    // without signs, so that zeros are 0; and without `&&`, which would be a branch
    uint least = uint(max(floatBitsToInt(abs(b)) - 0x3e800000, 0x00800000)) << 1;
    uint key = floatBitsToUint(a) << 1;
    return (key - least >= 0xbb000000u - least) != (key == 0u);
}

// One step is enough for the quotient. The residual is exact, and of dividends that are 2^64 times as large, so that it
// is no denormal; of zeros it is +0, of which a negative factor makes -0, which leaves the quotient's sign. Tested with
// the hardest dividends of every divisor.
float nx_divide_by_f32_fused_hot(const in float a, const in float b, const in float r) {
    float dividend = a * (b < 0.0f ? -18446744073709551616.0f : 18446744073709551616.0f);
    float q = a * r;
    float residual = fma(abs(b) * 18446744073709551616.0f, q, -dividend);
    return fma(residual, abs(r) * -5.42101086e-20f, q);
}

float nx_divide_by_f32_fused(const in float a, const in float b, const in float r) {
    if (nx_divide_by_f32_fused_rare(a, b, r)) {
        return nx_divide_exactly_f32(a, b);
    }
    return nx_divide_by_f32_fused_hot(a, b, r);
}

// max error: 0.5 ulp (correctly rounded) over all 2^32 inputs
float nx_sqrt_exactly_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    if (bits - 1u >= 0x7f7fffffu) {
        // zeros, +infinity and NaN are themselves; negative numbers have no root
        return ((bits & 0x7fffffffu) == 0u || bits == 0x7f800000u) ? x : nx_nan_f32();
    }
    int e = nx_exponent_f32(x);
    float f = nx_mantissa_f32(x);
    uint m = (floatBitsToUint(f) & 0x7fffffu) | 0x800000u;
    if ((e & 1) != 0) {
        m <<= 1;
        f *= 2.0f;
        e -= 1;
    }
    // floor(sqrt(m * 2^25)) in [2^24, 2^25), by an estimate and its exact remainder modulo 2^32
    float estimate = nx_rough_sqrt_f32(f) * 16777216.0f;
    uint s = uint(estimate);
    int r = int((m << 25) - s * s);
    int step = int(floor(nx_rough_divide_f32(float(r), estimate * 2.0f)));
    r -= step * (2 * int(s) + step);
    s += uint(step);
    if (r < 0) {
        s -= 1u;
        r += 2 * int(s) + 1;
    } else if (r > 2 * int(s)) {
        r -= 2 * int(s) + 1;
        s += 1u;
    }
    return nx_pack_f32(0u, e >> 1, (s << 1) | (r != 0 ? 1u : 0u));
}

// max error: 0.5 ulp (correctly rounded) over all 2^32 inputs
float nx_sqrt_f32(const in float x) { return nx_sqrt_exactly_f32(x); }

float nx_sqrt_f32_rounded(const in float x) {
    float s = sqrt(x);
    return nx_magnitude_bits_f32(s) > 0x7f800000u ? nx_nan_f32() : s;
}

// Whether nx_sqrt_f32_fused_hot does not hold: denormal, from 2^60 on, or negative, unless it is +0.
bool nx_sqrt_f32_fused_rare(const in float x) {
    uint bits = floatBitsToUint(x);
    return !(bits - 0x00800000u < 0x5d000000u || bits == 0u);
}

// Newton's steps for the root and half its inverse, which round rightly: tested on all mantissas, for first inverses up
// to 4 ulp off. Residuals of small numbers would be denormal.
float nx_sqrt_f32_fused_hot(const in float x) {
    bool small = x < 8.67361738e-19f;
    float scaled = x * 18446744073709551616.0f;
    float square = small ? scaled : x;
    float y = nx_rough_rsqrt_f32(square);
    float g = square * y;
    float h = 0.5f * y;
    float e = fma(-h, g, 0.5f);
    g = fma(g, e, g);
    h = fma(h, e, h);
    g = fma(fma(-g, g, square), h, g);
    scaled = g * 2.32830644e-10f;
    g = small ? scaled : g;
    return floatBitsToUint(x) == 0u ? x : g;
}

float nx_sqrt_f32_fused(const in float x) {
    if (nx_sqrt_f32_fused_rare(x)) {
        return nx_sqrt_exactly_f32(x);
    }
    return nx_sqrt_f32_fused_hot(x);
}

float nx_rsqrt_exactly_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    if (bits - 1u >= 0x7f7fffffu) {
        if ((bits & 0x7fffffffu) == 0u) {
            return nx_signed_infinity_f32(bits);
        }
        return bits == 0x7f800000u ? 0.0f : nx_nan_f32();
    }
    int e = nx_exponent_f32(x);
    float f = nx_mantissa_f32(x) * ((e & 1) != 0 ? 2.0f : 1.0f);
    float y = nx_rough_rsqrt_f32(f);
    vec2 square = nx_two_product_f32(y, y);
    vec2 p = nx_two_product_f32(square.x, f);
    float residual = ((1.0f - p.x) - p.y) - square.y * f;
    return nx_scale_f32(y + 0.5f * y * residual, -(e >> 1));
}

// max error: 0.5001 ulp over all 2^32 inputs
float nx_rsqrt_f32(const in float x) { return nx_rsqrt_exactly_f32(x); }

// Whether nx_rsqrt_f32_fused_hot does not hold: what is not from 2^-100 to 2^60.
bool nx_rsqrt_f32_fused_rare(const in float x) { return !(x >= 7.88860905e-31f && x < 1.15292150e18f); }

// One of Newton's steps, with a residual that is exact but for its last rounding.
float nx_rsqrt_f32_fused_hot(const in float x) {
    float y = nx_rough_rsqrt_f32(x);
    float square = y * y;
    float p = square * x;
    float residual = fma(-fma(y, y, -square), x, (1.0f - p) - fma(square, x, -p));
    return fma(0.5f * y, residual, y);
}

float nx_rsqrt_f32_fused(const in float x) {
    if (nx_rsqrt_f32_fused_rare(x)) {
        return nx_rsqrt_exactly_f32(x);
    }
    return nx_rsqrt_f32_fused_hot(x);
}

// max error: 0.5001 ulp over all 2^32 inputs
float nx_cbrt_f32(const in float x) {
    uint bits = nx_magnitude_bits_f32(x);
    if (bits - 1u >= 0x7f7fffffu) {
        return x;
    }
    int e = nx_exponent_f32(x) + 150;
    int third = e / 3;
    float m = nx_mantissa_f32(x) * float(1 << (e - 3 * third));
    // m in [1, 8): an estimate from its bits, two of Halley's steps, and one with an exact cube
    float y = uintBitsToFloat(floatBitsToUint(m) / 3u + 0x2a5119f2u);
    for (int i = 0; i < 2; i++) {
        float cube = y * y * y;
        y *= nx_rough_divide_f32(cube + 2.0f * m, 2.0f * cube + m);
    }
    vec2 square = nx_two_product_f32(y, y);
    vec2 cube = nx_pair_multiply_float_f32(square, y);
    float residual = (m - cube.x) - cube.y;
    return nx_with_sign_f32(nx_scale_f32(y + nx_rough_divide_f32(residual, 3.0f * square.x), third - 50), floatBitsToUint(x));
}

// Has the sign of a. Exact.
float nx_remainder_f32(const in float a, const in float b) {
    uint sign = nx_sign_bit_f32(a);
    uint ua = nx_magnitude_bits_f32(a);
    uint ub = nx_magnitude_bits_f32(b);
    if (ua >= 0x7f800000u || ub > 0x7f800000u || ub == 0u) {
        return nx_nan_f32();
    }
    if (ua < ub) {
        return a;
    }
    int ea = nx_exponent_f32(a);
    int eb = nx_exponent_f32(b);
    uint mb = (floatBitsToUint(nx_mantissa_f32(b)) & 0x7fffffu) | 0x800000u;
    uint ma = (floatBitsToUint(nx_mantissa_f32(a)) & 0x7fffffu) | 0x800000u;
    uint r = ma >= mb ? ma - mb : ma;
    // Twenty more bits of the dividend for each step: the quotient is off by one at most (for estimates within 5 ulp),
    // and the remainder is small enough to be right modulo 2^32.
    float inverse = nx_rough_divide_f32(1048576.0f, float(mb));
    int left = ea - eb;
    while (left > 0 && r != 0u) {
        int step = min(left, 20);
        uint q = uint(float(r) * inverse) >> uint(20 - step);
        int rest = int((r << uint(step)) - q * mb);
        rest += rest < 0 ? int(mb) : (rest >= int(mb) ? -int(mb) : 0);
        r = uint(rest);
        left -= step;
    }
    if (r == 0u) {
        return uintBitsToFloat(sign);
    }
    int shift = 23 - findMSB(r);
    return nx_pack_f32(sign, eb - shift, r << (shift + 2));
}

#endif

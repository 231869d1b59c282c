// sin, cos and tan on f32, for arguments of any size.
#ifndef NX_F32_TRIG_GLSL
#define NX_F32_TRIG_GLSL
#include "nx_f32_base.glsl"

// Word i of the binary expansion of 2 / pi, after 32 zero bits.
uint nx_two_over_pi_word(const in uint i) {
    switch (i) {
        case 0u: return 0u;
        case 1u: return 0xa2f9836eu;
        case 2u: return 0x4e441529u;
        case 3u: return 0xfc2757d1u;
        case 4u: return 0xf534ddc0u;
        case 5u: return 0xdb629599u;
        case 6u: return 0x3c439041u;
        default: return 0xfe5163abu;
    }
}

// Payne-Hanek: x modulo pi / 2 as (pair in [-pi/4, pi/4], quadrant), for 2^-15 <= x < infinity.
vec3 nx_reduce_large_angle_f32(const in float x) {
    uint mantissa = (floatBitsToUint(x) & 0x7fffffu) | 0x800000u;
    // x = mantissa * 2^e. The 96 bits of 2 / pi from the weight 2^(1 - e) on: those above give multiples of 4
    int e = nx_exponent_f32(x) - 23;
    uint first = uint(e + 30);
    uint word = first >> 5;
    uint shift = first & 31u;
    uint w0 = nx_two_over_pi_word(word);
    uint w1 = nx_two_over_pi_word(word + 1u);
    uint w2 = nx_two_over_pi_word(word + 2u);
    if (shift != 0u) {
        w0 = (w0 << shift) | (w1 >> (32u - shift));
        w1 = (w1 << shift) | (w2 >> (32u - shift));
        w2 = (w2 << shift) | (nx_two_over_pi_word(word + 3u) >> (32u - shift));
    }
    uint low;
    uint middle;
    uint carry;
    uint high;
    umulExtended(w2, mantissa, carry, low);
    umulExtended(w1, mantissa, high, middle);
    middle += carry;
    high += w0 * mantissa + (middle < carry ? 1u : 0u);
    // high:middle:low * 2^-94 is x * 2 / pi modulo 4; take off the nearest integer
    uint quadrant = (high + 0x20000000u) >> 30;
    high -= quadrant << 30;
    bool negative = (high & 0x80000000u) != 0u;
    if (negative) {
        high = ~high;
        middle = ~middle;
        low = ~low;
    }
    int scale = -30;
    if (high == 0u) {
        high = middle;
        middle = low;
        scale -= 32;
    }
    int zeros = 31 - findMSB(high);
    if (zeros > 0) {
        high = (high << zeros) | (middle >> (32 - zeros));
        middle <<= zeros;
    }
    scale -= zeros;
    vec2 fraction = vec2(float(high >> 8) * nx_power_of_two_f32(scale + 8),
                         float(((high & 0xffu) << 16) | (middle >> 16)) * nx_power_of_two_f32(scale - 16));
    vec2 r = nx_pair_multiply_f32(nx_fast_two_sum_f32(fraction.x, fraction.y), vec2(1.57079637f, -4.37113883e-8f));
    return vec3(negative ? vec2(-r.x, -r.y) : r, float(quadrant & 3u));
}

// x >= 0 modulo pi / 2 as (pair in [-pi/4, pi/4], quadrant).
vec3 nx_reduce_angle_f32(const in float x) {
    if (x < 0.785398185f) {
        return vec3(x, 0.0f, 0.0f);
    }
    if (x > 1000.0f) {
        return nx_reduce_large_angle_f32(x);
    }
    // pi / 2 in pieces of 14 bits, whose products with k (10 bits) are exact
    float k = nx_nearest_integer_f32(x * 0.636619747f);
    vec2 r = nx_two_sum_f32(x - k * 1.57080078f, k * 4.45451587e-6f);
    vec2 s = nx_two_sum_f32(r.x, k * -6.07727202e-11f);
    vec2 t = nx_fast_two_sum_f32(s.x, s.y + (r.y + k * 1.71512451e-15f));
    return vec3(t, float(int(k) & 3));
}

// sin(r) for a pair |r| <= 0.79.
vec2 nx_sin_reduced_f32(const in vec2 r) {
    vec2 z = nx_two_product_f32(r.x, r.x);
    float p = 2.73002638e-6f;
    p = fma(p, z.x, -1.98405338e-4f);
    p = fma(p, z.x, 8.33333284e-3f);
    vec2 cubic = nx_cubic_term_f32(r.x, z, vec2(-0.166666672f, p * z.x + 4.96705388e-9f));
    vec2 s = nx_fast_two_sum_f32(r.x, cubic.x);
    return nx_fast_two_sum_f32(s.x, s.y + (cubic.y + r.y * (1.0f - 0.5f * z.x)));
}

// cos(r) for a pair |r| <= 0.79.
vec2 nx_cos_reduced_f32(const in vec2 r) {
    vec2 z = nx_two_product_f32(r.x, r.x);
    float p = -3.21302195e-7f;
    p = fma(p, z.x, 2.48527649e-5f);
    p = fma(p, z.x, -1.38890487e-3f);
    p = fma(p, z.x, 4.16666679e-2f);
    vec2 s = nx_fast_two_sum_f32(1.0f, -0.5f * z.x);
    return nx_fast_two_sum_f32(s.x, s.y - 0.5f * z.y + (z.x * z.x * p - r.x * r.y * (1.0f - 0.166666667f * z.x)));
}

// max error: 0.57 ulp over all 2^32 inputs
float nx_sin_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u) {
        return x;
    }
    if (m >= 0x7f800000u) {
        return nx_nan_f32();
    }
    vec3 r = nx_reduce_angle_f32(uintBitsToFloat(m));
    uint quadrant = uint(r.z);
    vec2 s = (quadrant & 1u) != 0u ? nx_cos_reduced_f32(r.xy) : nx_sin_reduced_f32(r.xy);
    return uintBitsToFloat(floatBitsToUint(s.x) ^ (nx_sign_bit_f32(x) ^ ((quadrant & 2u) << 30)));
}

// max error: 0.56 ulp over all 2^32 inputs
float nx_cos_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m >= 0x7f800000u) {
        return nx_nan_f32();
    }
    if (m < 0x39000000u) {
        return 1.0f;
    }
    vec3 r = nx_reduce_angle_f32(uintBitsToFloat(m));
    uint quadrant = uint(r.z) + 1u;
    vec2 s = (quadrant & 1u) != 0u ? nx_cos_reduced_f32(r.xy) : nx_sin_reduced_f32(r.xy);
    return uintBitsToFloat(floatBitsToUint(s.x) ^ ((quadrant & 2u) << 30));
}

// max error: 0.59 ulp over all 2^32 inputs
float nx_tan_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u) {
        return x;
    }
    if (m >= 0x7f800000u) {
        return nx_nan_f32();
    }
    vec3 r = nx_reduce_angle_f32(uintBitsToFloat(m));
    vec2 s = nx_sin_reduced_f32(r.xy);
    vec2 c = nx_cos_reduced_f32(r.xy);
    bool odd = (uint(r.z) & 1u) != 0u;
    vec2 t = odd ? nx_pair_divide_f32(vec2(-c.x, -c.y), s) : nx_pair_divide_f32(s, c);
    return uintBitsToFloat(floatBitsToUint(t.x) ^ nx_sign_bit_f32(x));
}

#endif

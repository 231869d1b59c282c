// asin, acos, atan and atan2 on f32, all from the angle of a point.
#ifndef NX_F32_ATAN_GLSL
#define NX_F32_ATAN_GLSL
#include "nx_f32_base.glsl"

// The angle in [0, pi/2] of a point with positive pairs as coordinates, of similar size (a factor of 2^50 or less).
vec2 nx_angle_f32(const in vec2 y, const in vec2 x) {
    vec2 numerator = y;
    vec2 denominator = x;
    vec2 base = vec2(0.0f, 0.0f);
    if (y.x > 2.41421366f * x.x) {
        numerator = vec2(-x.x, -x.y);
        denominator = y;
        base = vec2(1.57079637f, -4.37113883e-8f);
    } else if (y.x > 0.414213568f * x.x) {
        numerator = nx_pair_add_f32(y, vec2(-x.x, -x.y));
        denominator = nx_pair_add_f32(y, x);
        base = vec2(0.785398185f, -2.18556941e-8f);
    }
    vec2 t = nx_pair_divide_f32(numerator, denominator);
    vec2 z = nx_two_product_f32(t.x, t.x);
    float p = 5.42957038e-2f;
    p = fma(p, z.x, -8.77963305e-2f);
    p = fma(p, z.x, 0.110929698f);
    p = fma(p, z.x, -0.142853409f);
    p = fma(p, z.x, 0.199999988f);
    vec2 cubic = nx_cubic_term_f32(t.x, z, vec2(-0.333333343f, p * z.x + 9.93410776e-9f));
    vec2 s = nx_fast_two_sum_f32(base.x, t.x);
    vec2 u = nx_two_sum_f32(s.x, cubic.x);
    return nx_fast_two_sum_f32(u.x, u.y + (s.y + (base.y + (t.y * (1.0f - z.x) + cubic.y))));
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_atan_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u || m > 0x7f800000u) {
        return x;
    }
    if (m > 0x58000000u) {
        return nx_with_sign_f32(1.57079637f, floatBitsToUint(x));
    }
    return nx_with_sign_f32(nx_angle_f32(vec2(uintBitsToFloat(m), 0.0f), vec2(1.0f, 0.0f)).x, floatBitsToUint(x));
}

// sqrt(1 - x^2) for 0 <= x < 1.
vec2 nx_cosine_of_sine_f32(const in float x) {
    return nx_pair_sqrt_f32(nx_pair_multiply_f32(nx_two_sum_f32(1.0f, -x), nx_two_sum_f32(1.0f, x)));
}

// max error: 0.52 ulp over all 2^32 inputs
float nx_asin_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u) {
        return x;
    }
    if (m >= 0x3f800000u) {
        return m == 0x3f800000u ? nx_with_sign_f32(1.57079637f, floatBitsToUint(x)) : nx_nan_f32();
    }
    float a = uintBitsToFloat(m);
    return nx_with_sign_f32(nx_angle_f32(vec2(a, 0.0f), nx_cosine_of_sine_f32(a)).x, floatBitsToUint(x));
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_acos_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    bool negative = nx_sign_bit_f32(x) != 0u;
    if (m >= 0x3f800000u) {
        return m == 0x3f800000u ? (negative ? 3.14159274f : 0.0f) : nx_nan_f32();
    }
    float a = uintBitsToFloat(m);
    vec2 angle = m < 0x31000000u ? vec2(1.57079637f, -4.37113883e-8f) : nx_angle_f32(nx_cosine_of_sine_f32(a), vec2(a, 0.0f));
    return negative ? nx_pair_add_f32(vec2(3.14159274f, -8.74227766e-8f), vec2(-angle.x, -angle.y)).x : angle.x;
}

// Special cases as C99 has them. max error: 0.53 ulp over 2^35 pairs
float nx_atan2_f32(const in float y, const in float x) {
    uint sign = nx_sign_bit_f32(y);
    bool left = nx_sign_bit_f32(x) != 0u;
    uint my = nx_magnitude_bits_f32(y);
    uint mx = nx_magnitude_bits_f32(x);
    if (my > 0x7f800000u || mx > 0x7f800000u) {
        return nx_nan_f32();
    }
    if (my == 0u || (mx == 0x7f800000u && my != mx)) {
        return nx_with_sign_f32(left ? 3.14159274f : 0.0f, sign);
    }
    if (mx == 0u || (my == 0x7f800000u && my != mx)) {
        return nx_with_sign_f32(1.57079637f, sign);
    }
    if (my == 0x7f800000u) {
        return nx_with_sign_f32(left ? 2.3561945f : 0.785398185f, sign);
    }
    float ay = nx_mantissa_f32(uintBitsToFloat(my));
    float ax = nx_mantissa_f32(uintBitsToFloat(mx));
    int d = nx_exponent_f32(uintBitsToFloat(my)) - nx_exponent_f32(uintBitsToFloat(mx));
    if (d < -40 && !left) {
        return nx_with_sign_f32(nx_scale_pair_f32(nx_pair_divide_f32(vec2(ay, 0.0f), vec2(ax, 0.0f)), d), sign);
    }
    vec2 angle = nx_angle_f32(vec2(ay * nx_power_of_two_f32(clamp(d, -50, 50)), 0.0f), vec2(ax, 0.0f));
    if (left) {
        angle = nx_pair_add_f32(vec2(3.14159274f, -8.74227766e-8f), vec2(-angle.x, -angle.y));
    }
    return nx_with_sign_f32(angle.x, sign);
}

#endif

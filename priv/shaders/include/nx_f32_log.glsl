// Logarithms and inverse hyperbolic functions on f32, by pairs.
#ifndef NX_F32_LOG_GLSL
#define NX_F32_LOG_GLSL
#include "nx_f32_base.glsl"

// log(1 + f) for a pair with 0.7 <= 1 + f <= 1.42, to about 2^-42: 2 atanh(s), s = f / (2 + f).
vec2 nx_log1p_reduced_f32(const in vec2 f) {
    vec2 g = nx_fast_two_sum_f32(2.0f, f.x);
    vec2 s = nx_pair_divide_f32(f, vec2(g.x, g.y + f.y));
    vec2 z = nx_two_product_f32(s.x, s.x);
    z.y = fma(s.x + s.x, s.y, z.y);
    float p = 0.16206984f;
    p = fma(p, z.x, 0.18166365f);
    p = fma(p, z.x, 0.22222315f);
    p = fma(p, z.x, 0.2857143f);
    vec2 q = nx_fast_two_sum_f32(0.4f, p * z.x);
    q = nx_pair_step_f32(vec2(0.6666667f, -1.9868216e-8f), vec2(q.x, q.y - 5.9604646e-9f), z);
    vec2 r = nx_pair_product_f32(nx_pair_product_f32(q, z), s);
    vec2 t = nx_fast_two_sum_f32(2.0f * s.x, r.x);
    return nx_fast_two_sum_f32(t.x, t.y + (2.0f * s.y + r.y));
}

// e * ln 2 + log(m) for a pair m in [1, 2], as a pair.
vec2 nx_log_scaled_f32(const in vec2 m, const in int e) {
    bool upper = m.x > 1.41421354f;
    float scale = upper ? 0.5f : 1.0f;
    float k = float(upper ? e + 1 : e);
    vec2 r = nx_log1p_reduced_f32(nx_fast_two_sum_f32(m.x * scale - 1.0f, m.y * scale));
    // 15 bits of ln 2: the product with k is exact
    vec2 s = nx_fast_two_sum_f32(k * 0.693145752f, r.x);
    return nx_fast_two_sum_f32(s.x, s.y + fma(k, 1.42860677e-6f, r.y));
}

// log of a pair with a positive normal leading part.
vec2 nx_log_pair_f32(const in vec2 u) {
    int e = nx_exponent_f32(u.x);
    float rest = e > 60 ? 0.0f : u.y * nx_power_of_two_f32(-e);
    return nx_log_scaled_f32(vec2(nx_mantissa_f32(u.x), rest), e);
}

// Logarithms of what is no positive finite number: -Inf of 0, NaN of a negative number.
float nx_log_of_edge_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) == 0u) {
        return nx_signed_infinity_f32(0x80000000u);
    }
    return bits == 0x7f800000u ? x : nx_nan_f32();
}

float nx_log_exactly_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    if (bits - 1u >= 0x7f7fffffu) {
        return nx_log_of_edge_f32(x);
    }
    return nx_log_scaled_f32(vec2(nx_mantissa_f32(x), 0.0f), nx_exponent_f32(x)).x;
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_log_f32(const in float x) { return nx_log_exactly_f32(x); }

// The least and the largest number that log(x) of a positive normal number may round to; NaN beyond. Of the uniform
// numbers that Gumbel draws are made of, 0.03 % are in doubt.
vec2 nx_log_f32_fused_near(const in float x) {
    // x = 2^k m, m in 0.7 to 1.42, log m = 2 atanh(s / 2), s / 2 = (m - 1) / (m + 1), as s + low + cube + rest
    int e = (floatBitsToInt(x) - 0x3f3504f3) & int(0xff800000);
    float m = intBitsToFloat(floatBitsToInt(x) - e);
    // k * 2^23
    float k = float(e);
    float f = m - 1.0f;
    float h = fma(m, 0.5f, -0.5f);
    float r = nx_rough_divide_f32(1.0f, h + 1.0f);
    float s = f * r;
    float low = fma(-s, h, f - s) * r;
    float z = s * s;
    float w = z * 0.25f;
    float b = z * s;
    float be = fma(fma(s, s, -z), s, fma(z, s, -b));
    float q = fma(fma(fma(9.60279722e-05f, z, 0.000433005975f), z, 0.00223220931f), z, 0.0124999983f);
    float cube = b * 0.0833333358f;
    float rest = fma(b, fma(q, z, -2.48352694e-09f), fma(be, 0.0833333358f, fma(b, 0.0833333358f, -cube)));
    float a = k * 8.26294126e-08f;
    float first = a + s;
    float y = first + cube;
    float ye = (((a - first) + s) + ((first - y) + cube)) + (fma(k, 1.70303198e-13f, rest) + fma(low, fma(w, w, w), low));
    // what roundings amount to at most, by a third more
    float far = fma(abs(cube), 7.4505806e-9f, abs(y) * 1.81898940e-12f);
    float beyond = uintBitsToFloat(0x7fc00000u);
    float least = y + (ye - far);
    least = floatBitsToUint(x) - 0x00800000u < 0x7f000000u ? least : beyond;
    return vec2(least, y + (ye + far));
}

// The same in 27 steps instead of 48, of a number that is known to be positive and normal. Of those uniform numbers and
// of their logarithms 1.4 % are in doubt.
vec2 nx_log_f32_fused_nearby_normal(const in float x) {
    int e = (floatBitsToInt(x) - 0x3f3504f3) & int(0xff800000);
    float m = intBitsToFloat(floatBitsToInt(x) - e);
    float k = float(e);
    float f = m - 1.0f;
    float h = fma(m, 0.5f, -0.5f);
    float r = nx_rough_divide_f32(1.0f, h + 1.0f);
    float s = f * r;
    float low = fma(-s, h, f - s) * r;
    float z = s * s;
    float q = fma(fma(fma(0.000459558708f, z, 0.00222971618f), z, 0.0125000878f), z, 0.0833333324f);
    // what s^3 q adds, and s of the part that was lost
    float tail = fma(z, fma(s, q, low * 0.25f), low);
    float a = k * 8.26294126e-08f;
    float y = a + s;
    float ye = fma(k, 1.70303198e-13f, ((a - y) + s) + tail);
    float size = abs(tail) + abs(ye);
    return vec2(y + fma(size, -1.8e-07f, ye), y + fma(size, 1.8e-07f, ye));
}

// The bounds, NaN for the least where x is no positive normal number.
vec2 nx_bounds_of_normal_f32(const in vec2 bounds, const in float x) {
    float least = bounds.x;
    float beyond = uintBitsToFloat(0x7fc00000u);
    return vec2(floatBitsToUint(x) - 0x00800000u < 0x7f000000u ? least : beyond, bounds.y);
}

vec2 nx_log_f32_fused_nearby(const in float x) { return nx_bounds_of_normal_f32(nx_log_f32_fused_nearby_normal(x), x); }

float nx_log_f32_fused(const in float x) {
    vec2 y = nx_log_f32_fused_near(x);
    return nx_is_doubtful_f32(y) ? nx_log_exactly_f32(x) : nx_certain_f32(y);
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_log1p_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    uint m = bits & 0x7fffffffu;
    if (m < 0x33000000u || bits == 0x7f800000u) {
        return x;
    }
    if (m > 0x7f800000u || bits >= 0xbf800000u) {
        return bits == 0xbf800000u ? nx_signed_infinity_f32(bits) : nx_nan_f32();
    }
    return nx_log_pair_f32(nx_two_sum_f32(1.0f, x)).x;
}

// x = 2^k m with m in 0.7 to 1.42: k + log(m) / ln 2, which is exact where m is 1.
// max error: 0.5001 ulp over all 2^32 inputs
float nx_log2_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    if (bits - 1u >= 0x7f7fffffu) {
        return nx_log_of_edge_f32(x);
    }
    float m = nx_mantissa_f32(x);
    bool upper = m > 1.41421354f;
    int k = upper ? nx_exponent_f32(x) + 1 : nx_exponent_f32(x);
    vec2 l = nx_log1p_reduced_f32(vec2((upper ? m * 0.5f : m) - 1.0f, 0.0f));
    vec2 p = nx_pair_product_f32(l, vec2(1.44269502f, 1.92596303e-8f));
    vec2 s = nx_fast_two_sum_f32(float(k), p.x);
    return s.x + (s.y + p.y);
}

// log(2 x) for x >= 2^13.
float nx_log_twice_f32(const in float x) {
    return nx_log_scaled_f32(vec2(nx_mantissa_f32(x), 0.0f), nx_exponent_f32(x) + 1).x;
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_asinh_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u || m >= 0x7f800000u) {
        return x;
    }
    float a = uintBitsToFloat(m);
    if (m >= 0x46000000u) {
        return nx_with_sign_f32(nx_log_twice_f32(a), floatBitsToUint(x));
    }
    // log(1 + a + a^2 / (1 + sqrt(1 + a^2)))
    vec2 square = nx_two_product_f32(a, a);
    vec2 root = nx_pair_sqrt_f32(nx_pair_add_float_f32(square, 1.0f));
    vec2 q = nx_pair_divide_f32(square, nx_pair_add_float_f32(root, 1.0f));
    vec2 u = nx_pair_add_f32(nx_two_sum_f32(1.0f, a), q);
    return nx_with_sign_f32(nx_log_pair_f32(u).x, floatBitsToUint(x));
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_acosh_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    if (bits >= 0x7f800000u || bits < 0x3f800000u) {
        return bits == 0x7f800000u ? x : nx_nan_f32();
    }
    if (bits == 0x3f800000u) {
        return 0.0f;
    }
    if (bits >= 0x46000000u) {
        return nx_log_twice_f32(x);
    }
    // log(x + sqrt((x - 1) (x + 1)))
    vec2 p = nx_pair_multiply_f32(nx_two_sum_f32(x, -1.0f), nx_two_sum_f32(x, 1.0f));
    return nx_log_pair_f32(nx_pair_add_float_f32(nx_pair_sqrt_f32(p), x)).x;
}

// max error: 0.53 ulp over all 2^32 inputs
float nx_atanh_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u) {
        return x;
    }
    if (m >= 0x3f800000u) {
        return m == 0x3f800000u ? nx_signed_infinity_f32(floatBitsToUint(x)) : nx_nan_f32();
    }
    float a = uintBitsToFloat(m);
    vec2 u = nx_pair_divide_f32(nx_two_sum_f32(1.0f, a), nx_two_sum_f32(1.0f, -a));
    return nx_with_sign_f32(0.5f * nx_log_pair_f32(u).x, floatBitsToUint(x));
}

#endif

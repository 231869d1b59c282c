// erf, erfc and the inverse of erf on f32.
#ifndef NX_F32_ERF_GLSL
#define NX_F32_ERF_GLSL
#include "nx_f32_exp.glsl"
#include "nx_f32_log.glsl"

// erf(x) for 2^-14 <= x <= 0.9.
vec2 nx_erf_small_f32(const in float x) {
    vec2 z = nx_two_product_f32(x, x);
    float p = 1.03823345e-6f;
    p = fma(p, z.x, -1.38236774e-5f);
    p = fma(p, z.x, 1.19420722e-4f);
    p = fma(p, z.x, -8.54135084e-4f);
    p = fma(p, z.x, 5.2237194e-3f);
    p = fma(p, z.x, -2.68661156e-2f);
    vec2 s = nx_pair_multiply_f32(z, nx_fast_two_sum_f32(0.112837911f, p * z.x));
    s = nx_pair_multiply_f32(z, nx_pair_add_f32(vec2(-0.376126379f, -9.98850069e-9f), s));
    s = nx_pair_add_f32(vec2(1.12837923f, -5.86375357e-8f), s);
    return nx_pair_multiply_float_f32(s, x);
}

// erfc(x) for 0.9 <= x <= 10.1 as (pair, k): the value is the pair * 2^k.
// (1 + 2 x) exp(x^2) erfc(x) is a polynomial in (x - 4) / (x + 4).
vec3 nx_erfc_large_f32(const in float x) {
    vec2 q = nx_pair_divide_f32(nx_two_sum_f32(x, -4.0f), nx_two_sum_f32(x, 4.0f));
    float p = -2.91382981e-4f;
    p = fma(p, q.x, 5.04601235e-3f);
    p = fma(p, q.x, -1.6401168e-2f);
    p = fma(p, q.x, 3.71353142e-2f);
    p = fma(p, q.x, -6.62962571e-2f);
    p = fma(p, q.x, 9.37387124e-2f);
    p = fma(p, q.x, -0.101041533f);
    p = fma(p, q.x, 6.80967142e-2f);
    p = fma(p, q.x, 1.5379718e-2f);
    vec2 s = nx_fast_two_sum_f32(-0.13962111f, p * q.x - 3.16303339e-9f);
    s = nx_pair_add_f32(vec2(1.23299515f, -3.41450459e-8f), nx_pair_multiply_f32(q, s));
    s = nx_pair_divide_f32(s, nx_two_sum_f32(1.0f, 2.0f * x));
    vec2 square = nx_two_product_f32(x, x);
    vec3 e = nx_exp_pair_f32(vec2(-square.x, -square.y));
    return vec3(nx_pair_multiply_f32(s, e.xy), e.z);
}

// x * c for a pair c in [0.5, 2], with x of any size below 1.
float nx_scaled_product_f32(const in float x, const in vec2 c) {
    uint m = nx_magnitude_bits_f32(x);
    if (m == 0u) {
        return x;
    }
    vec2 p = nx_pair_multiply_float_f32(c, nx_mantissa_f32(x));
    return nx_with_sign_f32(nx_scale_pair_f32(p, nx_exponent_f32(x)), floatBitsToUint(x));
}

// max error: 0.54 ulp over all 2^32 inputs
float nx_erf_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m > 0x7f800000u) {
        return x;
    }
    if (m < 0x38800000u) {
        return nx_scaled_product_f32(x, vec2(1.12837923f, -5.86353828e-8f));
    }
    if (m > 0x40800000u) {
        return nx_with_sign_f32(1.0f, floatBitsToUint(x));
    }
    float a = uintBitsToFloat(m);
    if (a < 0.9f) {
        return nx_with_sign_f32(nx_erf_small_f32(a).x, floatBitsToUint(x));
    }
    vec3 c = nx_erfc_large_f32(a);
    float scale = nx_power_of_two_f32(int(c.z));
    return nx_with_sign_f32(nx_pair_add_float_f32(vec2(-c.x * scale, -c.y * scale), 1.0f).x, floatBitsToUint(x));
}

// max error: 0.64 ulp over all 2^32 inputs
float nx_erfc_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    bool negative = nx_sign_bit_f32(x) != 0u;
    if (m > 0x7f800000u) {
        return x;
    }
    float a = uintBitsToFloat(m);
    if (m < 0x38800000u) {
        return 1.0f - 1.12837923f * x;
    }
    if (a < 0.9f) {
        vec2 s = nx_erf_small_f32(a);
        return nx_pair_add_float_f32(negative ? s : vec2(-s.x, -s.y), 1.0f).x;
    }
    if (negative) {
        if (a > 4.0f) {
            return 2.0f;
        }
        vec3 c = nx_erfc_large_f32(a);
        float scale = nx_power_of_two_f32(int(c.z));
        return nx_pair_add_float_f32(vec2(-c.x * scale, -c.y * scale), 2.0f).x;
    }
    if (a > 10.1f) {
        return 0.0f;
    }
    vec3 c = nx_erfc_large_f32(a);
    return nx_scale_pair_f32(c.xy, int(c.z));
}

// An estimate within a few ulp (M. Giles, Approximating the erfinv function), and one of Newton's steps on pairs.
// max error: 0.57 ulp over all 2^32 inputs
float nx_erf_inv_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x38800000u) {
        return nx_scaled_product_f32(x, vec2(0.886226952f, -2.66231996e-8f));
    }
    if (m >= 0x3f800000u) {
        return m == 0x3f800000u ? nx_signed_infinity_f32(floatBitsToUint(x)) : nx_nan_f32();
    }
    float a = uintBitsToFloat(m);
    vec2 p = nx_pair_multiply_f32(nx_two_sum_f32(1.0f, -a), nx_two_sum_f32(1.0f, a));
    float w = -nx_log_pair_f32(p).x;
    float y;
    if (w < 5.0f) {
        w -= 2.5f;
        y = 2.81022636e-8f;
        y = 3.43273939e-7f + y * w;
        y = -3.5233877e-6f + y * w;
        y = -4.39150654e-6f + y * w;
        y = 2.1858087e-4f + y * w;
        y = -1.25372503e-3f + y * w;
        y = -4.17768164e-3f + y * w;
        y = 0.246640727f + y * w;
        y = 1.50140941f + y * w;
    } else {
        w = nx_rough_sqrt_f32(w) - 3.0f;
        y = -2.00214257e-4f;
        y = 1.00950558e-4f + y * w;
        y = 1.34934322e-3f + y * w;
        y = -3.67342844e-3f + y * w;
        y = 5.73950773e-3f + y * w;
        y = -7.6224613e-3f + y * w;
        y = 9.43887047e-3f + y * w;
        y = 1.00167406f + y * w;
        y = 2.83297682f + y * w;
    }
    y *= a;
    // (a - erf(y)) / erf'(y), the difference by way of erfc where erf is near 1
    float difference;
    if (y < 0.9f) {
        vec2 s = nx_erf_small_f32(y);
        difference = (a - s.x) - s.y;
    } else {
        vec3 c = nx_erfc_large_f32(y);
        float scale = nx_power_of_two_f32(int(c.z));
        difference = (c.x * scale - (1.0f - a)) + c.y * scale;
    }
    vec3 e = nx_exp_pair_f32(vec2(y * y, 0.0f));
    float inverse_slope = 0.886226952f * e.x * nx_power_of_two_f32(int(e.z));
    return nx_with_sign_f32(y + difference * inverse_slope, floatBitsToUint(x));
}

#endif

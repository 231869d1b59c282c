// Exponentials and hyperbolic functions on f32, by pairs.
#ifndef NX_F32_EXP_GLSL
#define NX_F32_EXP_GLSL
#include "nx_f32_base.glsl"

// exp(r) - 1 for a pair |r| <= 0.35, to about 2^-30.
vec2 nx_expm1_reduced_f32(const in vec2 r) {
    vec2 z = nx_two_product_f32(r.x, r.x);
    float q = 2.0002563e-4f;
    q = fma(q, r.x, 1.3926437e-3f);
    q = fma(q, r.x, 8.3331456e-3f);
    q = fma(q, r.x, 4.1666552e-2f);
    q = fma(q, r.x, 0.16666667f);
    vec2 s = nx_fast_two_sum_f32(r.x, 0.5f * z.x);
    float tail = s.y + ((0.5f * z.y + r.x * r.y) + (r.y + r.x * z.x * q));
    return nx_fast_two_sum_f32(s.x, tail);
}

// x - k * ln 2 and k, for a pair |x| <= 110: (r, rest of r, k).
vec3 nx_exp_reduce_f32(const in vec2 x) {
    float k = nx_nearest_integer_f32(x.x * 1.44269504f);
    // 15 bits of ln 2, so that the product and the difference are exact
    float high = x.x - k * 0.693145752f;
    vec2 r = nx_two_sum_f32(high, x.y - k * 1.42860677e-6f);
    return vec3(r, k);
}

// exp(x) as (pair in [0.7, 1.42], k): the value is the pair * 2^k.
vec3 nx_exp_pair_f32(const in vec2 x) {
    vec3 r = nx_exp_reduce_f32(x);
    vec2 m = nx_expm1_reduced_f32(r.xy);
    vec2 s = nx_fast_two_sum_f32(1.0f, m.x);
    return vec3(nx_fast_two_sum_f32(s.x, s.y + m.y), r.z);
}

// exp(x) - 1 as a pair, for -20 <= x <= 40.
vec2 nx_expm1_pair_f32(const in float x) {
    vec3 r = nx_exp_reduce_f32(vec2(x, 0.0f));
    vec2 m = nx_expm1_reduced_f32(r.xy);
    if (r.z == 0.0f) {
        return m;
    }
    float scale = nx_power_of_two_f32(int(r.z));
    vec2 base = nx_two_sum_f32(scale, -1.0f);
    return nx_pair_add_f32(base, vec2(m.x * scale, m.y * scale));
}

// Whether nx_exp_f32_hot does not hold.
bool nx_exp_f32_rare(const in float x) { return !(abs(x) < 87.0f); }

// exp(x) for |x| < 87: 2^k * (1 + r + v), |r| <= 0.35.
float nx_exp_f32_hot(const in float x) {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    float t = fma(x, 1.44269504f, 12582912.0f);
    float k = t - 12582912.0f;
    // 15 bits of ln 2, so that the product and the difference are exact, fused or not.
    float high = fma(k, -0.693145752f, x);
    float r = fma(k, -1.42860677e-6f, high);
    float q = fma(1.38146023e-3f, r, 8.36871564e-3f);
    q = fma(q, r, 4.16683890e-2f);
    q = fma(q, r, 0.166665211f);
    q = fma(q, r, 0.49999994f);
    float s = 1.0f + r;
    // What s lost of 1 + high + k * lower part of ln 2: both differences are exact.
    float low = fma(k, -1.42860677e-6f, high - (s - 1.0f));
    float y = s + fma(r * r, q, low);
    return uintBitsToFloat(floatBitsToUint(y) + (floatBitsToUint(t) << 23));
}

// The polynomial alone: its last product is not rounded. Other bits than above, within 0.91 ulp.
float nx_exp_f32_hot_fused(const in float x) {
    float t = fma(x, 1.44269504f, 12582912.0f);
    float k = t - 12582912.0f;
    float r = fma(k, -1.42860677e-6f, fma(k, -0.693145752f, x));
    float q = fma(1.38146023e-3f, r, 8.36871564e-3f);
    q = fma(q, r, 4.16683890e-2f);
    q = fma(q, r, 0.166665211f);
    q = fma(q, r, 0.49999994f);
    q = fma(q, r, 1.0f);
    q = fma(q, r, 1.0f);
    return uintBitsToFloat(floatBitsToUint(q) + (floatBitsToUint(t) << 23));
}

// max error over all 2^32 inputs: 0.91 ulp where fma rounds once, else 0.69 ulp
float nx_exp_f32(const in float x) {
    if (!nx_exp_f32_rare(x)) {
        return nx_exp_f32_hot(x);
    }
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return nx_nan_f32();
    }
    if (x < -104.0f || x > 89.0f) {
        return (bits & 0x80000000u) != 0u ? 0.0f : nx_signed_infinity_f32(0u);
    }
    vec3 e = nx_exp_pair_f32(vec2(x, 0.0f));
    return nx_scale_pair_f32(e.xy, int(e.z));
}

// max error: 0.60 ulp over all 2^32 inputs
float nx_expm1_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x33000000u || m > 0x7f800000u) {
        return x;
    }
    if (x > 40.0f) {
        if (x > 89.0f) {
            return nx_signed_infinity_f32(0u);
        }
        vec3 e = nx_exp_pair_f32(vec2(x, 0.0f));
        return nx_scale_pair_f32(e.xy, int(e.z));
    }
    return x < -18.0f ? -1.0f : nx_expm1_pair_f32(x).x;
}

// 1 / (1 + exp(-x))
// max error: 0.53 ulp over all 2^32 inputs
float nx_sigmoid_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m > 0x7f800000u) {
        return x;
    }
    bool negative = nx_sign_bit_f32(x) != 0u;
    if (m > 0x42d00000u) {
        return negative ? 0.0f : 1.0f;
    }
    vec3 e = nx_exp_pair_f32(vec2(uintBitsToFloat(m | 0x80000000u), 0.0f));
    float scale = nx_power_of_two_f32(max(int(e.z), -60));
    vec2 d = nx_pair_add_float_f32(vec2(e.x * scale, e.y * scale), 1.0f);
    vec2 q = nx_pair_divide_f32(negative ? e.xy : vec2(1.0f, 0.0f), d);
    return negative ? nx_scale_pair_f32(q, int(e.z)) : q.x;
}

// (e + 1/2) g - 1, for g near 1 / (e + 1/2).
float nx_reciprocal_error_f32(const in float e, const in float g) {
    vec2 p = nx_two_product_f32(e, g);
    return fma(0.5f, g, (p.x - 1.0f) + p.y);
}

// Whether nx_tanh_f32_hot does not hold.
bool nx_tanh_f32_rare(const in float x) { return !(abs(x) < 40.0f); }

// x + x^3 p(x^2) below 0.6; above, 1 - 2 / (e^2x + 1), where the quotient's error counts less than half.
float nx_tanh_f32_hot(const in float x) {
    float z = x * x;
    float p = fma(-0.00589515747f, z, 0.0207959703f);
    p = fma(p, z, -0.0537838296f);
    p = fma(p, z, 0.133319241f);
    p = fma(p, z, -0.33333298f);
    float small = fma(x * z, p, x);
    small = abs(x) < 1e-30f ? x : small;

    // e^2|x| / 2, as in nx_exp_f32_hot, with half ln 2 (float happens to hold it to 28 bits) and coefficients scaled by
    // 2^n / 2
    float t = fma(abs(x), 2.88539008f, 12582912.0f);
    float r = fma(t - 12582912.0f, -0.34657359f, abs(x));
    float q = fma(0.0442063882f, r, 0.133900485f);
    q = fma(q, r, 0.33334715f);
    q = fma(q, r, 0.666660805f);
    q = fma(q, r, 0.99999987f);
    q = fma(q, r, 1.0f);
    q = fma(q, r, 0.5f);
    float e = uintBitsToFloat(floatBitsToUint(q) + (floatBitsToUint(t) << 23));
    float g = nx_rough_divide_f32(1.0f, e + 0.5f);
    // As many bits of the quotient as leave the difference exact, and what they are off.
    float high = 1.0f - g;
    float quotient = 1.0f - high;
    float large = fma(quotient, nx_reciprocal_error_f32(e, quotient), high);

    // Chosen by g, which decreases: for a condition on x NVIDIA's compiler branches around the large half in every
    // element.
    return g > 0.463f ? small : nx_with_sign_f32(large, floatBitsToUint(x));
}

// max error: 0.88 ulp over all 2^32 inputs
float nx_tanh_f32(const in float x) {
    if (!nx_tanh_f32_rare(x)) {
        return nx_tanh_f32_hot(x);
    }
    return nx_magnitude_bits_f32(x) > 0x7f800000u ? x : nx_with_sign_f32(1.0f, floatBitsToUint(x));
}

// By h = (e^2|x| - 1) / 2, which is 2^k r' + (2^k - 1) / 2 with r' = (e^2r - 1) / 2 = r + r^2 q, as 1 - 1 / (h + 1):
// one formula for all x, in 5 instructions fewer. Other bits than above. max error: 0.88 ulp over all 2^32 inputs
float nx_tanh_f32_fused(const in float x) {
    float a = min(abs(x), 10.0f);
    float t = fma(a, 2.88539008f, 12582912.0f);
    float r = fma(t - 12582912.0f, -0.34657359f, a);
    float q = fma(0.0444226414f, r, 0.133866027f);
    q = fma(q, r, 0.333337665f);
    q = fma(q, r, 0.66666168f);
    q = fma(q, r, 0.99999994f);
    float scale = uintBitsToFloat((floatBitsToUint(t) << 23) + 0x3f800000u);
    float z = scale * (r * r);
    float base = fma(scale, r, fma(scale, 0.5f, -0.5f));
    float h = fma(z, q, base);
    float low = fma(z, q, base - h);
    // The difference from 1 is exact: the quotient has no more bits than that.
    float high = 1.0f - nx_rough_divide_f32(1.0f, h + 1.0f);
    // Negated, so that nothing else has to be.
    float quotient = high - 1.0f;
    float y = fma(quotient, fma(quotient, low, fma(quotient, h, high)), high);
    y = nx_with_sign_f32(y, floatBitsToUint(x));
    // NaN and numbers whose cube is below half of their last bit, denormals among them, are their own results.
    return abs(x) >= 2.4e-4f ? y : x;
}

// exp(|x|) / 2 for |x| > 13, where the other half of sinh and cosh is below the last bit.
float nx_half_exp_f32(const in uint magnitude) {
    if (magnitude > 0x42b40000u) {
        return nx_signed_infinity_f32(0u);
    }
    vec3 e = nx_exp_pair_f32(vec2(uintBitsToFloat(magnitude), 0.0f));
    return nx_scale_pair_f32(e.xy, int(e.z) - 1);
}

// max error: 0.57 ulp over all 2^32 inputs
float nx_sinh_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x39000000u || m > 0x7f800000u) {
        return x;
    }
    if (m > 0x41500000u) {
        return nx_with_sign_f32(nx_half_exp_f32(m), floatBitsToUint(x));
    }
    vec2 t = nx_expm1_pair_f32(uintBitsToFloat(m));
    vec2 q = nx_pair_divide_f32(t, nx_pair_add_float_f32(t, 1.0f));
    return nx_with_sign_f32(0.5f * nx_pair_add_f32(t, q).x, floatBitsToUint(x));
}

// max error: 0.54 ulp over all 2^32 inputs
float nx_cosh_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m > 0x7f800000u) {
        return x;
    }
    if (m > 0x41500000u) {
        return nx_half_exp_f32(m);
    }
    vec3 e = nx_exp_pair_f32(vec2(uintBitsToFloat(m), 0.0f));
    float scale = nx_power_of_two_f32(int(e.z) - 1);
    vec2 q = nx_pair_divide_f32(vec2(1.0f, 0.0f), e.xy);
    float inverse = nx_power_of_two_f32(-int(e.z) - 1);
    return nx_pair_add_f32(vec2(e.x * scale, e.y * scale), vec2(q.x * inverse, q.y * inverse)).x;
}

#endif

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
float nx_erf_exactly_f32(const in float x) {
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

float nx_erf_f32(const in float x) { return nx_erf_exactly_f32(x); }

// Whether nx_erf_f32_fused_hot does not hold: for NaN, and for numbers near denormal ones.
bool nx_erf_f32_fused_rare(const in float x) { return !(abs(x) >= 1e-30f || floatBitsToUint(x) << 1 == 0u); }

// x + x p(x^2) up to 0.8, above 1 - 2^(x h(x)), where the power's error counts a quarter and less.
float nx_erf_f32_fused_hot(const in float x) {
    float a = min(abs(x), 4.0f);
    float z = a * a;
    float p = fma(-0.000630493741f, z, 0.00505009526f);
    p = fma(p, z, -0.0268027168f);
    p = fma(p, z, 0.112827577f);
    p = fma(p, z, -0.376125813f);
    p = fma(p, z, 0.128379166f);
    float small = fma(p, a, a);

    // h + 2.5, which is near 0 where errors count most
    float h = fma(-1.1959225e-05f, a, 0.00042378463f);
    h = fma(h, a, -0.0050869491f);
    h = fma(h, a, 0.0339316428f);
    h = fma(h, a, -0.152868271f);
    h = fma(h, a, -0.916566551f);
    h = fma(h, a, 0.87176162f);
    float t = fma(a, h - 2.5f, 12582912.0f);
    float r = fma(a, h, fma(a, -2.5f, 12582912.0f - t));
    float q = fma(0.000154531634f, r, 0.00133813021f);
    q = fma(q, r, 0.00961807743f);
    q = fma(q, r, 0.0555037521f);
    q = fma(q, r, 0.240226507f);
    q = fma(q, r, 0.693147182f);
    q = fma(q, r, 1.0f);
    float rest = uintBitsToFloat(floatBitsToUint(q) + (floatBitsToUint(t) << 23));
    float large = 1.0f - rest;

    // Chosen by the rest, which decreases: for a condition on x NVIDIA's compiler branches.
    return nx_with_sign_f32(rest > 0.25f ? small : large, floatBitsToUint(x));
}

// In a tenth of the instructions. Other bits than above, but the same ones as f16 and as bf16.
// max error: 0.94 ulp over all 2^32 inputs
float nx_erf_f32_fused(const in float x) {
    if (nx_erf_f32_fused_rare(x)) {
        return nx_erf_exactly_f32(x);
    }
    return nx_erf_f32_fused_hot(x);
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

// The polynomials of M. Giles (Approximating the erfinv function, 2010) for erf_inv(x) / x in
// w = -log(1 - x^2) - 2.5 for -2.5 <= w < 2.5, and in sqrt(-log(1 - x^2)) - 3 beyond.
vec2 nx_erf_inv_central_f32(const in vec2 w) {
    vec2 p = nx_pair_step_f32(vec2(3.4327394e-7f, -5.186907e-17f), vec2(2.8102264e-8f, -2.7260981e-17f), w);
    p = nx_pair_step_f32(vec2(-3.5233877e-6f, 4.2628593e-15f), p, w);
    // the one step where the product may be the larger term
    vec2 m = nx_pair_product_f32(p, w);
    p = nx_two_sum_f32(-4.3915065e-6f, m.x);
    p.y += m.y - 3.8056436e-15f;
    p = nx_pair_step_f32(vec2(0.00021858087f, 1.5861065e-13f), p, w);
    p = nx_pair_step_f32(vec2(-0.001253725f, -4.718589e-13f), p, w);
    p = nx_pair_step_f32(vec2(-0.0041776816f, -3.9347553e-12f), p, w);
    p = nx_pair_step_f32(vec2(0.24664073f, 7.605744e-11f), p, w);
    return nx_pair_step_f32(vec2(1.5014094f, -1.4303589e-9f), p, w);
}

vec2 nx_erf_inv_outer_f32(const in vec2 w) {
    vec2 m = nx_pair_product_f32(vec2(-0.00020021426f, 3.473975e-13f), w);
    vec2 p = nx_two_sum_f32(0.00010095056f, m.x);
    p.y += m.y + 3.1966508e-13f;
    p = nx_pair_step_f32(vec2(0.0013493432f, 2.2801878e-13f), p, w);
    p = nx_pair_step_f32(vec2(-0.0036734284f, -3.258767e-12f), p, w);
    p = nx_pair_step_f32(vec2(0.0057395077f, -1.0502528e-12f), p, w);
    p = nx_pair_step_f32(vec2(-0.0076224613f, 3.432749e-13f), p, w);
    p = nx_pair_step_f32(vec2(0.0094388705f, -4.69616e-12f), p, w);
    p = nx_pair_step_f32(vec2(1.001674f, 3.9468384e-9f), p, w);
    return nx_pair_step_f32(vec2(2.8329768f, 1.915283e-9f), p, w);
}

// The approximation that BinaryBackend computes in double precision, of 3e-7 relative to the inverse, rounded once.
float nx_erf_inv_exactly_f32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x38800000u) {
        // the value and the slope of the polynomial at 0
        return m == 0u ? 0.0f : nx_scaled_product_f32(x, nx_fast_two_sum_f32(0.8862269f, fma(x * x, 0.2320167f, -2.2541625e-8f)));
    }
    if (m >= 0x3f800000u) {
        return m == 0x3f800000u ? nx_signed_infinity_f32(floatBitsToUint(x)) : nx_nan_f32();
    }
    vec2 l = nx_log_pair_f32(nx_pair_multiply_f32(nx_two_sum_f32(1.0f, -x), nx_two_sum_f32(1.0f, x)));
    vec2 w = vec2(-l.x, -l.y);
    vec2 p;
    if (w.x < 5.0f) {
        p = nx_erf_inv_central_f32(nx_pair_add_float_f32(w, -2.5f));
    } else {
        p = nx_erf_inv_outer_f32(nx_pair_add_float_f32(nx_pair_sqrt_f32(w), -3.0f));
    }
    vec2 y = nx_pair_product_f32(p, vec2(x, 0.0f));
    return y.x + y.y;
}

// max error: 0.5001 ulp of the approximation
float nx_erf_inv_f32(const in float x) { return nx_erf_inv_exactly_f32(x); }

// The least and the largest number that the approximation may round to where abs(x) is from 2^-60 to 0.996; NaN beyond,
// and for NaN. An fma gives the exact rest of a fused multiply-add whose sum is no smaller than what is added:
// c - fma(a, b, c) is exact then, or where both are multiples of a unit that the coefficients below are chosen for.
// 0.4 % of the numbers there are in doubt.
vec2 nx_erf_inv_f32_fused_near(const in float x) {
    // u + rest = 1 - x^2 = 2^k (m + rest), m in 0.7 to 1.42
    float u = 1.0f - x * x;
    float rest = fma(-x, x, 1.0f - u);
    int e = (floatBitsToInt(u) - 0x3f3504f3) & int(0xff800000);
    float m = intBitsToFloat(floatBitsToInt(u) - e);
    // k * 2^23
    float k = float(e);
    rest *= intBitsToFloat(0x3f800000 - e);

    // log m = 2 atanh(s / 2), s / 2 = (m - 1) / (m + 1), as s + rise
    float f = m - 1.0f;
    float h = fma(m, 0.5f, -0.5f);
    float r = nx_rough_divide_f32(1.0f, h + 1.0f);
    float s = f * r;
    float low = fma(rest, r, fma(-s, h, f - s)) * r;
    float z = s * s;
    float q = fma(fma(fma(0.00046229377f, z, 0.00222906494f), z, 0.0125001362f), z, 0.0833333284f);
    float rise = fma(z, fma(low, 0.25f, s * q), low);

    // t + te = -log u - 32412 / 65536, around which the polynomial's coefficients of t^3 and t^2 need no second part
    float a = fma(-k, 8.26294126e-8f, -0.494567871f);
    float sum = a - s;
    float error = fma(-k, 1.70303198e-13f, (a - sum) - s) - rise;
    float t = sum + error;
    float te = (sum - t) + error;

    float c = fma(fma(fma(fma(2.81022636e-8f, t, -1.07583517e-7f), t, -5.1777015e-6f), t, 5.43031638e-5f), t, -1.50221113e-5f);
    float c3 = fma(c, t, -0.00247210567f);
    float c3e = fma(c, t, -0.00247210567f - c3);
    // with 2^-6 more, so that its unit is the same for all t
    float more = fma(c3, t, 0.023581285f);
    float c2 = more - 0.015625f;
    float c2e = fma(c3, te, fma(c3e, t, fma(c3, t, 0.023581285f - more)));
    float c1 = fma(c2, t, 0.241676122f);
    float c1e = fma(c2, te, fma(c2e, t, fma(c2, t, 0.241676122f - c1))) + 3.05028958e-9f;
    float c0 = fma(c1, t, 1.00350952f);
    float c0e = fma(c1, te, fma(c1e, t, fma(c1, t, 1.00350952f - c0))) + 3.83848473e-8f;

    float y = x * c0;
    float ye = fma(x, c0e, fma(x, c0, -y));
    // what the roundings of rise and of the coefficients of t^4 and up amount to at most, by a fifth more
    float square = t * t;
    float far = fma(square * square, square * 2.72848411e-12f, fma(abs(rise), 8.19563866e-8f, 7.27595761e-12f));
    float beyond = uintBitsToFloat(0x7fc00000u);
    float least = y + fma(-abs(y), far, ye);
    least = u > 0.0068f ? least : beyond;
    least = abs(x) > 8.67361738e-19f ? least : beyond;
    return vec2(least, y + fma(abs(y), far, ye));
}

float nx_erf_inv_f32_fused(const in float x) {
    vec2 y = nx_erf_inv_f32_fused_near(x);
    return nx_is_doubtful_f32(y) ? nx_erf_inv_exactly_f32(x) : nx_certain_f32(y);
}

#endif

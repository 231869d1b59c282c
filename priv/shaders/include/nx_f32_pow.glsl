// pow on f32.
#ifndef NX_F32_POW_GLSL
#define NX_F32_POW_GLSL
#include "nx_f32_exp.glsl"
#include "nx_f32_log.glsl"

// 0 when a finite y is no integer, 1 when it is odd, 2 when it is even.
uint nx_parity_f32(const in float y) {
    uint m = nx_magnitude_bits_f32(y);
    if (m < 0x3f800000u) {
        return m == 0u ? 2u : 0u;
    }
    if (m >= 0x4b800000u) {
        return 2u;
    }
    // the number of fraction bits is 23 - exponent, from 0 to 23
    uint fraction_bits = 150u - (m >> 23);
    uint mantissa = (m & 0x7fffffu) | 0x800000u;
    if ((mantissa & ((1u << fraction_bits) - 1u)) != 0u) {
        return 0u;
    }
    return ((mantissa >> fraction_bits) & 1u) != 0u ? 1u : 2u;
}

// Special cases as C99 has them. Squares are products, which the compiler writes for them. max error: 0.55 ulp over
// 2^35 pairs
float nx_pow_f32(const in float x, const in float y) {
    if (y == 2.0f) {
        return x * x;
    }
    uint ux = floatBitsToUint(x);
    uint mx = ux & 0x7fffffffu;
    uint my = nx_magnitude_bits_f32(y);
    bool y_negative = nx_sign_bit_f32(y) != 0u;
    if (ux == 0x3f800000u || my == 0u) {
        return 1.0f;
    }
    if (mx > 0x7f800000u || my > 0x7f800000u) {
        return nx_nan_f32();
    }
    if (my == 0x7f800000u) {
        if (mx == 0x3f800000u) {
            return 1.0f;
        }
        return ((mx < 0x3f800000u) == y_negative) ? nx_signed_infinity_f32(0u) : 0.0f;
    }
    uint parity = nx_parity_f32(y);
    uint sign = parity == 1u ? ux & 0x80000000u : 0u;
    if (mx == 0u || mx == 0x7f800000u) {
        return uintBitsToFloat(sign | (((mx == 0u) == y_negative) ? 0x7f800000u : 0u));
    }
    if (ux != mx && parity == 0u) {
        return nx_nan_f32();
    }
    float a = uintBitsToFloat(mx);
    vec2 l = nx_log_scaled_f32(vec2(nx_mantissa_f32(a), 0.0f), nx_exponent_f32(a));
    float approximate = l.x * y;
    if (!(approximate < 89.0f && approximate > -104.5f)) {
        return uintBitsToFloat(sign | (approximate > 0.0f ? 0x7f800000u : 0u));
    }
    vec3 r = nx_exp_pair_f32(nx_pair_multiply_float_f32(l, y));
    return nx_with_sign_f32(nx_scale_pair_f32(r.xy, int(r.z)), sign);
}

#endif

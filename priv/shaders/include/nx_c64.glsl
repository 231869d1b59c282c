// The scalar functions of compute type c64, a vec2 of real and imaginary part: nx_complex.glsl over f32 pairs.
#ifndef NX_C64_GLSL
#define NX_C64_GLSL
#include "nx_f32.glsl"

#define REAL float
#define PAIR vec2
#define COMPLEX vec2
#define SINCOS vec4
#define FN(name) nx_##name##_c64
#define AUX(name) nx_c64_##name
#define RE(name) nx_##name##_f32

#define TWO_SUM nx_two_sum_f32
#define FAST_TWO_SUM nx_fast_two_sum_f32
#define TWO_PRODUCT nx_two_product_f32
#define PAIR_ADD nx_pair_add_f32
#define PAIR_MULTIPLY nx_pair_multiply_f32
#define PAIR_DIVIDE nx_pair_divide_f32
#define PAIR_SQRT nx_pair_sqrt_f32
#define PAIR_EXPM1 nx_expm1_pair_f32
#define PAIR_LOG1P nx_log1p_reduced_f32
#define PAIR_ANGLE nx_angle_f32
#define MANTISSA nx_mantissa_f32
#define EXPONENT nx_exponent_f32
#define POWER_OF_TWO nx_power_of_two_f32
#define SCALE_PAIR nx_scale_pair_f32
#define SIGN_OF nx_sign_bit_f32
#define WITH_SIGN nx_with_sign_f32
#define NOT_A_NUMBER nx_nan_f32
#define INFINITE nx_signed_infinity_f32

// The bound of scalings by one power of two.
#define MAX_SCALE 120
// From this exponent on, 1 + z is z.
#define HUGE_EXPONENT 32

bool AUX(isnan)(const in float x) { return nx_magnitude_bits_f32(x) > 0x7f800000u; }

bool AUX(isinf)(const in float x) { return nx_magnitude_bits_f32(x) == 0x7f800000u; }

bool AUX(iszero)(const in float x) { return nx_magnitude_bits_f32(x) == 0u; }

vec2 AUX(pi)() { return vec2(3.14159274f, -8.74227766e-8f); }

// exp(x) is the pair times 2 to the exponent; |x| <= 200.
vec2 AUX(exp_fraction)(const in vec2 x) { return nx_exp_pair_f32(x).xy; }

int AUX(exp_exponent)(const in vec2 x) { return int(nx_exp_pair_f32(x).z); }

float AUX(exp_range)(const in float x) { return clamp(x, -200.0f, 200.0f); }

vec2 AUX(with_sign_pair)(const in vec2 x, const in uint sign) { return sign != 0u ? vec2(-x.x, -x.y) : x; }

// log(u) + e ln 2 for u.x > 0.
vec2 AUX(log_pair)(const in vec2 u, const in int e) {
    int k = nx_exponent_f32(u.x);
    float scale = nx_power_of_two_f32(clamp(-k, -126, 127));
    return nx_log_scaled_f32(vec2(nx_mantissa_f32(u.x), u.y * scale), k + e);
}

// sin and cos of a finite pair: (sin, cos) as pairs.
vec4 AUX(sincos_pair)(const in vec2 x) {
    uint sign = nx_sign_bit_f32(x.x);
    vec3 r = nx_reduce_angle_f32(nx_abs_f32(x.x));
    vec2 a = nx_pair_add_f32(r.xy, AUX(with_sign_pair)(vec2(x.y, 0.0f), sign));
    vec2 s = nx_sin_reduced_f32(a);
    vec2 c = nx_cos_reduced_f32(a);
    uint quadrant = uint(r.z);
    vec2 u = (quadrant & 1u) != 0u ? c : s;
    vec2 v = (quadrant & 1u) != 0u ? s : c;
    u = AUX(with_sign_pair)(u, ((quadrant & 2u) << 30) ^ sign);
    v = AUX(with_sign_pair)(v, ((quadrant + 1u) & 2u) << 30);
    return vec4(u.x, u.y, v.x, v.y);
}

#include "nx_complex.glsl"
#include "nx_complex_exp.glsl"
#include "nx_complex_inverse.glsl"
#endif

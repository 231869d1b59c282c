// Functions of bf16 as bf16, in f32: the bf16 nearest to what they give is the one nearest to the exact value, for each
// of the 65,536 arguments. There are no others, so polynomials need only lead into the right interval: their
// coefficients solve the linear program of all of these. For devices whose fma rounds once.
#ifndef NX_BF16_GLSL
#define NX_BF16_GLSL
#include "nx_f32_erf.glsl"

// |x|, but no more than `most`; NaN is itself.
float nx_magnitude_up_to_f32(const in float x, const in float most) {
    float a = abs(x);
    return a > most ? most : a;
}

// Numbers near denormal ones, which devices may flush: below 1e-30, but no zeros.
bool nx_small_bf16(const in float x) { return (floatBitsToUint(x) << 1) - 1u < 0x1b4484bfu; }

bool nx_erf_bf16_rare(const in float x) { return nx_small_bf16(x); }
bool nx_tanh_bf16_rare(const in float x) { return nx_small_bf16(x); }

float nx_erf_bf16_hot(const in float x) {
    // From here on it is 1.
    float a = nx_magnitude_up_to_f32(x, 2.203125f);
    float z = a * a;
    float p = fma(3.097478111158125e-05f, z, -0.0005685221985913813f);
    p = fma(p, z, 0.004825896117836237f);
    p = fma(p, z, -0.026804815977811813f);
    p = fma(p, z, 0.11307404935359955f);
    p = fma(p, z, -0.3761713206768036f);
    p = fma(p, z, 1.128378987312317f);
    return nx_with_sign_f32(p * a, floatBitsToUint(x));
}

float nx_tanh_bf16_hot(const in float x) {
    // From here on it is 1.
    float a = nx_magnitude_up_to_f32(x, 3.46875f);
    float p = fma(0.0007189606549218297f, a, -0.010715125128626823f);
    p = fma(p, a, 0.06521651148796082f);
    p = fma(p, a, -0.2022835910320282f);
    p = fma(p, a, 0.3048805892467499f);
    p = fma(p, a, -0.08257736265659332f);
    p = fma(p, a, -0.3106790781021118f);
    p = fma(p, a, -0.003086924087256193f);
    p = fma(p, a, 1.0001310110092163f);
    return nx_with_sign_f32(p * a, floatBitsToUint(x));
}

float nx_erf_bf16(const in float x) { return nx_erf_bf16_rare(x) ? nx_erf_f32(x) : nx_erf_bf16_hot(x); }
float nx_tanh_bf16(const in float x) { return nx_tanh_bf16_rare(x) ? nx_tanh_f32(x) : nx_tanh_bf16_hot(x); }

// exp(x) for |x| < 55, so that it is within 2^-80 and 2^80.
float nx_exp_bf16_hot(const in float x) {
    // As in nx_exp_f32_hot.
    float t = fma(x, 1.44269504f, 12582912.0f);
    float r = fma(x, 1.44269504f, 12582912.0f - t);
    float q = fma(0.009410361759364605f, r, 0.05582903325557709f);
    q = fma(q, r, 0.24025285243988037f);
    q = fma(q, r, 0.6931282877922058f);
    q = fma(q, r, 1.0000015497207642f);
    return uintBitsToFloat(floatBitsToUint(q) + (floatBitsToUint(t) << 23));
}

bool nx_exp_bf16_rare(const in float x) { return !(abs(x) < 55.0f); }

float nx_exp_bf16(const in float x) { return nx_exp_bf16_rare(x) ? nx_exp_f32(x) : nx_exp_bf16_hot(x); }

// Where the result is near denormal ones, and NaN.
bool nx_sigmoid_bf16_rare(const in float x) { return !(x > -87.0f); }

// The exponential serves as well where it is a part of the quotient, which may be 5 ulp off.
float nx_sigmoid_bf16_hot(const in float x) {
    float e = nx_exp_bf16_hot(-min(abs(x), 87.0f));
    float g = nx_rough_divide_f32(1.0f, e + 1.0f);
    float below = e * g;
    return x < 0.0f ? below : g;
}

float nx_sigmoid_bf16(const in float x) {
    return nx_sigmoid_bf16_rare(x) ? nx_sigmoid_f32(x) : nx_sigmoid_bf16_hot(x);
}

#endif

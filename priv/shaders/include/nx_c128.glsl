// The scalar functions of compute type c128, a dvec2 of real and imaginary part: nx_complex.glsl over f64 pairs.
#ifndef NX_C128_GLSL
#define NX_C128_GLSL
#include "nx_f64.glsl"

#define REAL double
#define PAIR dvec2
#define COMPLEX dvec2
#define SINCOS dvec4
#define FN(name) nx_##name##_c128
#define AUX(name) nx_c128_##name
#define RE(name) nx_##name##_f64

#define TWO_SUM nx_f64_two_sum
#define FAST_TWO_SUM nx_f64_fast_two_sum
#define TWO_PRODUCT nx_f64_two_product
#define PAIR_ADD nx_f64_dd_add
#define PAIR_MULTIPLY nx_f64_dd_multiply
#define PAIR_DIVIDE nx_f64_dd_divide
#define PAIR_SQRT nx_f64_dd_sqrt
#define PAIR_EXPM1 nx_c128_expm1_pair
#define PAIR_LOG1P nx_c128_log1p_pair
#define PAIR_ANGLE nx_f64_angle
#define MANTISSA nx_f64_mantissa
#define EXPONENT nx_f64_exponent
#define POWER_OF_TWO nx_f64_pow2
#define SCALE_PAIR nx_c128_scale_pair
#define SIGN_OF nx_c128_sign_of
#define WITH_SIGN nx_f64_with_sign
#define NOT_A_NUMBER nx_f64_nan
#define INFINITE nx_f64_infinity

// The bound of scalings by one power of two.
#define MAX_SCALE 1000
// From this exponent on, 1 + z is z.
#define HUGE_EXPONENT 60

bool AUX(isnan)(const in double x) { return nx_f64_isnan(x); }

bool AUX(isinf)(const in double x) { return nx_f64_isinf(x); }

bool AUX(iszero)(const in double x) { return nx_f64_iszero(x); }

uint AUX(sign_of)(const in double x) { return nx_f64_high(x) & 0x80000000u; }

dvec2 AUX(pi)() { return dvec2(3.141592653589793lf, 1.2246467991473532e-16lf); }

double AUX(scale_pair)(const in dvec2 x, const in int n) { return nx_f64_scale(x.x + x.y, clamp(n, -2000, 2000)); }

// exp(x) is the pair times 2 to the exponent; |x| <= 800.
dvec2 AUX(exp_fraction)(const in dvec2 x) { return nx_f64_exp_fraction(nx_f64_exp_reduce(x, nx_f64_exp_n(x.x))); }

int AUX(exp_exponent)(const in dvec2 x) { return int(nx_f64_exp_n(x.x)); }

double AUX(exp_range)(const in double x) { return nx_f64_exp_range(x, -800.0lf, 800.0lf); }

// exp(x) - 1 for |x| <= 40.
dvec2 AUX(expm1_pair)(const in double x) {
    double n = nx_f64_exp_n(x);
    dvec2 r = nx_f64_exp_reduce(dvec2(x, 0.0lf), n);
    dvec2 m = nx_f64_expm1_fraction(r);
    if (n == 0.0lf) {
        return m;
    }
    double scale = nx_f64_pow2(int(n));
    return nx_f64_dd_add(nx_f64_two_sum(scale, -1.0lf), m * scale);
}

// log(1 + f) for f in [-0.29, 0.41].
dvec2 AUX(log1p_pair)(const in dvec2 f) {
    dvec2 d = nx_f64_fast_two_sum(2.0lf, f.x);
    return nx_f64_log_sum(nx_f64_dd_divide(f, dvec2(d.x, d.y + f.y)), 0);
}

dvec2 AUX(with_sign_pair)(const in dvec2 x, const in uint sign) { return sign != 0u ? -x : x; }

// log(u) + e ln 2 for u.x > 0.
dvec2 AUX(log_pair)(const in dvec2 u, const in int e) {
    uint h = nx_f64_high(u.x);
    int k = nx_f64_log_k(h);
    double c = u.y * nx_f64_pow2(clamp(-k, -1022, 1023));
    return nx_f64_log_sum(nx_f64_log_ratio(nx_f64_bits(nx_f64_log_m(h), nx_f64_low(u.x)), c), k + e);
}

// sin and cos of a finite pair: (sin, cos) as pairs.
dvec4 AUX(sincos_pair)(const in dvec2 x) {
    uint sign = AUX(sign_of)(x.x);
    nx_f64_reduced r = nx_f64_reduce(nx_f64_magnitude(x.x));
    dvec2 a = nx_f64_dd_add(r.r, AUX(with_sign_pair)(dvec2(x.y, 0.0lf), sign));
    dvec2 s = nx_f64_sin_core(a);
    dvec2 c = nx_f64_cos_core(a);
    bool odd = (r.quadrant & 1u) != 0u;
    dvec2 u = odd ? c : s;
    dvec2 v = odd ? s : c;
    u = AUX(with_sign_pair)(u, ((r.quadrant & 2u) << 30) ^ sign);
    v = AUX(with_sign_pair)(v, ((r.quadrant + 1u) & 2u) << 30);
    return dvec4(u.x, u.y, v.x, v.y);
}

#include "nx_complex.glsl"
#include "nx_complex_exp.glsl"
#include "nx_complex_inverse.glsl"
#endif

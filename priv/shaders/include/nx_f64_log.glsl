// log and its family for f64, and pow: x = 2^k m with m in [sqrt(1/2), sqrt(2)) and
// log m = 2 atanh(s), s = (m - 1) / (m + 1) as a dd (the reduction of fdlibm; polynomial by Sollya
// fpminimax).
#ifndef NX_F64_LOG_GLSL
#define NX_F64_LOG_GLSL
#include "nx_f64_core.glsl"
#include "nx_f64_exp.glsl"

// k of the positive normal number whose high word is h.
int nx_f64_log_k(const in uint h) { return int((h + 0x00095f62u) >> 20) - 1023; }

// The number of high word h times 2^-k.
uint nx_f64_log_m(const in uint h) { return ((h + 0x00095f62u) & 0x000fffffu) + 0x3fe6a09eu; }

// (atanh(s)/s - 1 - z/3) / z^2 with z = s^2 <= 0.0295, error 2^-56.3.
double nx_f64_atanh_poly(const in double z) {
    double p = 0.05794017367332023lf;
    p = fma(p, z, 0.058605882783385466lf);
    p = fma(p, z, 0.06667071984403715lf);
    p = fma(p, z, 0.07692304922563914lf);
    p = fma(p, z, 0.09090909077918398lf);
    p = fma(p, z, 0.1111111111138409lf);
    p = fma(p, z, 0.14285714285713164lf);
    p = fma(p, z, 0.2lf);
    return p;
}

// k ln 2 + 2 atanh(s) for |s| <= 0.172, relative error below 2^-66.
dvec2 nx_f64_log_sum(const in dvec2 s, const in int k) {
    dvec2 z = nx_f64_dd_multiply(s, s);
    dvec2 c = nx_f64_fast_two_sum(0.3333333333333333lf, z.x * nx_f64_atanh_poly(z.x));
    dvec2 m = nx_f64_dd_multiply(s, nx_f64_dd_multiply(z, dvec2(c.x, c.y + 1.850371707708594e-17lf)));
    dvec2 a = nx_f64_dd_add(s, m);
    double kd = double(k);
    dvec2 t = nx_f64_two_sum(kd * 0.6931471805598903lf, 2.0lf * a.x);
    return nx_f64_fast_two_sum(t.x, t.y + fma(kd, 5.497923018708371e-14lf, 2.0lf * a.y));
}

// (m - 1 + c) / (m + 1 + c) for m in [0.7, 1.42] and |c| below an ulp of m.
dvec2 nx_f64_log_ratio(const in double m, const in double c) {
    double f = m - 1.0lf;
    dvec2 d = nx_f64_fast_two_sum(2.0lf, f);
    return nx_f64_dd_divide(dvec2(f, c), dvec2(d.x, d.y + c));
}

// log(x) of a positive finite x as a dd, relative error below 2^-66.
dvec2 nx_f64_dd_log(const in double x) {
    bool denormal = nx_f64_high(x) < 0x00100000u;
    double y = nx_f64_normalized(x);
    uint h = nx_f64_high(y);
    int k = nx_f64_log_k(h) - (denormal ? 54 : 0);
    dvec2 s = nx_f64_log_ratio(nx_f64_bits(nx_f64_log_m(h), nx_f64_low(y)), 0.0lf);
    return nx_f64_log_sum(s, k);
}

// log(a.x + a.y) for a.x in [2^-1000, 2^1000], |a.y| below an ulp of a.x.
double nx_f64_log_of_dd(const in dvec2 a) {
    uint h = nx_f64_high(a.x);
    int k = nx_f64_log_k(h);
    double c = a.y * nx_f64_pow2(-k);
    dvec2 l = nx_f64_log_sum(nx_f64_log_ratio(nx_f64_bits(nx_f64_log_m(h), nx_f64_low(a.x)), c), k);
    return l.x + l.y;
}

// log(1 + f.x + f.y) for f.x in [-1 + 2^-60, 2^1000], with full relative precision near 0.
double nx_f64_log1p_of_dd(const in dvec2 f) {
    if (f.x > -0.29lf && f.x < 0.41lf) {
        dvec2 d = nx_f64_fast_two_sum(2.0lf, f.x);
        dvec2 l = nx_f64_log_sum(nx_f64_dd_divide(f, dvec2(d.x, d.y + f.y)), 0);
        return l.x + l.y;
    }
    dvec2 u = nx_f64_two_sum(1.0lf, f.x);
    return nx_f64_log_of_dd(nx_f64_fast_two_sum(u.x, u.y + f.y));
}

// Logarithms of what is no positive finite number: -Inf of 0, NaN of a negative number.
double nx_f64_log_of_edge(const in double x) {
    if (nx_f64_isnan(x)) {
        return x;
    }
    if (nx_f64_iszero(x)) {
        return nx_f64_infinity(0x80000000u);
    }
    return nx_f64_high(x) == 0x7ff00000u ? x : nx_f64_nan();
}

// max error: 0.501 ulp over 4 10^6 inputs.
double nx_log_f64(const in double x) {
    uint h = nx_f64_high(x);
    if (nx_f64_iszero(x) || h >= 0x7ff00000u) {
        return nx_f64_log_of_edge(x);
    }
    dvec2 l = nx_f64_dd_log(x);
    return l.x + l.y;
}

// x = 2^k m with m in 0.7 to 1.42: k + log(m) / ln 2, which is exact where m is 1.
// max error: 0.501 ulp over 40,000 inputs.
double nx_log2_f64(const in double x) {
    uint h = nx_f64_high(x);
    if (nx_f64_iszero(x) || h >= 0x7ff00000u) {
        return nx_f64_log_of_edge(x);
    }
    double y = nx_f64_normalized(x);
    uint high = nx_f64_high(y);
    int k = nx_f64_log_k(high) - (h < 0x00100000u ? 54 : 0);
    dvec2 ratio = nx_f64_log_ratio(nx_f64_bits(nx_f64_log_m(high), nx_f64_low(y)), 0.0lf);
    dvec2 p = nx_f64_dd_multiply(nx_f64_log_sum(ratio, 0), dvec2(1.4426950408889634lf, 2.0355273740931033e-17lf));
    dvec2 s = nx_f64_fast_two_sum(double(k), p.x);
    return s.x + (s.y + p.y);
}

// log1p(-1) = -Inf, below that NaN.
// max error: 1.5 ulp over 4 10^6 inputs.
double nx_log1p_f64(const in double x) {
    uint h = nx_f64_high(x);
    if (nx_f64_isnan(x) || h == 0x7ff00000u || nx_f64_magnitude(x) < 5.5e-17lf) {
        return x;
    }
    if (x <= -1.0lf) {
        return x == -1.0lf ? nx_f64_infinity(0x80000000u) : nx_f64_nan();
    }
    if (x >= 1.0lf) {
        // the rounded sum that BinaryBackend takes
        dvec2 l = nx_f64_dd_log(1.0lf + x);
        return l.x + l.y;
    }
    return nx_f64_log1p_of_dd(dvec2(x, 0.0lf));
}

// log(1 + x) for finite x >= 0 in the steps of fdlibm (Sun Microsystems, 1993), from which the C library under
// BinaryBackend has its asinh, acosh and atanh: the same digits. Within 0.9 ulp.
double nx_f64_log1p_steps(const in double x) {
    double f = x;
    double c = 0.0lf;
    double k = 0.0lf;
    if (nx_f64_high(x) >= 0x3fda827au) {
        double u = 1.0lf + x;
        uint h = nx_f64_high(u);
        int e = int(h >> 20) - 1023;
        c = nx_f64_mantissa_quotient(e > 0 ? 1.0lf - (u - x) : x - (u - 1.0lf), u);
        uint m = h & 0x000fffffu;
        bool upper = m >= 0x0006a09eu;
        f = nx_f64_bits(m | (upper ? 0x3fe00000u : 0x3ff00000u), nx_f64_low(u)) - 1.0lf;
        k = double(upper ? e + 1 : e);
    }
    double half_square = 0.5lf * f * f;
    double s = nx_f64_mantissa_quotient(f, 2.0lf + f);
    double z = s * s;
    double z2 = z * z;
    double z4 = z2 * z2;
    double r = z * 6.666666666666735130e-01lf + z2 * (3.999999999940941908e-01lf + z * 2.857142874366239149e-01lf);
    r = r + z4 * (2.222219843214978396e-01lf + z * 1.818357216161805012e-01lf);
    r = r + (z4 * z2) * (1.531383769920937332e-01lf + z * 1.479819860510658591e-01lf);
    double low = s * (half_square + r) + (k * 1.90821492927058770002e-10lf + c);
    return k * 6.93147180369123816490e-01lf - ((half_square - low) - f);
}

// log(|x|) + ln 2 for |x| > 2^28.
double nx_f64_log_twice(const in double x) {
    dvec2 l = nx_f64_dd_log(x * 0.5lf);
    return l.x + (l.y + 1.3862943611198906lf);
}

// log(x + sqrt(x^2 + 1)) in the steps of fdlibm.
// max error: 1.9 ulp over 4 10^6 inputs.
double nx_asinh_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || nx_f64_isinf(x) || a < 3.7e-9lf) {
        return x;
    }
    double r;
    if (a > 268435456.0lf) {
        r = nx_f64_log_twice(a);
    } else if (a > 2.0lf) {
        double u = nx_f64_sqrt_core(a * a + 1.0lf) + a;
        r = nx_log_f64(2.0lf * a + nx_f64_mantissa_quotient(1.0lf, u));
    } else {
        double t = a * a;
        r = nx_f64_log1p_steps(a + nx_f64_mantissa_quotient(t, 1.0lf + nx_f64_sqrt_core(1.0lf + t)));
    }
    return nx_f64_with_sign(r, nx_f64_high(x));
}

// log(x + sqrt(x^2 - 1)), NaN below 1. In the steps of fdlibm but near 1, where they lose too much.
// max error: 1.7 ulp over 4 10^6 inputs.
double nx_acosh_f64(const in double x) {
    if (nx_f64_isnan(x)) {
        return x;
    }
    if (x < 1.0lf) {
        return nx_f64_nan();
    }
    if (nx_f64_isinf(x)) {
        return x;
    }
    if (x > 268435456.0lf) {
        return nx_f64_log_twice(x);
    }
    if (x > 2.0lf) {
        double u = x + nx_f64_sqrt_core(x * x - 1.0lf);
        return nx_log_f64(2.0lf * x - nx_f64_mantissa_quotient(1.0lf, u));
    }
    double t = x - 1.0lf;
    if (t > 0.25lf) {
        return nx_f64_log1p_steps(t + nx_f64_sqrt_core(2.0lf * t + t * t));
    }
    if (t == 0.0lf) {
        return 0.0lf;
    }
    dvec2 p = nx_f64_dd_multiply(dvec2(t, 0.0lf), nx_f64_fast_two_sum(2.0lf, t));
    return nx_f64_log1p_of_dd(nx_f64_dd_add(dvec2(t, 0.0lf), nx_f64_dd_sqrt(p)));
}

// log((1 + x) / (1 - x)) / 2, infinite at -1 and 1, NaN beyond. In the steps of fdlibm.
// max error: 1.8 ulp over 4 10^6 inputs.
double nx_atanh_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a < 3.7e-9lf) {
        return x;
    }
    if (a >= 1.0lf) {
        return a == 1.0lf ? nx_f64_infinity(nx_f64_high(x)) : nx_f64_nan();
    }
    double t = a + a;
    double u = 1.0lf - a;
    double v = a < 0.5lf ? t + nx_f64_mantissa_quotient(t * a, u) : nx_f64_mantissa_quotient(t, u);
    return nx_f64_with_sign(0.5lf * nx_f64_log1p_steps(v), nx_f64_high(x));
}

// 0 for a fraction, 2 for an even and 3 for an odd whole number.
uint nx_f64_parity(const in double y) {
    uvec2 u = unpackDouble2x32(y);
    uvec2 t = unpackDouble2x32(nx_f64_truncate(y));
    if (u.x != t.x || u.y != t.y) {
        return 0u;
    }
    double b = nx_f64_magnitude(y) * 0.5lf;
    return nx_f64_truncate(b) != b ? 3u : 2u;
}

// |x|^y for finite nonzero x and finite y, rounded once.
double nx_f64_pow_core(const in double x, const in double y) {
    dvec2 l = nx_f64_dd_log(nx_f64_magnitude(x));
    double yc = nx_f64_exp_range(y, -1e21lf, 1e21lf);
    dvec2 p = nx_f64_two_product(l.x, yc);
    p = nx_f64_fast_two_sum(p.x, p.y + l.y * yc);
    if (p.x > 720.0lf || p.x < -760.0lf) {
        p = dvec2(nx_f64_exp_range(p.x, -760.0lf, 720.0lf), 0.0lf);
    }
    double n = nx_f64_exp_n(p.x);
    dvec2 e = nx_f64_exp_fraction(nx_f64_exp_reduce(p, n));
    return nx_f64_scale(e.x + e.y, int(n));
}

// Special cases as pow of C. Squares are products, which the compiler writes for them.
// max error: 0.65 ulp (0.75 for denormal results) over 4 10^6 inputs.
double nx_pow_f64(const in double x, const in double y) {
    if (y == 2.0lf) {
        return x * x;
    }
    if (nx_f64_iszero(y) || x == 1.0lf) {
        return 1.0lf;
    }
    if (nx_f64_isnan(x) || nx_f64_isnan(y)) {
        return nx_f64_nan();
    }
    uint hx = nx_f64_high(x);
    bool y_negative = (nx_f64_high(y) & 0x80000000u) != 0u;
    if (nx_f64_isinf(y)) {
        double a = nx_f64_magnitude(x);
        if (a == 1.0lf) {
            return 1.0lf;
        }
        return (a > 1.0lf) != y_negative ? nx_f64_infinity(0u) : nx_f64_zero(0u);
    }
    uint parity = nx_f64_parity(y);
    uint sign = parity == 3u ? hx & 0x80000000u : 0u;
    bool x_zero = nx_f64_iszero(x);
    if (x_zero || nx_f64_isinf(x)) {
        return x_zero == y_negative ? nx_f64_infinity(sign) : nx_f64_zero(sign);
    }
    if ((hx & 0x80000000u) != 0u && parity == 0u) {
        return nx_f64_nan();
    }
    return nx_f64_flip(nx_f64_pow_core(x, y), sign);
}

#endif

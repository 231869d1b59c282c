// exp and its family for f64, table-free: x = n ln 2 + r, |r| <= ln 2 / 2, with r and exp(r) as dd
// (Cody and Waite reduction; polynomials by Sollya fpminimax).
#ifndef NX_F64_EXP_GLSL
#define NX_F64_EXP_GLSL
#include "nx_f64_basic.glsl"

// The n of the reduction of x, as a whole number; |x| <= 2000.
double nx_f64_exp_n(const in double x) { return floor(x * 1.4426950408889634lf + 0.5lf); }

// x - n ln 2.
dvec2 nx_f64_exp_reduce(const in dvec2 x, const in double n) {
    double a = x.x - n * 0.6931471805598903lf;
    dvec2 s = nx_f64_two_sum(a, -(n * 5.497923018708371e-14lf));
    return nx_f64_fast_two_sum(s.x, s.y + x.y);
}

// (exp(z) - 1 - z - z^2/2) / z^3 for |z| <= ln 2 / 2, error 2^-55.6.
double nx_f64_exp_poly(const in double z) {
    double p = 2.0917472691489854e-09lf;
    p = fma(p, z, 2.5101839527723023e-08lf);
    p = fma(p, z, 2.7557266281327026e-07lf);
    p = fma(p, z, 2.7557264529553494e-06lf);
    p = fma(p, z, 2.4801587331953365e-05lf);
    p = fma(p, z, 0.00019841269866594955lf);
    p = fma(p, z, 0.0013888888888881742lf);
    p = fma(p, z, 0.00833333333332888lf);
    p = fma(p, z, 0.04166666666666667lf);
    p = fma(p, z, 0.16666666666666669lf);
    return p;
}

// exp(r) - 1 for |r| <= ln 2 / 2, relative error below 2^-57.
dvec2 nx_f64_expm1_fraction(const in dvec2 r) {
    dvec2 z = nx_f64_two_product(r.x, r.x);
    double t = fma(z.x * r.x, nx_f64_exp_poly(r.x), 0.5lf * z.y) + fma(r.y, r.x, r.y);
    dvec2 s = nx_f64_fast_two_sum(r.x, 0.5lf * z.x);
    return nx_f64_fast_two_sum(s.x, s.y + t);
}

// exp(r) for |r| <= ln 2 / 2, relative error below 2^-59.
dvec2 nx_f64_exp_fraction(const in dvec2 r) {
    dvec2 m = nx_f64_expm1_fraction(r);
    dvec2 s = nx_f64_fast_two_sum(1.0lf, m.x);
    return nx_f64_fast_two_sum(s.x, s.y + m.y);
}

// x held within [low, high]; NaN stays NaN.
double nx_f64_exp_range(const in double x, const in double low, const in double high) {
    double y = x < low ? low : x;
    return y > high ? high : y;
}

// max error: 0.55 ulp (0.75 for denormal results) over 4 10^6 inputs.
double nx_exp_f64(const in double x) {
    double y = nx_f64_exp_range(x, -760.0lf, 720.0lf);
    double n = nx_f64_exp_n(y);
    dvec2 e = nx_f64_exp_fraction(nx_f64_exp_reduce(dvec2(y, 0.0lf), n));
    if (nx_f64_isnan(x)) {
        return x;
    }
    return nx_f64_scale(e.x + e.y, int(n));
}

// exp(x) - 1 within 0.65 ulp, for |x| <= 40.
double nx_f64_expm1(const in double x) {
    double n = nx_f64_exp_n(x);
    dvec2 m = nx_f64_expm1_fraction(nx_f64_exp_reduce(dvec2(x, 0.0lf), n));
    double c = nx_f64_pow2(int(n));
    dvec2 o = nx_f64_two_sum(c, -1.0lf);
    dvec2 s = nx_f64_two_sum(o.x, m.x * c);
    return s.x + (s.y + (o.y + m.y * c));
}

// Above 0.5 the difference that BinaryBackend takes, for the same digits; it loses too much below.
// max error: 1.1 ulp over 4 10^6 inputs.
double nx_expm1_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a < 5.5e-17lf) {
        return x;
    }
    return a > 0.5lf ? nx_exp_f64(x) - 1.0lf : nx_f64_expm1(x);
}

// exp(x) as a dd, for |x| <= 700.
dvec2 nx_f64_dd_exp(const in dvec2 x) {
    double n = nx_f64_exp_n(x.x);
    dvec2 e = nx_f64_exp_fraction(nx_f64_exp_reduce(x, n));
    return e * nx_f64_pow2(int(n));
}

// 1 / (1 + exp(-x)) in three steps, as BinaryBackend takes them, for x >= 0; these lose too much below.
// max error: 1.6 ulp over 4 10^6 inputs, 0.60 below 0.
double nx_sigmoid_f64(const in double x) {
    if (nx_f64_isnan(x)) {
        return x;
    }
    if (x < -40.0lf) {
        return nx_exp_f64(x);
    }
    if (x >= 0.0lf) {
        return nx_f64_mantissa_quotient(1.0lf, 1.0lf + nx_exp_f64(-x));
    }
    dvec2 e = nx_f64_dd_exp(dvec2(x, 0.0lf));
    dvec2 s = nx_f64_fast_two_sum(1.0lf, e.x);
    dvec2 q = nx_f64_dd_divide(e, dvec2(s.x, s.y + e.y));
    return q.x + q.y;
}

// max error: 0.60 ulp over 4 10^6 inputs.
double nx_tanh_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a < 1e-9lf) {
        return x;
    }
    if (a < 0.3125lf) {
        double z = a * a;
        double p = -0.0001923078677417243lf;
        p = fma(p, z, 0.0005797586328214057lf);
        p = fma(p, z, -0.0014545818076620155lf);
        p = fma(p, z, 0.0035920366984615146lf);
        p = fma(p, z, -0.008863231491000368lf);
        p = fma(p, z, 0.021869488430911976lf);
        p = fma(p, z, -0.053968253966762525lf);
        p = fma(p, z, 0.13333333333332367lf);
        p = fma(p, z, -0.3333333333333333lf);
        return x + (x * z) * p;
    }
    double b = a > 25.0lf ? 25.0lf : a;
    dvec2 e = nx_f64_dd_exp(dvec2(-2.0lf * b, 0.0lf));
    dvec2 num = nx_f64_fast_two_sum(1.0lf, -e.x);
    dvec2 den = nx_f64_fast_two_sum(1.0lf, e.x);
    dvec2 q = nx_f64_dd_divide(dvec2(num.x, num.y - e.y), dvec2(den.x, den.y + e.y));
    return nx_f64_with_sign(q.x + q.y, nx_f64_high(x));
}

// (exp(a) + sign * exp(-a)) / 2 for a >= 0.
double nx_f64_exp_pair(const in double a, const in double sign) {
    double b = a > 720.0lf ? 720.0lf : a;
    double n = nx_f64_exp_n(b);
    dvec2 e = nx_f64_exp_fraction(nx_f64_exp_reduce(dvec2(b, 0.0lf), n));
    dvec2 i = nx_f64_dd_divide(dvec2(1.0lf, 0.0lf), e);
    int k = int(n);
    double c = sign * nx_f64_pow2(k > 500 ? -1000 : -2 * k);
    dvec2 s = nx_f64_two_sum(e.x, i.x * c);
    return nx_f64_scale(s.x + (s.y + (e.y + i.y * c)), k - 1);
}

// Steps of fdlibm, from which the C library under BinaryBackend has them.
// max error: 1.9 ulp over 4 10^6 inputs.
double nx_sinh_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a < 3.7e-9lf) {
        return x;
    }
    double r;
    if (a < 22.0lf) {
        double t = nx_f64_expm1(a);
        r = 0.5lf * (a < 1.0lf ? 2.0lf * t - nx_f64_mantissa_quotient(t * t, t + 1.0lf)
                               : t + nx_f64_mantissa_quotient(t, t + 1.0lf));
    } else {
        r = nx_f64_exp_pair(a, -1.0lf);
    }
    return nx_f64_with_sign(r, nx_f64_high(x));
}

// Steps of fdlibm.
// max error: 1.1 ulp over 4 10^6 inputs.
double nx_cosh_f64(const in double x) {
    if (nx_f64_isnan(x)) {
        return x;
    }
    double a = nx_f64_magnitude(x);
    if (a < 0.34657359027997264lf) {
        double t = nx_f64_expm1(a);
        double w = 1.0lf + t;
        return 1.0lf + nx_f64_mantissa_quotient(t * t, w + w);
    }
    if (a < 22.0lf) {
        double t = nx_exp_f64(a);
        return 0.5lf * t + nx_f64_mantissa_quotient(0.5lf, t);
    }
    return nx_f64_exp_pair(a, 1.0lf);
}

#endif

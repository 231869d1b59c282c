// atan2 and the inverse trigonometric functions for f64, all from one core that takes the tangent as a quotient
// of two dd. Polynomial by Sollya fpminimax.
#ifndef NX_F64_ATAN_GLSL
#define NX_F64_ATAN_GLSL
#include "nx_f64_core.glsl"
#include "nx_f64_basic.glsl"

// The angle in [0, pi/2] of the point (den, num), both >= 0 and one of them in about [2^-400, 2^400].
dvec2 nx_f64_angle(const in dvec2 num, const in dvec2 den) {
    bool steep = num.x > den.x;
    dvec2 n = steep ? den : num;
    dvec2 d = steep ? num : den;
    bool middle = n.x > 0.41421356lf * d.x;
    dvec2 base = dvec2(0.0lf, 0.0lf);
    if (middle) {
        dvec2 m = nx_f64_dd_add(n, -d);
        d = nx_f64_dd_add(n, d);
        n = m;
        base = dvec2(0.7853981633974483lf, 3.061616997868383e-17lf);
    }
    dvec2 t = nx_f64_dd_divide(n, d);
    double z = t.x * t.x;
    double p = 0.015485552973693549lf;
    p = fma(p, z, -0.03377970634035137lf);
    p = fma(p, z, 0.045176025537983416lf);
    p = fma(p, z, -0.05222125029701667lf);
    p = fma(p, z, 0.05877647086655838lf);
    p = fma(p, z, -0.06666296214858745lf);
    p = fma(p, z, 0.07692287906150981lf);
    p = fma(p, z, -0.09090908395377721lf);
    p = fma(p, z, 0.11111111095898457lf);
    p = fma(p, z, -0.142857142855268lf);
    p = fma(p, z, 0.19999999999998921lf);
    p = fma(p, z, -0.3333333333333333lf);
    dvec2 a = nx_f64_fast_two_sum(t.x, fma(z * t.x, p, t.y * (1.0lf - z)));
    if (middle) {
        a = nx_f64_dd_add(base, a);
    }
    if (steep) {
        a = nx_f64_dd_add(dvec2(1.5707963267948966lf, 6.123233995736766e-17lf), -a);
    }
    return a;
}

// max error: 0.70 ulp over 4 10^6 inputs.
double nx_atan_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a < 1e-9lf) {
        return x;
    }
    a = a > 1e20lf ? 1e20lf : a;
    dvec2 r = nx_f64_angle(dvec2(a, 0.0lf), dvec2(1.0lf, 0.0lf));
    return nx_f64_with_sign(r.x + r.y, nx_f64_high(x));
}

// pi - a where x is negative, with the sign of y.
double nx_f64_quadrants(const in dvec2 a, const in uint hx, const in uint hy) {
    dvec2 r = a;
    if ((hx & 0x80000000u) != 0u) {
        r = nx_f64_dd_add(dvec2(3.141592653589793lf, 1.2246467991473532e-16lf), -a);
    }
    return nx_f64_with_sign(r.x + r.y, hy);
}

// The angle of (x, y), in all special cases as atan2 of C.
// max error: 0.65 ulp over 4 10^6 inputs.
double nx_atan2_f64(const in double y, const in double x) {
    if (nx_f64_isnan(x) || nx_f64_isnan(y)) {
        return nx_f64_nan();
    }
    uint hx = nx_f64_high(x);
    uint hy = nx_f64_high(y);
    bool x_inf = nx_f64_isinf(x);
    bool y_inf = nx_f64_isinf(y);
    bool x_zero = nx_f64_iszero(x);
    bool y_zero = nx_f64_iszero(y);
    int ey = y_inf ? 5000 : (y_zero ? -5000 : nx_f64_exponent(y));
    int ex = x_inf ? 5000 : (x_zero ? -5000 : nx_f64_exponent(x));
    int difference = ey - ex;
    if (y_zero && x_zero) {
        return nx_f64_quadrants(dvec2(0.0lf, 0.0lf), hx, hy);
    }
    if (difference < -70 && (hx & 0x80000000u) == 0u) {
        return nx_divide_f64(y, x);
    }
    if (difference > 70) {
        return nx_f64_with_sign(1.5707963267948966lf, hy);
    }
    if (difference < -70) {
        return nx_f64_with_sign(3.141592653589793lf, hy);
    }
    double my = y_inf ? 1.0lf : nx_f64_mantissa(y);
    double mx = x_inf ? 1.0lf : nx_f64_mantissa(x) * nx_f64_pow2(-difference);
    return nx_f64_quadrants(nx_f64_angle(dvec2(my, 0.0lf), dvec2(mx, 0.0lf)), hx, hy);
}

// sqrt(1 - x^2) for |x| <= 1.
dvec2 nx_f64_cathetus(const in double x) {
    dvec2 p = nx_f64_two_product(x, x);
    dvec2 s = nx_f64_fast_two_sum(1.0lf, -p.x);
    s = nx_f64_fast_two_sum(s.x, s.y - p.y);
    if (s.x <= 0.0lf) {
        return dvec2(0.0lf, 0.0lf);
    }
    return nx_f64_dd_sqrt(s);
}

// NaN outside [-1, 1].
// max error: 0.70 ulp over 4 10^6 inputs.
double nx_asin_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a < 1e-9lf) {
        return x;
    }
    if (a > 1.0lf) {
        return nx_f64_nan();
    }
    dvec2 r = nx_f64_angle(dvec2(a, 0.0lf), nx_f64_cathetus(a));
    return nx_f64_with_sign(r.x + r.y, nx_f64_high(x));
}

// NaN outside [-1, 1].
// max error: 0.70 ulp over 4 10^6 inputs.
double nx_acos_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a > 1.0lf) {
        return nx_f64_nan();
    }
    dvec2 c = nx_f64_cathetus(a);
    a = a < 1e-100lf ? 0.0lf : a;
    return nx_f64_quadrants(nx_f64_angle(c, dvec2(a, 0.0lf)), nx_f64_high(x), 0u);
}

#endif

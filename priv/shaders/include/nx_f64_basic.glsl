// Arithmetic, comparisons, predicates and rounding for f64.
#ifndef NX_F64_BASIC_GLSL
#define NX_F64_BASIC_GLSL
#include "nx_f64_core.glsl"

double nx_add_f64(const in double a, const in double b) { return a + b; }

double nx_subtract_f64(const in double a, const in double b) { return a - b; }

double nx_multiply_f64(const in double a, const in double b) { return a * b; }

// c - a * b, exactly, where c is within a few units of the product's last place and all are far from overflow and
// underflow. Split by rounding (Veltkamp), so that no product of halves has more than 53 bits.
double nx_f64_exact_residual(const in double c, const in double a, const in double b) {
    double p = a * b;
    double u = 134217729.0lf * a;
    double ah = u - (u - a);
    double al = a - ah;
    double v = 134217729.0lf * b;
    double bh = v - (v - b);
    double bl = b - bh;
    return (c - p) - (((ah * bh - p) + ah * bl + al * bh) + al * bl);
}
double nx_f64_exact_residual_fused(const in double c, const in double a, const in double b) { return fma(-a, b, c); }

// a / b, correctly rounded, for operands far from overflow and underflow.
double nx_f64_mantissa_quotient(const in double a, const in double b) {
    double y = nx_f64_reciprocal(b);
    double q = a * y;
    dvec2 p = nx_f64_two_product(q, b);
    double t = ((a - p.x) - p.y) * y;
    double s = q + t;
    double twice = 2.0lf * ((q - s) + t);
    double step = (s + twice) - s;
    // The sum, but for the roundings of t, is half way to the next number: the residual there says on which side the
    // quotient is.
    if (step != 0.0lf && abs(step - twice) <= abs(t) * 1e-15lf) {
        double rest = nx_f64_exact_residual(a, s, b) - 0.5lf * step * b;
        return rest != 0.0lf && (rest > 0.0lf) == (step > 0.0lf) ? s + step : s;
    }
    return s;
}

double nx_f64_mantissa_quotient_rounded(const in double a, const in double b) { return a / b; }

// The rounded quotient q of a and b such that scaling it to a denormal number rounds once: to odd, or,
// where the last bit alone gets lost, away from the tie.
double nx_f64_sticky_quotient(const in double q, const in double a, const in double b, const in bool last_bit) {
    dvec2 p = nx_f64_two_product(q, b);
    double r = (a - p.x) - p.y;
    uvec2 u = unpackDouble2x32(q);
    if (r == 0.0lf || (last_bit && (u.x & 1u) == 0u)) {
        return q;
    }
    if (r < 0.0lf) {
        u.y = u.x == 0u ? u.y - 1u : u.y;
        u.x = u.x - 1u;
    } else if (last_bit) {
        u.x = u.x + 1u;
        u.y = u.x == 0u ? u.y + 1u : u.y;
    }
    u.x = last_bit ? u.x : u.x | 1u;
    return packDouble2x32(u);
}

// Correctly rounded, denormal results too.
// max error: 0.5 ulp over 4 10^6 inputs.
double nx_divide_f64(const in double a, const in double b) {
    uint sign = nx_f64_high(a) ^ nx_f64_high(b);
    if (nx_f64_isnan(a) || nx_f64_isnan(b)) {
        return nx_f64_nan();
    }
    bool a_inf = nx_f64_isinf(a);
    bool b_inf = nx_f64_isinf(b);
    bool a_zero = nx_f64_iszero(a);
    bool b_zero = nx_f64_iszero(b);
    if (a_inf || b_inf || a_zero || b_zero) {
        if ((a_inf && b_inf) || (a_zero && b_zero)) {
            return nx_f64_nan();
        }
        return a_inf || b_zero ? nx_f64_infinity(sign) : nx_f64_zero(sign);
    }
    double ma = nx_f64_mantissa(a);
    double mb = nx_f64_mantissa(b);
    double q = nx_f64_mantissa_quotient(ma, mb);
    int e = nx_f64_exponent(a) - nx_f64_exponent(b);
    int top = q < 1.0lf ? e - 1 : e;
    if (top < -1022) {
        q = nx_f64_sticky_quotient(q, ma, mb, top == -1023);
    }
    e = e > 1100 ? 1100 : (e < -1100 ? -1100 : e);
    return nx_f64_flip(nx_f64_scale(q, e), sign);
}

double nx_divide_f64_rounded(const in double a, const in double b) {
    double q = a / b;
    return nx_f64_isnan(q) ? nx_f64_nan() : q;
}

// Correctly rounded.
// max error: 0.5 ulp over 4 10^6 inputs.
double nx_sqrt_f64(const in double x) {
    if (nx_f64_isnan(x) || nx_f64_iszero(x)) {
        return x;
    }
    uint h = nx_f64_high(x);
    if (h >= 0x7ff00000u) {
        return h == 0x7ff00000u ? x : nx_f64_nan();
    }
    int e = nx_f64_exponent(x);
    double m = nx_f64_mantissa(x);
    int odd = e & 1;
    return nx_f64_sqrt_core(odd != 0 ? m + m : m) * nx_f64_pow2((e - odd) / 2);
}

double nx_sqrt_f64_rounded(const in double x) {
    double r = sqrt(x);
    return !nx_f64_isnan(x) && nx_f64_isnan(r) ? nx_f64_nan() : r;
}

// The reciprocal of the rounded root, as BinaryBackend has it.
// max error: 1.5 ulp over 4 10^6 inputs.
double nx_rsqrt_f64(const in double x) {
    if (nx_f64_isnan(x)) {
        return x;
    }
    uint h = nx_f64_high(x);
    if (nx_f64_iszero(x)) {
        return nx_f64_infinity(h);
    }
    if (h >= 0x7ff00000u) {
        return h == 0x7ff00000u ? nx_f64_zero(0u) : nx_f64_nan();
    }
    int e = nx_f64_exponent(x);
    double m = nx_f64_mantissa(x);
    int odd = e & 1;
    return nx_f64_mantissa_quotient(1.0lf, nx_f64_sqrt_core(odd != 0 ? m + m : m)) * nx_f64_pow2((odd - e) / 2);
}

// max error: 0.501 ulp over 4 10^6 inputs.
double nx_cbrt_f64(const in double x) {
    if (nx_f64_isnan(x) || nx_f64_isinf(x) || nx_f64_iszero(x)) {
        return x;
    }
    int e = nx_f64_exponent(x) + 1200;
    int q = e / 3;
    double m = nx_f64_mantissa(x) * nx_f64_pow2(e - 3 * q);
    // A parabola within 6 % of the cube root on [1, 8), then Newton.
    double y = fma(fma(-0.0145lf, m, 0.2718lf), m, 0.7651lf);
    for (int i = 0; i < 4; i++) {
        y = y - (y - m * nx_f64_reciprocal(y * y)) * 0.3333333333333333lf;
    }
    // The last step with the residual m - y^3 in double-double.
    dvec2 s = nx_f64_two_product(y, y);
    dvec2 p = nx_f64_two_product(s.x, y);
    double r = ((m - p.x) - p.y) - s.y * y;
    y = y + r * nx_f64_reciprocal(3.0lf * s.x);
    return nx_f64_with_sign(y * nx_f64_pow2(q - 400), nx_f64_high(x));
}

// The bits of x as a signed number that orders like x (both zeros are 0): high word, low word. Denormals compare
// right even where the device flushes them.
uvec2 nx_f64_order_key(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    uint high = u.y & 0x7fffffffu;
    if ((u.y & 0x80000000u) == 0u) {
        return uvec2(u.x, high | 0x80000000u);
    }
    uint low = ~u.x + 1u;
    return uvec2(low, (u.x == 0u ? ~high + 1u : ~high) ^ 0x80000000u);
}

bool nx_f64_ordered(const in double a, const in double b) { return !(nx_f64_isnan(a) || nx_f64_isnan(b)); }

// a < b for numbers.
bool nx_f64_below(const in double a, const in double b) {
    uvec2 i = nx_f64_order_key(a);
    uvec2 j = nx_f64_order_key(b);
    return i.y < j.y || (i.y == j.y && i.x < j.x);
}

// The remainder of truncated division (fmod of C), exact.
double nx_remainder_f64(const in double a, const in double b) {
    if (nx_f64_isnan(a) || nx_f64_isnan(b) || nx_f64_isinf(a) || nx_f64_iszero(b)) {
        return nx_f64_nan();
    }
    double x = nx_f64_magnitude(a);
    double y = nx_f64_magnitude(b);
    if (nx_f64_isinf(b) || nx_f64_below(x, y)) {
        return a;
    }
    int ey = nx_f64_exponent(b);
    double my = nx_f64_mantissa(b);
    double inverse = nx_f64_reciprocal(my);
    // r 2^er is the rest, r in [0, 2^24); each round takes at most 24 bits of the quotient off.
    double r = nx_f64_mantissa(a);
    int er = nx_f64_exponent(a);
    for (int i = 0; i < 100; i++) {
        double n = floor(r * inverse);
        double nh = nx_f64_split(my) * n;
        double nl = (my - nx_f64_split(my)) * n;
        r = (r - nh) - nl;
        if (r < 0.0lf) {
            r = r + my;
        }
        if (r >= my) {
            r = r - my;
        }
        int step = er - ey;
        if (step <= 0) {
            break;
        }
        step = step > 24 ? 24 : step;
        r = r * nx_f64_pow2(step);
        er = er - step;
    }
    return nx_f64_with_sign(nx_f64_scale(r, ey), nx_f64_high(a));
}

uint nx_equal_f64(const in double a, const in double b) {
    uvec2 i = nx_f64_order_key(a);
    uvec2 j = nx_f64_order_key(b);
    return nx_f64_ordered(a, b) && i.x == j.x && i.y == j.y ? 1u : 0u;
}

uint nx_not_equal_f64(const in double a, const in double b) { return 1u - nx_equal_f64(a, b); }

uint nx_less_f64(const in double a, const in double b) { return nx_f64_ordered(a, b) && nx_f64_below(a, b) ? 1u : 0u; }

uint nx_less_equal_f64(const in double a, const in double b) { return nx_f64_ordered(a, b) && !nx_f64_below(b, a) ? 1u : 0u; }

uint nx_greater_f64(const in double a, const in double b) { return nx_less_f64(b, a); }

uint nx_greater_equal_f64(const in double a, const in double b) { return nx_less_equal_f64(b, a); }

// NaN if either operand is NaN; the first of equal operands.
double nx_max_f64(const in double a, const in double b) {
    bool second = nx_f64_isnan(b) || nx_f64_below(a, b);
    return second && !nx_f64_isnan(a) ? b : a;
}

// NaN if either operand is NaN; the first of equal operands.
double nx_min_f64(const in double a, const in double b) {
    bool second = nx_f64_isnan(b) || nx_f64_below(b, a);
    return second && !nx_f64_isnan(a) ? b : a;
}

// The largest and the least of many, in whatever order they are combined: NaN if any is, and 0.0 is above -0.0.
double nx_largest_f64(const in double a, const in double b) {
    bool zeros = nx_f64_iszero(a) && nx_f64_iszero(b);
    bool second = nx_f64_isnan(b) || nx_f64_below(a, b) || (zeros && (nx_f64_high(a) >> 31) != 0u);
    return second && !nx_f64_isnan(a) ? b : a;
}

double nx_least_f64(const in double a, const in double b) {
    bool zeros = nx_f64_iszero(a) && nx_f64_iszero(b);
    bool second = nx_f64_isnan(b) || nx_f64_below(b, a) || (zeros && (nx_f64_high(a) >> 31) == 0u);
    return second && !nx_f64_isnan(a) ? b : a;
}

// NaN is true, as in Nx.
uint nx_truthy_f64(const in double x) { return nx_f64_iszero(x) ? 0u : 1u; }

uint nx_logical_and_f64(const in double a, const in double b) { return nx_truthy_f64(a) & nx_truthy_f64(b); }

uint nx_logical_or_f64(const in double a, const in double b) { return nx_truthy_f64(a) | nx_truthy_f64(b); }

uint nx_logical_xor_f64(const in double a, const in double b) { return nx_truthy_f64(a) ^ nx_truthy_f64(b); }

uint nx_is_nan_f64(const in double x) { return nx_f64_isnan(x) ? 1u : 0u; }

uint nx_is_infinity_f64(const in double x) { return nx_f64_isinf(x) ? 1u : 0u; }

double nx_select_f64(const in uint pred, const in double a, const in double b) { return pred != 0u ? a : b; }

double nx_abs_f64(const in double x) { return nx_f64_magnitude(x); }

double nx_negate_f64(const in double x) { return nx_f64_flip(x, 0x80000000u); }

// -1, 1, or x itself where that is zero; 1 for NaN, as in BinaryBackend.
double nx_sign_f64(const in double x) {
    if (nx_f64_iszero(x)) {
        return x;
    }
    return nx_f64_with_sign(1.0lf, nx_f64_isnan(x) ? 0u : nx_f64_high(x));
}

double nx_floor_f64(const in double x) {
    double t = nx_f64_truncate(x);
    return nx_f64_below(x, t) ? nx_f64_with_sign(t - 1.0lf, 0x80000000u) : t;
}

double nx_ceil_f64(const in double x) {
    double t = nx_f64_truncate(x);
    return nx_f64_below(t, x) ? t + 1.0lf : t;
}

// Half away from zero; a zero result is +0.0.
double nx_round_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    double t = nx_f64_truncate(a);
    double r = a - t >= 0.5lf ? t + 1.0lf : t;
    if (nx_f64_isnan(x) || nx_f64_isinf(x)) {
        return x;
    }
    return nx_f64_iszero(r) ? nx_f64_zero(0u) : nx_f64_with_sign(r, nx_f64_high(x));
}

#endif

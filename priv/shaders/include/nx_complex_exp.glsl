// Exponential, logarithm, power, trigonometric and hyperbolic functions of complex numbers; see nx_complex.glsl.

// The parts of exp(x.x + x.y) (cos t + i sin t): t as (sin, cos).
COMPLEX AUX(polar_exp)(const in PAIR x, const in PAIR s, const in PAIR c) {
    PAIR e = AUX(exp_fraction)(x);
    int n = AUX(exp_exponent)(x);
    return COMPLEX(AUX(product)(e, c, n), AUX(product)(e, s, n));
}

// Infinity with the sign of x, NaN for zero.
REAL AUX(signed_infinity)(const in REAL x) {
    return AUX(iszero)(x) || AUX(isnan)(x) ? NOT_A_NUMBER() : INFINITE(SIGN_OF(x));
}

COMPLEX AUX(exp_of_infinity)(const in COMPLEX z) {
    bool infinite = AUX(isinf)(z.x);
    if (infinite && SIGN_OF(z.x) != 0u) {
        return COMPLEX(REAL(0), REAL(0));
    }
    if (infinite && AUX(isnan)(z.y)) {
        return COMPLEX(z.x, z.y);
    }
    if (!infinite || AUX(isinf)(z.y)) {
        return AUX(not_a_number)();
    }
    return COMPLEX(AUX(signed_infinity)(RE(cos)(z.y)), AUX(signed_infinity)(RE(sin)(z.y)));
}

COMPLEX FN(exp)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        return AUX(exp_of_infinity)(z);
    }
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.y));
    return AUX(polar_exp)(AUX(pair)(AUX(exp_range)(z.x)), t.xy, t.zw);
}

// exp(z) - 1 = expm1(x) cos y - 2 sin(y/2)^2 + i exp(x) sin y.
COMPLEX FN(expm1)(const in COMPLEX z) {
    if (!AUX(finite)(z) || z.x > REAL(40)) {
        COMPLEX e = FN(exp)(z);
        return COMPLEX(e.x - REAL(1), e.y);
    }
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.y));
    SINCOS h = AUX(sincos_pair)(AUX(pair)(z.y * REAL(0.5)));
    PAIR m = PAIR_EXPM1(z.x < REAL(-40) ? REAL(-40) : z.x);
    PAIR v = PAIR_MULTIPLY(h.xy, h.xy);
    PAIR r = PAIR_ADD(PAIR_MULTIPLY(m, t.zw), PAIR(v.x * REAL(-2), v.y * REAL(-2)));
    REAL x = AUX(iszero)(r.x) ? z.x : r.x;
    return COMPLEX(x, AUX(polar_exp)(AUX(pair)(AUX(exp_range)(z.x)), t.xy, t.zw).y);
}

// a + x^2 + y^2, exact before the last rounding, for parts that do not overflow.
PAIR AUX(add_squares)(const in REAL a, const in REAL x, const in REAL y) {
    PAIR xx = TWO_PRODUCT(x, x);
    PAIR yy = TWO_PRODUCT(y, y);
    PAIR s = TWO_SUM(a, xx.x);
    PAIR t = TWO_SUM(s.x, yy.x);
    PAIR low = TWO_SUM(xx.y, yy.y);
    low = PAIR_ADD(low, TWO_SUM(s.y, t.y));
    return PAIR_ADD(AUX(pair)(t.x), low);
}

// log(1 + f) for f > -1, with full relative precision near 0.
PAIR AUX(log1p)(const in PAIR f) {
    if (f.x > REAL(-0.28125) && f.x < REAL(0.40625)) {
        return PAIR_LOG1P(f);
    }
    PAIR u = TWO_SUM(REAL(1), f.x);
    return AUX(log_pair)(FAST_TWO_SUM(u.x, u.y + f.y), 0);
}

// log |z| of a finite z that is not zero.
PAIR AUX(log_abs)(const in COMPLEX z) {
    int e = AUX(exponent)(z);
    if (e >= -1 && e <= 0) {
        PAIR f = AUX(add_squares)(REAL(-1), max(RE(abs)(z.x), RE(abs)(z.y)), min(RE(abs)(z.x), RE(abs)(z.y)));
        if (f.x > REAL(-0.28125) && f.x < REAL(0.40625)) {
            return AUX(halved)(PAIR_LOG1P(f));
        }
    }
    COMPLEX u = AUX(scaled_down)(z, e);
    return AUX(halved)(AUX(log_pair)(AUX(dot)(u.x, u.x, u.y, u.y), 2 * e));
}

// Of zero: -Inf. The angle of -Inf is pi, whatever the sign of a finite imaginary part.
COMPLEX FN(log)(const in COMPLEX z) {
    REAL angle = RE(atan2)(z.y, z.x);
    if (!AUX(finite)(z)) {
        return COMPLEX(FN(abs)(z), AUX(isinf)(z.x) && !AUX(isinf)(z.y) ? RE(abs)(angle) : angle);
    }
    if (AUX(is_zero)(z)) {
        return COMPLEX(INFINITE(0x80000000u), angle);
    }
    return COMPLEX(AUX(log_abs)(z).x, angle);
}

COMPLEX FN(log1p)(const in COMPLEX z) {
    COMPLEX u = COMPLEX(z.x + REAL(1), AUX(iszero)(z.y) ? REAL(0) : z.y);
    if (!AUX(finite)(z) || AUX(is_zero)(z) || AUX(exponent)(z) > HUGE_EXPONENT) {
        COMPLEX l = FN(log)(u);
        return AUX(is_zero)(z) ? z : l;
    }
    PAIR f = AUX(add_squares)(z.x + z.x, z.x, z.y);
    REAL angle = RE(atan2)(u.y, u.x);
    if (f.x <= REAL(-1)) {
        return COMPLEX(FN(log)(u).x, angle);
    }
    REAL x = AUX(halved)(AUX(log1p)(f)).x;
    return COMPLEX(AUX(iszero)(f.x) ? WITH_SIGN(REAL(0), SIGN_OF(z.x)) : x, angle);
}

// The angle of a finite z that is not zero.
PAIR AUX(angle)(const in COMPLEX z) {
    COMPLEX u = AUX(scaled_down)(z, AUX(exponent)(z));
    PAIR a = PAIR_ANGLE(AUX(pair)(RE(abs)(u.y)), AUX(pair)(RE(abs)(u.x)));
    if (SIGN_OF(z.x) != 0u) {
        a = PAIR_ADD(AUX(pi)(), AUX(minus)(a));
    }
    return AUX(with_sign_pair)(a, SIGN_OF(z.y));
}

// a x + b y with pairs x and y, or the plain value where that is large.
PAIR AUX(combine)(const in REAL a, const in PAIR x, const in REAL b, const in PAIR y) {
    REAL plain = a * x.x + b * y.x;
    REAL size = RE(abs)(a * x.x) + RE(abs)(b * y.x);
    if (!(size < REAL(1e9))) {
        return AUX(pair)(plain);
    }
    return PAIR_ADD(PAIR_MULTIPLY(AUX(pair)(a), x), PAIR_MULTIPLY(AUX(pair)(b), y));
}

// exp(b log a). A base 0 gives 0, or 1 where the exponent is 0 too.
COMPLEX FN(pow)(const in COMPLEX a, const in COMPLEX b) {
    bool zero = AUX(is_zero)(a);
    if (zero && AUX(isinf)(b.x) && SIGN_OF(b.x) == 0u && AUX(iszero)(b.y)) {
        return COMPLEX(REAL(0), REAL(0));
    }
    if (!AUX(finite)(a) || !AUX(finite)(b)) {
        return AUX(not_a_number)();
    }
    if (zero) {
        return COMPLEX(AUX(is_zero)(b) ? REAL(1) : REAL(0), REAL(0));
    }
    if (AUX(iszero)(b.y)) {
        if (b.x == REAL(1)) {
            return a;
        }
        if (b.x == REAL(-1)) {
            return FN(divide)(COMPLEX(REAL(1), REAL(0)), a);
        }
    }
    PAIR l = AUX(log_abs)(a);
    PAIR t = AUX(angle)(a);
    PAIR x = AUX(combine)(b.x, l, -b.y, t);
    PAIR y = AUX(combine)(b.x, t, b.y, l);
    if (AUX(isnan)(x.x) || AUX(isnan)(y.x) || AUX(isinf)(y.x)) {
        return AUX(not_a_number)();
    }
    REAL c = AUX(exp_range)(x.x);
    x = c == x.x ? x : AUX(pair)(c);
    SINCOS s = AUX(sincos_pair)(y);
    return AUX(polar_exp)(x, s.xy, s.zw);
}

// sinh and cosh of |x| times 2^-n.
struct AUX(hyperbolic) {
    PAIR sinh_part;
    PAIR cosh_part;
    int n;
};

AUX(hyperbolic) AUX(hyperbolic_pair)(const in REAL x) {
    REAL a = RE(abs)(x);
    AUX(hyperbolic) r;
    if (a < REAL(22)) {
        // With t = exp(a) - 1 and q = t / (1 + t): sinh a = (t + q) / 2, cosh a = 1 + (t - q) / 2.
        PAIR t = PAIR_EXPM1(a);
        PAIR q = PAIR_DIVIDE(t, PAIR_ADD(t, AUX(pair)(REAL(1))));
        r.sinh_part = AUX(halved)(PAIR_ADD(t, q));
        r.cosh_part = PAIR_ADD(AUX(pair)(REAL(1)), AUX(halved)(PAIR_ADD(t, AUX(minus)(q))));
        r.n = 0;
    } else {
        PAIR b = AUX(pair)(AUX(exp_range)(a));
        r.sinh_part = AUX(exp_fraction)(b);
        r.cosh_part = r.sinh_part;
        r.n = AUX(exp_exponent)(b) - 1;
    }
    r.sinh_part = AUX(with_sign_pair)(r.sinh_part, SIGN_OF(x));
    return r;
}

COMPLEX FN(sin)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        if (AUX(isnan)(z.x) || AUX(isinf)(z.x) || AUX(isnan)(z.y)) {
            return AUX(not_a_number)();
        }
        return COMPLEX(z.x * z.y, z.y);
    }
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.x));
    AUX(hyperbolic) h = AUX(hyperbolic_pair)(z.y);
    return COMPLEX(AUX(product)(t.xy, h.cosh_part, h.n), AUX(product)(t.zw, h.sinh_part, h.n));
}

COMPLEX FN(cos)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        if (AUX(isnan)(z.x) || AUX(isinf)(z.x) || AUX(isnan)(z.y)) {
            return AUX(not_a_number)();
        }
        return COMPLEX(INFINITE(0u), RE(negate)(z.y) * z.x);
    }
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.x));
    AUX(hyperbolic) h = AUX(hyperbolic_pair)(z.y);
    return COMPLEX(AUX(product)(t.zw, h.cosh_part, h.n), RE(negate)(AUX(product)(t.xy, h.sinh_part, h.n)));
}

COMPLEX FN(sinh)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        COMPLEX d = FN(subtract)(FN(exp)(z), FN(exp)(FN(negate)(z)));
        return COMPLEX(d.x * REAL(0.5), d.y * REAL(0.5));
    }
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.y));
    AUX(hyperbolic) h = AUX(hyperbolic_pair)(z.x);
    return COMPLEX(AUX(product)(h.sinh_part, t.zw, h.n), AUX(product)(h.cosh_part, t.xy, h.n));
}

COMPLEX FN(cosh)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        COMPLEX s = FN(add)(FN(exp)(z), FN(exp)(FN(negate)(z)));
        return COMPLEX(s.x * REAL(0.5), s.y * REAL(0.5));
    }
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.y));
    AUX(hyperbolic) h = AUX(hyperbolic_pair)(z.x);
    return COMPLEX(AUX(product)(h.cosh_part, t.zw, h.n), AUX(product)(h.sinh_part, t.xy, h.n));
}

// (sin x cos x + i sinh y cosh y) / (cos^2 x + sinh^2 y) for finite z.
COMPLEX AUX(tan_finite)(const in COMPLEX z) {
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.x));
    AUX(hyperbolic) h = AUX(hyperbolic_pair)(z.y);
    if (h.n == 0) {
        PAIR d = PAIR_ADD(PAIR_MULTIPLY(t.zw, t.zw), PAIR_MULTIPLY(h.sinh_part, h.sinh_part));
        REAL x = AUX(ratio)(PAIR_MULTIPLY(t.xy, t.zw), d, 0);
        REAL y = AUX(ratio)(PAIR_MULTIPLY(h.sinh_part, h.cosh_part), d, 0);
        return COMPLEX(AUX(iszero)(z.x) ? z.x : x, AUX(iszero)(z.y) ? z.y : y);
    }
    PAIR a = AUX(pair)(AUX(exp_range)(REAL(-2) * RE(abs)(z.y)));
    PAIR m = PAIR_MULTIPLY(t.xy, t.zw);
    return COMPLEX(AUX(product)(m, AUX(exp_fraction)(a), AUX(exp_exponent)(a) + 2), WITH_SIGN(REAL(1), SIGN_OF(z.y)));
}

COMPLEX FN(tan)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        return FN(divide)(FN(sin)(z), FN(cos)(z));
    }
    return AUX(tan_finite)(z);
}

COMPLEX FN(tanh)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        return FN(divide)(FN(sinh)(z), FN(cosh)(z));
    }
    COMPLEX t = AUX(tan_finite)(COMPLEX(z.y, z.x));
    return COMPLEX(t.y, t.x);
}

// 1 / (1 + exp(-z)), from w = exp(-|x|) (cos y + i sin y): 1 + Re w = 2 cos(y/2)^2 + expm1(-|x|) cos y and
// cos y + |w| = 2 cos(y/2)^2 + expm1(-|x|).
COMPLEX FN(sigmoid)(const in COMPLEX z) {
    COMPLEX one = COMPLEX(REAL(1), REAL(0));
    if (!AUX(finite)(z)) {
        return FN(divide)(one, FN(add)(FN(exp)(FN(negate)(z)), one));
    }
    REAL a = -RE(abs)(z.x);
    SINCOS t = AUX(sincos_pair)(AUX(pair)(z.y));
    SINCOS h = AUX(sincos_pair)(AUX(pair)(z.y * REAL(0.5)));
    PAIR m = PAIR_EXPM1(a < REAL(-40) ? REAL(-40) : a);
    PAIR v = PAIR_MULTIPLY(h.zw, h.zw);
    PAIR dx = PAIR_ADD(PAIR_MULTIPLY(m, t.zw), PAIR(v.x + v.x, v.y + v.y));
    PAIR range = AUX(pair)(AUX(exp_range)(a));
    PAIR e = AUX(exp_fraction)(range);
    int n = AUX(exp_exponent)(range);
    REAL small = n < -MAX_SCALE ? REAL(0) : POWER_OF_TWO(n);
    PAIR w = PAIR_MULTIPLY(e, t.xy);
    PAIR dy = PAIR(w.x * small, w.y * small);
    PAIR d = PAIR_ADD(PAIR_MULTIPLY(dx, dx), PAIR_MULTIPLY(dy, dy));
    if (z.x < REAL(0)) {
        PAIR s = PAIR_ADD(PAIR(v.x + v.x, v.y + v.y), m);
        return COMPLEX(AUX(ratio)(PAIR_MULTIPLY(e, s), d, n), AUX(ratio)(w, d, n));
    }
    return COMPLEX(AUX(ratio)(dx, d, 0), AUX(ratio)(w, d, n));
}

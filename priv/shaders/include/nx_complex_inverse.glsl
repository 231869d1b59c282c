// Roots and the inverse trigonometric and hyperbolic functions of complex numbers; see nx_complex.glsl.
//
// asin and acos follow Hull, Fairgrieve and Tang (1997). Branches are those of the formulas that Nx.BinaryBackend
// evaluates: acos z = -i log(z + sqrt(z^2 - 1)) is minus the usual principal value in the second and fourth
// quadrants, and on branch cuts the sign of a zero part does not count.

// 2^(e/2) (a + i b) = sqrt of a finite z that is not zero, by m = |z| 2^-e; e even, a and b of x's and y's signs.
struct AUX(root) {
    PAIR x;
    PAIR y;
    PAIR m;
    int e;
    int ey;
};

// The larger part w of the root is sqrt((|z| + |x|) / 2), the other |y| / (2 w) 2^ey.
AUX(root) AUX(root_parts)(const in COMPLEX z) {
    AUX(root) r;
    int e = AUX(exponent)(z);
    r.e = e - (e & 1);
    COMPLEX u = AUX(scaled_down)(z, r.e);
    r.m = PAIR_SQRT(AUX(dot)(u.x, u.x, u.y, u.y));
    r.x = PAIR_SQRT(AUX(halved)(PAIR_ADD(r.m, AUX(pair)(RE(abs)(u.x)))));
    REAL y = AUX(iszero)(z.y) ? REAL(0) : MANTISSA(z.y);
    r.ey = AUX(iszero)(z.y) ? 0 : EXPONENT(z.y) - r.e;
    r.y = PAIR_DIVIDE(AUX(pair)(y), PAIR(r.x.x + r.x.x, r.x.y + r.x.y));
    return r;
}

// The root with real part >= 0; for a negative real z the imaginary part is positive, whatever the sign of zero.
COMPLEX FN(sqrt)(const in COMPLEX z) {
    if (AUX(any_nan)(z)) {
        return AUX(not_a_number)();
    }
    if (AUX(isinf)(z.y)) {
        return COMPLEX(INFINITE(0u), z.y);
    }
    if (AUX(isinf)(z.x)) {
        return SIGN_OF(z.x) == 0u ? COMPLEX(z.x, REAL(0)) : COMPLEX(REAL(0), INFINITE(0u));
    }
    if (AUX(is_zero)(z)) {
        return z;
    }
    AUX(root) r = AUX(root_parts)(z);
    REAL large = SCALE_PAIR(r.x, r.e / 2);
    REAL other = AUX(iszero)(z.y) ? REAL(0) : SCALE_PAIR(r.y, r.ey + r.e / 2);
    if (z.x >= REAL(0)) {
        return COMPLEX(large, WITH_SIGN(other, SIGN_OF(z.y)));
    }
    return COMPLEX(other, AUX(iszero)(z.y) ? large : WITH_SIGN(large, SIGN_OF(z.y)));
}

// Of zero: NaN.
COMPLEX FN(rsqrt)(const in COMPLEX z) {
    if (!AUX(finite)(z) || AUX(is_zero)(z)) {
        return FN(divide)(COMPLEX(REAL(1), REAL(0)), FN(sqrt)(z));
    }
    AUX(root) r = AUX(root_parts)(z);
    REAL large = SCALE_PAIR(PAIR_DIVIDE(r.x, r.m), -r.e / 2);
    REAL other = AUX(iszero)(z.y) ? REAL(0) : SCALE_PAIR(PAIR_DIVIDE(r.y, r.m), r.ey - r.e / 2);
    uint sign = SIGN_OF(z.y) ^ 0x80000000u;
    if (z.x >= REAL(0)) {
        return COMPLEX(large, WITH_SIGN(other, sign));
    }
    return COMPLEX(other, WITH_SIGN(large, AUX(iszero)(z.y) ? 0x80000000u : sign));
}

// The principal root, of the angle of z divided by 3.
COMPLEX FN(cbrt)(const in COMPLEX z) {
    if (AUX(any_nan)(z) && !AUX(isinf)(z.y)) {
        return AUX(not_a_number)();
    }
    if (AUX(is_zero)(z)) {
        return COMPLEX(REAL(0), REAL(0));
    }
    if (!AUX(finite)(z)) {
        if (AUX(isinf)(z.x) && !AUX(isinf)(z.y)) {
            // The angle of -Inf is pi, whatever the imaginary part.
            return COMPLEX(INFINITE(0u), SIGN_OF(z.x) == 0u ? REAL(0) : INFINITE(0u));
        }
        // Nx has 5 pi / 4 as the angle of -Inf - Inf i.
        uint up = AUX(isinf)(z.x) ? SIGN_OF(z.x) : 0u;
        return COMPLEX(INFINITE(0u), INFINITE(SIGN_OF(z.y) & ~up));
    }
    PAIR t = PAIR_DIVIDE(AUX(angle)(z), AUX(pair)(REAL(3)));
    SINCOS s = AUX(sincos_pair)(t);
    PAIR r = AUX(pair)(RE(cbrt)(FN(abs)(z)));
    return COMPLEX(AUX(product)(r, s.zw, 0), AUX(product)(r, s.xy, 0));
}

// y / (r + x + 1) and the like: 1 / (a + b).
PAIR AUX(inverse_sum)(const in PAIR a, const in PAIR b) { return PAIR_DIVIDE(AUX(pair)(REAL(1)), PAIR_ADD(a, b)); }

// What asin, acos and their hyperbolic sisters share, for x, y >= 0: the imaginary part of asin, and a right
// triangle whose angle is the real part.
struct AUX(arc) {
    PAIR opposite;
    PAIR adjacent;
    REAL height;
};

AUX(arc) AUX(arc_parts)(const in REAL x, const in REAL y) {
    AUX(arc) r;
    int e = AUX(is_zero)(COMPLEX(x, y)) ? 0 : AUX(exponent)(COMPLEX(x, y));
    if (e > HUGE_EXPONENT / 2 + 5) {
        // sqrt(z^2 - 1) is z to the last bit.
        COMPLEX u = AUX(scaled_down)(COMPLEX(x, y), e);
        r.opposite = AUX(pair)(u.x);
        r.adjacent = AUX(pair)(u.y);
        r.height = AUX(halved)(AUX(log_pair)(AUX(dot)(u.x, u.x, u.y, u.y), 2 * e + 2)).x;
        return r;
    }
    // a = (r + s) / 2 with the distances r and s of z from -1 and 1; the hyperbola and ellipse through z.
    PAIR xp = TWO_SUM(x, REAL(1));
    PAIR xm = TWO_SUM(x, REAL(-1));
    PAIR rp = AUX(hypotenuse)(xp, y);
    PAIR rm = AUX(hypotenuse)(xm, y);
    PAIR a = AUX(halved)(PAIR_ADD(rp, rm));
    PAIR vp = AUX(inverse_sum)(rp, xp);
    PAIR px = AUX(pair)(x);
    PAIR py = AUX(pair)(y);
    PAIR yy = TWO_PRODUCT(y, y);
    PAIR f;
    r.opposite = px;
    if (x <= REAL(1)) {
        PAIR vm = AUX(iszero)(y) && x == REAL(1) ? AUX(pair)(REAL(0)) : AUX(inverse_sum)(rm, AUX(minus)(xm));
        PAIR g = AUX(halved)(PAIR_ADD(vp, vm));
        // a - 1 = g y^2
        PAIR h = PAIR_SQRT(PAIR_MULTIPLY(g, PAIR_ADD(a, AUX(pair)(REAL(1)))));
        f = PAIR_MULTIPLY(py, PAIR_ADD(PAIR_MULTIPLY(py, g), h));
        PAIR d = AUX(halved)(PAIR_ADD(PAIR_MULTIPLY(yy, vp), PAIR_ADD(rm, AUX(minus)(xm))));
        PAIR q = PAIR_MULTIPLY(PAIR_ADD(a, px), d);
        r.adjacent = q.x > REAL(0) ? PAIR_SQRT(q) : AUX(pair)(REAL(0));
    } else {
        PAIR vm = AUX(inverse_sum)(rm, xm);
        PAIR am1 = AUX(halved)(PAIR_ADD(PAIR_MULTIPLY(yy, vp), PAIR_ADD(rm, xm)));
        f = PAIR_ADD(am1, PAIR_SQRT(PAIR_MULTIPLY(am1, PAIR_ADD(a, AUX(pair)(REAL(1))))));
        PAIR g = AUX(halved)(PAIR_ADD(vp, vm));
        r.adjacent = PAIR_MULTIPLY(py, PAIR_SQRT(PAIR_MULTIPLY(PAIR_ADD(a, px), g)));
    }
    r.height = AUX(iszero)(f.x) ? REAL(0) : AUX(log1p)(f).x;
    return r;
}

COMPLEX FN(asin)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        return AUX(not_a_number)();
    }
    AUX(arc) p = AUX(arc_parts)(RE(abs)(z.x), RE(abs)(z.y));
    REAL x = AUX(iszero)(z.x) ? REAL(0) : PAIR_ANGLE(p.opposite, p.adjacent).x;
    bool cut = AUX(iszero)(z.y) && RE(abs)(z.x) > REAL(1);
    uint sign = cut ? SIGN_OF(z.x) ^ 0x80000000u : SIGN_OF(z.y);
    return COMPLEX(WITH_SIGN(x, SIGN_OF(z.x)), WITH_SIGN(p.height, sign));
}

COMPLEX FN(acos)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        return AUX(not_a_number)();
    }
    AUX(arc) p = AUX(arc_parts)(RE(abs)(z.x), RE(abs)(z.y));
    PAIR a = AUX(halved)(AUX(pi)());
    if (!AUX(iszero)(z.x)) {
        a = PAIR_ANGLE(p.adjacent, p.opposite);
    }
    bool left = SIGN_OF(z.x) != 0u;
    if (left) {
        a = PAIR_ADD(AUX(pi)(), AUX(minus)(a));
    }
    uint sign = SIGN_OF(z.y) ^ 0x80000000u;
    if (AUX(iszero)(z.x) || AUX(iszero)(z.y)) {
        if (AUX(iszero)(z.y)) {
            sign = left ? 0u : 0x80000000u;
        }
        return COMPLEX(a.x, WITH_SIGN(p.height, sign));
    }
    if (left == (SIGN_OF(z.y) != 0u)) {
        return COMPLEX(a.x, WITH_SIGN(p.height, sign));
    }
    return COMPLEX(-a.x, WITH_SIGN(p.height, sign ^ 0x80000000u));
}

COMPLEX FN(asinh)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        COMPLEX t = FN(add)(FN(multiply)(z, z), COMPLEX(REAL(1), REAL(0)));
        return FN(log)(FN(add)(z, FN(sqrt)(t)));
    }
    // -i asin(i z)
    AUX(arc) p = AUX(arc_parts)(RE(abs)(z.y), RE(abs)(z.x));
    REAL y = AUX(iszero)(z.y) ? REAL(0) : PAIR_ANGLE(p.opposite, p.adjacent).x;
    bool cut = AUX(iszero)(z.x) && RE(abs)(z.y) > REAL(1);
    return COMPLEX(WITH_SIGN(p.height, cut ? SIGN_OF(z.y) : SIGN_OF(z.x)), WITH_SIGN(y, SIGN_OF(z.y)));
}

COMPLEX FN(acosh)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        COMPLEX t = FN(subtract)(FN(multiply)(z, z), COMPLEX(REAL(1), REAL(0)));
        return FN(log)(FN(add)(z, FN(sqrt)(t)));
    }
    // i acos z
    COMPLEX w = FN(acos)(z);
    return COMPLEX(RE(negate)(w.y), w.x);
}

// atanh of x + i y for x, y >= 0, not the point 1.
COMPLEX AUX(atanh_quadrant)(const in REAL x, const in REAL y) {
    if (AUX(is_zero)(COMPLEX(x, y))) {
        return COMPLEX(x, y);
    }
    int e = AUX(exponent)(COMPLEX(x, y));
    if (e > HUGE_EXPONENT) {
        // 1 / z, turned by a right angle
        COMPLEX u = AUX(scaled_down)(COMPLEX(x, y), e);
        PAIR d = AUX(dot)(u.x, u.x, u.y, u.y);
        REAL w = AUX(iszero)(x) ? REAL(0) : SCALE_PAIR(PAIR_DIVIDE(AUX(pair)(MANTISSA(x)), d), EXPONENT(x) - 2 * e);
        return COMPLEX(w, AUX(halved)(AUX(pi)()).x);
    }
    // log(1 + 4 x / ((1 - x)^2 + y^2)) / 4
    PAIR xm = TWO_SUM(REAL(1), -x);
    REAL width = REAL(0);
    if (!AUX(iszero)(x)) {
        int eh = AUX(exponent)(COMPLEX(xm.x, y));
        PAIR h = AUX(hypotenuse)(xm, y);
        if (eh < -HUGE_EXPONENT / 2 - 3) {
            PAIR l = AUX(log_pair)(h, 0);
            PAIR m = AUX(log_pair)(AUX(pair)(x), 2);
            width = PAIR_ADD(AUX(halved)(m), AUX(minus)(l)).x * REAL(0.5);
        } else {
            PAIR f = PAIR_DIVIDE(AUX(pair)(REAL(4) * x), PAIR_MULTIPLY(h, h));
            width = AUX(log1p)(f).x * REAL(0.25);
        }
    }
    // half the angle of (1 - x^2 - y^2, 2 y)
    PAIR c = AUX(minus)(AUX(add_squares)(REAL(-1), max(x, y), min(x, y)));
    PAIR a = AUX(pair)(REAL(0));
    bool obtuse = c.x < REAL(0);
    if (!(AUX(iszero)(y) && !obtuse)) {
        a = PAIR_ANGLE(AUX(pair)(y + y), obtuse ? AUX(minus)(c) : c);
        a = obtuse ? PAIR_ADD(AUX(pi)(), AUX(minus)(a)) : a;
    }
    return COMPLEX(width, AUX(halved)(a).x);
}

// Of 1: NaN; of -1: -Inf with an undefined angle.
COMPLEX FN(atanh)(const in COMPLEX z) {
    COMPLEX one = COMPLEX(REAL(1), REAL(0));
    if (!AUX(finite)(z)) {
        COMPLEX l = FN(log)(FN(divide)(FN(add)(one, z), FN(subtract)(one, z)));
        return FN(multiply)(COMPLEX(REAL(0.5), REAL(0)), l);
    }
    REAL x = RE(abs)(z.x);
    if (x == REAL(1) && AUX(iszero)(z.y)) {
        return COMPLEX(SIGN_OF(z.x) == 0u ? NOT_A_NUMBER() : INFINITE(0x80000000u), NOT_A_NUMBER());
    }
    COMPLEX w = AUX(atanh_quadrant)(x, RE(abs)(z.y));
    bool cut = AUX(iszero)(z.y) && x > REAL(1);
    uint sign = cut ? SIGN_OF(z.x) ^ 0x80000000u : SIGN_OF(z.y);
    return COMPLEX(WITH_SIGN(w.x, SIGN_OF(z.x)), WITH_SIGN(w.y, sign));
}

// Of i and -i: an infinite imaginary part with an undefined angle.
COMPLEX FN(atan)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        // i / 2 (log(1 - i z) - log(1 + i z))
        COMPLEX a = FN(log)(COMPLEX(REAL(1) + z.y, RE(negate)(z.x)));
        COMPLEX b = FN(log)(COMPLEX(REAL(1) - z.y, z.x));
        return FN(multiply)(COMPLEX(REAL(0), REAL(0.5)), FN(subtract)(a, b));
    }
    REAL y = RE(abs)(z.y);
    if (y == REAL(1) && AUX(iszero)(z.x)) {
        return COMPLEX(NOT_A_NUMBER(), INFINITE(SIGN_OF(z.y)));
    }
    // -i atanh(i z)
    COMPLEX w = AUX(atanh_quadrant)(y, RE(abs)(z.x));
    bool cut = AUX(iszero)(z.x) && y > REAL(1);
    return COMPLEX(WITH_SIGN(w.y, cut ? SIGN_OF(z.y) : SIGN_OF(z.x)), WITH_SIGN(w.x, SIGN_OF(z.y)));
}

// Nx defines atan2 of complex numbers for real ones alone: others give NaN.
COMPLEX FN(atan2)(const in COMPLEX y, const in COMPLEX x) {
    if (!AUX(iszero)(x.y) || !AUX(iszero)(y.y)) {
        return AUX(not_a_number)();
    }
    return COMPLEX(RE(atan2)(y.x, x.x), REAL(0));
}

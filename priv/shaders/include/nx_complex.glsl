// Complex arithmetic, written once for c64 and c128: the including file names the real type, its pairs
// (unevaluated sums of two) and its functions by macros. Results have the components' own relative accuracy
// wherever pairs suffice, also under cancellation. Infinities and NaN come out as in Nx.BinaryBackend.

REAL FN(real)(const in COMPLEX z) { return z.x; }

REAL FN(imag)(const in COMPLEX z) { return z.y; }

bool AUX(finite)(const in COMPLEX z) {
    return !(AUX(isnan)(z.x) || AUX(isinf)(z.x) || AUX(isnan)(z.y) || AUX(isinf)(z.y));
}

bool AUX(any_nan)(const in COMPLEX z) { return AUX(isnan)(z.x) || AUX(isnan)(z.y); }

bool AUX(is_zero)(const in COMPLEX z) { return AUX(iszero)(z.x) && AUX(iszero)(z.y); }

COMPLEX AUX(not_a_number)() { return COMPLEX(NOT_A_NUMBER(), NOT_A_NUMBER()); }

PAIR AUX(minus)(const in PAIR a) { return PAIR(-a.x, -a.y); }

PAIR AUX(halved)(const in PAIR a) { return PAIR(a.x * REAL(0.5), a.y * REAL(0.5)); }

PAIR AUX(pair)(const in REAL x) { return PAIR(x, REAL(0)); }

// x * 2^-e for an x of an exponent up to e: zero where that is tiny.
REAL AUX(scaled)(const in REAL x, const in int e) {
    if (AUX(iszero)(x)) {
        return x;
    }
    int d = EXPONENT(x) - e;
    return d < -MAX_SCALE ? REAL(0) : WITH_SIGN(MANTISSA(x) * POWER_OF_TWO(d), SIGN_OF(x));
}

// The exponent of the larger part of a finite z that is not zero.
int AUX(exponent)(const in COMPLEX z) {
    int ex = AUX(iszero)(z.x) ? -10000 : EXPONENT(z.x);
    int ey = AUX(iszero)(z.y) ? -10000 : EXPONENT(z.y);
    return max(ex, ey);
}

COMPLEX AUX(scaled_down)(const in COMPLEX z, const in int e) { return COMPLEX(AUX(scaled)(z.x, e), AUX(scaled)(z.y, e)); }

// a b + c d.
PAIR AUX(dot)(const in REAL a, const in REAL b, const in REAL c, const in REAL d) {
    return PAIR_ADD(TWO_PRODUCT(a, b), TWO_PRODUCT(c, d));
}

// a b 2^n with the sign of the product, of zero too.
REAL AUX(product)(const in PAIR a, const in PAIR b, const in int n) {
    uint sign = SIGN_OF(a.x) ^ SIGN_OF(b.x);
    if (AUX(iszero)(a.x) || AUX(iszero)(b.x)) {
        return WITH_SIGN(REAL(0), sign);
    }
    return SCALE_PAIR(PAIR_MULTIPLY(a, b), n);
}

COMPLEX FN(add)(const in COMPLEX a, const in COMPLEX b) { return COMPLEX(a.x + b.x, a.y + b.y); }

COMPLEX FN(subtract)(const in COMPLEX a, const in COMPLEX b) { return COMPLEX(a.x - b.x, a.y - b.y); }

COMPLEX FN(negate)(const in COMPLEX z) { return COMPLEX(RE(negate)(z.x), RE(negate)(z.y)); }

COMPLEX FN(conjugate)(const in COMPLEX z) { return COMPLEX(z.x, RE(negate)(z.y)); }

// The exact value, or the plain one where that is not finite, or has a signed zero.
REAL AUX(refined)(const in REAL plain, const in REAL exact) {
    return AUX(isnan)(exact) || AUX(isinf)(exact) || AUX(iszero)(exact) ? plain : exact;
}

COMPLEX FN(multiply)(const in COMPLEX a, const in COMPLEX b) {
    REAL x = a.x * b.x - a.y * b.y;
    REAL y = a.y * b.x + a.x * b.y;
    return COMPLEX(AUX(refined)(x, AUX(dot)(a.x, b.x, -a.y, b.y).x), AUX(refined)(y, AUX(dot)(a.y, b.x, a.x, b.y).x));
}

// n / d 2^e, or the plain n where it is zero.
REAL AUX(ratio)(const in PAIR n, const in PAIR d, const in int e) {
    return AUX(iszero)(n.x) ? n.x : SCALE_PAIR(PAIR_DIVIDE(n, d), e);
}

// By zero: NaN. A finite number by a real infinity: 0.
COMPLEX FN(divide)(const in COMPLEX a, const in COMPLEX b) {
    if (AUX(finite)(a) && AUX(finite)(b)) {
        if (AUX(is_zero)(b)) {
            return AUX(not_a_number)();
        }
        if (AUX(is_zero)(a)) {
            return COMPLEX(REAL(0), REAL(0));
        }
        int ea = AUX(exponent)(a);
        int eb = AUX(exponent)(b);
        COMPLEX u = AUX(scaled_down)(a, ea);
        COMPLEX v = AUX(scaled_down)(b, eb);
        PAIR d = AUX(dot)(v.x, v.x, v.y, v.y);
        return COMPLEX(AUX(ratio)(AUX(dot)(u.x, v.x, u.y, v.y), d, ea - eb),
                       AUX(ratio)(AUX(dot)(u.y, v.x, -u.x, v.y), d, ea - eb));
    }
    if (AUX(finite)(a) && AUX(isinf)(b.x) && AUX(iszero)(b.y)) {
        return COMPLEX(REAL(0), REAL(0));
    }
    if (AUX(finite)(b)) {
        REAL d = b.x * b.x + b.y * b.y;
        return COMPLEX(RE(divide)(a.x * b.x + a.y * b.y, d), RE(divide)(a.y * b.x - a.x * b.y, d));
    }
    return AUX(not_a_number)();
}

// sqrt(a^2 + b^2), scaled so that nothing overflows or underflows; 0 for zeros.
PAIR AUX(hypotenuse)(const in PAIR a, const in REAL b) {
    if (AUX(iszero)(a.x) && AUX(iszero)(b)) {
        return AUX(pair)(REAL(0));
    }
    int e = clamp(AUX(exponent)(COMPLEX(a.x, b)), -MAX_SCALE, MAX_SCALE);
    REAL down = POWER_OF_TWO(-e);
    REAL up = POWER_OF_TWO(e);
    PAIR u = PAIR(a.x * down, a.y * down);
    REAL v = AUX(scaled)(b, e);
    PAIR h = PAIR_SQRT(PAIR_ADD(PAIR_MULTIPLY(u, u), TWO_PRODUCT(v, v)));
    return PAIR(h.x * up, h.y * up);
}

// Infinite where either part is, or one of them is NaN; NaN where both are NaN.
REAL FN(abs)(const in COMPLEX z) {
    if (!AUX(finite)(z)) {
        return AUX(isnan)(z.x) && AUX(isnan)(z.y) ? NOT_A_NUMBER() : INFINITE(0u);
    }
    if (AUX(is_zero)(z)) {
        return REAL(0);
    }
    int e = AUX(exponent)(z);
    COMPLEX u = AUX(scaled_down)(z, e);
    return SCALE_PAIR(PAIR_SQRT(AUX(dot)(u.x, u.x, u.y, u.y)), e);
}

REAL FN(phase)(const in COMPLEX z) { return RE(atan2)(z.y, z.x); }

// z / |z|; zero stays.
COMPLEX FN(sign)(const in COMPLEX z) {
    if (AUX(any_nan)(z) || AUX(is_zero)(z)) {
        return z;
    }
    if (!AUX(finite)(z)) {
        return AUX(not_a_number)();
    }
    COMPLEX u = AUX(scaled_down)(z, AUX(exponent)(z));
    PAIR m = PAIR_SQRT(AUX(dot)(u.x, u.x, u.y, u.y));
    return COMPLEX(AUX(ratio)(AUX(pair)(u.x), m, 0), AUX(ratio)(AUX(pair)(u.y), m, 0));
}

uint FN(equal)(const in COMPLEX a, const in COMPLEX b) { return RE(equal)(a.x, b.x) & RE(equal)(a.y, b.y); }

uint FN(not_equal)(const in COMPLEX a, const in COMPLEX b) { return 1u - FN(equal)(a, b); }

uint FN(truthy)(const in COMPLEX z) { return AUX(is_zero)(z) ? 0u : 1u; }

uint FN(logical_and)(const in COMPLEX a, const in COMPLEX b) { return FN(truthy)(a) & FN(truthy)(b); }

uint FN(logical_or)(const in COMPLEX a, const in COMPLEX b) { return FN(truthy)(a) | FN(truthy)(b); }

uint FN(logical_xor)(const in COMPLEX a, const in COMPLEX b) { return FN(truthy)(a) ^ FN(truthy)(b); }

uint FN(is_nan)(const in COMPLEX z) { return AUX(any_nan)(z) ? 1u : 0u; }

uint FN(is_infinity)(const in COMPLEX z) { return AUX(isinf)(z.x) || AUX(isinf)(z.y) ? 1u : 0u; }

COMPLEX FN(select)(const in uint pred, const in COMPLEX a, const in COMPLEX b) { return pred != 0u ? a : b; }

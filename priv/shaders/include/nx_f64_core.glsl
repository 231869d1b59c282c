// Double precision building blocks: bit access, powers of two, error-free transformations and
// double-double ("dd") arithmetic. A dd is a dvec2 (high, low) whose value is the unevaluated sum.
//
// The Vulkan precision of f64 division and square root is no better than that of f32, and `fma` may
// or may not be fused, so exact products use Dekker's algorithm (Dekker 1971) with a split by
// masking, and quotients are refined by Newton steps. `fma` appears only where either rounding will do.
// Every float operation must carry NoContraction, which the shader build and the code generator add.
#ifndef NX_F64_CORE_GLSL
#define NX_F64_CORE_GLSL

uint nx_f64_high(const in double x) { return unpackDouble2x32(x).y; }

uint nx_f64_low(const in double x) { return unpackDouble2x32(x).x; }

double nx_f64_bits(const in uint high, const in uint low) { return packDouble2x32(uvec2(low, high)); }

double nx_f64_nan() { return packDouble2x32(uvec2(0u, 0x7ff80000u)); }

// Infinity with the sign bit of `sign`.
double nx_f64_infinity(const in uint sign) { return packDouble2x32(uvec2(0u, (sign & 0x80000000u) | 0x7ff00000u)); }

double nx_f64_zero(const in uint sign) { return packDouble2x32(uvec2(0u, sign & 0x80000000u)); }

bool nx_f64_isnan(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    uint h = u.y & 0x7fffffffu;
    return h > 0x7ff00000u || (h == 0x7ff00000u && u.x != 0u);
}

bool nx_f64_isinf(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    return (u.y & 0x7fffffffu) == 0x7ff00000u && u.x == 0u;
}

bool nx_f64_iszero(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    return ((u.y & 0x7fffffffu) | u.x) == 0u;
}

double nx_f64_magnitude(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x, u.y & 0x7fffffffu));
}

// x with its sign flipped where bit 31 of `sign` is set.
double nx_f64_flip(const in double x, const in uint sign) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x, u.y ^ (sign & 0x80000000u)));
}

// |x| with the sign bit of `sign`.
double nx_f64_with_sign(const in double x, const in uint sign) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x, (u.y & 0x7fffffffu) | (sign & 0x80000000u)));
}

// 2^n for -1022 <= n <= 1023.
double nx_f64_pow2(const in int n) { return packDouble2x32(uvec2(0u, uint(n + 1023) << 20)); }

// x * 2^n rounded once, for |x| in about [2^-30, 2^30] and |n| <= 1900.
double nx_f64_scale(const in double x, const in int n) {
    int half_n = n / 2;
    return (x * nx_f64_pow2(half_n)) * nx_f64_pow2(n - half_n);
}

// x times 2^54 where x is denormal, made from its integer mantissa: devices may flush denormal operands. Else x.
double nx_f64_normalized(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    if ((u.y & 0x7ff00000u) != 0u) {
        return x;
    }
    double m = (double(u.y & 0x000fffffu) * 4294967296.0lf + double(u.x)) * nx_f64_pow2(-1020);
    return nx_f64_flip(m, u.y);
}

// The mantissa of a nonzero finite x as a number in [1, 2).
double nx_f64_mantissa(const in double x) {
    uvec2 u = unpackDouble2x32(nx_f64_normalized(x));
    return packDouble2x32(uvec2(u.x, (u.y & 0x000fffffu) | 0x3ff00000u));
}

// The exponent e of a nonzero finite x: 2^e <= |x| < 2^(e + 1).
int nx_f64_exponent(const in double x) {
    bool denormal = (nx_f64_high(x) & 0x7ff00000u) == 0u;
    return int((nx_f64_high(nx_f64_normalized(x)) >> 20) & 0x7ffu) - (denormal ? 1077 : 1023);
}

// x without the bits of weight below 1.
double nx_f64_truncate(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    int e = int((u.y >> 20) & 0x7ffu) - 1023;
    if (e < 0) {
        u = uvec2(0u, u.y & 0x80000000u);
    } else if (e < 20) {
        u = uvec2(0u, u.y & ~(0x000fffffu >> e));
    } else if (e < 52) {
        u.x = u.x & ~(0xffffffffu >> (e - 20));
    }
    return packDouble2x32(u);
}

// a + b exactly (Knuth).
dvec2 nx_f64_two_sum(const in double a, const in double b) {
    double s = a + b;
    double t = s - a;
    return dvec2(s, (a - (s - t)) + (b - t));
}

// a + b exactly, for |a| >= |b| (Dekker).
dvec2 nx_f64_fast_two_sum(const in double a, const in double b) {
    double s = a + b;
    return dvec2(s, b - (s - a));
}

// The 26 leading bits of x.
double nx_f64_split(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    return packDouble2x32(uvec2(u.x & 0xf8000000u, u.y));
}

// a * b to 106 bits, if the product is far from overflow and underflow.
dvec2 nx_f64_two_product(const in double a, const in double b) {
    double p = a * b;
    double ah = nx_f64_split(a);
    double al = a - ah;
    double bh = nx_f64_split(b);
    double bl = b - bh;
    double e = al * bl - (((p - ah * bh) - al * bh) - ah * bl);
    return dvec2(p, e);
}

dvec2 nx_f64_two_product_fused(const in double a, const in double b) {
    double p = a * b;
    return dvec2(p, fma(a, b, -p));
}

dvec2 nx_f64_dd_add(const in dvec2 a, const in dvec2 b) {
    dvec2 s = nx_f64_two_sum(a.x, b.x);
    return nx_f64_fast_two_sum(s.x, s.y + (a.y + b.y));
}

dvec2 nx_f64_dd_multiply(const in dvec2 a, const in dvec2 b) {
    dvec2 p = nx_f64_two_product(a.x, b.x);
    return nx_f64_fast_two_sum(p.x, p.y + (a.x * b.y + a.y * b.x));
}

// 1 / b within 1 ulp, for |b| in about [2^-1000, 2^1000].
double nx_f64_reciprocal(const in double b) {
    double y = 1.0lf / b;
    y = fma(y, fma(-b, y, 1.0lf), y);
    return fma(y, fma(-b, y, 1.0lf), y);
}

// a / b as a dd, for operands far from overflow and underflow.
dvec2 nx_f64_dd_divide(const in dvec2 a, const in dvec2 b) {
    double y = nx_f64_reciprocal(b.x);
    double q = a.x * y;
    dvec2 p = nx_f64_two_product(q, b.x);
    double r = (((a.x - p.x) - p.y) + a.y) - q * b.y;
    return nx_f64_fast_two_sum(q, r * y);
}

// a / b within 1 ulp, for operands far from overflow and underflow.
double nx_f64_quotient(const in double a, const in double b) {
    double y = nx_f64_reciprocal(b);
    double q = a * y;
    return fma(fma(-q, b, a), y, q);
}

// sqrt(m) for m in [2^-100, 2^100], correctly rounded up to cases closer than 2^-100 to a midpoint.
double nx_f64_sqrt_core(const in double m) {
    double s = sqrt(m);
    double h = nx_f64_reciprocal(s + s);
    s = fma(fma(-s, s, m), h, s);
    dvec2 p = nx_f64_two_product(s, s);
    return s + ((m - p.x) - p.y) * h;
}

double nx_f64_sqrt_core_rounded(const in double m) { return sqrt(m); }

// sqrt(a) as a dd, for a.x in [2^-900, 2^900].
dvec2 nx_f64_dd_sqrt(const in dvec2 a) {
    double s = sqrt(a.x);
    double h = nx_f64_reciprocal(s + s);
    s = fma(fma(-s, s, a.x), h, s);
    dvec2 p = nx_f64_two_product(s, s);
    return nx_f64_fast_two_sum(s, (((a.x - p.x) - p.y) + a.y) * h);
}

// Zero where fma rounds twice. Engines probe this to choose between a function and its twin.
double nx_fma_probe_f64(const in double a, const in double b) { return fma(a, b, -(a * b)); }

#endif

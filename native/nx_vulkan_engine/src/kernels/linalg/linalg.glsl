// Elements of the matrix kernels. A kernel is compiled per type by one of the defines F32, F64, C64, C128: T is the
// type of an element, R the real type of its parts. generate.rs fills the `slot_` functions of this file with the
// scalar library's, since division, square root and the modulus of GLSL are not exact, and `slot_load<k>(at)` and
// `slot_store<k>(at, value)`, which a kernel declares for its operand k.
#ifndef LINALG_GLSL
#define LINALG_GLSL

#if defined(F32)
#define T float
#define R float
#elif defined(F64)
#define T double
#define R double
#elif defined(C64)
#define T vec2
#define R float
#define COMPLEX 1
#elif defined(C128)
#define T dvec2
#define R double
#define COMPLEX 1
#endif

// Newton's steps from a root that is good to some 21 bits.
#if defined(F32) || defined(C64)
#define LA_ROOT_STEPS 1
#else
#define LA_ROOT_STEPS 2
#endif

// Whether fma rounds once on the device.
layout(constant_id = 0) const uint FUSED = 0u;

T slot_divide(const in T a, const in T b) { return a / b; }
R slot_divide_real(const in R a, const in R b) { return a / b; }
R slot_sqrt(const in R x) { return sqrt(x); }
// The principal square root of an element.
T slot_root(const in T a) { return a + a; }
// `a` as operand 0 stores it: rounded, where T is wider than the elements in memory.
T slot_round(const in T a) { return a; }
// |a|, rounded once.
R slot_abs(const in T a) { return R(length(a)); }

// Numbers of a size whose quotients and squares are far from overflow and from the smallest numbers.
#if defined(F32) || defined(C64)
bool la_is_tame(const in R x) { return abs(x) > R(9.1e-13) && abs(x) < R(1.1e12); }
#else
bool la_is_tame(const in R x) { return abs(x) > R(1e-120) && abs(x) < R(1e120); }
#endif

// By bits: comparisons may flush denormals, and tests for NaN may be folded away.
#if defined(F32) || defined(C64)
bool la_is_nan_real(const in R x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
bool la_is_zero_real(const in R x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0u; }
#else
bool la_is_nan_real(const in R x) {
    uvec2 w = unpackDouble2x32(x);
    uint h = w.y & 0x7fffffffu;
    return h > 0x7ff00000u || (h == 0x7ff00000u && w.x != 0u);
}
bool la_is_zero_real(const in R x) {
    uvec2 w = unpackDouble2x32(x);
    return ((w.y & 0x7fffffffu) | w.x) == 0u;
}
#endif

#ifdef COMPLEX
T la_make(const in R re) { return T(re, R(0)); }
T la_scale(const in T a, const in R s) { return T(a.x * s, a.y * s); }
T la_conj(const in T a) { return T(a.x, -a.y); }
R la_real(const in T a) { return a.x; }
// |a|^2
R la_square(const in T a) { return a.x * a.x + a.y * a.y; }
T la_mul(const in T a, const in T b) { return T(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
// a * b + c with fewer roundings where the device fuses.
T la_mad(const in T a, const in T b, const in T c) {
    return T(fma(a.x, b.x, fma(-a.y, b.y, c.x)), fma(a.x, b.y, fma(a.y, b.x, c.y)));
}
bool la_is_zero(const in T a) { return la_is_zero_real(a.x) && la_is_zero_real(a.y); }
bool la_is_nan(const in T a) { return la_is_nan_real(a.x) || la_is_nan_real(a.y); }
#else
T la_make(const in R re) { return re; }
T la_scale(const in T a, const in R s) { return a * s; }
T la_conj(const in T a) { return a; }
R la_real(const in T a) { return a; }
R la_square(const in T a) { return a * a; }
T la_mul(const in T a, const in T b) { return a * b; }
T la_mad(const in T a, const in T b, const in T c) { return fma(a, b, c); }
bool la_is_zero(const in T a) { return la_is_zero_real(a); }
bool la_is_nan(const in T a) { return la_is_nan_real(a); }
#endif

#ifdef COMPLEX
bool la_is_tame_number(const in T a) { return la_is_tame(abs(a.x) + abs(a.y)); }
// a / b, where y is 1 / b: within a few units in the last place, or rounded once.
T la_quotient(const in T a, const in T b, const in T y, const in bool exact) {
    return !exact && la_is_tame_number(b) ? la_mul(a, y) : slot_divide(a, b);
}
#else
bool la_is_tame_number(const in T a) { return la_is_tame(a); }
// a / b, where y is 1 / b rounded once: rounded once too. Source: Markstein, "Computation of elementary functions on
// the IBM RISC System/6000 processor", 1990.
T la_quotient(const in T a, const in T b, const in T y, const in bool exact) {
    if (FUSED == 0u || !la_is_tame(a) || !la_is_tame(b)) return slot_divide(a, b);
    T q = a * y;
    q = fma(fma(-b, q, a), y, q);
    return fma(fma(-b, q, a), y, q);
}
#endif

// The root of a tame positive number and its reciprocal, within about a unit in the last place.
void la_root_and_reciprocal(const in R x, out R root, out R reciprocal) {
    R y = R(1) / sqrt(x);
    for (int i = 0; i < LA_ROOT_STEPS; ++i) y = fma(y * R(0.5), fma(-x * y, y, R(1)), y);
    root = x * y;
    root = fma(fma(-root, root, x), y * R(0.5), root);
    reciprocal = fma(fma(-root, y, R(1)), y, y);
}

// One of two values without a branch. (Compilers make branches of `?:`, each of which waits for its own loads.)
#ifdef COMPLEX
T la_choose(const in bool first, const in T a, const in T b) { return mix(b, a, bvec2(first)); }
#else
T la_choose(const in bool first, const in T a, const in T b) { return mix(b, a, first); }
#endif

T la_zero() { return T(R(0)); }
T la_one() { return la_make(R(1)); }
// c - a * b, each operation rounded.
T la_subtract_product(const in T c, const in T a, const in T b) { return c - la_mul(a, b); }

#endif

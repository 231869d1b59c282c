// Powers of two that bring the largest part of a vector near 1, so that squares neither overflow nor vanish, and
// phases.
#ifndef LINALG_SCALE_GLSL
#define LINALG_SCALE_GLSL
#include "linalg.glsl"

// The exponent bits of x >= 0, between those whose power of two and its inverse are normal. Infinity and NaN count as
// 1.
#if defined(F32) || defined(C64)
uint la_exponent(const in R x) {
    uint e = (floatBitsToUint(x) >> 23) & 0xffu;
    return e == 255u ? 127u : clamp(e, 1u, 253u);
}
R la_power_scale(const in R largest) { return uintBitsToFloat((254u - la_exponent(largest)) << 23); }
R la_power_unscale(const in R largest) { return uintBitsToFloat(la_exponent(largest) << 23); }
#else
uint la_exponent(const in R x) {
    uint e = (unpackDouble2x32(x).y >> 20) & 0x7ffu;
    return e == 2047u ? 1023u : clamp(e, 1u, 2045u);
}
R la_power_scale(const in R largest) { return packDouble2x32(uvec2(0u, (2046u - la_exponent(largest)) << 20)); }
R la_power_unscale(const in R largest) { return packDouble2x32(uvec2(0u, la_exponent(largest) << 20)); }
#endif

R la_magnitude(const in R x) { return x < R(0) ? -x : x; }

// The larger of a and the parts of x; NaN does not count.
#ifdef COMPLEX
R la_largest(const in R a, const in T x) {
    R b = la_magnitude(x.x), c = la_magnitude(x.y);
    R d = b > a ? b : a;
    return c > d ? c : d;
}
#else
R la_largest(const in R a, const in T x) {
    R b = la_magnitude(x);
    return b > a ? b : a;
}
#endif

// x / |x|, and 1 for 0.
#ifdef COMPLEX
T la_phase(const in T x, const in R size) {
    if (la_is_zero_real(size)) return la_one();
    return T(slot_divide_real(x.x, size), slot_divide_real(x.y, size));
}
#else
T la_phase(const in T x, const in R size) { return x < R(0) ? R(-1) : R(1); }
#endif

#endif

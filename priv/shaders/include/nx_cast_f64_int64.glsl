// Casts between i64, u64 and f64, c128, by the rules of nx_cast.glsl.
#ifndef NX_CAST_F64_INT64_GLSL
#define NX_CAST_F64_INT64_GLSL

// The high word times 2^32 and the low word are exact, so that their sum is rounded once.
double nx_cast_u64_f64(const in uint64_t x) {
    return double(uint(x >> 32)) * 4294967296.0lf + double(uint(x & 0xfffffffful));
}

double nx_cast_i64_f64(const in int64_t x) {
    return double(int(x >> 32)) * 4294967296.0lf + double(uint(x & 0xffffffffl));
}

// The integer part of |x| for |x| < 2^64.
uint64_t nx_integer_part_f64(const in double x) {
    uvec2 w = unpackDouble2x32(x);
    int exponent = int((w.y >> 20) & 0x7ffu) - 1023;
    if (exponent < 0) {
        return 0ul;
    }
    uint64_t m = (uint64_t((w.y & 0xfffffu) | 0x100000u) << 32) | uint64_t(w.x);
    return exponent <= 52 ? m >> (52 - exponent) : m << (exponent - 52);
}

int64_t nx_cast_f64_i64(const in double x) {
    uvec2 w = unpackDouble2x32(x);
    uint m = w.y & 0x7fffffffu;
    bool negative = w.y != m;
    if (m > 0x7ff00000u || (m == 0x7ff00000u && w.x != 0u)) {
        return 0l;
    }
    if (m >= 0x43e00000u) {
        return negative ? -9223372036854775807l - 1l : 9223372036854775807l;
    }
    int64_t i = int64_t(nx_integer_part_f64(x));
    return negative ? -i : i;
}

uint64_t nx_cast_f64_u64(const in double x) {
    uvec2 w = unpackDouble2x32(x);
    if (w.y >= 0x7ff00000u && (w.y > 0x7ff00000u || w.x != 0u)) {
        return 0ul;
    }
    return w.y >= 0x43f00000u ? 0xfffffffffffffffful : nx_integer_part_f64(x);
}

dvec2 nx_cast_i64_c128(const in int64_t x) { return dvec2(nx_cast_i64_f64(x), 0.0lf); }
int64_t nx_cast_c128_i64(const in dvec2 x) { return nx_cast_f64_i64(x.x); }
dvec2 nx_cast_u64_c128(const in uint64_t x) { return dvec2(nx_cast_u64_f64(x), 0.0lf); }
uint64_t nx_cast_c128_u64(const in dvec2 x) { return nx_cast_f64_u64(x.x); }

#endif

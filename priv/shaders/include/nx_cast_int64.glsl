// Casts between i64, u64 and the types of nx_cast.glsl, by the same rules.
#ifndef NX_CAST_INT64_GLSL
#define NX_CAST_INT64_GLSL
#include "nx_cast.glsl"
#include "nx_int64.glsl"

uint64_t nx_cast_i64_u64(const in int64_t x) { return uint64_t(x); }
int64_t nx_cast_u64_i64(const in uint64_t x) { return int64_t(x); }
int nx_cast_i64_i32(const in int64_t x) { return int(uint(x & 0xffffffffl)); }
uint nx_cast_i64_u32(const in int64_t x) { return uint(x & 0xffffffffl); }
int nx_cast_u64_i32(const in uint64_t x) { return int(uint(x & 0xfffffffful)); }
uint nx_cast_u64_u32(const in uint64_t x) { return uint(x & 0xfffffffful); }
int64_t nx_cast_i32_i64(const in int x) { return int64_t(x); }
uint64_t nx_cast_i32_u64(const in int x) { return uint64_t(int64_t(x)); }
int64_t nx_cast_u32_i64(const in uint x) { return int64_t(x); }
uint64_t nx_cast_u32_u64(const in uint x) { return uint64_t(x); }

// The 26 leading bits of a nonzero x, the last one sticky, as nx_pack_f32 takes them.
uint nx_leading_bits_u64(const in uint64_t x, const in int top) {
    if (top <= 25) {
        return uint(x) << (25 - top);
    }
    int shift = top - 25;
    uint64_t lost = x & ((1ul << shift) - 1ul);
    return uint(x >> shift) | (lost != 0ul ? 1u : 0u);
}

float nx_cast_u64_f32(const in uint64_t x) {
    int top = nx_highest_bit_u64(x);
    return top < 0 ? 0.0f : nx_pack_f32(0u, top, nx_leading_bits_u64(x, top));
}

float nx_round_odd_u64_f32(const in uint64_t x) {
    int top = nx_highest_bit_u64(x);
    if (top < 0) {
        return 0.0f;
    }
    uint m = nx_leading_bits_u64(x, top);
    return nx_pack_f32(0u, top, (m & ~7u) | ((m & 7u) != 0u ? 4u : 0u));
}

float nx_cast_i64_f32(const in int64_t x) {
    return x < 0l ? -nx_cast_u64_f32(0ul - uint64_t(x)) : nx_cast_u64_f32(uint64_t(x));
}

float nx_round_odd_i64_f32(const in int64_t x) {
    return x < 0l ? -nx_round_odd_u64_f32(0ul - uint64_t(x)) : nx_round_odd_u64_f32(uint64_t(x));
}

// The integer part of |x| for |x| < 2^64.
uint64_t nx_integer_part_f32(const in float x) {
    uint bits = nx_magnitude_bits_f32(x);
    int exponent = int(bits >> 23) - 127;
    if (exponent < 0) {
        return 0ul;
    }
    uint64_t m = uint64_t((bits & 0x7fffffu) | 0x800000u);
    return exponent <= 23 ? m >> (23 - exponent) : m << (exponent - 23);
}

int64_t nx_cast_f32_i64(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    bool negative = nx_sign_bit_f32(x) != 0u;
    if (m >= 0x5f000000u) {
        return m > 0x7f800000u ? 0l : (negative ? -9223372036854775807l - 1l : 9223372036854775807l);
    }
    int64_t i = int64_t(nx_integer_part_f32(x));
    return negative ? -i : i;
}

uint64_t nx_cast_f32_u64(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m > 0x7f800000u || nx_sign_bit_f32(x) != 0u) {
        return 0ul;
    }
    return m >= 0x5f800000u ? 0xfffffffffffffffful : nx_integer_part_f32(x);
}

vec2 nx_cast_i64_c64(const in int64_t x) { return vec2(nx_cast_i64_f32(x), 0.0f); }
int64_t nx_cast_c64_i64(const in vec2 x) { return nx_cast_f32_i64(x.x); }
vec2 nx_cast_u64_c64(const in uint64_t x) { return vec2(nx_cast_u64_f32(x), 0.0f); }
uint64_t nx_cast_c64_u64(const in vec2 x) { return nx_cast_f32_u64(x.x); }

int nx_cast_i64_s2(const in int64_t x) { return nx_load_s2(uint(x & 0xffffl)); }
int nx_cast_i64_s4(const in int64_t x) { return nx_load_s4(uint(x & 0xffffl)); }
int nx_cast_i64_s8(const in int64_t x) { return nx_load_s8(uint(x & 0xffffl)); }
int nx_cast_i64_s16(const in int64_t x) { return nx_load_s16(uint(x & 0xffffl)); }
uint nx_cast_i64_u2(const in int64_t x) { return nx_load_u2(uint(x & 0xffffl)); }
uint nx_cast_i64_u4(const in int64_t x) { return nx_load_u4(uint(x & 0xffffl)); }
uint nx_cast_i64_u8(const in int64_t x) { return nx_load_u8(uint(x & 0xffffl)); }
uint nx_cast_i64_u16(const in int64_t x) { return nx_load_u16(uint(x & 0xffffl)); }

int nx_cast_u64_s2(const in uint64_t x) { return nx_load_s2(uint(x & 0xfffful)); }
int nx_cast_u64_s4(const in uint64_t x) { return nx_load_s4(uint(x & 0xfffful)); }
int nx_cast_u64_s8(const in uint64_t x) { return nx_load_s8(uint(x & 0xfffful)); }
int nx_cast_u64_s16(const in uint64_t x) { return nx_load_s16(uint(x & 0xfffful)); }
uint nx_cast_u64_u2(const in uint64_t x) { return nx_load_u2(uint(x & 0xfffful)); }
uint nx_cast_u64_u4(const in uint64_t x) { return nx_load_u4(uint(x & 0xfffful)); }
uint nx_cast_u64_u8(const in uint64_t x) { return nx_load_u8(uint(x & 0xfffful)); }
uint nx_cast_u64_u16(const in uint64_t x) { return nx_load_u16(uint(x & 0xfffful)); }

#define NX_CAST_I64(T) float nx_cast_i64_##T(const in int64_t x) { return nx_cast_f32_##T(nx_round_odd_i64_f32(x)); }
NX_NARROW_FLOATS(NX_CAST_I64)
#define NX_CAST_U64(T) float nx_cast_u64_##T(const in uint64_t x) { return nx_cast_f32_##T(nx_round_odd_u64_f32(x)); }
NX_NARROW_FLOATS(NX_CAST_U64)

#endif

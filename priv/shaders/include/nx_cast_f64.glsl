// Casts between f64, c128 and the types without 64-bit integers, by the rules of nx_cast.glsl.
#ifndef NX_CAST_F64_GLSL
#define NX_CAST_F64_GLSL
#include "nx_cast.glsl"

// The f32 nearest to x (to even), or, with `odd`, the one towards zero with its last bit set where bits were lost.
float nx_narrow_f64_f32(const in double x, const in bool odd) {
    uvec2 w = unpackDouble2x32(x);
    uint sign = w.y & 0x80000000u;
    uint exponent = (w.y >> 20) & 0x7ffu;
    if (exponent == 0x7ffu) {
        return ((w.y & 0xfffffu) | w.x) != 0u ? nx_nan_f32() : nx_signed_infinity_f32(sign);
    }
    if (exponent == 0u) {
        return uintBitsToFloat(sign);
    }
    int e = int(exponent) - 1023;
    uint m = 0x2000000u | ((w.y & 0xfffffu) << 5) | (w.x >> 27) | ((w.x & 0x7ffffffu) != 0u ? 1u : 0u);
    if (odd) {
        // all bits below the last one of the result, which a denormal has further up
        uint below = (4u << uint(clamp(-126 - e, 0, 25))) - 1u;
        m = (m & ~below) | ((m & below) != 0u ? below + 1u : 0u);
    }
    return nx_pack_f32(sign, e, m);
}

float nx_cast_f64_f32(const in double x) { return nx_narrow_f64_f32(x, false); }
float nx_round_odd_f64_f32(const in double x) { return nx_narrow_f64_f32(x, true); }

// Denormals of f32 are normal in f64: they are built from their integer mantissa, lest the conversion flush them.
double nx_cast_f32_f64(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m < 0x800000u && m != 0u) {
        double d = double(m) * packDouble2x32(uvec2(0u, 0x36a00000u));
        return nx_sign_bit_f32(x) != 0u ? -d : d;
    }
    return double(x);
}

double nx_cast_i32_f64(const in int x) { return double(x); }
double nx_cast_u32_f64(const in uint x) { return double(x); }

uint nx_is_nan_bits_f64(const in double x) {
    uvec2 w = unpackDouble2x32(x);
    return ((w.y & 0x7fffffffu) | (w.x != 0u ? 1u : 0u)) > 0x7ff00000u ? 1u : 0u;
}

int nx_cast_f64_i32(const in double x) {
    if (nx_is_nan_bits_f64(x) != 0u) {
        return 0;
    }
    if (x >= 2147483647.0lf) {
        return 2147483647;
    }
    return x <= -2147483648.0lf ? -2147483647 - 1 : int(x);
}

uint nx_cast_f64_u32(const in double x) {
    if (nx_is_nan_bits_f64(x) != 0u || x < 1.0lf) {
        return 0u;
    }
    return x >= 4294967295.0lf ? 0xffffffffu : uint(x);
}

dvec2 nx_cast_i32_c128(const in int x) { return dvec2(nx_cast_i32_f64(x), 0.0lf); }
dvec2 nx_cast_u32_c128(const in uint x) { return dvec2(nx_cast_u32_f64(x), 0.0lf); }
dvec2 nx_cast_f32_c128(const in float x) { return dvec2(nx_cast_f32_f64(x), 0.0lf); }
dvec2 nx_cast_f64_c128(const in double x) { return dvec2(x, 0.0lf); }
vec2 nx_cast_f64_c64(const in double x) { return vec2(nx_cast_f64_f32(x), 0.0f); }
double nx_cast_c64_f64(const in vec2 x) { return nx_cast_f32_f64(x.x); }
dvec2 nx_cast_c64_c128(const in vec2 x) { return dvec2(nx_cast_f32_f64(x.x), nx_cast_f32_f64(x.y)); }
vec2 nx_cast_c128_c64(const in dvec2 x) { return vec2(nx_cast_f64_f32(x.x), nx_cast_f64_f32(x.y)); }
double nx_cast_c128_f64(const in dvec2 x) { return x.x; }
float nx_cast_c128_f32(const in dvec2 x) { return nx_cast_f64_f32(x.x); }
int nx_cast_c128_i32(const in dvec2 x) { return nx_cast_f64_i32(x.x); }
uint nx_cast_c128_u32(const in dvec2 x) { return nx_cast_f64_u32(x.x); }

int nx_cast_f64_s2(const in double x) { return clamp(nx_cast_f64_i32(x), -2, 1); }
int nx_cast_f64_s4(const in double x) { return clamp(nx_cast_f64_i32(x), -8, 7); }
int nx_cast_f64_s8(const in double x) { return clamp(nx_cast_f64_i32(x), -128, 127); }
int nx_cast_f64_s16(const in double x) { return clamp(nx_cast_f64_i32(x), -32768, 32767); }
uint nx_cast_f64_u2(const in double x) { return min(nx_cast_f64_u32(x), 3u); }
uint nx_cast_f64_u4(const in double x) { return min(nx_cast_f64_u32(x), 15u); }
uint nx_cast_f64_u8(const in double x) { return min(nx_cast_f64_u32(x), 255u); }
uint nx_cast_f64_u16(const in double x) { return min(nx_cast_f64_u32(x), 65535u); }

int nx_cast_c128_s2(const in dvec2 x) { return nx_cast_f64_s2(x.x); }
int nx_cast_c128_s4(const in dvec2 x) { return nx_cast_f64_s4(x.x); }
int nx_cast_c128_s8(const in dvec2 x) { return nx_cast_f64_s8(x.x); }
int nx_cast_c128_s16(const in dvec2 x) { return nx_cast_f64_s16(x.x); }
uint nx_cast_c128_u2(const in dvec2 x) { return nx_cast_f64_u2(x.x); }
uint nx_cast_c128_u4(const in dvec2 x) { return nx_cast_f64_u4(x.x); }
uint nx_cast_c128_u8(const in dvec2 x) { return nx_cast_f64_u8(x.x); }
uint nx_cast_c128_u16(const in dvec2 x) { return nx_cast_f64_u16(x.x); }

#define NX_CAST_F64(T) float nx_cast_f64_##T(const in double x) { return nx_cast_f32_##T(nx_round_odd_f64_f32(x)); }
NX_NARROW_FLOATS(NX_CAST_F64)
#define NX_CAST_C128(T) float nx_cast_c128_##T(const in dvec2 x) { return nx_cast_f64_##T(x.x); }
NX_NARROW_FLOATS(NX_CAST_C128)

#endif

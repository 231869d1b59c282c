// Casts among i32, u32, f32, c64 and to the narrow dtypes. Integers wrap. Floats to integers truncate, clamp to the
// range of the destination, and take NaN to 0. Casts to the narrow floats round once and give the value as f32.
#ifndef NX_CAST_GLSL
#define NX_CAST_GLSL
#include "nx_f32_base.glsl"
#include "nx_storage.glsl"

uint nx_cast_i32_u32(const in int x) { return uint(x); }
int nx_cast_u32_i32(const in uint x) { return int(x); }
float nx_cast_i32_f32(const in int x) { return float(x); }
float nx_cast_u32_f32(const in uint x) { return float(x); }

int nx_cast_f32_i32(const in float x) {
    uint m = nx_magnitude_bits_f32(x);
    if (m >= 0x4f000000u) {
        return m > 0x7f800000u ? 0 : (nx_sign_bit_f32(x) != 0u ? -2147483647 - 1 : 2147483647);
    }
    return int(x);
}

uint nx_cast_f32_u32(const in float x) {
    uint bits = floatBitsToUint(x);
    if (bits >= 0x4f800000u) {
        return bits > 0x7f800000u ? 0u : 0xffffffffu;
    }
    return uint(x);
}

vec2 nx_cast_i32_c64(const in int x) { return vec2(nx_cast_i32_f32(x), 0.0f); }
vec2 nx_cast_u32_c64(const in uint x) { return vec2(nx_cast_u32_f32(x), 0.0f); }
vec2 nx_cast_f32_c64(const in float x) { return vec2(x, 0.0f); }
float nx_cast_c64_f32(const in vec2 x) { return x.x; }
int nx_cast_c64_i32(const in vec2 x) { return nx_cast_f32_i32(x.x); }
uint nx_cast_c64_u32(const in vec2 x) { return nx_cast_f32_u32(x.x); }

int nx_cast_i32_s2(const in int x) { return nx_load_s2(uint(x)); }
int nx_cast_i32_s4(const in int x) { return nx_load_s4(uint(x)); }
int nx_cast_i32_s8(const in int x) { return nx_load_s8(uint(x)); }
int nx_cast_i32_s16(const in int x) { return nx_load_s16(uint(x)); }
uint nx_cast_i32_u2(const in int x) { return nx_load_u2(uint(x)); }
uint nx_cast_i32_u4(const in int x) { return nx_load_u4(uint(x)); }
uint nx_cast_i32_u8(const in int x) { return nx_load_u8(uint(x)); }
uint nx_cast_i32_u16(const in int x) { return nx_load_u16(uint(x)); }

int nx_cast_u32_s2(const in uint x) { return nx_load_s2(x); }
int nx_cast_u32_s4(const in uint x) { return nx_load_s4(x); }
int nx_cast_u32_s8(const in uint x) { return nx_load_s8(x); }
int nx_cast_u32_s16(const in uint x) { return nx_load_s16(x); }
uint nx_cast_u32_u2(const in uint x) { return nx_load_u2(x); }
uint nx_cast_u32_u4(const in uint x) { return nx_load_u4(x); }
uint nx_cast_u32_u8(const in uint x) { return nx_load_u8(x); }
uint nx_cast_u32_u16(const in uint x) { return nx_load_u16(x); }

int nx_cast_f32_s2(const in float x) { return clamp(nx_cast_f32_i32(x), -2, 1); }
int nx_cast_f32_s4(const in float x) { return clamp(nx_cast_f32_i32(x), -8, 7); }
int nx_cast_f32_s8(const in float x) { return clamp(nx_cast_f32_i32(x), -128, 127); }
int nx_cast_f32_s16(const in float x) { return clamp(nx_cast_f32_i32(x), -32768, 32767); }
uint nx_cast_f32_u2(const in float x) { return min(nx_cast_f32_u32(x), 3u); }
uint nx_cast_f32_u4(const in float x) { return min(nx_cast_f32_u32(x), 15u); }
uint nx_cast_f32_u8(const in float x) { return min(nx_cast_f32_u32(x), 255u); }
uint nx_cast_f32_u16(const in float x) { return min(nx_cast_f32_u32(x), 65535u); }

int nx_cast_c64_s2(const in vec2 x) { return nx_cast_f32_s2(x.x); }
int nx_cast_c64_s4(const in vec2 x) { return nx_cast_f32_s4(x.x); }
int nx_cast_c64_s8(const in vec2 x) { return nx_cast_f32_s8(x.x); }
int nx_cast_c64_s16(const in vec2 x) { return nx_cast_f32_s16(x.x); }
uint nx_cast_c64_u2(const in vec2 x) { return nx_cast_f32_u2(x.x); }
uint nx_cast_c64_u4(const in vec2 x) { return nx_cast_f32_u4(x.x); }
uint nx_cast_c64_u8(const in vec2 x) { return nx_cast_f32_u8(x.x); }
uint nx_cast_c64_u16(const in vec2 x) { return nx_cast_f32_u16(x.x); }

// x as f32 with the last bit set where bits were lost: rounding that again to a narrower float rounds once.
float nx_round_odd_u32_f32(const in uint x) {
    int shift = findMSB(x) - 23;
    if (shift <= 0) {
        return float(x);
    }
    uint lost = x & ((1u << shift) - 1u);
    return float((x >> shift) | (lost != 0u ? 1u : 0u)) * nx_power_of_two_f32(shift);
}

float nx_round_odd_i32_f32(const in int x) {
    return x < 0 ? -nx_round_odd_u32_f32(0u - uint(x)) : nx_round_odd_u32_f32(uint(x));
}

// Without the bits of f16: from `far` on, f32 are as far from each other as f16 are around x, or as subnormal f16 are.
float nx_cast_f32_f16(const in float x) {
    int magnitude = floatBitsToInt(x) & 0x7fffffff, sign = floatBitsToInt(x) ^ magnitude;
    float far = intBitsToFloat(max((magnitude & 0x7f800000) + (13 << 23), 0x3f000000));
    precise float rounded = (intBitsToFloat(magnitude) + far) - far;
    int bits = magnitude < 0x477ff000 ? floatBitsToInt(rounded) : 0x7f800000;
    return intBitsToFloat(magnitude > 0x7f800000 ? 0x7fc00000 : bits | sign);
}
float nx_cast_f32_bf16(const in float x) {
    uint bits = floatBitsToUint(x), rounded = nx_round_bits_bf16(bits) & 0xffff0000u;
    return uintBitsToFloat(bits << 1 > 0xff000000u ? 0x7fc00000u : rounded);
}

// Of zeros and numbers from 2^-126 to 2^111, by Veltkamp's splitting: what 65,537 times x has beyond x, taken from it,
// leaves the first 8 bits of x. In the middle of two of these both differences are, too, and go to the even one.
float nx_cast_f32_bf16_plain(const in float x) {
    precise float large = x * 65537.0f;
    precise float beyond = large - x;
    precise float rounded = large - beyond;
    return rounded;
}

// Whether a number is below 2^-40, but no zero, or above 2^36, or NaN.
bool nx_is_extreme_f32(const in float x) {
    uint doubled = floatBitsToUint(x) << 1;
    bool small = doubled - 1u < 0x56ffffffu, large = doubled > 0xa3000000u;
    return small || large;
}

// Whether a number's bits without its sign are below or above these.
bool nx_is_beyond_f32(const in float x, const in uint low, const in uint high) {
    return (floatBitsToUint(x) & 0x7fffffffu) - low > high - low;
}

// By sums: next to the power of two below it, a 65,536th of a number has as many bits as bf16. Most units of GPUs add
// floats twice as fast as they do what the integers above need. NaN stays some NaN.
float nx_cast_f32_bf16_kept(const in float x) {
    uint bits = floatBitsToUint(x);
    float power = uintBitsToFloat(min(bits & 0x7f800000u, 0x7f000000u));
    precise float rounded = fma(abs(x), 1.52587890625e-5f, power) - power;
    return rounded * uintBitsToFloat((bits & 0x80000000u) | 0x47800000u);
}

float nx_cast_f32_f16_kept(const in float x) {
    uint bits = floatBitsToUint(x);
    // Of subnormal f16 too, which are as far from each other as those above 2^-14.
    float power = uintBitsToFloat(clamp(bits & 0x7f800000u, 0x38800000u, 0x7f000000u));
    precise float rounded = fma(abs(x), 1.220703125e-4f, power) - power;
    // 2^16 and more become infinities.
    return (rounded * 4.25352959e37f) * uintBitsToFloat((bits & 0x80000000u) | 0x07800000u);
}

uint nx_store_bf16_kept(const in float x) {
    uint rounded = floatBitsToUint(nx_cast_f32_bf16_kept(x)) >> 16;
    return floatBitsToUint(x) << 1 > 0xff000000u ? 0x7fc0u : rounded;
}

// What such a rounded number is where its bits can be seen.
float nx_plain_nan_f32(const in float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u ? uintBitsToFloat(0x7fc00000u) : x;
}

#define NX_CAST_F32(T) float nx_cast_f32_##T(const in float x) { return nx_load_##T(nx_store_##T(x)); }
NX_FLOATS8(NX_CAST_F32)
#define NX_CAST_I32(T) float nx_cast_i32_##T(const in int x) { return nx_cast_f32_##T(nx_round_odd_i32_f32(x)); }
NX_NARROW_FLOATS(NX_CAST_I32)
#define NX_CAST_U32(T) float nx_cast_u32_##T(const in uint x) { return nx_cast_f32_##T(nx_round_odd_u32_f32(x)); }
NX_NARROW_FLOATS(NX_CAST_U32)
#define NX_CAST_C64(T) float nx_cast_c64_##T(const in vec2 x) { return nx_cast_f32_##T(x.x); }
NX_NARROW_FLOATS(NX_CAST_C64)

#endif

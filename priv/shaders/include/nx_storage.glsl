// Loads and stores of the dtypes narrower than 32 bits: raw bits <-> a value of the compute type.
// Floats are rounded to nearest even. NaN is stored as Nx writes it: positive and quiet.
#ifndef NX_STORAGE_GLSL
#define NX_STORAGE_GLSL

// Magnitude bits of a float with the given field widths nearest to an f32 magnitude; it may pass the largest finite
// one.
uint nx_round_float_bits(const in uint magnitude, const in uint exponent_bits, const in uint mantissa_bits) {
    uint rebias = 128u - (1u << (exponent_bits - 1u));
    uint exponent = magnitude >> 23;
    uint shift = 23u - mantissa_bits;
    uint m = magnitude - (rebias << 23);
    if (exponent <= rebias) {
        m = (magnitude & 0x7fffffu) | 0x800000u;
        shift += rebias + 1u - exponent;
    }
    if (shift > 24u) {
        return 0u;
    }
    return (m + ((1u << (shift - 1u)) - 1u) + ((m >> shift) & 1u)) >> shift;
}

// The floats of 8 bits, and all that are computed in f32: each has loads and stores here, and casts by these lists.
#define NX_FLOATS8(X) X(f8) X(f8_e4m3fn)
#define NX_NARROW_FLOATS(X) X(f16) X(bf16) NX_FLOATS8(X)

// Without branches. Subnormal numbers are the difference of two normal ones, which is exact.
float nx_load_f16(const in uint raw) {
    uint m = (raw & 0x7fffu) << 13;
    uint normal = m + (m >= 0x0f800000u ? 0x70000000u : 0x38000000u);
    uint small = floatBitsToUint(uintBitsToFloat(m + 0x38800000u) - uintBitsToFloat(0x38800000u));
    return uintBitsToFloat(((raw & 0x8000u) << 16) | (m < 0x00800000u ? small : normal));
}

// Where it makes no difference which NaN it is.
float nx_load_f16_number(const in uint raw) { return nx_load_f16(raw); }

float nx_load_bf16(const in uint raw) { return uintBitsToFloat(raw << 16); }

// The high byte of an f16.
float nx_load_f8(const in uint raw) { return nx_load_f16(raw << 8); }

// No infinities: the largest exponent holds finite values up to 448, and NaN as S.1111.111.
float nx_load_f8_e4m3fn(const in uint raw) {
    uint m = (raw & 0x7fu) << 20;
    uint small = floatBitsToUint(uintBitsToFloat(m + 0x3c800000u) - uintBitsToFloat(0x3c800000u));
    uint finite = m < 0x00800000u ? small : m + 0x3c000000u;
    return uintBitsToFloat(((raw & 0x80u) << 24) | (m == 0x07f00000u ? 0x7fc00000u : finite));
}

// Without branches. The addition rounds small numbers to multiples of the smallest one, 2^-24.
uint nx_store_f16(const in float x) {
    uint bits = floatBitsToUint(x);
    uint m = bits & 0x7fffffffu;
    uint normal = (m - 0x37fff001u + ((m >> 13) & 1u)) >> 13;
    uint small = floatBitsToUint(uintBitsToFloat(m) + 0.5) - 0x3f000000u;
    uint rounded = ((bits >> 16) & 0x8000u) | min(m < 0x38800000u ? small : normal, 0x7c00u);
    return m > 0x7f800000u ? 0x7e00u : rounded;
}

// The bits of the nearest bf16 in the upper half, of f32 that are no NaN. What decides in the middle of two stays in its
// place until it is added: GPUs shift and add at once.
uint nx_round_bits_bf16(const in uint bits) { return ((bits & 0x10000u) >> 16) + bits + 0x7fffu; }

uint nx_store_bf16(const in float x) {
    uint bits = floatBitsToUint(x), rounded = nx_round_bits_bf16(bits) >> 16;
    return bits << 1 > 0xff000000u ? 0x7fc0u : rounded;
}

uint nx_store_f8(const in float x) {
    uint bits = floatBitsToUint(x);
    uint m = bits & 0x7fffffffu;
    if (m > 0x7f800000u) {
        return 0x7eu;
    }
    return ((bits >> 24) & 0x80u) | min(nx_round_float_bits(m, 5u, 2u), 0x7cu);
}

// Overflow and infinities saturate to +-448, as in Nx.
uint nx_store_f8_e4m3fn(const in float x) {
    uint bits = floatBitsToUint(x);
    uint m = bits & 0x7fffffffu;
    if (m > 0x7f800000u) {
        return 0x7fu;
    }
    return ((bits >> 24) & 0x80u) | min(nx_round_float_bits(m, 4u, 3u), 0x7eu);
}

// Not by shifts: NVIDIA's compiler (580.159, on Hopper) drops them after a negation, before a minimum.
int nx_load_s2(const in uint raw) { return bitfieldExtract(int(raw), 0, 2); }
int nx_load_s4(const in uint raw) { return bitfieldExtract(int(raw), 0, 4); }
int nx_load_s8(const in uint raw) { return bitfieldExtract(int(raw), 0, 8); }
int nx_load_s16(const in uint raw) { return bitfieldExtract(int(raw), 0, 16); }
uint nx_load_u2(const in uint raw) { return raw & 3u; }
uint nx_load_u4(const in uint raw) { return raw & 15u; }
uint nx_load_u8(const in uint raw) { return raw & 255u; }
uint nx_load_u16(const in uint raw) { return raw & 65535u; }

uint nx_store_s2(const in int x) { return uint(x) & 3u; }
uint nx_store_s4(const in int x) { return uint(x) & 15u; }
uint nx_store_s8(const in int x) { return uint(x) & 255u; }
uint nx_store_s16(const in int x) { return uint(x) & 65535u; }
uint nx_store_u2(const in uint x) { return x & 3u; }
uint nx_store_u4(const in uint x) { return x & 15u; }
uint nx_store_u8(const in uint x) { return x & 255u; }
uint nx_store_u16(const in uint x) { return x & 65535u; }

#endif

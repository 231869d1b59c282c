// Loads, stores and roundings of f16 by the device's conversions, for devices whose conversions are those of
// nx_storage.glsl for all numbers.
#ifndef NX_HALVES_GLSL
#define NX_HALVES_GLSL

// Devices make NaN quiet or another one, so its bits are put in place, here and below.
float nx_load_f16_halves(const in uint raw) {
    float number = float(uint16BitsToHalf(uint16_t(raw)));
    uint nan = uint(int(raw << 16) >> 3) | 0x70000000u;
    return (raw & 0x7fffu) > 0x7c00u ? uintBitsToFloat(nan) : number;
}

float nx_load_f16_number_halves(const in uint raw) { return float(uint16BitsToHalf(uint16_t(raw))); }

uint nx_store_f16_halves(const in float x) {
    uint rounded = uint(halfBitsToUint16(float16_t(x)));
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u ? 0x7e00u : rounded;
}

// Where compilers do not take a conversion there and back for nothing.
float nx_cast_f32_f16_round_trip(const in float x) {
    float rounded = float(float16_t(x));
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u ? uintBitsToFloat(0x7fc00000u) : rounded;
}

// Where they do: `zero` is 0, which no compiler knows. NaN stays some NaN.
float nx_cast_f32_f16_hidden(const in float x, const in uint zero) {
    return float(uint16BitsToHalf(uint16_t(uint(halfBitsToUint16(float16_t(x))) | zero)));
}

#endif

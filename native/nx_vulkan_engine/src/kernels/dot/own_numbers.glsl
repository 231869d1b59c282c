// What kernels of f16 and bf16 numbers share that take them as they are, after TO_BF16 says which they give.

#include "own_half.glsl"

// Two numbers as words of 16 bits, rounded to the nearest, ties to even.
uint rounded(const in vec2 x) {
    if (TO_BF16 == 0u) return packFloat2x16(f16vec2(x));
    uvec2 bits = floatBitsToUint(x), nearest = ((bits & 0x10000u) >> 16) + bits + 0x7fffu;
    bits = mix(nearest, uvec2(0x7fc00000u), greaterThan(bits & 0x7fffffffu, uvec2(0x7f800000u)));
    return bits.x >> 16 | (bits.y & 0xffff0000u);
}

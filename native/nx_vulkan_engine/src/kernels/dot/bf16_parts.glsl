// An element of f32 as three bf16 numbers, hi + mid + lo, exactly.

// Rounds to bf16 in the upper half, ties away from zero.
uvec2 rounded(const in vec2 x) { return (floatBitsToUint(x) + 0x8000u) & 0xffff0000u; }

// The upper halves of two words.
uint halves(const in uvec2 words) { return words.x >> 16 | words.y & 0xffff0000u; }

// The three parts of two elements.
uvec3 parts_of(const in vec2 x) {
    vec2 scaled = x * 65536.0;
    uvec2 high = rounded(scaled);
    vec2 rest = scaled - uintBitsToFloat(high);
    uvec2 middle = rounded(rest);
    uvec2 low = floatBitsToUint(rest - uintBitsToFloat(middle));
    return uvec3(halves(high), halves(middle), halves(low));
}

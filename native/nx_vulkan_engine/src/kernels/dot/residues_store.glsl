// What is left of sums of a matrix of results by a plane's modulus, or the sums themselves, as an invocation holds them:
// four columns of a row, and of the row eight below. Sums are less than 2^31 from zero.
void store_sums(const in uint at, const in uint plane, const in uvec4 halves[2]) {
    if (COARSE != 0u) {
        slot_store_sums(2u * at, halves[0]);
        slot_store_sums(2u * at + 1u, halves[1]);
    } else {
        // A multiple of the modulus makes sums positive.
        uint modulus = MODULUS[plane], inverse = 0xffffffffu / modulus, positive = (0x7fffffffu / modulus + 1u) * modulus;
        uvec2 bytes = uvec2(0u);
        [[unroll]] for (uint h = 0u; h < 2u; ++h)
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                uint sum = halves[h][c] + positive, quotient, unused;
                umulExtended(sum, inverse, quotient, unused);
                sum -= quotient * modulus;
                bytes[h] |= min(sum, sum - modulus) << 8u * c;
            }
        slot_store(at, bytes);
    }
}

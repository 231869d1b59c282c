// Whether matrix units can take a product. Two kernels that take turns ask it, and find the same: one is for units, the
// other one for all that they can't take. A word of each operand has the bits of the largest absolute value, if that is
// at least 2^16, and those of infinity where digits were lost.
uint slot_a_largest() { return 1u; }
uint slot_b_largest() { return 2u; }

bool is_for_units() {
    // Exponents of f32.
    uint a = max(slot_a_largest() >> 23, 142u), b = max(slot_b_largest() >> 23, 142u);
    // Units multiply what is 2^16 times as large: neither an element nor a product of two may leave the range of f32.
    return max(a, b) < 238u && a + b < 346u;
}

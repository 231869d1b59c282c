// Integers of 64 bits as pairs of words, low word first, for devices without them. All wrap modulo 2^64; the lowering
// of modules calls these in place of SPIR-V's operations, so that what those leave undefined (shifts by 64 or more,
// division by zero) is so here.
#ifndef NX_SOFT_INT64_GLSL
#define NX_SOFT_INT64_GLSL

uvec2 nx_soft_add_u64(const in uvec2 a, const in uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 nx_soft_subtract_u64(const in uvec2 a, const in uvec2 b) {
    uint borrow;
    uint low = usubBorrow(a.x, b.x, borrow);
    return uvec2(low, a.y - b.y - borrow);
}

uvec2 nx_soft_negate_u64(const in uvec2 a) { return uvec2(-a.x, ~a.y + uint(a.x == 0u)); }

uvec2 nx_soft_multiply_u64(const in uvec2 a, const in uvec2 b) {
    uint high;
    uint low;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}

uvec2 nx_soft_left_u64(const in uvec2 a, const in uint places) {
    uint part = places & 31u;
    uint low = a.x << part;
    return places >= 32u ? uvec2(0u, low) : uvec2(low, a.y << part | a.x >> 1 >> 31u - part);
}

uvec2 nx_soft_right_u64(const in uvec2 a, const in uint places) {
    uint part = places & 31u;
    uint high = a.y >> part;
    return places >= 32u ? uvec2(high, 0u) : uvec2(a.x >> part | a.y << 1 << 31u - part, high);
}

uvec2 nx_soft_right_i64(const in uvec2 a, const in uint places) {
    uint part = places & 31u;
    uint high = uint(int(a.y) >> int(part));
    uint sign = uint(int(a.y) >> 31);
    return places >= 32u ? uvec2(high, sign) : uvec2(a.x >> part | a.y << 1 << 31u - part, high);
}

bool nx_soft_equal_u64(const in uvec2 a, const in uvec2 b) { return a.x == b.x && a.y == b.y; }
bool nx_soft_less_u64(const in uvec2 a, const in uvec2 b) { return a.y < b.y || a.y == b.y && a.x < b.x; }
bool nx_soft_less_i64(const in uvec2 a, const in uvec2 b) { return int(a.y) < int(b.y) || a.y == b.y && a.x < b.x; }

uvec2 nx_soft_min_u64(const in uvec2 a, const in uvec2 b) { return nx_soft_less_u64(b, a) ? b : a; }
uvec2 nx_soft_max_u64(const in uvec2 a, const in uvec2 b) { return nx_soft_less_u64(a, b) ? b : a; }
uvec2 nx_soft_min_i64(const in uvec2 a, const in uvec2 b) { return nx_soft_less_i64(b, a) ? b : a; }
uvec2 nx_soft_max_i64(const in uvec2 a, const in uvec2 b) { return nx_soft_less_i64(a, b) ? b : a; }

// Quotient in .xy, remainder in .zw.
uvec4 nx_soft_divide(const in uvec2 a, const in uvec2 b) {
    if ((a.y | b.y) == 0u) {
        uint divisor = max(b.x, 1u);
        uint quotient = a.x / divisor;
        return uvec4(quotient, 0u, a.x - quotient * divisor, 0u);
    }
    uvec2 quotient = a;
    uvec2 rest = uvec2(0u);
    for (int i = 0; i < 64; i++) {
        bool carry = rest.y >> 31 != 0u;
        rest = uvec2(rest.x << 1 | quotient.y >> 31, rest.y << 1 | rest.x >> 31);
        quotient = uvec2(quotient.x << 1, quotient.y << 1 | quotient.x >> 31);
        if (carry || !nx_soft_less_u64(rest, b)) {
            rest = nx_soft_subtract_u64(rest, b);
            quotient.x |= 1u;
        }
    }
    return uvec4(quotient, rest);
}

uvec2 nx_soft_quotient_u64(const in uvec2 a, const in uvec2 b) { return nx_soft_divide(a, b).xy; }
uvec2 nx_soft_remainder_u64(const in uvec2 a, const in uvec2 b) { return nx_soft_divide(a, b).zw; }

uvec2 nx_soft_abs_i64(const in uvec2 a) { return int(a.y) < 0 ? nx_soft_negate_u64(a) : a; }

uvec2 nx_soft_quotient_i64(const in uvec2 a, const in uvec2 b) {
    uvec2 quotient = nx_soft_divide(nx_soft_abs_i64(a), nx_soft_abs_i64(b)).xy;
    return int(a.y ^ b.y) < 0 ? nx_soft_negate_u64(quotient) : quotient;
}

// Has the sign of `a`.
uvec2 nx_soft_remainder_i64(const in uvec2 a, const in uvec2 b) {
    uvec2 rest = nx_soft_divide(nx_soft_abs_i64(a), nx_soft_abs_i64(b)).zw;
    return int(a.y) < 0 ? nx_soft_negate_u64(rest) : rest;
}

// Has the sign of `b`.
uvec2 nx_soft_modulo_i64(const in uvec2 a, const in uvec2 b) {
    uvec2 rest = nx_soft_remainder_i64(a, b);
    bool turn = (rest.x | rest.y) != 0u && int(rest.y ^ b.y) < 0;
    return turn ? nx_soft_add_u64(rest, b) : rest;
}

// Zeros above the highest bit that is set; 64 for 0.
uint nx_soft_leading_zeros(const in uvec2 a) { return uint(a.y != 0u ? 31 - findMSB(a.y) : 63 - findMSB(a.x)); }

// Shifts to the right, at most by 63, and keeps in the lowest bit whether any bit was lost.
uvec2 nx_soft_right_sticky(const in uvec2 a, const in uint places) {
    uvec2 kept = nx_soft_right_u64(a, places);
    uvec2 back = nx_soft_left_u64(kept, places);
    return uvec2(kept.x | uint(!nx_soft_equal_u64(back, a)), kept.y);
}

// The f32 of 2^(exponent - 127) times a significand whose highest bit, 30, is 1, rounded to nearest even.
float nx_soft_round_f32(const in uint sign, const in int exponent, const in uint significand) {
    uint places = uint(clamp(1 - exponent, 0, 31));
    uint kept = significand >> places;
    kept |= uint(kept << places != significand);
    uint low = kept & 0x7fu;
    uint bits = kept >> 7;
    bits += uint(low > 0x40u || low == 0x40u && (bits & 1u) != 0u);
    bits += uint(max(exponent - 1, 0)) << 23;
    return uintBitsToFloat(sign | (exponent >= 0xff || bits >= 0x7f800000u ? 0x7f800000u : bits));
}

float nx_soft_f32_of_magnitude(const in uint sign, const in uvec2 a) {
    uint zeros = nx_soft_leading_zeros(a);
    uvec2 shifted = nx_soft_left_u64(a, zeros & 63u);
    uint significand = shifted.y >> 1 | uint((shifted.y & 1u | shifted.x) != 0u);
    return zeros == 64u ? 0.0 : nx_soft_round_f32(sign, 127 + 63 - int(zeros), significand);
}

float nx_soft_f32_of_u64(const in uvec2 a) { return nx_soft_f32_of_magnitude(0u, a); }
float nx_soft_f32_of_i64(const in uvec2 a) { return nx_soft_f32_of_magnitude(a.y & 0x80000000u, nx_soft_abs_i64(a)); }

// Rounded towards zero, of numbers that 64 bits hold.
uvec2 nx_soft_u64_of_f32(const in float x) {
    uint bits = floatBitsToUint(x);
    int exponent = int(bits >> 23 & 0xffu) - 127;
    uvec2 significand = uvec2(bits & 0x7fffffu | 0x800000u, 0u);
    uvec2 large = nx_soft_left_u64(significand, uint(clamp(exponent - 23, 0, 63)));
    uvec2 small = nx_soft_right_u64(significand, uint(clamp(23 - exponent, 0, 63)));
    uvec2 value = exponent >= 23 ? large : small;
    return int(bits) < 0 ? nx_soft_negate_u64(value) : value;
}

#endif

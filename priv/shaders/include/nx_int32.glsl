// Integer operations on the compute types i32 and u32. All wrap modulo 2^32.
//
// Where BinaryBackend raises, the result here is fixed: x / 0 has all bits set, the remainder of x by 0 is x, a shift
// count outside [0, 31] (negative ones too) shifts everything out, and 0 to a negative power is 0.
#ifndef NX_INT32_GLSL
#define NX_INT32_GLSL

// i32

int nx_add_i32(const in int a, const in int b) { return a + b; }
int nx_subtract_i32(const in int a, const in int b) { return a - b; }
int nx_multiply_i32(const in int a, const in int b) { return a * b; }
int nx_negate_i32(const in int x) { return -x; }
int nx_abs_i32(const in int x) { return x < 0 ? nx_negate_i32(x) : x; }
// No choice of three: NVIDIA's compiler (580.159, on Hopper) gives some kernels up that have one beside divisions of
// f64.
int nx_sign_i32(const in int x) { return (x > 0 ? 1 : 0) | (x < 0 ? -1 : 0); }
int nx_bitwise_not_i32(const in int x) { return ~x; }
int nx_bitwise_and_i32(const in int a, const in int b) { return a & b; }
int nx_bitwise_or_i32(const in int a, const in int b) { return a | b; }
int nx_bitwise_xor_i32(const in int a, const in int b) { return a ^ b; }
// Unsigned, with turned signs: NVIDIA's compiler (580.159, on Hopper) takes elements of chains of signed extremes, or
// of such choices, for those before their negation.
int nx_min_i32(const in int a, const in int b) {
    return int(min(uint(a) ^ 0x80000000u, uint(b) ^ 0x80000000u) ^ 0x80000000u);
}
int nx_max_i32(const in int a, const in int b) {
    return int(max(uint(a) ^ 0x80000000u, uint(b) ^ 0x80000000u) ^ 0x80000000u);
}

// Truncates; the least integer by -1 wraps to itself.
int nx_quotient_i32(const in int a, const in int b) {
    if (b == 0) {
        return -1;
    }
    uint q = uint(nx_abs_i32(a)) / uint(nx_abs_i32(b));
    return int((a < 0) != (b < 0) ? 0u - q : q);
}

// Has the sign of a.
int nx_remainder_i32(const in int a, const in int b) {
    if (b == 0) {
        return a;
    }
    uint r = uint(nx_abs_i32(a)) % uint(nx_abs_i32(b));
    return int(a < 0 ? 0u - r : r);
}

int nx_left_shift_i32(const in int a, const in int b) {
    return uint(b) > 31u ? 0 : int(uint(a) << uint(b));
}
int nx_right_shift_i32(const in int a, const in int b) {
    return a >> uint(min(uint(b), 31u));
}

// A negative exponent truncates 1 / a^|b|: 1 and -1 keep their powers, all else is 0.
int nx_pow_i32(const in int a, const in int b) {
    if (b < 0) {
        if (a == 1 || a == -1) {
            return (a < 0 && (b & 1) == 0) ? 1 : a;
        }
        return 0;
    }
    uint result = 1u;
    uint base = uint(a);
    uint exponent = uint(b);
    while (exponent != 0u) {
        if ((exponent & 1u) != 0u) {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    return int(result);
}

uint nx_equal_i32(const in int a, const in int b) { return a == b ? 1u : 0u; }
uint nx_not_equal_i32(const in int a, const in int b) { return a != b ? 1u : 0u; }
uint nx_less_i32(const in int a, const in int b) { return a < b ? 1u : 0u; }
uint nx_less_equal_i32(const in int a, const in int b) { return a <= b ? 1u : 0u; }
uint nx_greater_i32(const in int a, const in int b) { return a > b ? 1u : 0u; }
uint nx_greater_equal_i32(const in int a, const in int b) { return a >= b ? 1u : 0u; }
uint nx_truthy_i32(const in int x) { return x != 0 ? 1u : 0u; }
uint nx_logical_and_i32(const in int a, const in int b) { return nx_truthy_i32(a) & nx_truthy_i32(b); }
uint nx_logical_or_i32(const in int a, const in int b) { return nx_truthy_i32(a) | nx_truthy_i32(b); }
uint nx_logical_xor_i32(const in int a, const in int b) { return nx_truthy_i32(a) ^ nx_truthy_i32(b); }
int nx_select_i32(const in uint pred, const in int a, const in int b) { return pred != 0u ? a : b; }
uint nx_is_nan_i32(const in int x) { return 0u; }
uint nx_is_infinity_i32(const in int x) { return 0u; }
int nx_real_i32(const in int x) { return x; }

// u32

uint nx_add_u32(const in uint a, const in uint b) { return a + b; }
uint nx_subtract_u32(const in uint a, const in uint b) { return a - b; }
uint nx_multiply_u32(const in uint a, const in uint b) { return a * b; }
uint nx_negate_u32(const in uint x) { return 0u - x; }
uint nx_abs_u32(const in uint x) { return x; }
uint nx_sign_u32(const in uint x) { return x != 0u ? 1u : 0u; }
uint nx_bitwise_not_u32(const in uint x) { return ~x; }
uint nx_bitwise_and_u32(const in uint a, const in uint b) { return a & b; }
uint nx_bitwise_or_u32(const in uint a, const in uint b) { return a | b; }
uint nx_bitwise_xor_u32(const in uint a, const in uint b) { return a ^ b; }
uint nx_min_u32(const in uint a, const in uint b) { return min(a, b); }
uint nx_max_u32(const in uint a, const in uint b) { return max(a, b); }
// The larger one as signed integers.
uint nx_signed_max_u32(const in uint a, const in uint b) { return uint(max(int(a), int(b))); }

uint nx_quotient_u32(const in uint a, const in uint b) { return b == 0u ? ~0u : a / b; }
uint nx_remainder_u32(const in uint a, const in uint b) { return b == 0u ? a : a % b; }
uint nx_left_shift_u32(const in uint a, const in uint b) {
    return b > 31u ? 0u : uint(uint(a) << uint(b));
}
uint nx_right_shift_u32(const in uint a, const in uint b) {
    return b > 31u ? 0u : a >> uint(b);
}

uint nx_pow_u32(const in uint a, const in uint b) {
    uint result = 1u;
    uint base = a;
    uint exponent = b;
    while (exponent != 0u) {
        if ((exponent & 1u) != 0u) {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    return result;
}

uint nx_equal_u32(const in uint a, const in uint b) { return a == b ? 1u : 0u; }
uint nx_not_equal_u32(const in uint a, const in uint b) { return a != b ? 1u : 0u; }
uint nx_less_u32(const in uint a, const in uint b) { return a < b ? 1u : 0u; }
uint nx_less_equal_u32(const in uint a, const in uint b) { return a <= b ? 1u : 0u; }
uint nx_greater_u32(const in uint a, const in uint b) { return a > b ? 1u : 0u; }
uint nx_greater_equal_u32(const in uint a, const in uint b) { return a >= b ? 1u : 0u; }
uint nx_truthy_u32(const in uint x) { return x != 0u ? 1u : 0u; }
uint nx_logical_and_u32(const in uint a, const in uint b) { return nx_truthy_u32(a) & nx_truthy_u32(b); }
uint nx_logical_or_u32(const in uint a, const in uint b) { return nx_truthy_u32(a) | nx_truthy_u32(b); }
uint nx_logical_xor_u32(const in uint a, const in uint b) { return nx_truthy_u32(a) ^ nx_truthy_u32(b); }
uint nx_select_u32(const in uint pred, const in uint a, const in uint b) { return pred != 0u ? a : b; }
uint nx_is_nan_u32(const in uint x) { return 0u; }
uint nx_is_infinity_u32(const in uint x) { return 0u; }
uint nx_real_u32(const in uint x) { return x; }

// Leading zeros and set bits of the low `width` bits, by dtype: narrow signed values are sign-extended registers.

int nx_count_leading_zeros_s2(const in int x) { return 1 - findMSB(uint(x) & 0x3u); }
int nx_count_leading_zeros_s4(const in int x) { return 3 - findMSB(uint(x) & 0xfu); }
int nx_count_leading_zeros_s8(const in int x) { return 7 - findMSB(uint(x) & 0xffu); }
int nx_count_leading_zeros_s16(const in int x) { return 15 - findMSB(uint(x) & 0xffffu); }
int nx_count_leading_zeros_s32(const in int x) { return 31 - findMSB(uint(x)); }
uint nx_count_leading_zeros_u2(const in uint x) { return uint(1 - findMSB(x)); }
uint nx_count_leading_zeros_u4(const in uint x) { return uint(3 - findMSB(x)); }
uint nx_count_leading_zeros_u8(const in uint x) { return uint(7 - findMSB(x)); }
uint nx_count_leading_zeros_u16(const in uint x) { return uint(15 - findMSB(x)); }
uint nx_count_leading_zeros_u32(const in uint x) { return uint(31 - findMSB(x)); }
int nx_population_count_s2(const in int x) { return bitCount(uint(x) & 0x3u); }
int nx_population_count_s4(const in int x) { return bitCount(uint(x) & 0xfu); }
int nx_population_count_s8(const in int x) { return bitCount(uint(x) & 0xffu); }
int nx_population_count_s16(const in int x) { return bitCount(uint(x) & 0xffffu); }
int nx_population_count_s32(const in int x) { return bitCount(uint(x)); }
uint nx_population_count_u2(const in uint x) { return uint(bitCount(x)); }
uint nx_population_count_u4(const in uint x) { return uint(bitCount(x)); }
uint nx_population_count_u8(const in uint x) { return uint(bitCount(x)); }
uint nx_population_count_u16(const in uint x) { return uint(bitCount(x)); }
uint nx_population_count_u32(const in uint x) { return uint(bitCount(x)); }

#endif

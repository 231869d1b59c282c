// Integer operations on the compute types i64 and u64. All wrap modulo 2^64; undefined cases are fixed as in
// nx_int32.glsl.
#ifndef NX_INT64_GLSL
#define NX_INT64_GLSL

// i64

int64_t nx_add_i64(const in int64_t a, const in int64_t b) { return a + b; }
int64_t nx_subtract_i64(const in int64_t a, const in int64_t b) { return a - b; }
int64_t nx_multiply_i64(const in int64_t a, const in int64_t b) { return a * b; }
int64_t nx_negate_i64(const in int64_t x) { return -x; }
int64_t nx_abs_i64(const in int64_t x) { return x < 0l ? nx_negate_i64(x) : x; }
// As nx_sign_i32.
int64_t nx_sign_i64(const in int64_t x) { return (x > 0l ? 1l : 0l) | (x < 0l ? -1l : 0l); }
int64_t nx_bitwise_not_i64(const in int64_t x) { return ~x; }
int64_t nx_bitwise_and_i64(const in int64_t a, const in int64_t b) { return a & b; }
int64_t nx_bitwise_or_i64(const in int64_t a, const in int64_t b) { return a | b; }
int64_t nx_bitwise_xor_i64(const in int64_t a, const in int64_t b) { return a ^ b; }
// Unsigned, with turned signs, for the reason that nx_int32.glsl has.
int64_t nx_min_i64(const in int64_t a, const in int64_t b) {
    return int64_t(min(uint64_t(a) ^ 0x8000000000000000ul, uint64_t(b) ^ 0x8000000000000000ul) ^ 0x8000000000000000ul);
}
int64_t nx_max_i64(const in int64_t a, const in int64_t b) {
    return int64_t(max(uint64_t(a) ^ 0x8000000000000000ul, uint64_t(b) ^ 0x8000000000000000ul) ^ 0x8000000000000000ul);
}

// Truncates; the least integer by -1 wraps to itself.
int64_t nx_quotient_i64(const in int64_t a, const in int64_t b) {
    if (b == 0l) {
        return -1l;
    }
    uint64_t q = uint64_t(nx_abs_i64(a)) / uint64_t(nx_abs_i64(b));
    return int64_t((a < 0l) != (b < 0l) ? 0ul - q : q);
}

// Has the sign of a.
int64_t nx_remainder_i64(const in int64_t a, const in int64_t b) {
    if (b == 0l) {
        return a;
    }
    uint64_t r = uint64_t(nx_abs_i64(a)) % uint64_t(nx_abs_i64(b));
    return int64_t(a < 0l ? 0ul - r : r);
}

int64_t nx_left_shift_i64(const in int64_t a, const in int64_t b) {
    return uint64_t(b) > 63ul ? 0l : int64_t(uint64_t(a) << uint(b));
}
int64_t nx_right_shift_i64(const in int64_t a, const in int64_t b) {
    return a >> uint(min(uint64_t(b), 63ul));
}

// A negative exponent truncates 1 / a^|b|: 1 and -1 keep their powers, all else is 0.
int64_t nx_pow_i64(const in int64_t a, const in int64_t b) {
    if (b < 0l) {
        if (a == 1l || a == -1l) {
            return (a < 0l && (b & 1l) == 0l) ? 1l : a;
        }
        return 0l;
    }
    uint64_t result = 1ul;
    uint64_t base = uint64_t(a);
    uint64_t exponent = uint64_t(b);
    while (exponent != 0ul) {
        if ((exponent & 1ul) != 0ul) {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    return int64_t(result);
}

uint nx_equal_i64(const in int64_t a, const in int64_t b) { return a == b ? 1u : 0u; }
uint nx_not_equal_i64(const in int64_t a, const in int64_t b) { return a != b ? 1u : 0u; }
uint nx_less_i64(const in int64_t a, const in int64_t b) { return a < b ? 1u : 0u; }
uint nx_less_equal_i64(const in int64_t a, const in int64_t b) { return a <= b ? 1u : 0u; }
uint nx_greater_i64(const in int64_t a, const in int64_t b) { return a > b ? 1u : 0u; }
uint nx_greater_equal_i64(const in int64_t a, const in int64_t b) { return a >= b ? 1u : 0u; }
uint nx_truthy_i64(const in int64_t x) { return x != 0l ? 1u : 0u; }
uint nx_logical_and_i64(const in int64_t a, const in int64_t b) { return nx_truthy_i64(a) & nx_truthy_i64(b); }
uint nx_logical_or_i64(const in int64_t a, const in int64_t b) { return nx_truthy_i64(a) | nx_truthy_i64(b); }
uint nx_logical_xor_i64(const in int64_t a, const in int64_t b) { return nx_truthy_i64(a) ^ nx_truthy_i64(b); }
int64_t nx_select_i64(const in uint pred, const in int64_t a, const in int64_t b) { return pred != 0u ? a : b; }
uint nx_is_nan_i64(const in int64_t x) { return 0u; }
uint nx_is_infinity_i64(const in int64_t x) { return 0u; }
int64_t nx_real_i64(const in int64_t x) { return x; }

// u64

uint64_t nx_add_u64(const in uint64_t a, const in uint64_t b) { return a + b; }
uint64_t nx_subtract_u64(const in uint64_t a, const in uint64_t b) { return a - b; }
uint64_t nx_multiply_u64(const in uint64_t a, const in uint64_t b) { return a * b; }
uint64_t nx_negate_u64(const in uint64_t x) { return 0ul - x; }
uint64_t nx_abs_u64(const in uint64_t x) { return x; }
uint64_t nx_sign_u64(const in uint64_t x) { return x != 0ul ? 1ul : 0ul; }
uint64_t nx_bitwise_not_u64(const in uint64_t x) { return ~x; }
uint64_t nx_bitwise_and_u64(const in uint64_t a, const in uint64_t b) { return a & b; }
uint64_t nx_bitwise_or_u64(const in uint64_t a, const in uint64_t b) { return a | b; }
uint64_t nx_bitwise_xor_u64(const in uint64_t a, const in uint64_t b) { return a ^ b; }
uint64_t nx_min_u64(const in uint64_t a, const in uint64_t b) { return min(a, b); }
uint64_t nx_max_u64(const in uint64_t a, const in uint64_t b) { return max(a, b); }

uint64_t nx_quotient_u64(const in uint64_t a, const in uint64_t b) { return b == 0ul ? ~0ul : a / b; }
uint64_t nx_remainder_u64(const in uint64_t a, const in uint64_t b) { return b == 0ul ? a : a % b; }
uint64_t nx_left_shift_u64(const in uint64_t a, const in uint64_t b) {
    return uint64_t(b) > 63ul ? 0ul : uint64_t(uint64_t(a) << uint(b));
}
uint64_t nx_right_shift_u64(const in uint64_t a, const in uint64_t b) {
    return b > 63ul ? 0ul : a >> uint(b);
}

uint64_t nx_pow_u64(const in uint64_t a, const in uint64_t b) {
    uint64_t result = 1ul;
    uint64_t base = a;
    uint64_t exponent = b;
    while (exponent != 0ul) {
        if ((exponent & 1ul) != 0ul) {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    return result;
}

// Of a u64 and a signed number modulo 2^64; of a negative exponent what an integer can hold, as nx_pow_i64 has it.
int64_t nx_pow_u64_i64(const in uint64_t a, const in int64_t b) {
    return b < 0l ? (a == 1ul ? 1l : 0l) : int64_t(nx_pow_u64(a, uint64_t(b)));
}
int64_t nx_pow_i64_u64(const in int64_t a, const in uint64_t b) { return int64_t(nx_pow_u64(uint64_t(a), b)); }

uint nx_equal_u64(const in uint64_t a, const in uint64_t b) { return a == b ? 1u : 0u; }
uint nx_not_equal_u64(const in uint64_t a, const in uint64_t b) { return a != b ? 1u : 0u; }
uint nx_less_u64(const in uint64_t a, const in uint64_t b) { return a < b ? 1u : 0u; }
uint nx_less_equal_u64(const in uint64_t a, const in uint64_t b) { return a <= b ? 1u : 0u; }
uint nx_greater_u64(const in uint64_t a, const in uint64_t b) { return a > b ? 1u : 0u; }
uint nx_greater_equal_u64(const in uint64_t a, const in uint64_t b) { return a >= b ? 1u : 0u; }
uint nx_truthy_u64(const in uint64_t x) { return x != 0ul ? 1u : 0u; }
uint nx_logical_and_u64(const in uint64_t a, const in uint64_t b) { return nx_truthy_u64(a) & nx_truthy_u64(b); }
uint nx_logical_or_u64(const in uint64_t a, const in uint64_t b) { return nx_truthy_u64(a) | nx_truthy_u64(b); }
uint nx_logical_xor_u64(const in uint64_t a, const in uint64_t b) { return nx_truthy_u64(a) ^ nx_truthy_u64(b); }
uint64_t nx_select_u64(const in uint pred, const in uint64_t a, const in uint64_t b) { return pred != 0u ? a : b; }
uint nx_is_nan_u64(const in uint64_t x) { return 0u; }
uint nx_is_infinity_u64(const in uint64_t x) { return 0u; }
uint64_t nx_real_u64(const in uint64_t x) { return x; }

// Two 32-bit words, low first: the bit builtins take no 64-bit operand.
uvec2 nx_words_u64(const in uint64_t x) { return uvec2(uint(x & 0xfffffffful), uint(x >> 32)); }

// The index of the highest set bit, or -1.
int nx_highest_bit_u64(const in uint64_t x) {
    uvec2 w = nx_words_u64(x);
    return w.y != 0u ? 32 + findMSB(w.y) : findMSB(w.x);
}

uint64_t nx_count_leading_zeros_u64(const in uint64_t x) { return uint64_t(63 - nx_highest_bit_u64(x)); }
int64_t nx_count_leading_zeros_s64(const in int64_t x) { return int64_t(63 - nx_highest_bit_u64(uint64_t(x))); }
uint64_t nx_population_count_u64(const in uint64_t x) {
    uvec2 w = nx_words_u64(x);
    return uint64_t(bitCount(w.x) + bitCount(w.y));
}
int64_t nx_population_count_s64(const in int64_t x) { return int64_t(nx_population_count_u64(uint64_t(x))); }

#endif

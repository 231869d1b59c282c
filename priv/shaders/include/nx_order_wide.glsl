// The exact order of 64-bit integers and floats, and of signed and unsigned ones, as in nx_order.glsl.
#ifndef NX_ORDER_WIDE_GLSL
#define NX_ORDER_WIDE_GLSL

uint64_t nx_order_magnitude_i64(const in int64_t a) { return a < 0l ? 0ul - uint64_t(a) : uint64_t(a); }

int nx_order_u64_i64(const in uint64_t a, const in int64_t b) {
    if (b < 0l) {
        return 1;
    }
    uint64_t u = uint64_t(b);
    return a < u ? -1 : (a > u ? 1 : 0);
}

// The order of a and m * 2^e, for m below 2^53.
int nx_order_scaled_u64(const in uint64_t a, const in uint64_t m, const in int e) {
    uint64_t t = m;
    bool fraction = false;
    if (e > 0) {
        uint high = uint(m >> 32);
        int bits = high != 0u ? findMSB(high) + 33 : findMSB(uint(m)) + 1;
        if (m != 0ul && bits + e > 64) {
            return -1;
        }
        t = m << (e & 63);
    } else if (e < -63) {
        t = 0ul;
        fraction = m != 0ul;
    } else if (e < 0) {
        t = m >> -e;
        fraction = (t << -e) != m;
    }
    return a != t ? (a < t ? -1 : 1) : (fraction ? -1 : 0);
}

// The same with signs.
int nx_order_signed_u64(const in bool a_negative, const in uint64_t a, const in bool sign, const in uint64_t m, const in int e) {
    bool negative = sign && m != 0ul;
    if (a_negative != negative) {
        return a_negative ? -1 : 1;
    }
    int order = nx_order_scaled_u64(a, m, e);
    return negative ? -order : order;
}

int nx_order_parts_f32(const in bool a_negative, const in uint64_t a, const in float b) {
    uint bits = floatBitsToUint(b);
    uint e = (bits >> 23) & 0xffu;
    uint m = bits & 0x7fffffu;
    if (e == 0xffu && m != 0u) {
        return 2;
    }
    bool sign = (bits & 0x80000000u) != 0u;
    return nx_order_signed_u64(a_negative, a, sign, uint64_t(e == 0u ? m : m | 0x800000u), int(max(e, 1u)) - 150);
}

int nx_order_parts_f64(const in bool a_negative, const in uint64_t a, const in double b) {
    uvec2 w = unpackDouble2x32(b);
    uint e = (w.y >> 20) & 0x7ffu;
    uint high = w.y & 0xfffffu;
    if (e == 0x7ffu && (high | w.x) != 0u) {
        return 2;
    }
    uint64_t m = (uint64_t(e == 0u ? high : high | 0x100000u) << 32) | uint64_t(w.x);
    return nx_order_signed_u64(a_negative, a, (w.y & 0x80000000u) != 0u, m, int(max(e, 1u)) - 1075);
}

int nx_order_i64_f32(const in int64_t a, const in float b) { return nx_order_parts_f32(a < 0l, nx_order_magnitude_i64(a), b); }
int nx_order_u64_f32(const in uint64_t a, const in float b) { return nx_order_parts_f32(false, a, b); }
int nx_order_i64_f64(const in int64_t a, const in double b) { return nx_order_parts_f64(a < 0l, nx_order_magnitude_i64(a), b); }
int nx_order_u64_f64(const in uint64_t a, const in double b) { return nx_order_parts_f64(false, a, b); }

// Division of a signed by an unsigned number and the reverse, the result modulo 2^64. By zero as nx_quotient_i64 has
// it.
int64_t nx_quotient_u64_i64(const in uint64_t a, const in int64_t b) {
    if (b == 0l) {
        return -1l;
    }
    int64_t q = int64_t(a / nx_order_magnitude_i64(b));
    return b < 0l ? 0l - q : q;
}
int64_t nx_quotient_i64_u64(const in int64_t a, const in uint64_t b) {
    if (b == 0ul) {
        return -1l;
    }
    int64_t q = int64_t(nx_order_magnitude_i64(a) / b);
    return a < 0l ? 0l - q : q;
}
int64_t nx_remainder_u64_i64(const in uint64_t a, const in int64_t b) {
    return int64_t(b == 0l ? a : a % nx_order_magnitude_i64(b));
}
int64_t nx_remainder_i64_u64(const in int64_t a, const in uint64_t b) {
    if (b == 0ul) {
        return a;
    }
    int64_t r = int64_t(nx_order_magnitude_i64(a) % b);
    return a < 0l ? 0l - r : r;
}

#endif

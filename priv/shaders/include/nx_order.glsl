// The exact order of an integer and a float, which a cast of either would blur: -1, 0 or 1 where the integer is below,
// equal or above, 2 where the float is NaN.
#ifndef NX_ORDER_GLSL
#define NX_ORDER_GLSL
#include "nx_f32_base.glsl"

// The order of 0 and the fraction by which x, of integer part t, exceeds t. Tells denormals from 0 by their bits.
int nx_order_fraction_f32(const in float x, const in float t) {
    uint f = t == 0.0f ? floatBitsToUint(x) : floatBitsToUint(x - t);
    return (f & 0x7fffffffu) == 0u ? 0 : ((f & 0x80000000u) != 0u ? 1 : -1);
}

int nx_order_i32_f32(const in int a, const in float b) {
    uint m = nx_magnitude_bits_f32(b);
    if (m >= 0x4f000000u) {
        // beyond 2^31; -2^31 itself falls through
        if (m > 0x7f800000u) {
            return 2;
        }
        if (floatBitsToUint(b) != 0xcf000000u) {
            return nx_sign_bit_f32(b) != 0u ? 1 : -1;
        }
        return a == -2147483647 - 1 ? 0 : 1;
    }
    int t = int(b);
    return a != t ? (a < t ? -1 : 1) : nx_order_fraction_f32(b, float(t));
}

int nx_order_u32_f32(const in uint a, const in float b) {
    uint bits = floatBitsToUint(b);
    uint m = bits & 0x7fffffffu;
    if (m > 0x7f800000u) {
        return 2;
    }
    if (bits != m) {
        return m != 0u || a != 0u ? 1 : 0;
    }
    if (m >= 0x4f800000u) {
        return -1;
    }
    uint t = uint(b);
    return a != t ? (a < t ? -1 : 1) : nx_order_fraction_f32(b, float(t));
}

// Predicates of an order.
uint nx_order_equal_i32(const in int order) { return order == 0 ? 1u : 0u; }
uint nx_order_not_equal_i32(const in int order) { return order != 0 ? 1u : 0u; }
uint nx_order_less_i32(const in int order) { return order == -1 ? 1u : 0u; }
uint nx_order_less_equal_i32(const in int order) { return order <= 0 ? 1u : 0u; }
uint nx_order_greater_i32(const in int order) { return order == 1 ? 1u : 0u; }
uint nx_order_greater_equal_i32(const in int order) { return order == 0 || order == 1 ? 1u : 0u; }

#endif

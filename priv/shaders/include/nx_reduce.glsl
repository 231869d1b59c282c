// What reductions need beyond the elementwise ops: compensated sums and products, and ordered keys for argmax and
// argmin.
#include "nx_f32_base.glsl"
#include "nx_f64_core.glsl"

// Sum of two compensated values (sum, error). Knuth's two-sum: exact without fused operations.
vec2 nx_sum2_f32(const in vec2 a, const in vec2 b) {
    float s = a.x + b.x;
    float v = s - a.x;
    float e = (a.x - (s - v)) + (b.x - v);
    return vec2(s, e + (a.y + b.y));
}

// Whether the largest of numbers without a sign, by its bits, is not between 2^-60 and 2^100: sums of larger ones have
// no room for the power below, and errors of those of smaller ones may be flushed.
bool nx_is_beyond_short_sums_f32(const in uint most) { return most - 0x21800000u >= 0x50000000u; }

// A power of two beyond numbers without a sign, by the bits of the largest.
float nx_beyond_f32(const in uint most) { return uintBitsToFloat((most & 0x7f800000u) + 0x00800000u); }

// Sum of a compensated value and a number that are no less and no more than such a power: exact in half the operations
// of a two-sum.
vec2 nx_sum_beyond_f32(const in vec2 a, const in float b) {
    float s = a.x + b;
    return vec2(s, a.y + (b - (s - a.x)));
}

// A sum that began with such a power, without it. The difference is exact.
vec2 nx_sum_without_f32(const in vec2 a, const in float beyond) { return vec2(a.x - beyond, a.y); }

// Product of two compensated values.
vec2 nx_product2_f32(const in vec2 a, const in vec2 b) { return nx_pair_product_f32(a, b); }

// The value of a compensated result. Infinite and NaN ones have no meaningful error term, and -0.0 stays so.
float nx_compensated_value_f32(const in vec2 a) {
    bool finite = (floatBitsToUint(a.x) & 0x7f800000u) != 0x7f800000u;
    return finite && a.y != 0.0 ? a.x + a.y : a.x;
}

dvec2 nx_sum2_f64(const in dvec2 a, const in dvec2 b) {
    double s = a.x + b.x;
    double v = s - a.x;
    double e = (a.x - (s - v)) + (b.x - v);
    return dvec2(s, e + (a.y + b.y));
}

double nx_compensated_value_f64(const in dvec2 a) {
    bool finite = (unpackDouble2x32(a.x).y & 0x7ff00000u) != 0x7ff00000u;
    return finite && a.y != 0.0lf ? a.x + a.y : a.x;
}

// Sums of both parts, then both errors.
vec4 nx_sum2_c64(const in vec4 a, const in vec4 b) {
    vec2 re = nx_sum2_f32(a.xz, b.xz), im = nx_sum2_f32(a.yw, b.yw);
    return vec4(re.x, im.x, re.y, im.y);
}

vec2 nx_compensated_value_c64(const in vec4 a) {
    return vec2(nx_compensated_value_f32(a.xz), nx_compensated_value_f32(a.yw));
}

// a * b as a compensated value. What is lost where products over- or underflow does not count.
vec2 nx_exact_product_f32(const in float a, const in float b) {
    vec2 p = nx_two_product_f32(a, b);
    bool finite = (floatBitsToUint(p.y) & 0x7f800000u) != 0x7f800000u;
    return vec2(p.x, finite ? p.y : 0.0f);
}

dvec2 nx_exact_product_f64(const in double a, const in double b) {
    dvec2 p = nx_f64_two_product(a, b);
    bool finite = (unpackDouble2x32(p.y).y & 0x7ff00000u) != 0x7ff00000u;
    return dvec2(p.x, finite ? p.y : 0.0lf);
}

vec4 nx_exact_product_c64(const in vec2 a, const in vec2 b) {
    vec2 re = nx_sum2_f32(nx_exact_product_f32(a.x, b.x), nx_exact_product_f32(-a.y, b.y));
    vec2 im = nx_sum2_f32(nx_exact_product_f32(a.x, b.y), nx_exact_product_f32(a.y, b.x));
    return vec4(re.x, im.x, re.y, im.y);
}

// Keys whose unsigned order is the order of the values. Both zeros have one key; NaN has the largest.
uint nx_key_u32(const in uint x) { return x; }
uint nx_key_i32(const in int x) { return uint(x) ^ 0x80000000u; }
uint nx_key_f32(const in float x) {
    uint b = floatBitsToUint(x);
    uint magnitude = b & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0xffffffffu;
    if (magnitude == 0u) return 0x80000000u;
    return (b >> 31) != 0u ? ~b : b | 0x80000000u;
}
uvec2 nx_key_u64(const in uint64_t x) { return uvec2(uint(x >> 32), uint(x)); }
uvec2 nx_key_i64(const in int64_t x) { return uvec2(uint(uint64_t(x) >> 32) ^ 0x80000000u, uint(uint64_t(x))); }
uvec2 nx_key_f64(const in double x) {
    uvec2 b = unpackDouble2x32(x).yx;
    uint magnitude = b.x & 0x7fffffffu;
    if (magnitude > 0x7ff00000u || (magnitude == 0x7ff00000u && b.y != 0u)) return uvec2(0xffffffffu);
    if (magnitude == 0u && b.y == 0u) return uvec2(0x80000000u, 0u);
    return (b.x >> 31) != 0u ? ~b : uvec2(b.x | 0x80000000u, b.y);
}

// The reversed order, for argmin. Of floats, NaN stays largest.
uint nx_key_reverse_32(const in uint k) { return ~k; }
uvec2 nx_key_reverse_64(const in uvec2 k) { return ~k; }
uint nx_key_reverse_nan_32(const in uint k) { return k == 0xffffffffu ? k : ~k; }
uvec2 nx_key_reverse_nan_64(const in uvec2 k) { return k == uvec2(0xffffffffu) ? k : ~k; }

// The better of two (key, index) pairs: the larger key; of equal keys the lower or the higher index. Among NaN the
// last wins, as in Nx.BinaryBackend.
uvec2 nx_arg_low_32(const in uvec2 a, const in uvec2 b) {
    return a.x > b.x || (a.x == b.x && a.y <= b.y) ? a : b;
}
uvec2 nx_arg_high_32(const in uvec2 a, const in uvec2 b) {
    return a.x > b.x || (a.x == b.x && a.y >= b.y) ? a : b;
}
uvec2 nx_arg_low_nan_32(const in uvec2 a, const in uvec2 b) {
    bool earlier = a.x == 0xffffffffu ? a.y >= b.y : a.y <= b.y;
    return a.x > b.x || (a.x == b.x && earlier) ? a : b;
}
uvec4 nx_arg_low_64(const in uvec4 a, const in uvec4 b) {
    bool equal = a.x == b.x && a.y == b.y;
    return a.x > b.x || (a.x == b.x && a.y > b.y) || (equal && a.z <= b.z) ? a : b;
}
uvec4 nx_arg_high_64(const in uvec4 a, const in uvec4 b) {
    bool equal = a.x == b.x && a.y == b.y;
    return a.x > b.x || (a.x == b.x && a.y > b.y) || (equal && a.z >= b.z) ? a : b;
}
uvec4 nx_arg_low_nan_64(const in uvec4 a, const in uvec4 b) {
    bool equal = a.x == b.x && a.y == b.y;
    bool earlier = (a.x & a.y) == 0xffffffffu ? a.z >= b.z : a.z <= b.z;
    return a.x > b.x || (a.x == b.x && a.y > b.y) || (equal && earlier) ? a : b;
}

// a * b + sum, fused where the device fuses it: sums of products have no reference that rounds twice.
float nx_multiply_add_f32(const in float a, const in float b, const in float sum) { return fma(a, b, sum); }
double nx_multiply_add_f64(const in double a, const in double b, const in double sum) { return fma(a, b, sum); }
int nx_multiply_add_i32(const in int a, const in int b, const in int sum) { return a * b + sum; }
uint nx_multiply_add_u32(const in uint a, const in uint b, const in uint sum) { return a * b + sum; }
int64_t nx_multiply_add_i64(const in int64_t a, const in int64_t b, const in int64_t sum) { return a * b + sum; }
uint64_t nx_multiply_add_u64(const in uint64_t a, const in uint64_t b, const in uint64_t sum) { return a * b + sum; }
vec2 nx_multiply_add_c64(const in vec2 a, const in vec2 b, const in vec2 sum) {
    return vec2(fma(-a.y, b.y, fma(a.x, b.x, sum.x)), fma(a.y, b.x, fma(a.x, b.y, sum.y)));
}
dvec2 nx_multiply_add_c128(const in dvec2 a, const in dvec2 b, const in dvec2 sum) {
    return dvec2(fma(-a.y, b.y, fma(a.x, b.x, sum.x)), fma(a.y, b.x, fma(a.x, b.y, sum.y)));
}

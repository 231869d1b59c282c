// Bit helpers and exact (error-free) arithmetic that the other f32 files stand on.
//
// A "pair" is an unevaluated sum x + y of two floats with |y| <= ulp(x) / 2, about 48 bits wide. Where a function f has
// a twin f_fused, generated kernels call the twin on devices that fuse fma: fewer steps, and the same bits unless it
// says otherwise. The twin must not call f, which would be itself: what both need is a function f_exactly, which f
// wraps. On devices that round quotients and roots of f32 rightly they call f_rounded, if there is one, in the same
// way, always for the same bits. Nothing else here needs fma to be fused, division to be right to the last bit, or
// denormals to be kept by the device: products are split by masking bits, and zeros, infinities, NaN and denormals are
// told apart by their bits.
#ifndef NX_F32_BASE_GLSL
#define NX_F32_BASE_GLSL

// The three operations for which Vulkan allows an error of a few ulp. All uses are corrected by exact residuals.
float nx_rough_divide_f32(const in float a, const in float b) { return a / b; }
float nx_rough_sqrt_f32(const in float x) { return sqrt(x); }
float nx_rough_rsqrt_f32(const in float x) { return inversesqrt(x); }

float nx_nan_f32() { return uintBitsToFloat(0x7fc00000u); }

// Infinity with the sign bit of `sign`.
float nx_signed_infinity_f32(const in uint sign) { return uintBitsToFloat((sign & 0x80000000u) | 0x7f800000u); }

uint nx_magnitude_bits_f32(const in float x) { return floatBitsToUint(x) & 0x7fffffffu; }

uint nx_sign_bit_f32(const in float x) { return floatBitsToUint(x) & 0x80000000u; }

// x, whose sign bit must be clear, with the sign bit of `sign`. Mesa 25.0 (lavapipe) miscompiles the form
// (x & 0x7fffffff) | (sign & 0x80000000) in some functions.
float nx_with_sign_f32(const in float x, const in uint sign) {
    return uintBitsToFloat(floatBitsToUint(x) ^ (sign & 0x80000000u));
}

// 2^k for -126 <= k <= 127.
float nx_power_of_two_f32(const in int k) { return uintBitsToFloat(uint(k + 127) << 23); }

// The upper 12 significant bits of a: products of two such halves are exact.
float nx_upper_half_f32(const in float a) { return uintBitsToFloat(floatBitsToUint(a) & 0xfffff000u); }

// a + b as a pair, exactly.
vec2 nx_two_sum_f32(const in float a, const in float b) {
    float s = a + b;
    float t = s - a;
    return vec2(s, (a - (s - t)) + (b - t));
}

// a + b as a pair, exactly, when |a| >= |b| or a is zero.
vec2 nx_fast_two_sum_f32(const in float a, const in float b) {
    float s = a + b;
    return vec2(s, b - (s - a));
}

// a * b as a pair, exactly, when no partial product underflows (|a * b| > 2^-100) or overflows.
vec2 nx_two_product_f32(const in float a, const in float b) {
    float p = a * b;
    float ah = nx_upper_half_f32(a);
    float al = a - ah;
    float bh = nx_upper_half_f32(b);
    float bl = b - bh;
    return vec2(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl);
}

vec2 nx_two_product_f32_fused(const in float a, const in float b) {
    float p = a * b;
    return vec2(p, fma(a, b, -p));
}

// c - a * b rounded once, when a * b is so near to c that the first difference is exact.
float nx_residual_f32(const in float c, const in float a, const in float b) {
    vec2 p = nx_two_product_f32(a, b);
    return (c - p.x) - p.y;
}
float nx_residual_f32_fused(const in float c, const in float a, const in float b) { return fma(-a, b, c); }

// Zero where fma rounds twice. Engines probe this to choose between a function and its twin.
float nx_fma_probe_f32(const in float a, const in float b) { return fma(a, b, -(a * b)); }

vec2 nx_pair_add_f32(const in vec2 a, const in vec2 b) {
    vec2 s = nx_two_sum_f32(a.x, b.x);
    return nx_fast_two_sum_f32(s.x, s.y + (a.y + b.y));
}

vec2 nx_pair_add_float_f32(const in vec2 a, const in float b) {
    vec2 s = nx_two_sum_f32(a.x, b);
    return nx_fast_two_sum_f32(s.x, s.y + a.y);
}

vec2 nx_pair_multiply_f32(const in vec2 a, const in vec2 b) {
    vec2 p = nx_two_product_f32(a.x, b.x);
    return nx_fast_two_sum_f32(p.x, p.y + (a.x * b.y + a.y * b.x));
}

vec2 nx_pair_multiply_float_f32(const in vec2 a, const in float b) {
    vec2 p = nx_two_product_f32(a.x, b);
    return nx_fast_two_sum_f32(p.x, p.y + a.y * b);
}

// a * b to about 2^-46 as a sum whose second part may reach a few ulp of the first.
vec2 nx_pair_product_f32(const in vec2 a, const in vec2 b) {
    vec2 p = nx_two_product_f32(a.x, b.x);
    return vec2(p.x, p.y + fma(a.x, b.y, a.y * b.x));
}

// What a function f gives, as f_near gives it: the least and the largest number that rounding could lead to. Where they
// are not the same, f decides.
float nx_certain_f32(const in vec2 bounds) { return bounds.x; }
bool nx_is_doubtful_f32(const in vec2 bounds) { return !(bounds.x == bounds.y); }

// c + a * b likewise, where |c| >= |a * b|: a step of Horner's scheme.
vec2 nx_pair_step_f32(const in vec2 c, const in vec2 a, const in vec2 b) {
    vec2 p = nx_pair_product_f32(a, b);
    vec2 s = nx_fast_two_sum_f32(c.x, p.x);
    return vec2(s.x, s.y + (c.y + p.y));
}

// a / b to about 2^-44.
vec2 nx_pair_divide_f32(const in vec2 a, const in vec2 b) {
    float r = nx_rough_divide_f32(1.0f, b.x);
    float q = a.x * r;
    vec2 p = nx_two_product_f32(q, b.x);
    float e = (((a.x - p.x) - p.y) + a.y - q * b.y) * r;
    return nx_fast_two_sum_f32(q, e);
}

// x * z * c, the cubic term of an odd function of x, with z = x^2 as a pair and a coefficient c of two parts.
vec2 nx_cubic_term_f32(const in float x, const in vec2 z, const in vec2 c) {
    vec2 cube = nx_two_product_f32(x, z.x);
    vec2 q = nx_fast_two_sum_f32(c.x, c.y);
    vec2 p = nx_two_product_f32(cube.x, q.x);
    return vec2(p.x, p.y + (cube.x * q.y + (cube.y + x * z.y) * q.x));
}

// sqrt(a) to about 2^-44, for a in the normal range.
vec2 nx_pair_sqrt_f32(const in vec2 a) {
    float r = nx_rough_rsqrt_f32(a.x);
    float s = a.x * r;
    vec2 p = nx_two_product_f32(s, s);
    float e = (((a.x - p.x) - p.y) + a.y) * (0.5f * r);
    return nx_fast_two_sum_f32(s, e);
}

// The integer nearest to x, for |x| < 2^22.
float nx_nearest_integer_f32(const in float x) { return floor(x + 0.5f); }

// (mantissa with 26 bits: 24, a guard bit, a sticky bit) * 2^(exponent - 25), rounded to nearest even.
float nx_pack_f32(const in uint sign, const in int exponent, const in uint mantissa) {
    uint m = mantissa;
    uint biased = uint(max(exponent + 126, 0));
    if (exponent < -126) {
        uint shift = uint(min(-126 - exponent, 31));
        m = (m >> shift) | ((m & ((1u << shift) - 1u)) != 0u ? 1u : 0u);
    }
    uint rest = m & 3u;
    m = (m >> 2) + ((rest == 3u || (rest == 2u && (m & 4u) != 0u)) ? 1u : 0u);
    uint bits = exponent > 127 ? 0x7f800000u : min((biased << 23) + m, 0x7f800000u);
    return uintBitsToFloat(sign | bits);
}

// (x.x + x.y) * 2^k for a pair with a normal leading part, rounded once.
float nx_scale_pair_f32(const in vec2 x, const in int k) {
    uint bits = nx_magnitude_bits_f32(x.x);
    int e = int(bits >> 23) + k;
    if (bits == 0u || (e > 0 && e < 255)) {
        return bits == 0u ? x.x : uintBitsToFloat(floatBitsToUint(x.x) + (uint(k) << 23));
    }
    // below the guard bits, only the sign of the rest matters
    uint m = ((bits & 0x7fffffu) | 0x800000u) << 2;
    if (nx_magnitude_bits_f32(x.y) != 0u) {
        m = nx_sign_bit_f32(x.x) == nx_sign_bit_f32(x.y) ? m + 1u : m - 1u;
    }
    return nx_pack_f32(nx_sign_bit_f32(x.x), e - 127, m);
}

// x * 2^k for a normal x, rounded once.
float nx_scale_f32(const in float x, const in int k) { return nx_scale_pair_f32(vec2(x, 0.0f), k); }

// Mantissa in [1, 2) of a finite x > 0; its exponent comes from nx_exponent_f32.
float nx_mantissa_f32(const in float x) {
    uint bits = floatBitsToUint(x) & 0x7fffffffu;
    if (bits < 0x800000u) {
        bits = bits << (23 - findMSB(bits));
    }
    return uintBitsToFloat((bits & 0x7fffffu) | 0x3f800000u);
}

// floor(log2 x) of a finite x > 0.
int nx_exponent_f32(const in float x) {
    uint bits = floatBitsToUint(x) & 0x7fffffffu;
    return bits < 0x800000u ? findMSB(bits) - 149 : int(bits >> 23) - 127;
}

#endif

// sin, cos and tan for f64: x = n pi/2 + r, |r| <= pi/4 as a dd, by Cody and Waite up to |n| = 2^20 and by
// Payne and Hanek (1983) with 192 bits of 2/pi beyond. Polynomials by Sollya fpminimax.
#ifndef NX_F64_TRIG_GLSL
#define NX_F64_TRIG_GLSL
#include "nx_f64_core.glsl"

// The low word of a * b + c + d; and the high word.
uvec2 nx_f64_multiply_add_words(const in uint a, const in uint b, const in uint c, const in uint d) {
    uint high;
    uint low;
    uint carry;
    uint carry2;
    umulExtended(a, b, high, low);
    low = uaddCarry(low, c, carry);
    low = uaddCarry(low, d, carry2);
    return uvec2(low, high + carry + carry2);
}

// A reduced argument: r as a dd, quadrant as a whole number in 0..3.
struct nx_f64_reduced {
    dvec2 r;
    uint quadrant;
};

// |x| in [2^20, 2^1024).
nx_f64_reduced nx_f64_reduce_large(const in double x) {
    uvec2 u = unpackDouble2x32(x);
    int e = int((u.y >> 20) & 0x7ffu) - 1075;
    uint high = (u.y & 0x000fffffu) | 0x00100000u;
    uint low = u.x;
    // |x| = M 2^e. The product M * W, W the 192 bits of 2/pi whose first has weight 2^(1 - e), is kept modulo
    // 2^192: two bits of quadrant, then the fraction of a quadrant. Bit e + 62 of the table has that weight.
    // The table is the binary fraction of 2/pi after 64 zero bits.
    const uint words[42] = uint[42](
        0x00000000u, 0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
        0xdebbc561u, 0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u,
        0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu, 0xef2f118bu,
        0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu, 0x3d0739f7u, 0x8a5292eau,
        0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu, 0xf0cfbc20u, 0x9af4361du);
    int first = (e + 62) >> 5;
    uint shift = uint(e + 62) & 31u;
    uint next = words[first + 6];
    uint w[6];
    uint carry_low = 0u;
    uint carry_high = 0u;
    uint previous = 0u;
    for (int i = 5; i >= 0; i--) {
        uint word = words[first + i];
        uint t = shift == 0u ? word : (word << shift) | (next >> (32u - shift));
        next = word;
        uvec2 a = nx_f64_multiply_add_words(t, low, carry_low, 0u);
        uvec2 b = nx_f64_multiply_add_words(previous, high, carry_high, a.x);
        w[i] = b.x;
        carry_low = a.y;
        carry_high = b.y;
        previous = t;
    }
    uint quadrant = w[0] >> 30;
    // To the nearest whole number: a fraction from 1/2 on becomes negative.
    bool up = (w[0] & 0x20000000u) != 0u;
    quadrant = up ? quadrant + 1u : quadrant;
    uint flip = up ? 0xffffffffu : 0u;
    double scale = 9.313225746154785e-10lf;
    dvec2 f = dvec2(double((w[0] ^ flip) & 0x3fffffffu) * scale, 0.0lf);
    for (int i = 1; i < 6; i++) {
        scale = scale * 2.3283064365386963e-10lf;
        dvec2 s = nx_f64_two_sum(f.x, double(w[i] ^ flip) * scale);
        f = nx_f64_fast_two_sum(s.x, s.y + f.y);
    }
    dvec2 r = nx_f64_dd_multiply(f, dvec2(1.5707963267948966lf, 6.123233995736766e-17lf));
    bool negative = (u.y & 0x80000000u) != 0u;
    nx_f64_reduced result;
    result.r = up != negative ? -r : r;
    result.quadrant = (negative ? 0u - quadrant : quadrant) & 3u;
    return result;
}

nx_f64_reduced nx_f64_reduce(const in double x) {
    nx_f64_reduced result;
    if (nx_f64_magnitude(x) > 1647000.0lf) {
        result = nx_f64_reduce_large(x);
    } else {
        // pi/2 in three parts of 33 bits and a rest, so that the first three products are exact.
        double n = floor(x * 0.6366197723675814lf + 0.5lf);
        double a = x - n * 1.5707963267341256lf;
        dvec2 s = nx_f64_two_sum(a, -(n * 6.077100506303966e-11lf));
        dvec2 t = nx_f64_two_sum(s.x, -(n * 2.0222662487111665e-21lf));
        result.r = nx_f64_fast_two_sum(t.x, (t.y + s.y) - n * 8.4784276603689e-32lf);
        result.quadrant = uint(int(n)) & 3u;
    }
    return result;
}

// sin(r) for |r| <= pi/4, relative error below 2^-55.
dvec2 nx_f64_sin_core(const in dvec2 r) {
    double z = r.x * r.x;
    double p = -7.057766342637018e-13lf;
    p = fma(p, z, 1.604792623741672e-10lf);
    p = fma(p, z, -2.505202444881025e-08lf);
    p = fma(p, z, 2.7557318916630704e-06lf);
    p = fma(p, z, -0.00019841269840720468lf);
    p = fma(p, z, 0.008333333333332912lf);
    p = fma(p, z, -0.16666666666666666lf);
    return nx_f64_fast_two_sum(r.x, fma(z * r.x, p, r.y * fma(-0.5lf, z, 1.0lf)));
}

// cos(r) for |r| <= pi/4, relative error below 2^-56.
dvec2 nx_f64_cos_core(const in dvec2 r) {
    dvec2 z = nx_f64_two_product(r.x, r.x);
    double p = 3.423353775166985e-14lf;
    p = fma(p, z.x, -1.144394269705897e-11lf);
    p = fma(p, z.x, 2.0876551286194283e-09lf);
    p = fma(p, z.x, -2.755731846441364e-07lf);
    p = fma(p, z.x, 2.4801587300222626e-05lf);
    p = fma(p, z.x, -0.0013888888888887838lf);
    p = fma(p, z.x, 0.041666666666666664lf);
    dvec2 s = nx_f64_fast_two_sum(1.0lf, -0.5lf * z.x);
    return nx_f64_fast_two_sum(s.x, s.y + (z.x * z.x * p - (0.5lf * z.y + r.x * r.y)));
}

// sin for shift 0, cos for shift 1.
double nx_f64_sin_shifted(const in double x, const in uint shift) {
    nx_f64_reduced a = nx_f64_reduce(x);
    uint q = a.quadrant + shift;
    dvec2 v;
    if ((q & 1u) != 0u) {
        v = nx_f64_cos_core(a.r);
    } else {
        v = nx_f64_sin_core(a.r);
    }
    return nx_f64_flip(v.x + v.y, q << 30);
}

// max error: 0.75 ulp over 4 10^6 inputs.
double nx_sin_f64(const in double x) {
    uint h = nx_f64_high(x) & 0x7fffffffu;
    if (h >= 0x7ff00000u) {
        return nx_f64_nan();
    }
    if (h < 0x3e400000u) {
        return x;
    }
    return nx_f64_sin_shifted(x, 0u);
}

// max error: 0.75 ulp over 4 10^6 inputs.
double nx_cos_f64(const in double x) {
    if ((nx_f64_high(x) & 0x7fffffffu) >= 0x7ff00000u) {
        return nx_f64_nan();
    }
    return nx_f64_sin_shifted(x, 1u);
}

// max error: 0.85 ulp over 4 10^6 inputs.
double nx_tan_f64(const in double x) {
    uint h = nx_f64_high(x) & 0x7fffffffu;
    if (h >= 0x7ff00000u) {
        return nx_f64_nan();
    }
    if (h < 0x3e400000u) {
        return x;
    }
    nx_f64_reduced a = nx_f64_reduce(x);
    dvec2 s = nx_f64_sin_core(a.r);
    dvec2 c = nx_f64_cos_core(a.r);
    bool odd = (a.quadrant & 1u) != 0u;
    dvec2 q = nx_f64_dd_divide(odd ? -c : s, odd ? s : c);
    return q.x + q.y;
}

#endif

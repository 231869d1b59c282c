// Jacobi rotations in the order of Nx's default implementation (Brent and Luk 1985), so that vectors have its signs.
#ifndef LINALG_JACOBI_GLSL
#define LINALG_JACOBI_GLSL
#include "linalg_scale.glsl"

// Elements rotate past element 0, which stays, as a ring of 2 * pairs - 1. The places of a pair's upper and lower
// element in the ring after `turn` turns, turn < 2 * pairs - 1; a turn further each is one less.
uvec2 la_places(const in uint pair, const in uint turn, const in uint pairs) {
    uint ring = 2u * pairs - 1u;
    return uvec2((pair + ring - turn) % ring, ((pair == 0u ? 0u : ring - pair) + ring - turn) % ring);
}

// The element at a place of the ring.
uint la_ring(const in uint at, const in uint pairs) { return at == 0u ? pairs : at < pairs ? at : 3u * pairs - 1u - at; }

// The upper and the lower element of a pair whose places are given.
uvec2 la_pair_at(const in uint pair, const in uvec2 places, const in uint pairs) {
    return uvec2(pair == 0u ? 0u : la_ring(places.x, pairs), la_ring(places.y, pairs));
}

// The upper and the lower element of a pair.
uvec2 la_pair(const in uint pair, const in uint turn, const in uint pairs) {
    return la_pair_at(pair, la_places(pair, turn, pairs), pairs);
}

// The element at a position: upper elements of pairs, then lower ones.
uint la_element(const in uint position, const in uint turn, const in uint pairs) {
    return position < pairs ? la_pair(position, turn, pairs).x : la_pair(position - pairs, turn, pairs).y;
}

#if defined(F32) || defined(C64)
#define LA_ROUNDING R(5.9604645e-8)
#define LA_NEGLIGIBLE R(8.673617e-19)
#else
#define LA_ROUNDING R(1.1102230246251565e-16LF)
#define LA_NEGLIGIBLE R(4.909093465297727e-91LF)
#endif

#if defined(F32) || defined(C64)
T la_not_a_number() { return T(uintBitsToFloat(0x7fc00000u)); }
#else
T la_not_a_number() { return T(packDouble2x32(uvec2(0u, 0x7ff80000u))); }
#endif

struct Rotation {
    R t;
    R c;
    T s;
    R off;
};

// Clears the element `off` between the real diagonal elements `upper` and `lower`; with the digits of Nx's steps if
// wanted.
Rotation la_rotation(const in R upper, const in T off, const in R lower, const in bool nx_steps) {
    Rotation rotation;
    R s;
#ifdef COMPLEX
    R size = slot_abs(off);
    T phase = la_conj(la_phase(off, size));
#else
    R size = off;
#endif
    if (nx_steps) {
        R tau = slot_divide_real(lower - upper, R(2) * size);
        R root = slot_sqrt(R(1) + tau * tau);
        rotation.t = slot_divide_real(R(1), tau + (tau >= R(0) ? root : -root));
        R length = slot_sqrt(R(1) + rotation.t * rotation.t);
        rotation.c = slot_divide_real(R(1), length);
        s = slot_divide_real(rotation.t, length);
    } else {
        // Any angle near the right one will do, but its cosine and sine must be of one angle.
        R tau = (lower - upper) / (R(2) * size);
        R root = sqrt(R(1) + tau * tau);
        R t = R(1) / (tau + (tau >= R(0) ? root : -root));
        R length = sqrt(R(1) + t * t);
        rotation.t = t;
        // 1 / length makes vectors grow where t is near the root of the rounding error, since numbers are sparser above
        // 1.
        rotation.c = R(1) - t * t / (length * (R(1) + length));
        s = t * rotation.c;
    }
#ifdef COMPLEX
    rotation.s = la_scale(phase, s);
#else
    rotation.s = s;
#endif
    rotation.off = size;
    return rotation;
}

Rotation la_no_rotation() { return Rotation(R(0), R(1), la_zero(), R(0)); }

// upper * c - lower * conj(s) and upper * s + lower * c.
T la_rotate_upper(const in T upper, const in T lower, const in R c, const in T s) {
    return la_scale(upper, c) - la_mul(lower, la_conj(s));
}
T la_rotate_lower(const in T upper, const in T lower, const in R c, const in T s) {
    return la_mul(upper, s) + la_scale(lower, c);
}

#endif

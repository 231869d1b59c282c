// The pivot of a column among the rows of a workgroup's LOCAL invocations.
#ifndef LINALG_PIVOT_GLSL
#define LINALG_PIVOT_GLSL
#include "linalg.glsl"

#define NONE 0xffffffffu

// A candidate's size in two words, which of equals comes first, and its row. The pivot is the element of largest modulus, the first of
// equals; NaN is larger than all, and the last NaN counts. uvec4(0) stands for no candidate: all others are better.
uvec4 candidate(const in R size, const in uint position, const in uint row) {
    if (la_is_nan_real(size)) return uvec4(NONE, NONE, position, row);
#if defined(F32) || defined(C64)
    return uvec4(floatBitsToUint(size) & 0x7fffffffu, 0u, ~position, row);
#else
    uvec2 words = unpackDouble2x32(size);
    return uvec4(words.y & 0x7fffffffu, words.x, ~position, row);
#endif
}

uint position_of(const in uvec4 a) { return a.x == NONE ? a.z : ~a.z; }

bool better(const in uvec4 a, const in uvec4 b) { return a.x != b.x ? a.x > b.x : a.y != b.y ? a.y > b.y : a.z > b.z; }

shared uvec4 candidates[LOCAL];

// The best of all invocations' candidates, for each of them. Has barriers, and wants one before the next call.
uvec4 best_of_all(const in uint id, const in uvec4 own) {
    candidates[id] = own;
    // Three levels between barriers.
    for (uint left = uint(LOCAL); left > 1u;) {
        barrier();
        uint parts = min(left, 8u);
        left /= parts;
        if (id < left) {
            uvec4 v[8];
            [[unroll]] for (uint k = 0u; k < 8u; ++k) v[k] = candidates[id + min(k, parts - 1u) * left];
            [[unroll]] for (uint k = 1u; k < 8u; ++k) {
                if (better(v[k], v[0])) v[0] = v[k];
            }
            candidates[id] = v[0];
        }
    }
    barrier();
    return candidates[0];
}

#endif

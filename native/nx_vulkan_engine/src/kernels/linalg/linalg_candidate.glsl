// Candidates for the pivot of a column.
#ifndef LINALG_CANDIDATE_GLSL
#define LINALG_CANDIDATE_GLSL
#include "linalg.glsl"

#define NONE 0xffffffffu

// A candidate's size in two words, and which of equals comes first: the largest. The pivot is the element of largest
// modulus, the first of equals; NaN is larger than all, and the last NaN counts.
uvec3 candidate(const in R size, const in uint position) {
#if defined(F32) || defined(C64)
    uvec2 words = uvec2(0u, floatBitsToUint(size));
#else
    uvec2 words = unpackDouble2x32(size);
#endif
    bool is_nan = la_is_nan_real(size);
    return uvec3(is_nan ? NONE : words.y & 0x7fffffffu, is_nan ? NONE : words.x, is_nan ? position : ~position);
}

// The position of a candidate, of which the first and the last word are given.
uint position_of(const in uint size, const in uint order) { return size == NONE ? order : ~order; }

#endif

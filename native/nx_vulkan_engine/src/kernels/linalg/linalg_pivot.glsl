// The pivot of a column among the rows of a workgroup's LOCAL invocations.
#ifndef LINALG_PIVOT_GLSL
#define LINALG_PIVOT_GLSL
#include "linalg.glsl"

#define NONE 0xffffffffu

// A candidate's size in two words, which of equals comes first, and its row. The pivot is the element of largest
// modulus, the first of equals; NaN is larger than all, and the last NaN counts. uvec4(0) stands for no candidate: all
// others are better.
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

#ifdef SUBGROUPS
// Of subgroups with as few as 4 invocations.
shared uvec4 candidates[LOCAL / 4];

// The best of a subgroup's candidates, for each of its invocations. Positions differ.
uvec4 best_of_subgroup(const in uvec4 own) {
    bool is_best = own.x == subgroupMax(own.x);
#if !defined(F32) && !defined(C64)
    is_best = is_best && own.y == subgroupMax(is_best ? own.y : 0u);
#endif
    uvec4 votes = subgroupBallot(is_best);
    if (subgroupBallotBitCount(votes) > 1u) {
        votes = subgroupBallot(is_best && own.z == subgroupMax(is_best ? own.z : 0u));
    }
    return subgroupShuffle(own, subgroupBallotFindLSB(votes));
}

// The best of all invocations' candidates, for each of them. Has a barrier, and wants one before the next call.
uvec4 best_of_all(const in uvec4 own) {
    uvec4 best = best_of_subgroup(own);
    if (subgroupElect()) candidates[gl_SubgroupID] = best;
    barrier();
    best = uvec4(0u);
    for (uint k = gl_SubgroupInvocationID; k < gl_NumSubgroups; k += gl_SubgroupSize) {
        if (better(candidates[k], best)) best = candidates[k];
    }
    return best_of_subgroup(best);
}
#else
shared uvec4 candidates[LOCAL];

// Eight candidates become one, and `before` of them `after`: three levels of a tree between barriers.
void best_of_eight(const in uint id, const in uint before, const in uint after) {
    barrier();
    if (id < after) {
        uvec4 v[8];
        [[unroll]] for (uint k = 0u; k < 8u; ++k) v[k] = candidates[id + min(k, before / after - 1u) * after];
        [[unroll]] for (uint k = 1u; k < 8u; ++k) {
            if (better(v[k], v[0])) v[0] = v[k];
        }
        candidates[id] = v[0];
    }
}

#define EIGHTH(count) max((count) / 8u, 1u)

// The best of all invocations' candidates, for each of them. Has barriers, and wants one before the next call. No loop:
// SwiftShader does not end it (docs/design/driver-faults.md).
uvec4 best_of_all(const in uint id, const in uvec4 own) {
    const uint first = EIGHTH(uint(LOCAL)), second = EIGHTH(first), third = EIGHTH(second), last = EIGHTH(third);
    candidates[id] = own;
    best_of_eight(id, uint(LOCAL), first);
    best_of_eight(id, first, second);
#if LOCAL > 64
    best_of_eight(id, second, third);
#endif
#if LOCAL > 512
    best_of_eight(id, third, last);
#endif
    barrier();
    return candidates[0];
}
#endif

#endif

// The pivot of a column among the rows of a workgroup's LOCAL invocations.
#ifndef LINALG_PIVOT_GLSL
#define LINALG_PIVOT_GLSL
#include "linalg_candidate.glsl"

// A candidate for a pivot, and its row. uvec4(0) stands for none: all others are better.
uvec4 candidate_row(const in R size, const in uint position, const in uint row) {
    return uvec4(candidate(size, position), row);
}

bool better(const in uvec4 a, const in uvec4 b) { return a.x != b.x ? a.x > b.x : a.y != b.y ? a.y > b.y : a.z > b.z; }

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

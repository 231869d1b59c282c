// The pivot of a column among the rows of a workgroup's LOCAL invocations, of which FINALISTS look at the others' first.
#ifndef LINALG_PIVOT_GLSL
#define LINALG_PIVOT_GLSL
#include "linalg.glsl"

#define NONE 0xffffffffu

struct Candidate {
    R size;
    uint position;
    uint row;
};

// The pivot is the element of largest modulus, the first of equals; NaN is larger than all, and the last NaN counts.
bool better(const in Candidate a, const in Candidate b) {
    if (a.row == NONE || b.row == NONE) return b.row == NONE && a.row != NONE;
    bool a_nan = la_is_nan_real(a.size), b_nan = la_is_nan_real(b.size);
    if (a_nan || b_nan) return a_nan && (!b_nan || a.position > b.position);
    return a.size > b.size || (a.size == b.size && a.position < b.position);
}

shared Candidate candidates[LOCAL];
shared Candidate finalists[FINALISTS];

// The best of all invocations' candidates, for each of them. Has barriers.
Candidate best_of_all(const in uint id, const in Candidate own) {
    candidates[id] = own;
    barrier();
    if (id < FINALISTS) {
        Candidate best = candidates[id * (LOCAL / FINALISTS)];
        for (uint i = 1u; i < LOCAL / FINALISTS; ++i) {
            if (better(candidates[id * (LOCAL / FINALISTS) + i], best)) best = candidates[id * (LOCAL / FINALISTS) + i];
        }
        finalists[id] = best;
    }
    barrier();
    Candidate best = finalists[0];
    for (uint i = 1u; i < FINALISTS; ++i) {
        if (better(finalists[i], best)) best = finalists[i];
    }
    return best;
}

#endif

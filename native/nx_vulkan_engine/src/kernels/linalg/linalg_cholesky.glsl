// Diagonal elements of Cholesky factors.
#ifndef LINALG_CHOLESKY_GLSL
#define LINALG_CHOLESKY_GLSL
#include "linalg.glsl"

// Columns under a zero on the diagonal are divided by this number, as in Nx.
T divisor(const in T diagonal) { return la_is_zero(diagonal) ? la_make(R(1e-10)) : diagonal; }

// Whether the root of what is left of a diagonal element is that of a tame positive number.
#ifdef COMPLEX
bool is_positive(const in T rest) { return la_is_zero_real(rest.y) && la_is_tame(rest.x) && rest.x > R(0); }
#else
bool is_positive(const in T rest) { return la_is_tame(rest) && rest > R(0); }
#endif

// The root of what is left of a diagonal element, and what to multiply by in place of dividing by it.
void root_and_reciprocal(const in T rest, out T root, out T reciprocal) {
    if (is_positive(rest)) {
        R y, inverse;
        la_root_and_reciprocal(la_real(rest), y, inverse);
        root = la_make(y);
        reciprocal = la_make(inverse);
    } else {
        root = slot_root(rest);
        reciprocal = slot_divide(la_one(), divisor(root));
    }
}

#endif

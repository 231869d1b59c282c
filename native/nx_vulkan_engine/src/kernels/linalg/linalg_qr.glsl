// What the kernels that factorize panels of QR share: the reflection of a column.
#ifndef LINALG_QR_GLSL
#define LINALG_QR_GLSL
#include "linalg_scale.glsl"

// The diagonal of R must not be negative.
#define POSITIVE 1u
// A column of one element is reflected too (complex only).
#define REFLECT_SINGLE 2u

// What lies below the diagonal, squared and relative to the largest element squared, that counts as nothing.
#if defined(F32) || defined(C64)
#define NOTHING R(7.888609e-31)
#else
#define NOTHING R(1.0e-250LF)
#endif

// The reflection I - tau v v^H of a column of several elements, or of a `single` one, to beta e: false where it is the
// identity. x is the pivot and `below` the sum of the squares of the rest, all scaled, and `small` the size below which
// a column keeps its sign. v is the column over `first`, with 1 for the pivot.
bool qr_reflection(
    const in T x, const in R below, const in R unscale, const in bool single, const in uint flags, const in R small,
    out T beta, out T first, out R tau
) {
    R size = slot_abs(x);
    R norm = slot_sqrt(size * size + below);
    T phase = la_phase(x, size);
    bool nothing = below <= NOTHING;
    // Whether beta has the phase of the pivot.
#ifdef COMPLEX
    bool same = single || R(2) * norm * (norm + size) * unscale * unscale < small;
#else
    bool same = !(x < R(0)) || (flags & POSITIVE) == 0u && (nothing || below * unscale * unscale < small);
#endif
    bool reflect = !(nothing && same) || la_is_nan_real(norm);
    R length = same ? slot_divide_real(below, size + norm) : size + norm;
    beta = reflect ? la_scale(phase, same ? norm : -norm) : x;
    first = la_scale(phase, same ? -length : length);
    tau = reflect ? slot_divide_real(length, norm) : R(0);
    return reflect;
}

#endif

#version 460
// A leapfrog chain on n independent StudentT(nu, location, scale): bindings, steps and limits in chain.glsl.
//
// Push: n @0, K @4, eps @8, nu @12, location @16, scale @20, logp_const @24 (f64: @16, @24, @32, @40). q is the
// variable itself. logp_const is added for each element: lgamma((nu + 1) / 2) - lgamma(nu / 2) - log(nu pi) / 2 -
// log(scale) makes logp the normalised density. z = (q - location) / scale logp = -(nu + 1) / 2 log1p(z^2 / nu) +
// logp_const grad = -(nu + 1) z / (scale (nu + z^2))
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL nu;
    REAL location;
    REAL scale;
    REAL logp_const;
};

REAL family_derived() {
    return REAL(0);
}

REAL family_grad(const in REAL q, const in REAL derived) {
    REAL z = (q - location) / scale;
    // Divided by z first where z^2 could overflow.
    REAL ratio = FN(abs)(z) > REAL(1) ? REAL(1) / (z + nu / z) : z / (nu + z * z);
    return -((nu + REAL(1)) * ratio / scale);
}

REAL family_logp(const in REAL q, const in REAL derived) {
    REAL z = (q - location) / scale;
    return logp_const - REAL(0.5) * (nu + REAL(1)) * FN(log1p)(z * z / nu);
}

#include "chain.glsl"

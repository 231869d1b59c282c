#version 460
// A leapfrog chain on n independent Cauchy(location, scale): bindings, steps and limits in chain.glsl.
//
// Push: n @0, K @4, eps @8, location @12, scale @16, logp_const @20 (f64: @16, @24, @32). q is the variable itself.
// logp_const is added for each element: -log(pi scale) makes logp the normalised density.
// z = (q - location) / scale
// logp = -log1p(z^2) + logp_const
// grad = -2 z / (scale (1 + z^2))
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
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
    REAL ratio = FN(abs)(z) > REAL(1) ? REAL(1) / (z + REAL(1) / z) : z / (REAL(1) + z * z);
    return REAL(-2) * ratio / scale;
}

REAL family_logp(const in REAL q, const in REAL derived) {
    REAL z = (q - location) / scale;
    return logp_const - FN(log1p)(z * z);
}

#include "chain.glsl"

#version 460
// A leapfrog chain on n independent HalfNormal(sigma), sampled on the log scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, sigma @12, logp_const @16 (f64: @16, @24). q = log x.
// logp_const is added for each element: log(2 / pi) / 2 - log(sigma) makes logp the normalised density of q.
// z = x / sigma
// logp = -z^2 / 2 + q + logp_const, where q is the log of the Jacobian
// grad = 1 - z^2
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL sigma;
    REAL logp_const;
};

REAL family_derived() {
    return REAL(0);
}

REAL family_grad(const in REAL q, const in REAL derived) {
    REAL z = FN(exp)(q) / sigma;
    return REAL(1) - z * z;
}

REAL family_logp(const in REAL q, const in REAL derived) {
    REAL z = FN(exp)(q) / sigma;
    return REAL(-0.5) * z * z + q + logp_const;
}

#include "chain.glsl"

#version 460
// A leapfrog chain on n independent HalfCauchy(scale), sampled on the log scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, scale @12, logp_const @16 (f64: @16, @24). q = log x.
// logp_const is added for each element: log(2 / pi) - log(scale) makes logp the normalised density of q.
// w = (x / scale)^2 = exp(2 (q - log(scale)))
// logp = -log1p(w) + q + logp_const, where q is the log of the Jacobian
// grad = 1 - 2 w / (1 + w) = 2 / (1 + w) - 1
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL scale;
    REAL logp_const;
};

REAL family_derived() {
    return FN(log)(scale);
}

REAL family_grad(const in REAL q, const in REAL log_scale) {
    REAL w = FN(exp)(REAL(2) * (q - log_scale));
    return REAL(2) / (REAL(1) + w) - REAL(1);
}

REAL family_logp(const in REAL q, const in REAL log_scale) {
    REAL w = FN(exp)(REAL(2) * (q - log_scale));
    return q - FN(log1p)(w) + logp_const;
}

#include "chain.glsl"

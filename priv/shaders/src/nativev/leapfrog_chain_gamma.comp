#version 460
// A leapfrog chain on n independent Gamma(alpha, rate), sampled on the log scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, alpha @12, rate @16, logp_const @20 (f64: @16, @24, @32). q = log x.
// logp_const is added for each element: alpha log(rate) - lgamma(alpha) makes logp the normalised density of q.
// logp = alpha q - rate x + logp_const, with the Jacobian
// grad = alpha - rate x
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL alpha;
    REAL rate;
    REAL logp_const;
};

REAL family_derived() {
    return REAL(0);
}

REAL family_grad(const in REAL q, const in REAL derived) {
    return alpha - rate * FN(exp)(q);
}

REAL family_logp(const in REAL q, const in REAL derived) {
    return alpha * q - rate * FN(exp)(q) + logp_const;
}

#include "chain.glsl"

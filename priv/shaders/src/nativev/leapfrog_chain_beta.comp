#version 460
// A leapfrog chain on n independent Beta(alpha, beta), sampled on the logit scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, alpha @12, beta @16, logp_const @20 (f64: @16, @24, @32). q = log(x / (1 - x)). logp_const
// is added for each element: lgamma(alpha + beta) - lgamma(alpha) - lgamma(beta) makes logp the normalised density of
// q. logp = alpha log(x) + beta log(1 - x) + logp_const, with the Jacobian x (1 - x); log(x) = -log1p(exp(-q)), log(1 -
// x) = -log1p(exp(q)) grad = alpha (1 - x) - beta x
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL alpha;
    REAL beta;
    REAL logp_const;
};

REAL family_derived() {
    return REAL(0);
}

REAL family_grad(const in REAL q, const in REAL derived) {
    REAL tail = FN(exp)(-FN(abs)(q));
    // The smaller of x and 1 - x, and the larger.
    REAL low = tail / (REAL(1) + tail);
    REAL high = REAL(1) / (REAL(1) + tail);
    return q < REAL(0) ? alpha * high - beta * low : alpha * low - beta * high;
}

REAL family_logp(const in REAL q, const in REAL derived) {
    // log1p(exp(q)) = max(q, 0) + log1p(exp(-|q|)), finite for every finite q.
    REAL rest = FN(log1p)(FN(exp)(-FN(abs)(q)));
    REAL log_x = (q < REAL(0) ? q : REAL(0)) - rest;
    REAL log_1mx = (q > REAL(0) ? -q : REAL(0)) - rest;
    return alpha * log_x + beta * log_1mx + logp_const;
}

#include "chain.glsl"

#version 460
// A leapfrog chain on n independent LogNormal(mu, sigma), sampled on the log scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, mu @12, sigma @16 (f64: mu @16, sigma @24). q = log x.
// With the Jacobian (log dx/dq = q) the density of q is that of Normal(mu, sigma):
// z = (q - mu) / sigma
// logp = -z^2 / 2 - log(sigma) - log(2 pi) / 2
// grad = -z / sigma
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL mu;
    REAL sigma;
};

REAL family_derived() {
    return -FN(log)(sigma) - HALF_LOG_TWO_PI;
}

REAL family_grad(const in REAL q, const in REAL derived) {
    REAL z = (q - mu) / sigma;
    return -(z / sigma);
}

REAL family_logp(const in REAL q, const in REAL log_normaliser) {
    REAL z = (q - mu) / sigma;
    return REAL(-0.5) * z * z + log_normaliser;
}

#include "chain.glsl"

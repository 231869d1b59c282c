#version 460
// A leapfrog chain on n independent Exponential(rate), sampled on the log scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, rate @12 (f64: @16). q = log x.
// logp = log(rate) + q - rate x, where q is the log of the Jacobian
// grad = 1 - rate x
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL rate;
};

REAL family_derived() {
    return FN(log)(rate);
}

REAL family_grad(const in REAL q, const in REAL log_rate) {
    return REAL(1) - rate * FN(exp)(q);
}

REAL family_logp(const in REAL q, const in REAL log_rate) {
    return log_rate + q - rate * FN(exp)(q);
}

#include "chain.glsl"

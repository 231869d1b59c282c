#version 460
// A leapfrog chain on n independent Weibull(shape, scale), sampled on the log scale: bindings, steps and limits in
// chain.glsl.
//
// Push: n @0, K @4, eps @8, shape @12, scale @16, logp_const @20 (f64: @16, @24, @32). q = log x.
// logp_const is added for each element: log(shape) makes logp the normalised density of q.
// s = shape (q - log(scale)), t = (x / scale)^shape = exp(s)
// logp = s - t + logp_const, with the Jacobian
// grad = shape (1 - t)
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(push_constant, std430) uniform Push {
    uint n;
    uint K;
    REAL eps;
    REAL shape;
    REAL scale;
    REAL logp_const;
};

REAL family_derived() {
    return FN(log)(scale);
}

REAL family_grad(const in REAL q, const in REAL log_scale) {
    return shape * (REAL(1) - FN(exp)(shape * (q - log_scale)));
}

REAL family_logp(const in REAL q, const in REAL log_scale) {
    REAL s = shape * (q - log_scale);
    return s - FN(exp)(s) + logp_const;
}

#include "chain.glsl"

#version 450
#extension GL_GOOGLE_include_directive : require

// Leapfrog chain of the non-centred eight-schools posterior, in the synth ABI, single and batched: one workgroup per
// instance.
//
// q = (mu, log tau, theta_tilde[0..8]); extras = y[8], sigma[8], inv_mass[10], so n_obs = 16 and d = 10. mu ~ N(0, 5),
//   tau ~ HalfCauchy(0, 5), theta_tilde[j] ~ N(0, 1), y[j] ~ N(mu + tau theta_tilde[j], sigma[j]) Source: posteriordb,
//   eight_schools_noncentered. logp is the density of q itself: normalised, with the Jacobian of log tau. logp_chain
//   and grad_chain are taken at the step's new q.
//
// A step: p += eps/2 grad(q); q += eps inv_mass p; p += eps/2 grad(q). Sums have a fixed order, so same inputs give
// same bits.

#ifdef F64
#include "nx_f64_exp.glsl"
#include "nx_f64_log.glsl"
#define REAL double
#define EXP nx_exp_f64
#define LOG nx_log_f64
#define LOG1P nx_log1p_f64
#define LOG_2PI 1.8378770664093454836LF
#define LOGP_PRIOR_CONSTANT -4.589397063362329LF
#else
#include "nx_f32_exp.glsl"
#include "nx_f32_log.glsl"
#define REAL float
#define EXP nx_exp_f32
#define LOG nx_log_f32
#define LOG1P nx_log1p_f32
#define LOG_2PI 1.8378770664093454836
#define LOGP_PRIOR_CONSTANT -4.589397063362329
#endif

// LOGP_PRIOR_CONSTANT = -log(5 sqrt(2 pi)) + log(2 / (5 pi)), from mu and tau. PRIOR_SCALE: sd of mu and scale of tau.

const uint SCHOOLS = 8u;
const uint MU = 0u, LOG_TAU = 1u, THETA = 2u;
const uint D = THETA + SCHOOLS;
const uint LOGP = D;      // the invocation that holds the log density
const REAL PRIOR_SCALE = REAL(5);

layout(local_size_x = 32) in;

layout(push_constant) uniform Push {
    uint k_steps;
    uint n_obs;
    uint d;
    uint n_instances;
    REAL eps;
} push;

layout(set = 0, binding = 0) readonly buffer QInit { REAL q_init[]; };
layout(set = 0, binding = 1) readonly buffer PInit { REAL p_init[]; };
layout(set = 0, binding = 2) readonly buffer Extras { REAL extras[]; };
layout(set = 0, binding = 3) writeonly buffer QChain { REAL q_chain[]; };
layout(set = 0, binding = 4) writeonly buffer PChain { REAL p_chain[]; };
layout(set = 0, binding = 5) writeonly buffer GradChain { REAL grad_chain[]; };
layout(set = 0, binding = 6) writeonly buffer LogpChain { REAL logp_chain[]; };

shared REAL mu_now;
shared REAL log_tau_now;
shared REAL tau_now;
shared REAL score[SCHOOLS];         // d log N(y[j]) / d (mu + tau theta_tilde[j])
shared REAL score_theta[SCHOOLS];   // the same times theta_tilde[j]
shared REAL school_logp[SCHOOLS];

// What a school knows of its data; log_sigma = log(sigma).
struct School {
    REAL y;
    REAL sigma;
    REAL log_sigma;
};

void publish(const in uint i, const in REAL q) {
    if (i == MU) {
        mu_now = q;
    } else if (i == LOG_TAU) {
        log_tau_now = q;
        tau_now = EXP(q);
    }
}

// Gradient entry of invocation i < D at its q, and the log density at invocation LOGP.
REAL evaluate(const in uint i, const in REAL q, const in School school) {
    barrier();
    REAL mu = mu_now;
    REAL log_tau = log_tau_now;
    REAL tau = tau_now;
    bool is_school = i >= THETA && i < D;
    if (is_school) {
        REAL z = (school.y - mu - tau * q) / school.sigma;
        uint j = i - THETA;
        score[j] = z / school.sigma;
        score_theta[j] = q * (z / school.sigma);
        school_logp[j] = -REAL(0.5) * (z * z + q * q) - school.log_sigma - LOG_2PI;
    }
    barrier();
    REAL result = REAL(0);
    if (i == MU) {
        for (uint j = 0u; j < SCHOOLS; j++) {
            result += score[j];
        }
        result -= mu / (PRIOR_SCALE * PRIOR_SCALE);
    } else if (i == LOG_TAU) {
        for (uint j = 0u; j < SCHOOLS; j++) {
            result += score_theta[j];
        }
        REAL ratio = PRIOR_SCALE / tau;
        result = tau * result + REAL(1) - REAL(2) / (REAL(1) + ratio * ratio);
    } else if (is_school) {
        result = tau * score[i - THETA] - q;
    } else if (i == LOGP) {
        for (uint j = 0u; j < SCHOOLS; j++) {
            result += school_logp[j];
        }
        REAL z = mu / PRIOR_SCALE;
        REAL ratio = tau / PRIOR_SCALE;
        result += LOGP_PRIOR_CONSTANT - REAL(0.5) * z * z + log_tau - LOG1P(ratio * ratio);
    }
    return result;
}

void main() {
    uint i = gl_LocalInvocationIndex;
    uint instance = gl_WorkGroupID.x;
    uint extras_base = instance * (2u * SCHOOLS + D);
    bool owner = i < D;
    REAL half_eps = REAL(0.5) * push.eps;

    School school = School(REAL(0), REAL(1), REAL(0));
    REAL q = REAL(0);
    REAL p = REAL(0);
    REAL inv_mass = REAL(0);
    if (owner) {
        q = q_init[instance * D + i];
        p = p_init[instance * D + i];
        inv_mass = extras[extras_base + 2u * SCHOOLS + i];
        if (i >= THETA) {
            school.y = extras[extras_base + i - THETA];
            school.sigma = extras[extras_base + SCHOOLS + i - THETA];
            school.log_sigma = LOG(school.sigma);
        }
        publish(i, q);
    }
    REAL slot = evaluate(i, q, school);
    for (uint k = 0u; k < push.k_steps; k++) {
        if (owner) {
            p += half_eps * slot;
            q += push.eps * inv_mass * p;
            publish(i, q);
        }
        slot = evaluate(i, q, school);
        uint row = instance * push.k_steps + k;
        if (owner) {
            p += half_eps * slot;
            q_chain[row * D + i] = q;
            p_chain[row * D + i] = p;
            grad_chain[row * D + i] = slot;
        } else if (i == LOGP) {
            logp_chain[row] = slot;
        }
    }
}

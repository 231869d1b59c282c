#version 450
#extension GL_GOOGLE_include_directive : require

// Leapfrog chain of the three-regime mixture of returns, in the synth ABI, single and batched: one workgroup per
// instance.
//
// q = (mu_trend, log sigma_trend, mu_mr, log sigma_mr, log sigma_vol, log theta_mr, logit_w1, logit_w2); r[-1] = 0 and
//   p(r[t]) = w1 N(mu_trend, sigma_trend) + w2 N(r[t-1] + theta_mr (mu_mr - r[t-1]), sigma_mr) + w3 N(0, sigma_vol) w =
//   (exp(min(logit_w1, 10)), exp(min(logit_w2, 10)), 1) / their sum mu_* and logit_* have Normal priors, sigma_* and
//   theta_mr HalfCauchy ones. logp is the density of q itself: normalised, with the Jacobian of the four logarithms.
//   logp_chain and grad_chain are taken at the step's new q.
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
#define HALF_LOG_2PI 0.91893853320467274178LF
#define LOG_2_OVER_PI -0.45158270528945486473LF
#else
#include "nx_f32_exp.glsl"
#include "nx_f32_log.glsl"
#define REAL float
#define EXP nx_exp_f32
#define LOG nx_log_f32
#define LOG1P nx_log1p_f32
#define HALF_LOG_2PI 0.91893853320467274178
#define LOG_2_OVER_PI -0.45158270528945486473
#endif

const uint LOCAL = 256u;
const uint D = 8u;
const uint MU_TREND = 0u, SIGMA_TREND = 1u, MU_MR = 2u, SIGMA_MR = 3u, SIGMA_VOL = 4u, THETA_MR = 5u, LOGIT_W1 = 6u, LOGIT_W2 = 7u;
const uint LOGP = 8u;      // slot of the log density, behind the D slots of the gradient
const uint SUMS = 9u;
const uint LANES = 16u;    // partial sums per slot between the two stages of a reduction
const REAL LOGIT_MAX = REAL(10);

layout(local_size_x = 256) in;

layout(push_constant) uniform Push {
    uint k_steps;
    uint n_obs;
    uint d;
    uint n_instances;
    REAL eps;
    REAL prior[12];        // in q's order: Normal mean and sd, HalfCauchy scale
} push;

layout(set = 0, binding = 0) readonly buffer QInit { REAL q_init[]; };
layout(set = 0, binding = 1) readonly buffer PInit { REAL p_init[]; };
layout(set = 0, binding = 2) readonly buffer Extras { REAL extras[]; };   // n_obs returns, then inv_mass
layout(set = 0, binding = 3) writeonly buffer QChain { REAL q_chain[]; };
layout(set = 0, binding = 4) writeonly buffer PChain { REAL p_chain[]; };
layout(set = 0, binding = 5) writeonly buffer GradChain { REAL grad_chain[]; };
layout(set = 0, binding = 6) writeonly buffer LogpChain { REAL logp_chain[]; };

shared REAL q_now[D];
shared REAL derived[D];    // 1/sigma of the sigmas and theta itself, at their own places
shared REAL partial[SUMS * LOCAL];
shared REAL lane_sum[SUMS * LANES];

bool is_positive(const in uint i) {
    return i == SIGMA_TREND || i == SIGMA_MR || i == SIGMA_VOL || i == THETA_MR;
}

// First word of parameter i's prior in push.prior.
uint prior_offset(const in uint i) {
    const uint offsets[D] = uint[D](0u, 2u, 3u, 5u, 6u, 7u, 8u, 10u);
    return offsets[i];
}

// Publishes coordinate i of q and what the observations need of it.
void publish(const in uint i, const in REAL q) {
    q_now[i] = q;
    if (is_positive(i)) {
        derived[i] = EXP(i == THETA_MR ? q : -q);
    }
}

// Writes the sums over observations t, t + LOCAL, ... to this invocation's place in partial.
void put_observations(const in uint tid, const in uint base) {
    REAL l1 = min(q_now[LOGIT_W1], LOGIT_MAX);
    REAL l2 = min(q_now[LOGIT_W2], LOGIT_MAX);
    REAL inv1 = derived[SIGMA_TREND];
    REAL inv2 = derived[SIGMA_MR];
    REAL inv3 = derived[SIGMA_VOL];
    REAL theta = derived[THETA_MR];
    REAL acc[SUMS];
    for (uint s = 0u; s < SUMS; s++) {
        acc[s] = REAL(0);
    }
    for (uint t = tid; t < push.n_obs; t += LOCAL) {
        REAL r = extras[base + t];
        REAL before = t == 0u ? REAL(0) : extras[base + t - 1u];
        REAL pull = theta * (q_now[MU_MR] - before);
        REAL z1 = (r - q_now[MU_TREND]) * inv1;
        REAL z2 = (r - before - pull) * inv2;
        REAL z3 = r * inv3;
        REAL a1 = l1 - q_now[SIGMA_TREND] - REAL(0.5) * z1 * z1;
        REAL a2 = l2 - q_now[SIGMA_MR] - REAL(0.5) * z2 * z2;
        REAL a3 = -q_now[SIGMA_VOL] - REAL(0.5) * z3 * z3;
        REAL top = max(a1, max(a2, a3));
        REAL e1 = EXP(a1 - top);
        REAL e2 = EXP(a2 - top);
        REAL e3 = EXP(a3 - top);
        REAL total = e1 + e2 + e3;
        REAL w1 = e1 / total;
        REAL w2 = e2 / total;
        REAL w3 = e3 / total;
        acc[MU_TREND] += w1 * z1 * inv1;
        acc[SIGMA_TREND] += w1 * (z1 * z1 - REAL(1));
        acc[MU_MR] += w2 * z2 * inv2 * theta;
        acc[SIGMA_MR] += w2 * (z2 * z2 - REAL(1));
        acc[SIGMA_VOL] += w3 * (z3 * z3 - REAL(1));
        acc[THETA_MR] += w2 * z2 * inv2 * pull;
        acc[LOGIT_W1] += w1;
        acc[LOGIT_W2] += w2;
        acc[LOGP] += top + LOG(total) - HALF_LOG_2PI;
    }
    if (q_now[LOGIT_W1] >= LOGIT_MAX) {
        acc[LOGIT_W1] = REAL(0);
    }
    if (q_now[LOGIT_W2] >= LOGIT_MAX) {
        acc[LOGIT_W2] = REAL(0);
    }
    for (uint s = 0u; s < SUMS; s++) {
        partial[s * LOCAL + tid] = acc[s];
    }
}

// Adds the normaliser of the mixture weights, which is the same for every observation.
void add_weights(const in uint tid) {
    REAL n = REAL(push.n_obs);
    REAL w1 = EXP(min(q_now[LOGIT_W1], LOGIT_MAX));
    REAL w2 = EXP(min(q_now[LOGIT_W2], LOGIT_MAX));
    REAL total = w1 + w2 + REAL(1);
    if (q_now[LOGIT_W1] < LOGIT_MAX) {
        partial[LOGIT_W1 * LOCAL + tid] -= n * (w1 / total);
    }
    if (q_now[LOGIT_W2] < LOGIT_MAX) {
        partial[LOGIT_W2 * LOCAL + tid] -= n * (w2 / total);
    }
    partial[LOGP * LOCAL + tid] -= n * LOG(total);
}

// Adds the prior of parameter i; log_scale is the logarithm of its sd or scale.
void add_prior(const in uint tid, const in uint i, const in REAL log_scale) {
    REAL u = q_now[i];
    if (is_positive(i)) {
        REAL v = REAL(2) * (u - log_scale);
        partial[i * LOCAL + tid] += REAL(1) - REAL(2) / (REAL(1) + EXP(-v));
        partial[LOGP * LOCAL + tid] += LOG_2_OVER_PI + u - log_scale - LOG1P(EXP(v));
    } else {
        REAL sd = push.prior[prior_offset(i) + 1u];
        REAL z = (u - push.prior[prior_offset(i)]) / sd;
        partial[i * LOCAL + tid] -= z / sd;
        partial[LOGP * LOCAL + tid] -= REAL(0.5) * z * z + log_scale + HALF_LOG_2PI;
    }
}

// Sums over the workgroup at q_now. Invocation s < SUMS gets slot s; the others get 0.
REAL evaluate(const in uint base, const in REAL log_scale) {
    uint tid = gl_LocalInvocationIndex;
    barrier();
    put_observations(tid, base);
    // The last invocations have the fewest observations: they take the terms that do not depend on one.
    uint from_end = LOCAL - 1u - tid;
    if (from_end < D) {
        add_prior(tid, from_end, log_scale);
    } else if (from_end == D) {
        add_weights(tid);
    }
    barrier();
    if (tid < SUMS * LANES) {
        uint start = (tid / LANES) * LOCAL + tid % LANES;
        REAL sum = partial[start];
        for (uint j = LANES; j < LOCAL; j += LANES) {
            sum += partial[start + j];
        }
        lane_sum[tid] = sum;
    }
    barrier();
    REAL result = REAL(0);
    if (tid < SUMS) {
        for (uint j = 0u; j < LANES; j++) {
            result += lane_sum[tid * LANES + j];
        }
    }
    return result;
}

void main() {
    uint tid = gl_LocalInvocationIndex;
    uint instance = gl_WorkGroupID.x;
    uint obs_base = instance * (push.n_obs + D);
    bool owner = tid < D;
    REAL half_eps = REAL(0.5) * push.eps;

    uint from_end = LOCAL - 1u - tid;
    REAL log_scale = REAL(0);
    if (from_end < D) {
        log_scale = LOG(push.prior[prior_offset(from_end) + (is_positive(from_end) ? 0u : 1u)]);
    }

    REAL q = REAL(0);
    REAL p = REAL(0);
    REAL inv_mass = REAL(0);
    if (owner) {
        q = q_init[instance * D + tid];
        p = p_init[instance * D + tid];
        inv_mass = extras[obs_base + push.n_obs + tid];
        publish(tid, q);
    }
    REAL slot = evaluate(obs_base, log_scale);
    for (uint k = 0u; k < push.k_steps; k++) {
        if (owner) {
            p += half_eps * slot;
            q += push.eps * inv_mass * p;
            publish(tid, q);
        }
        slot = evaluate(obs_base, log_scale);
        uint row = instance * push.k_steps + k;
        if (owner) {
            p += half_eps * slot;
            q_chain[row * D + tid] = q;
            p_chain[row * D + tid] = p;
            grad_chain[row * D + tid] = slot;
        } else if (tid == LOGP) {
            logp_chain[row] = slot;
        }
    }
}

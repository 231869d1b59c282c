// The K-step leapfrog chain that every leapfrog_chain_* family shares. A family defines, before it includes this file,
// REAL, the push block (n @0, K @4, eps @8, then its parameters) and REAL family_derived()                    what
// depends on the parameters alone REAL family_grad(REAL q, REAL derived)   d logp / dq of one element REAL
// family_logp(REAL q, REAL derived)   log density of one element
//
// and may define FAMILY_GRAD_NEXT, the function that gives the gradient of later steps (family_grad unless defined),
// and FAMILY_LOGP_FINAL(logp), what becomes of the sum of a step. With BATCHED the push block is K @0, n_obs @4, n @8,
// n_instances @12, eps @16, its parameters; instances follow each other in every buffer, n_obs values that nothing
// reads stand before each inverse mass, and workgroup i does instance i.
//
// One step, for each of n independent elements, with inv_mass the diagonal of the inverse mass matrix: p += eps/2
//   grad(q);  q += eps inv_mass p;  p += eps/2 grad(q) Row k of q_chain, p_chain and grad_chain ([K, n], row-major) and
//   logp_chain[k] hold the state after step k + 1: grad at the new q, logp the sum over all elements at the new q.
//
// One workgroup of 256 does an instance, 256 elements at a time, and adds up logp by a fixed tree: elements are
// independent, but only inside one workgroup can their sum be formed in a fixed order. Further workgroups do nothing,
// so a grid of ceil(n / 256) is right for every n; the time grows with ceil(n / 256) * K. Bindings: 0 q [n], 1 p [n], 2
// inv_mass [n], 3 q_chain, 4 p_chain, 5 grad_chain, 6 logp_chain [K]. Limits: n * K < 2^32. eps may be negative.
layout(local_size_x = 256) in;

#ifndef FAMILY_GRAD_NEXT
#define FAMILY_GRAD_NEXT family_grad
#endif
#ifndef FAMILY_LOGP_FINAL
#define FAMILY_LOGP_FINAL(logp) (logp)
#endif
#ifdef BATCHED
#define INSTANCES n_instances
#define OBSERVATIONS n_obs
#else
#define INSTANCES 1u
#define OBSERVATIONS 0u
#endif

layout(set = 0, binding = 0, std430) readonly buffer QInit { REAL q_init[]; };
layout(set = 0, binding = 1, std430) readonly buffer PInit { REAL p_init[]; };
layout(set = 0, binding = 2, std430) readonly buffer InvMass { REAL inv_mass[]; };
layout(set = 0, binding = 3, std430) writeonly buffer QChain { REAL q_chain[]; };
layout(set = 0, binding = 4, std430) writeonly buffer PChain { REAL p_chain[]; };
layout(set = 0, binding = 5, std430) writeonly buffer GradChain { REAL grad_chain[]; };
layout(set = 0, binding = 6, std430) buffer LogpChain { REAL logp_chain[]; };

shared REAL partial[256];

// The sum of every invocation's term, in the first invocation.
REAL workgroup_sum(const in REAL term) {
    uint lane = gl_LocalInvocationID.x;
    partial[lane] = term;
    barrier();
    for (uint half_width = 128; half_width > 0; half_width /= 2) {
        if (lane < half_width) {
            partial[lane] += partial[lane + half_width];
        }
        barrier();
    }
    REAL sum = partial[0];
    barrier();
    return sum;
}

void main() {
    uint instance = gl_WorkGroupID.x;
    if (instance >= INSTANCES || gl_WorkGroupID.yz != uvec2(0)) {
        return;
    }
    uint lane = gl_LocalInvocationID.x;
    REAL derived = family_derived();
    REAL half_eps = REAL(0.5) * eps;
    // With n = 0 one empty block still writes logp_chain.
    uint blocks = max((n + 255) / 256, 1u);
    for (uint block = 0; block < blocks; block++) {
        uint i = block * 256 + lane;
        bool inside = i < n;
        REAL q = inside ? q_init[instance * n + i] : REAL(0);
        REAL p = inside ? p_init[instance * n + i] : REAL(0);
        REAL scaled_eps = inside ? eps * inv_mass[instance * (OBSERVATIONS + n) + OBSERVATIONS + i] : REAL(0);
        REAL grad = family_grad(q, derived);
        for (uint k = 0; k < K; k++) {
            p = p + half_eps * grad;
            q = q + scaled_eps * p;
            grad = FAMILY_GRAD_NEXT(q, derived);
            p = p + half_eps * grad;
            REAL term = REAL(0);
            if (inside) {
                uint at = (instance * K + k) * n + i;
                q_chain[at] = q;
                p_chain[at] = p;
                grad_chain[at] = grad;
                term = family_logp(q, derived);
            }
            REAL sum = workgroup_sum(term);
            if (lane == 0) {
                uint at = instance * K + k;
                REAL logp = block == 0 ? sum : logp_chain[at] + sum;
                logp_chain[at] = block + 1 == blocks ? FAMILY_LOGP_FINAL(logp) : logp;
            }
        }
    }
}

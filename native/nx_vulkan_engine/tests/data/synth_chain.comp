#version 450
#extension GL_ARB_gpu_shader_fp64 : require
// The shape of the chain shaders that a probabilistic programming library generates: plain `glslangValidator -V`, so
// SPIR-V 1.0 with BufferBlock, f64, one workgroup, push data of 24 bytes whatever the caller passes. Model: x_t ~
// N(q_0, 1) for each observation, q_i ~ N(0, 1).
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer QInit { double q_init[]; };
layout(std430, binding = 1) readonly buffer PInit { double p_init[]; };
layout(std430, binding = 2) readonly buffer Extras { double extras[]; };
layout(std430, binding = 3) writeonly buffer QChain { double q_chain[]; };
layout(std430, binding = 4) writeonly buffer PChain { double p_chain[]; };
layout(std430, binding = 5) writeonly buffer GradChain { double grad_chain[]; };
layout(std430, binding = 6) writeonly buffer LogpChain { double logp_chain[]; };
layout(push_constant) uniform Push { uint K; uint n_obs; uint d; uint pad; double eps; };

shared double partial[256];
shared double q_shared[256];

double sum(double x) {
    uint lane = gl_LocalInvocationID.x;
    partial[lane] = x;
    barrier();
    for (uint width = 128; width > 0; width >>= 1) {
        if (lane < width) partial[lane] += partial[lane + width];
        barrier();
    }
    double total = partial[0];
    barrier();
    return total;
}

double gradient(uint i, double q) {
    double residual = 0.0LF;
    for (uint t = i; t < n_obs; t += 256) residual += extras[t] - q_shared[0];
    double total = sum(residual);
    return -q + (i == 0 ? total : 0.0LF);
}

void main() {
    uint i = gl_LocalInvocationID.x;
    bool inside = i < d;
    double q = inside ? q_init[i] : 0.0LF;
    double p = inside ? p_init[i] : 0.0LF;
    double inv_mass = inside ? extras[n_obs + i] : 0.0LF;
    q_shared[i] = q;
    barrier();
    double grad = gradient(i, q);
    for (uint k = 0; k < K; k++) {
        p += 0.5LF * eps * grad;
        q += eps * inv_mass * p;
        q_shared[i] = q;
        barrier();
        grad = gradient(i, q);
        p += 0.5LF * eps * grad;
        double terms = inside ? -0.5LF * q * q : 0.0LF;
        for (uint t = i; t < n_obs; t += 256) terms -= 0.5LF * (extras[t] - q_shared[0]) * (extras[t] - q_shared[0]);
        double logp = sum(terms);
        if (inside) {
            q_chain[k * d + i] = q;
            p_chain[k * d + i] = p;
            grad_chain[k * d + i] = grad;
        }
        if (i == 0) logp_chain[k] = logp;
        barrier();
    }
}

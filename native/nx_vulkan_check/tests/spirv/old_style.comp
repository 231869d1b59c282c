#version 450
#extension GL_ARB_gpu_shader_fp64 : require
// As exmc builds its chains: plain `glslangValidator -V`, so SPIR-V 1.0 with BufferBlock.
layout(local_size_x = 256) in;
layout(set = 0, binding = 0) readonly buffer Q { double q[]; };
layout(set = 0, binding = 1) writeonly buffer O { double o[]; };
layout(push_constant) uniform Push { uint K; uint n_obs; uint d; uint pad; double eps; };
shared double partial[256];
void main() {
    uint i = gl_LocalInvocationID.x;
    partial[i] = i < d ? q[i] * eps : 0.0;
    barrier();
    for (uint k = 0; k < K; k++) { if (i == 0) o[k] = partial[k % 256] + double(n_obs); }
}

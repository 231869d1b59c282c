// out[i] = in[i] * mul + add on 32-bit words through buffer addresses. Parameters come from push constants, or, when
// USE_TABLE is 1, from the table whose address is in the first two push words. Built with: glslangValidator -V
// --target-env vulkan1.2 axpb.comp -o axpb.spv
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint USE_TABLE = 0;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint w[]; };
layout(push_constant) uniform Params { uint w[8]; } params;

uint param(uint k) {
    if (USE_TABLE == 1) {
        return Words(uvec2(params.w[0], params.w[1])).w[k];
    }
    return params.w[k];
}

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= param(4)) return;
    Words src = Words(uvec2(param(0), param(1)));
    Words dst = Words(uvec2(param(2), param(3)));
    dst.w[i] = src.w[i] * param(5) + param(6);
}

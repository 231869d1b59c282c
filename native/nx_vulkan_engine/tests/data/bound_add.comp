// c[i] = a[i] + b[i] * scale through storage-buffer descriptors.
// Built with: glslangValidator -V --target-env vulkan1.2 bound_add.comp -o bound_add.spv
#version 460

layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) writeonly buffer C { uint c[]; };
layout(push_constant) uniform Params { uint n; uint scale; } params;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < params.n) {
        c[i] = a[i] + b[i] * params.scale;
    }
}

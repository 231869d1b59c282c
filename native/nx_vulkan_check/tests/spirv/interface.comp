#version 450
// What reflection has to get right: sizes from spec constants, gaps in bindings, nested push constants, shared arrays,
// unused buffers.
layout(local_size_x_id = 3, local_size_y = 2) in;
layout(local_size_x = 32) in;
layout(constant_id = 7) const uint COUNT = 10;
layout(set = 0, binding = 5, std430) buffer Out { float result[]; };
layout(set = 0, binding = 1, std430) readonly buffer In { float operand[]; };
struct Pair { vec3 a; float b; };
layout(push_constant, std430) uniform Push { uint n; layout(offset = 16) Pair pairs[2]; mat2 m; };
shared vec4 tile[COUNT * 2 + 4];
shared uint flags[3];
void main() {
    uint i = gl_LocalInvocationID.x;
    tile[i % COUNT] = vec4(operand[i]) + pairs[1].b;
    flags[i % 3] = n;
    barrier();
    result[i] = tile[0].x + m[1].y + float(flags[0]);
}

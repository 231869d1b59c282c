#version 460
#extension GL_GOOGLE_include_directive : require
// One workgroup runs a whole program; the generator sets how many invocations it has.
// Parameters: word 0 is the number of workgroups.
#include "params.glsl"
layout(local_size_x = 256) in;

void slot_run(const in uint invocation, const in uint group) {}

void main() {
    uint group = nx_group();
    if (group < nx_param(0u)) slot_run(gl_LocalInvocationID.x, group);
}

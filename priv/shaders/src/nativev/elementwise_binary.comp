#version 460
// out[i] = a[i] op b[i], i < n.
//
// One invocation per element; 256 per workgroup, ceil(n / 256) workgroups.
// Bindings: 0 a, 1 b, 2 out (may be a or b). Push: n @0. Spec constant 0: op code, see binary_ops.glsl.
// max and min give NaN if either operand is NaN; pow follows C, with negative bases and integer exponents.
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"
#include "grid.glsl"
#include "binary_ops.glsl"

layout(set = 0, binding = 0, std430) readonly buffer A { REAL a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { REAL b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Out { REAL result[]; };
layout(push_constant, std430) uniform Push { uint n; };

void main() {
    uint i = element_index();
    if (i < n) {
        result[i] = apply_op(a[i], b[i]);
    }
}

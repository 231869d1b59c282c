#version 460
// out[i] = op(in[i]), i < n.
//
// One invocation per element; 256 per workgroup, ceil(n / 256) workgroups.
// Bindings: 0 in, 1 out (may be in). Push: n @0. Spec constant 0: op code, as in the switch below.
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"
#include "grid.glsl"

layout(constant_id = 0) const int OP = 0;
layout(set = 0, binding = 0, std430) readonly buffer In { REAL operand[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Out { REAL result[]; };
layout(push_constant, std430) uniform Push { uint n; };

// NaN stays NaN, and both zeros stay as they are.
REAL relu(const in REAL x) {
    return x < REAL(0) ? REAL(0) : x;
}

REAL apply_op(const in REAL x) {
    switch (OP) {
        case 0: return FN(exp)(x);
        case 1: return FN(log)(x);
        case 2: return FN(sqrt)(x);
        case 3: return FN(abs)(x);
        case 4: return FN(negate)(x);
        case 5: return FN(sigmoid)(x);
        case 6: return FN(tanh)(x);
        case 7: return relu(x);
        case 8: return FN(ceil)(x);
        case 9: return FN(floor)(x);
        case 10: return FN(sign)(x);
        case 11: return FN(divide)(REAL(1), x);
        case 12: return FN(multiply)(x, x);
        case 13: return FN(erf)(x);
        case 14: return FN(expm1)(x);
        default: return REAL(0);
    }
}

void main() {
    uint i = element_index();
    if (i < n) {
        result[i] = apply_op(operand[i]);
    }
}

#version 460
// out[o, i] = log of the sum over r of exp(in[o, r, i]), for in of shape [outer, reduce, inner].
//
// One invocation per element of out, the maximum first, then the sum of exp(x - maximum) in ascending order;
// 256 per workgroup, ceil(outer * inner / 256) workgroups.
// Bindings: 0 in, 1 out. Push: outer @0, reduce @4, inner @8, @12 is not read.
// NaN if any element is NaN, else +inf if any is +inf; -inf over nothing or if all are -inf.
// Limits: fewer than 2^32 elements in `in`.
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"
#include "grid.glsl"
#include "accumulate.glsl"

layout(set = 0, binding = 0, std430) readonly buffer In { REAL operand[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Out { REAL result[]; };
layout(push_constant, std430) uniform Push {
    uint outer;
    uint reduce;
    uint inner;
    uint unused;
};

REAL log_sum_exp_from(const in uint first) {
    REAL maximum = -INFINITY;
    for (uint r = 0; r < reduce; r++) {
        maximum = FN(max)(maximum, operand[first + r * inner]);
    }
    // Negated so that a NaN returns here too.
    if (!(FN(abs)(maximum) < INFINITY)) {
        return maximum;
    }
    Accumulator acc = Accumulator(REAL(0), REAL(0));
    for (uint r = 0; r < reduce; r++) {
        acc = add_to(acc, FN(exp)(operand[first + r * inner] - maximum));
    }
    return maximum + FN(log)(acc.sum);
}

void main() {
    uint i = element_index();
    if (i < outer * inner) {
        result[i] = log_sum_exp_from((i / inner) * reduce * inner + i % inner);
    }
}

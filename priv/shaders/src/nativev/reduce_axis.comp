#version 460
// out[o, i] = op over r of in[o, r, i], for in of shape [outer, reduce, inner].
//
// One invocation per element of out, r in ascending order; 256 per workgroup, ceil(outer * inner / 256) workgroups.
// Bindings: 0 in, 1 out. Push: outer @0, reduce @4, inner @8, op @12: 0 sum, 1 max, 2 min, 3 product. Sums are carried
// in twice the precision and rounded once. max and min give NaN if any element is NaN. Over nothing: sum 0, max -inf,
// min +inf, product 1. Limits: fewer than 2^32 elements in `in`.
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
    uint op;
};

REAL reduce_from(const in uint first) {
    if (op == 0) {
        Accumulator acc = Accumulator(REAL(0), REAL(0));
        for (uint r = 0; r < reduce; r++) {
            acc = add_to(acc, operand[first + r * inner]);
        }
        return acc.sum;
    }
    REAL acc = op == 1 ? -INFINITY : op == 2 ? INFINITY : REAL(1);
    for (uint r = 0; r < reduce; r++) {
        REAL x = operand[first + r * inner];
        acc = op == 1 ? FN(max)(acc, x) : op == 2 ? FN(min)(acc, x) : acc * x;
    }
    return acc;
}

void main() {
    uint i = element_index();
    if (i < outer * inner) {
        result[i] = reduce_from((i / inner) * reduce * inner + i % inner);
    }
}

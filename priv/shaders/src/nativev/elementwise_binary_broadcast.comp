#version 460
// out[i] = a[..] op b[..] with both operands broadcast to a shape of up to four axes.
//
// One invocation per element of out (row-major, contiguous); 256 per workgroup, ceil(n / 256) workgroups. Bindings: 0
// a, 1 b, 2 out. Spec constant 0: op code, see binary_ops.glsl. Push: n @0, rank @4 (0 to 4), shape @8, strides of a
// @24, strides of b @40. The first `rank` of four entries count, outermost first; strides are in elements, and 0 on an
// axis along which an operand is repeated.
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"
#include "grid.glsl"
#include "binary_ops.glsl"

layout(set = 0, binding = 0, std430) readonly buffer A { REAL a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { REAL b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Out { REAL result[]; };
layout(push_constant, std430) uniform Push {
    uint n;
    uint rank;
    uint shape[4];
    uint a_strides[4];
    uint b_strides[4];
};

void main() {
    uint i = element_index();
    if (i >= n) {
        return;
    }
    uint rest = i;
    uint a_index = 0;
    uint b_index = 0;
    for (uint axis = min(rank, 4u); axis > 0; axis--) {
        uint size = max(shape[axis - 1], 1u);
        uint coordinate = rest % size;
        rest /= size;
        a_index += coordinate * a_strides[axis - 1];
        b_index += coordinate * b_strides[axis - 1];
    }
    result[i] = apply_op(a[a_index], b[b_index]);
}

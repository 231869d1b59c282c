#version 460
// C = A B, for A of shape [M, K], B of shape [K, N], all row-major.
//
// One invocation per element of C, k in ascending order by fma; gl_GlobalInvocationID.x is the column, y the row.
// Workgroups of 16x16, grid ceil(N / 16) x ceil(M / 16).
// Bindings: 0 A, 1 B, 2 C. Push: M @0, N @4, K @8. Limits: fewer than 2^32 elements in each matrix.
#extension GL_GOOGLE_include_directive : require
#include "real.glsl"

layout(local_size_x = 16, local_size_y = 16) in;
layout(set = 0, binding = 0, std430) readonly buffer A { REAL a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { REAL b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer C { REAL c[]; };
layout(push_constant, std430) uniform Push {
    uint M;
    uint N;
    uint K;
};

void main() {
    uint column = gl_GlobalInvocationID.x;
    uint row = gl_GlobalInvocationID.y;
    if (column >= N || row >= M) {
        return;
    }
    REAL sum = REAL(0);
    for (uint k = 0; k < K; k++) {
        sum = fma(a[row * K + k], b[k * N + column], sum);
    }
    c[row * N + column] = sum;
}

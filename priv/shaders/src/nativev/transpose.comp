#version 460
// out[j, i] = in[i, j], for in of shape [m, n], row-major. Moves words, so every bit pattern arrives as it was.
//
// One invocation per element; gl_GlobalInvocationID.x is the column j, y the row i of `in`. A workgroup of 16x16 passes
// its tile through shared memory, so that both reads and writes run along rows. Grid: ceil(n / 16) x ceil(m / 16).
// Bindings: 0 in, 1 out. Push: m @0, n @4. Limits: fewer than 2^32 elements.
layout(local_size_x = 16, local_size_y = 16) in;

layout(set = 0, binding = 0, std430) readonly buffer In { WORD operand[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Out { WORD result[]; };
layout(push_constant, std430) uniform Push {
    uint m;
    uint n;
};

// One column more than the tile has, so that a column's words lie in different banks.
shared WORD tile[16][17];

void main() {
    uvec2 local = gl_LocalInvocationID.xy;
    uvec2 corner = gl_WorkGroupID.xy * 16;
    uvec2 from = corner + local;
    if (from.x < n && from.y < m) {
        tile[local.y][local.x] = operand[from.y * n + from.x];
    }
    barrier();
    uvec2 to = corner.yx + local;
    if (to.x < m && to.y < n) {
        result[to.y * m + to.x] = tile[local.x][local.y];
    }
}

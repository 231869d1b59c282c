#version 460
// C = A B, for A of shape [M, K], B of shape [K, N], all row-major, f32.
//
// A workgroup computes a tile of C, TILE columns by TILE * ROWS rows, going along K in steps of TILE through shared
// memory; an invocation computes ROWS elements of one column, TILE rows apart. k ascends and every step is one fma, so
// all variants and matmul give the same bits. Grid: ceil(N / TILE) x ceil(M / (TILE * ROWS)); workgroups beyond that do
// nothing. Bindings: 0 A, 1 B, 2 C. Push: M @0, N @4, K @8. Limits: fewer than 2^32 elements in each matrix.
layout(local_size_x = TILE, local_size_y = TILE) in;

layout(set = 0, binding = 0, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { float b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer C { float c[]; };
layout(push_constant, std430) uniform Push {
    uint M;
    uint N;
    uint K;
};

shared float a_tile[TILE * ROWS][TILE];
shared float b_tile[TILE][TILE];

void main() {
    uvec2 local = gl_LocalInvocationID.xy;
    uint column = gl_WorkGroupID.x * TILE + local.x;
    uint first_row = gl_WorkGroupID.y * TILE * ROWS + local.y;
    float sums[ROWS];
    for (uint i = 0; i < ROWS; i++) {
        sums[i] = 0.0;
    }
    for (uint step = 0; step < K; step += TILE) {
        uint a_column = step + local.x;
        for (uint i = 0; i < ROWS; i++) {
            uint row = first_row + i * TILE;
            bool inside = row < M && a_column < K;
            a_tile[local.y + i * TILE][local.x] = inside ? a[row * K + a_column] : 0.0;
        }
        uint b_row = step + local.y;
        bool inside = b_row < K && column < N;
        b_tile[local.y][local.x] = inside ? b[b_row * N + column] : 0.0;
        barrier();
        uint end = min(uint(TILE), K - step);
        for (uint k = 0; k < end; k++) {
            for (uint i = 0; i < ROWS; i++) {
                sums[i] = fma(a_tile[local.y + i * TILE][k], b_tile[k][local.x], sums[i]);
            }
        }
        barrier();
    }
    for (uint i = 0; i < ROWS; i++) {
        uint row = first_row + i * TILE;
        if (row < M && column < N) {
            c[row * N + column] = sums[i];
        }
    }
}

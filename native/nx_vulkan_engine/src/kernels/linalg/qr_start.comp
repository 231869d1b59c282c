//! name = "qr_start_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Moves tall panels of up to 32 columns to V, leaves zeros below their diagonals, and finds the largest element of each
// column. Parameters: rows, columns, elements between rows, between matrices, matrices, workgroups per matrix, chunks
// per workgroup. Operands: matrices, V, `sums`.
#include "params.glsl"
#include "linalg_qr_tall.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store0(const in uint at, const in T value) {}
void slot_store1(const in uint at, const in T value) {}
void slot_store2(const in uint at, const in T value) {}

shared R lane_largest[256];

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), stride = nx_param(2u), blocks = nx_param(5u), chunks = nx_param(6u);
    uint batch = nx_group() / blocks, block = nx_group() % blocks;
    if (batch >= nx_param(4u)) return;
    uint id = gl_LocalInvocationID.x, c = id % WIDTH, lane = id / WIDTH;
    uint a0 = batch * nx_param(3u), v0 = batch * rows * columns;

    R largest = R(0);
    if (c < columns) {
        uint end = min((block + 1u) * chunks * CHUNK, rows);
        for (uint i = block * chunks * CHUNK + lane; i < end; i += LANES) {
            T value = slot_load0(a0 + i * stride + c);
            largest = la_largest(largest, value);
            slot_store1(v0 + i * columns + c, value);
            if (i > c) slot_store0(a0 + i * stride + c, la_zero());
        }
    }
    lane_largest[id] = largest;
    barrier();
    if (lane > 0u) return;
    for (uint k = 1u; k < LANES; ++k) largest = la_largest(largest, la_make(lane_largest[k * WIDTH + c]));
    // Read by pass 0, as if the pass before it had written it.
    slot_store2(batch * qr_sums_size(blocks) + qr_block_sums(1u, blocks) + block * WIDTH + c, la_make(largest));
}

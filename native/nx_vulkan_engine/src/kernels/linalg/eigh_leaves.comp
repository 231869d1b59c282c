//! name = "eigh_leaves_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Cuts tridiagonal matrices into blocks: what couples two is taken from the diagonal beside it. Rows past the order are
// 0. Parameters: order, order of a block, blocks per matrix, matrices. Operands: diagonals and what is beside them,
// blocks.
#include "params.glsl"
#include "linalg_jacobi.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}

void main() {
    uint n = nx_param(0u), size = nx_param(1u), blocks = nx_param(2u);
    uint e = nx_group() * 256u + gl_LocalInvocationID.x;
    uint block = e / (size * size), r = e / size % size, c = e % size;
    uint batch = block / blocks;
    if (batch >= nx_param(3u)) return;
    uint diagonal = batch * 2u * n, beside = diagonal + n, row = block % blocks * size + r;
    T value = la_zero();
    if (r == c && row < n) {
        value = slot_load0(diagonal + row);
        if (r == 0u && row > 0u) value -= la_magnitude(slot_load0(beside + row - 1u));
        if (r == size - 1u && row + 1u < n) value -= la_magnitude(slot_load0(beside + row));
    }
    uint upper = min(r, c), lower = max(r, c), at = block % blocks * size + upper;
    if (lower == upper + 1u && at + 1u < n) value = slot_load0(beside + at);
    slot_store1(e, value);
}

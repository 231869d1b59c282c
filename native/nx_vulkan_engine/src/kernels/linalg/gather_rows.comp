//! name = "gather_rows_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// out[b, r, c] = a[b, rows[b, r], c], an element per invocation.
// Operands: a, rows, out (row-major). Numbers: rows, columns, batches, strides of a (batch, row, column).
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
uint slot_load1(const in uint at) { return at; }
void slot_store2(const in uint at, const in T value) {}

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), batches = nx_param(2u);
    uint at = nx_group() * 256u + gl_LocalInvocationID.x;
    if (at >= rows * columns * batches) return;
    uint row = at / columns;
    uint source = min(slot_load1(row), rows - 1u);
    slot_store2(at, slot_load0(row / rows * nx_param(3u) + source * nx_param(4u) + at % columns * nx_param(5u)));
}

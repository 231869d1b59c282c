//! name = "determinant_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Determinants: by the closed formulas of 2 x 2 and 3 x 3 matrices, one invocation per matrix, or else from an LU
// factorization, one workgroup per matrix. Roundings are those of Nx: products rounded once, then each sum.
// Operands: A (or the diagonal of U, along rows), row exchanges per matrix, results. Numbers: n, batches, strides of A
// (batch, row, column), flags (1: closed formula).
#include "params.glsl"
#include "linalg.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return la_make(R(at)); }
uint slot_load1(const in uint at) { return at; }
void slot_store2(const in uint at, const in T value) {}

// Diagonal elements that one invocation multiplies.
#define CHUNK 32u

shared T products[256];
shared uint has_zero;

T element(const in uint base, const in uint row, const in uint column) {
    return slot_load0(base + row * nx_param(3u) + column * nx_param(4u));
}

T along(const in uint base, const in uint a, const in uint b, const in uint c) {
    return slot_round(la_mul(la_mul(element(base, 0u, a), element(base, 1u, b)), element(base, 2u, c)));
}

T closed_formula(const in uint n, const in uint base) {
    if (n == 2u) {
        T main_diagonal = slot_round(la_mul(element(base, 0u, 0u), element(base, 1u, 1u)));
        return slot_round(main_diagonal - slot_round(la_mul(element(base, 0u, 1u), element(base, 1u, 0u))));
    }
    T sum = slot_round(along(base, 0u, 1u, 2u) + along(base, 1u, 2u, 0u));
    sum = slot_round(sum + along(base, 2u, 0u, 1u));
    sum = slot_round(sum - along(base, 2u, 1u, 0u));
    sum = slot_round(sum - along(base, 1u, 0u, 2u));
    return slot_round(sum - along(base, 0u, 2u, 1u));
}

void main() {
    uint n = nx_param(0u), batches = nx_param(1u), id = gl_LocalInvocationID.x;
    if ((nx_param(5u) & 1u) != 0u) {
        uint batch = nx_group() * 256u + id;
        if (batch < batches) slot_store2(batch, closed_formula(n, batch * nx_param(2u)));
        return;
    }
    uint batch = nx_group();
    if (batch >= batches) return;
    uint base = batch * nx_param(2u);
    if (id == 0u) has_zero = 0u;
    barrier();
    uint chunk = max(CHUNK, (n + 255u) / 256u);
    T product = la_one();
    for (uint i = id * chunk; i < min(n, (id + 1u) * chunk); ++i) {
        T value = element(base, i, i);
        if (la_is_zero(value)) has_zero = 1u;
        product = la_mul(product, value);
    }
    products[id] = product;
    barrier();
    if (id != 0u) return;
    for (uint i = 1u; i * chunk < n; ++i) product = la_mul(product, products[i]);
    if ((slot_load1(batch) & 1u) != 0u) product = -product;
    if (has_zero != 0u) product = la_zero();
    slot_store2(batch, product);
}

//! name = "eigh_products_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Products of a reflection v with the rows of the matrix beyond its column, and with W^H and V^H. One workgroup per
// row. Parameters: order, column, first column of the panel, matrices, elements of `vectors`, rows beyond the column
// that are left out, rows that are taken, workgroups per matrix. Operands: matrices from the first of these rows on, X,
// Y, `vectors`.
#include "params.glsl"
#include "linalg_tridiagonal.glsl"
layout(local_size_x = 64) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}

shared T part[64];

void main() {
    uint n = nx_param(0u), i = nx_param(1u), l = i - nx_param(2u), id = gl_LocalInvocationID.x;
    uint left_out = nx_param(5u), rows = nx_param(6u), jobs = nx_param(7u);
    uint batch = nx_group() / jobs, job = nx_group() % jobs;
    if (batch >= nx_param(3u)) return;
    uint x0 = batch * 2u * NB * n, v0 = x0 + l * n, to = batch * nx_param(4u);
    T sum = la_zero();
    if (job < rows) {
        uint from = (batch * n + job) * n;
        for (uint c = i + 1u + id; c < n; c += 64u) sum = la_mad(slot_load0(from + c), slot_load1(v0 + c), sum);
        to += i + 1u + left_out + job;
    } else {
        uint k = job - rows, row = k < l ? k : NB + k - l;
        for (uint c = i + 1u + id; c < n; c += 64u) sum = la_mad(slot_load2(x0 + row * n + c), slot_load1(v0 + c), sum);
        to += td_products(n) + row;
    }
    part[id] = sum;
    for (uint step = 32u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] += part[id + step];
    }
    if (id == 0u) slot_store3(to, part[0]);
}

//! name = "qr_panel_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Householder factorization of up to 32 columns, one workgroup per matrix: R replaces the columns, and the product of
// the reflections is I - V T V^H, V a unit lower trapezoid and T upper triangular. Eight invocations own each column,
// so that no invocation reads what another wrote, except through shared memory. Parameters: rows, columns, elements
// between rows, between matrices, matrices, flags, size below which a column keeps its sign (as an f32).
#include "params.glsl"
#include "linalg_qr.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
void slot_store0(const in uint at, const in T value) {}
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}

#define LANES 8u
// Elements of a column that are in shared memory at once: 4 KiB.
#if defined(F32)
#define CHUNK 1024u
#elif defined(C128)
#define CHUNK 256u
#else
#define CHUNK 512u
#endif

shared T v_chunk[CHUNK];
shared T partial[256];
shared T inner[32];
shared R lane_value[LANES];
shared T pivot;

// First row at or after `row` that belongs to a lane.
uint first_row(const in uint row, const in uint lane) { return row + (lane + LANES - row % LANES) % LANES; }

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), stride = nx_param(2u), flags = nx_param(5u);
    R small = R(uintBitsToFloat(nx_param(6u)));
    uint batch = nx_group();
    if (batch >= nx_param(4u)) return;
    uint c = gl_LocalInvocationID.x % 32u, lane = gl_LocalInvocationID.x / 32u;
    uint a0 = batch * nx_param(3u), v0 = batch * rows * columns, t0 = batch * columns * columns;

    for (uint j = 0u; j < columns; ++j) {
        bool owner = c == j;
        R largest = R(0);
        if (owner) {
            for (uint i = first_row(j, lane); i < rows; i += LANES) largest = la_largest(largest, slot_load0(a0 + i * stride + j));
            lane_value[lane] = largest;
        }
        barrier();
        for (uint k = 0u; k < LANES; ++k) largest = la_largest(largest, la_make(lane_value[k]));
        R scale = la_power_scale(largest), unscale = la_power_unscale(largest);
        barrier();
        if (owner) {
            R sum = R(0);
            for (uint i = first_row(j, lane); i < rows; i += LANES) {
                T x = la_scale(slot_load0(a0 + i * stride + j), scale);
                if (i == j) pivot = x; else sum += la_square(x);
            }
            lane_value[lane] = sum;
        }
        barrier();
        R below = R(0);
        for (uint k = 0u; k < LANES; ++k) below += lane_value[k];
        bool single = rows - j == 1u && (flags & REFLECT_SINGLE) == 0u;
        T beta, first;
        R tau;
        bool reflect = qr_reflection(pivot, below, unscale, single, flags, small, beta, first, tau);
        beta = la_scale(beta, unscale);

        T sum = la_zero();
        for (uint base = j; base < rows; base += CHUNK) {
            uint end = min(base + CHUNK, rows);
            barrier();
            if (owner) {
                for (uint i = first_row(base, lane); i < end; i += LANES) {
                    uint at = a0 + i * stride + j;
                    v_chunk[i - base] = la_scale(slot_load0(at), scale);
                    slot_store0(at, i == j ? beta : la_zero());
                }
            }
            barrier();
            for (uint i = base + gl_LocalInvocationID.x; i < end; i += 256u) {
                T value = i == j ? la_one() : la_zero();
                if (i != j && reflect) value = slot_divide(v_chunk[i - base], first);
                v_chunk[i - base] = value;
            }
            barrier();
            if (c >= columns) continue;
            for (uint i = first_row(base, lane); i < end; i += LANES) {
                T value = v_chunk[i - base];
                if (owner) {
                    slot_store1(v0 + i * columns + j, value);
                } else if (c > j) {
                    sum = la_mad(la_conj(value), slot_load0(a0 + i * stride + c), sum);
                } else {
                    sum = la_mad(la_conj(slot_load1(v0 + i * columns + c)), value, sum);
                }
            }
        }
        if (owner) {
            for (uint i = lane; i < j; i += LANES) slot_store1(v0 + i * columns + j, la_zero());
        }
        partial[gl_LocalInvocationID.x] = sum;
        barrier();
        if (lane == 0u) {
            for (uint k = 1u; k < LANES; ++k) sum += partial[k * 32u + c];
            inner[c] = sum;
        }
        barrier();
        if (lane == 0u && c < columns) {
            T value = c == j ? la_make(tau) : la_zero();
            if (c < j) {
                for (uint k = c; k < j; ++k) value = la_mad(slot_load2(t0 + c * columns + k), inner[k], value);
                value = la_scale(value, -tau);
            }
            slot_store2(t0 + c * columns + j, value);
        }
        if (!reflect) continue;
        T factor = la_scale(inner[c], -tau);
        for (uint base = j; base < rows; base += CHUNK) {
            uint end = min(base + CHUNK, rows);
            if (rows - j > CHUNK) {
                barrier();
                if (owner) {
                    for (uint i = first_row(base, lane); i < end; i += LANES) v_chunk[i - base] = slot_load1(v0 + i * columns + j);
                }
                barrier();
            }
            if (c <= j || c >= columns) continue;
            for (uint i = first_row(base, lane); i < end; i += LANES) {
                uint at = a0 + i * stride + c;
                slot_store0(at, la_mad(v_chunk[i - base], factor, slot_load0(at)));
            }
        }
    }
}

//! name = "qr_column_{type}"
//! matrix = { type = ["f32", "f64", "c64", "c128"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Householder factorization of tall panels of up to 32 columns by many workgroups, a dispatch per column and one more.
// Pass k applies the reflection of column k - 1, which makes a row of R, a column of V and one of T, and adds up the
// products of column k with all others, from which the next pass knows its reflection. Pass 0 scales the columns by
// powers of two; later parts of a column are never longer than it was, so R is scaled back. Parameters: rows, columns,
// elements between rows, between matrices, matrices, workgroups per matrix, chunks per workgroup, flags, size below
// which a column keeps its sign (as an f32), pass. Operands: matrices, V, T, `sums`.
#include "params.glsl"
#include "linalg_qr_tall.glsl"
layout(local_size_x = 256) in;

void slot_store0(const in uint at, const in T value) {}
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
T slot_load2(const in uint at) { return T(float(at)); }
void slot_store2(const in uint at, const in T value) {}
T slot_load3(const in uint at) { return T(float(at)); }
void slot_store3(const in uint at, const in T value) {}

shared T partial[256];
// Rows of v, and conjugates of those of the column that is reflected next.
shared T v_rows[CHUNK];
shared T next_rows[CHUNK];
// v^H a for each column a, and what v is added to it times.
shared T inner[WIDTH];
shared T factor[WIDTH];
shared R scale[WIDTH];
shared T beta;
shared T first;
shared R tau;
shared bool reflect;

void load(
    const in uint at, const in uint rows, const in uint columns, const in uint v0, const in uint pass,
    out T own[OWN], out T reflected, out T next
) {
    uint id = gl_LocalInvocationID.x, c = id % WIDTH, lane = id / WIDTH;
    [[unroll]] for (uint k = 0u; k < OWN; ++k) {
        uint i = at + k * LANES + lane;
        own[k] = la_zero();
        if (c < columns && i < rows) own[k] = slot_load1(v0 + i * columns + c);
    }
    reflected = la_zero();
    next = la_zero();
    if (id < CHUNK && at + id < rows) {
        reflected = slot_load1(v0 + (at + id) * columns + max(pass, 1u) - 1u);
        next = slot_load1(v0 + (at + id) * columns + min(pass, columns - 1u));
    }
}

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), stride = nx_param(2u), blocks = nx_param(5u), chunks = nx_param(6u);
    uint pass = nx_param(9u), batch = nx_group() / blocks, block = nx_group() % blocks;
    if (batch >= nx_param(4u)) return;
    uint id = gl_LocalInvocationID.x, c = id % WIDTH, lane = id / WIDTH, base = block * chunks * CHUNK;
    uint a0 = batch * nx_param(3u), v0 = batch * rows * columns, t0 = batch * columns * columns;
    uint sums = batch * qr_sums_size(blocks), earlier = sums + qr_block_sums(pass + 1u, blocks);
    // The column whose reflection is applied, if this is not pass 0; then c + 1 = pass is that column, and i + 1 = pass
    // its pivot row.
    uint j = max(pass, 1u) - 1u;

    // The workgroup that may have the fewest rows makes a column of T.
    bool is_last = block + 1u == blocks;

    // Loads first, so that none waits for the sums.
    T own[OWN], reflected, next;
    load(base, rows, columns, v0, pass, own, reflected, next);
    T t_row[WIDTH / LANES], pivot = la_zero(), beside = la_zero();
    R unscale = R(1);
    if (pass > 0u) {
        uint pivots = sums + qr_pivot_row(pass + 1u, blocks);
        pivot = slot_load3(pivots + j);
        beside = slot_load3(pivots + c);
        unscale = la_real(slot_load3(sums + j));
        [[unroll]] for (uint k = 0u; k < WIDTH / LANES; ++k) {
            uint at = c + lane + k * LANES;
            t_row[k] = la_zero();
            if (is_last && at < j) t_row[k] = slot_load2(t0 + c * columns + at);
        }
    }
    T sum = la_zero();
    if (pass == 0u) {
        for (uint k = lane; k < blocks; k += LANES) sum = la_make(la_largest(la_real(sum), slot_load3(earlier + k * WIDTH + c)));
    } else {
        for (uint k = lane; k < blocks; k += LANES) sum += slot_load3(earlier + k * WIDTH + c);
    }
    partial[id] = sum;
    barrier();
    if (lane == 0u && pass == 0u) {
        R largest = R(0);
        for (uint k = 0u; k < LANES; ++k) largest = la_largest(largest, partial[k * WIDTH + c]);
        scale[c] = la_power_scale(largest);
        factor[c] = la_zero();
        if (block == 0u) slot_store3(sums + c, la_make(la_power_unscale(largest)));
    } else if (lane == 0u) {
        T outer = la_zero();
        R below = R(0);
        for (uint k = 0u; k < LANES; ++k) {
            outer += partial[k * WIDTH + c];
            below += la_real(partial[k * WIDTH + j]);
        }
        T b, divisor;
        R t, small = R(uintBitsToFloat(nx_param(8u)));
        bool is_reflected = qr_reflection(pivot, below, unscale, false, nx_param(7u), small, b, divisor, t);
        T product = is_reflected ? beside + slot_divide(outer, la_conj(divisor)) : la_zero();
        inner[c] = product;
        factor[c] = la_scale(product, -t);
        if (c == j) {
            beta = b;
            first = divisor;
            tau = t;
            reflect = is_reflected;
        }
    }
    barrier();

    // Column j of T.
    if (pass > 0u && is_last) {
        T value = la_zero();
        [[unroll]] for (uint k = 0u; k < WIDTH / LANES; ++k) {
            uint at = c + lane + k * LANES;
            if (at < j) value = la_mad(t_row[k], la_conj(inner[at]), value);
        }
        partial[id] = value;
        barrier();
        if (lane == 0u && c < columns) {
            for (uint k = 1u; k < LANES; ++k) value += partial[k * WIDTH + c];
            if (c < j) value = la_scale(value, -tau); else value = c == j ? la_make(tau) : la_zero();
            slot_store2(t0 + c * columns + j, value);
        }
    }

    sum = la_zero();
    T r_row = la_zero(), pivot_row = la_zero();
    for (uint chunk = 0u; chunk < chunks; ++chunk) {
        uint at = base + chunk * CHUNK;
        if (chunk > 0u) {
            load(at, rows, columns, v0, pass, own, reflected, next);
            barrier();
        }
        if (id < CHUNK) {
            T v = la_zero();
            if (at + id + 1u == pass) v = la_one();
            if (pass > 0u && at + id > j && reflect) v = slot_divide(reflected, first);
            if (pass == 0u) next = la_scale(next, scale[0]);
            v_rows[id] = v;
            next_rows[id] = la_conj(la_mad(v, factor[min(pass, WIDTH - 1u)], next));
        }
        // Also between the loads of the two columns and what their owners store.
        barrier();
        [[unroll]] for (uint k = 0u; k < OWN; ++k) {
            uint row = k * LANES + lane, i = at + row;
            T v = v_rows[row], value = own[k];
            if (pass == 0u) value = la_scale(value, scale[c]);
            value = c + 1u == pass ? v : c + 1u > pass ? la_mad(v, factor[c], value) : value;
            if (i + 1u == pass) r_row = value;
            if (i == pass) pivot_row = value;
            if (i > pass) sum = la_mad(next_rows[row], value, sum);
            if (i + 1u == pass) value = c + 1u == pass ? la_one() : la_zero();
            if (i < rows && i + 1u >= pass && c < columns && c + 1u >= pass) slot_store1(v0 + i * columns + c, value);
        }
    }
    if (block == 0u && c < columns) {
        if (lane == pass % LANES) slot_store3(sums + qr_pivot_row(pass, blocks) + c, pivot_row);
        if (pass > 0u && lane == j % LANES && c >= j) {
            slot_store0(a0 + j * stride + c, la_scale(c == j ? beta : r_row, la_real(slot_load3(sums + c))));
        }
    }
    if (pass == columns) return;
    partial[id] = sum;
    barrier();
    if (lane > 0u) return;
    for (uint k = 1u; k < LANES; ++k) sum += partial[k * WIDTH + c];
    slot_store3(sums + qr_block_sums(pass, blocks) + block * WIDTH + c, sum);
}

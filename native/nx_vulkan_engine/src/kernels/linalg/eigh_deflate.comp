//! name = "eigh_deflate_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Takes out of a node the eigenvalues that stay what they are: those of no weight, and one of two that are almost
// equal, after a rotation that gives its weight to the other. One workgroup per node. Parameters: order, columns of a
// node, nodes per matrix, nodes. Operands: diagonals and what is beside them, state, places, new eigenvalues.
#include "params.glsl"
#include "linalg_divide.glsl"
layout(local_size_x = 256) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
uint slot_load2(const in uint at) { return at; }
void slot_store2(const in uint at, const in uint value) {}
void slot_store3(const in uint at, const in T value) {}

shared R most[256];
shared R poles[256];
shared R weights[256];
shared uint columns[256];

void main() {
    uint m = nx_param(1u), id = gl_LocalInvocationID.x, node = nx_group(), at;
    if (node >= nx_param(3u)) return;
    R rho = R(0);
    if (dc_coupling(node, m, nx_param(2u), nx_param(0u), at)) rho = R(2) * la_magnitude(slot_load0(at));
    uint pole0 = dc_state(node, POLE, m), weight0 = dc_state(node, WEIGHT, m), column0 = dc_places(node, COLUMN, m);
    R largest = R(0);
    for (uint i = id; i < m; i += 256u) largest = la_largest(la_largest(largest, slot_load1(pole0 + i)), slot_load1(weight0 + i));
    most[id] = largest;
    for (uint step = 128u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) most[id] = la_largest(most[id], most[id + step]);
    }
    barrier();
    R negligible = R(8) * LA_ROUNDING * most[0];

    // One invocation goes through the poles; what it writes lies before what is yet to be read.
    uint kept = 0u, rotations = 0u, end = m, column = 0u;
    R pole = R(0), weight = R(0);
    bool has_pole = false;
    for (uint base = 0u; base < m; base += 256u) {
        barrier();
        if (base + id < m) {
            poles[id] = slot_load1(pole0 + base + id);
            weights[id] = slot_load1(weight0 + base + id);
            columns[id] = min(slot_load2(dc_places(node, ORIGIN, m) + base + id), m - 1u);
        }
        barrier();
        if (id != 0u) continue;
        uint count = min(256u, m - base);
        for (uint k = 0u; k < count; ++k) {
            R d = poles[k], z = weights[k];
            if (rho * la_magnitude(z) <= negligible) {
                end -= 1u;
                slot_store3(node * m + end, d);
                slot_store2(column0 + end, columns[k]);
                continue;
            }
            if (has_pole) {
                R length = slot_sqrt(weight * weight + z * z);
                R c = slot_divide_real(z, length), s = slot_divide_real(-weight, length);
                if (la_magnitude((d - pole) * c * s) <= negligible) {
                    slot_store1(dc_state(node, COSINE, m) + rotations, c);
                    slot_store1(dc_state(node, SINE, m) + rotations, s);
                    slot_store2(dc_places(node, ROTATED, m) + rotations, column);
                    slot_store2(dc_places(node, KEPT_ROTATED, m) + rotations, columns[k]);
                    rotations += 1u;
                    end -= 1u;
                    slot_store3(node * m + end, pole * c * c + d * s * s);
                    slot_store2(column0 + end, column);
                    d = pole * s * s + d * c * c;
                    z = length;
                } else {
                    slot_store1(pole0 + kept, pole);
                    slot_store1(weight0 + kept, weight);
                    slot_store2(column0 + kept, column);
                    kept += 1u;
                }
            }
            has_pole = true;
            pole = d;
            weight = z;
            column = columns[k];
        }
    }
    if (id != 0u) return;
    if (has_pole) {
        slot_store1(pole0 + kept, pole);
        slot_store1(weight0 + kept, weight);
        slot_store2(column0 + kept, column);
        kept += 1u;
    }
    slot_store2(dc_kept(node, m), kept);
    slot_store2(dc_rotations(node, m), rotations);
}

//! name = "eigh_secular_{type}"
//! matrix = { type = ["f32", "f64"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// The new eigenvalues of a node: the roots of 1 + rho sum z^2 / (d - x), each by bisection of its distance from the
// nearest pole over all numbers that distance may be. One workgroup per root. Parameters: order, columns of a node,
// nodes per matrix, nodes. Operands: diagonals and what is beside them, state, places, new eigenvalues.
#include "params.glsl"
#include "linalg_divide.glsl"
layout(local_size_x = 64) in;

T slot_load0(const in uint at) { return T(float(at)); }
T slot_load1(const in uint at) { return T(float(at)); }
void slot_store1(const in uint at, const in T value) {}
uint slot_load2(const in uint at) { return at; }
void slot_store2(const in uint at, const in uint value) {}
void slot_store3(const in uint at, const in T value) {}

#if defined(F32)
#define BITS uint
#define STEPS 32u
R from_bits(const in uint x) { return uintBitsToFloat(x); }
uint to_bits(const in R x) { return floatBitsToUint(x); }
uint between(const in uint low, const in uint high) { return low + (high - low) / 2u; }
#else
#define BITS uvec2
#define STEPS 64u
R from_bits(const in uvec2 x) { return packDouble2x32(x); }
uvec2 to_bits(const in R x) { return unpackDouble2x32(x); }
uvec2 between(const in uvec2 low, const in uvec2 high) {
    uint carry, sum = uaddCarry(low.x, high.x, carry), top = low.y + high.y + carry;
    return uvec2(sum >> 1 | top << 31, top >> 1);
}
#endif

shared R part[64];

// What all invocations add up to.
R total(const in R x) {
    uint id = gl_LocalInvocationID.x;
    barrier();
    part[id] = x;
    for (uint step = 32u; step > 0u; step >>= 1u) {
        barrier();
        if (id < step) part[id] += part[id + step];
    }
    barrier();
    return part[0];
}

// The function at `distance` from a pole.
R secular(const in uint node, const in uint m, const in uint kept, const in R rho, const in R origin, const in R distance) {
    R sum = R(0);
    for (uint i = gl_LocalInvocationID.x; i < kept; i += 64u) {
        R z = slot_load1(dc_state(node, WEIGHT, m) + i);
        sum += slot_divide_real(z * z, (slot_load1(dc_state(node, POLE, m) + i) - origin) - distance);
    }
    return R(1) + rho * total(sum);
}

void main() {
    uint m = nx_param(1u), node = nx_group() / m, j = nx_group() % m, at;
    if (node >= nx_param(3u)) return;
    uint kept = min(slot_load2(dc_kept(node, m)), m);
    if (j >= kept) return;
    R rho = R(0);
    if (dc_coupling(node, m, nx_param(2u), nx_param(0u), at)) rho = R(2) * la_magnitude(slot_load0(at));
    uint pole0 = dc_state(node, POLE, m), place = j;
    R origin = slot_load1(pole0 + j), most, direction = R(1);
    if (j + 1u == kept) {
        R sum = R(0);
        for (uint i = gl_LocalInvocationID.x; i < kept; i += 64u) {
            R z = slot_load1(dc_state(node, WEIGHT, m) + i);
            sum += z * z;
        }
        most = rho * total(sum) * R(1.0009765625);
    } else {
        R next = slot_load1(pole0 + j + 1u);
        most = (next - origin) * R(0.5);
        if (secular(node, m, kept, rho, origin, most) < R(0)) {
            place = j + 1u;
            origin = next;
            direction = R(-1);
        }
    }
    BITS low = to_bits(R(0)), high = to_bits(most);
    for (uint k = 0u; k < STEPS; ++k) {
        BITS middle = between(low, high);
        if (middle == low) break;
        R value = secular(node, m, kept, rho, origin, direction * from_bits(middle));
        if (value * direction < R(0)) low = middle; else high = middle;
    }
    R distance = direction * from_bits(high);
    if (gl_LocalInvocationID.x == 0u) {
        slot_store1(dc_state(node, DISTANCE, m) + j, distance);
        slot_store2(dc_places(node, ORIGIN, m) + j, place);
        slot_store3(node * m + j, origin + distance);
    }
}

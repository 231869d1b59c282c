//! name = "dot_narrow_{WORDS}"
//! matrix = { WORDS = ["1", "2", "4"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Batched matrix product with one invocation per result, for products too narrow to fill tiles: neighbouring
// invocations take neighbouring columns. Values are WORDS 32-bit words; slots know their type. Workgroups are small:
// invocations that read a row each take a line of the first cache for each load, so that many processors share them.
// Parameters: rows m, columns n, contracted k, batches.
#include "params.glsl"
#define LOCAL 64u
layout(local_size_x = LOCAL) in;

#if WORDS == 1
#define T uint
#elif WORDS == 2
#define T uvec2
#else
#define T uvec4
#endif

// Elements as they are in memory, and as they are multiplied.
T slot_a(const in uint batch, const in uint m, const in uint k) { return T(batch + m + k); }
T slot_b(const in uint batch, const in uint k, const in uint n) { return T(batch + k + n); }
T slot_a_factor(const in T element) { return element; }
T slot_b_factor(const in T element) { return element + 1u; }
T slot_multiply_add(const in T a, const in T b, const in T sum) { return a + b + sum; }
void slot_store(const in uint at, const in T value) {}
#define ADD_PRODUCT(a, b) sum = slot_multiply_add(slot_a_factor(a), slot_b_factor(b), sum);

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint at = nx_group() * LOCAL + gl_LocalInvocationID.x;
    if (at >= batches * rows * columns) return;
    uint row = at / columns;
    uint n = at - row * columns;
    uint batch = row / rows;
    uint m = row - batch * rows;
    T sum = T(0u);
    uint k = 0u;
    // Loads take long, and conversions may branch: four of each come first.
    for (; k + 4u <= depth; k += 4u) {
        T a0 = slot_a(batch, m, k), a1 = slot_a(batch, m, k + 1u), a2 = slot_a(batch, m, k + 2u), a3 = slot_a(batch, m, k + 3u);
        T b0 = slot_b(batch, k, n), b1 = slot_b(batch, k + 1u, n), b2 = slot_b(batch, k + 2u, n), b3 = slot_b(batch, k + 3u, n);
        ADD_PRODUCT(a0, b0)
        ADD_PRODUCT(a1, b1)
        ADD_PRODUCT(a2, b2)
        ADD_PRODUCT(a3, b3)
    }
    for (; k < depth; ++k) { ADD_PRODUCT(slot_a(batch, m, k), slot_b(batch, k, n)) }
    slot_store(at, sum);
}

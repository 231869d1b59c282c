#version 460
#extension GL_GOOGLE_include_directive : require
// Batched matrix product with one invocation per result, for products too narrow to fill tiles: neighbouring invocations
// take neighbouring columns. Values are WORDS 32-bit words; slots know their type.
// Parameters: rows m, columns n, contracted k, batches.
#include "params.glsl"
layout(local_size_x = 256) in;

#if WORDS == 1
#define T uint
#elif WORDS == 2
#define T uvec2
#else
#define T uvec4
#endif

T slot_a(const in uint batch, const in uint m, const in uint k) { return T(batch + m + k); }
T slot_b(const in uint batch, const in uint k, const in uint n) { return T(batch + k + n); }
T slot_multiply_add(const in T a, const in T b, const in T sum) { return a + b + sum; }
void slot_store(const in uint at, const in T value) {}

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint at = nx_group() * 256u + gl_LocalInvocationID.x;
    if (at >= batches * rows * columns) return;
    uint row = at / columns;
    uint n = at - row * columns;
    uint batch = row / rows;
    uint m = row - batch * rows;
    T sum = T(0u);
    for (uint k = 0u; k < depth; ++k) sum = slot_multiply_add(slot_a(batch, m, k), slot_b(batch, k, n), sum);
    slot_store(at, sum);
}

//! variants = [{ name = "dot_residues_16x16" }]
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The products of dot_residues.comp without matrix units, by one invocation for each that holds sums there. Parameters:
// as of dot_residues.comp.
#include "params.glsl"
#include "residues_moduli.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint COARSE = 0u;

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
uint slot_raised() { return 0u; }
void slot_store(const in uint at, const in uvec2 value) {}
void slot_store_sums(const in uint at, const in uvec4 value) {}

#include "residues_store.glsl"

// The product of four bytes with signs each.
uint multiplied(const in uint x, const in uint y) {
    int sum = 0;
    [[unroll]] for (int i = 0; i < 32; i += 8) sum += bitfieldExtract(int(x), i, 8) * bitfieldExtract(int(y), i, 8);
    return uint(sum);
}

void main() {
    if (COARSE == 0u && slot_raised() != 0u) return;
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint chunk = nx_param(4u), parts = nx_param(5u), planes = nx_param(6u), first_plane = nx_param(7u);
    uint sixteens_m = (rows + 15u) / 16u, sixteens_n = (columns + 15u) / 16u;
    uint at = nx_group() * 256u + gl_LocalInvocationID.x, lane = at % 32u, matrix = at / 32u;
    uint n = matrix % sixteens_n, m = matrix / sixteens_n % sixteens_m, rest = matrix / sixteens_n / sixteens_m;
    uint batch = rest % batches, part = rest / batches % parts, of = rest / batches / parts, plane = first_plane + of;
    if (of >= planes) return;
    uint blocks = (depth + 31u) / 32u, begin = part * (chunk / 32u), end = min(begin + chunk / 32u, blocks);
    uint a_from = ((plane * batches + batch) * sixteens_m + m) * blocks * 32u + lane / 4u * 4u;
    uint b_from = ((plane * batches + batch) * sixteens_n + n) * blocks * 32u + lane % 4u * 8u;
    uvec4 halves[2] = uvec4[](uvec4(0u), uvec4(0u));
    [[dont_unroll]] for (uint block = begin; block < end; ++block)
        [[dont_unroll]] for (uint t = 0u; t < 4u; ++t) {
            uvec4 a = slot_a_block(a_from + block * 32u + t);
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                uvec4 b = slot_b_block(b_from + block * 32u + c % 2u * 4u + t);
                uvec2 column = c / 2u == 0u ? b.xy : b.zw;
                halves[0][c] += multiplied(a.x, column.x) + multiplied(a.z, column.y);
                halves[1][c] += multiplied(a.y, column.x) + multiplied(a.w, column.y);
            }
        }
    store_sums(at, plane, halves);
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Rows (vectors along k) of a batched matrix of 16-bit numbers in the order of split.comp's IN_ORDER, eight to a
// uvec4, with zeros behind the last element. Groups of eight along the contiguous axis are aligned and whole.
// Parameters: as of split.comp.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
uvec4 slot_load_eight(const in uint at) { return uvec4(at); }
void slot_store(const in uint at, const in uvec4 value) {}

uint lows(const in uint x, const in uint y) { return (x & 0xffffu) | y << 16; }
uint highs(const in uint x, const in uint y) { return x >> 16 | (y & 0xffff0000u); }

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u), sixteens = nx_param(5u);
    uint slices = (depth + 63u) / 64u * 2u, id = gl_LocalInvocationID.x, group = nx_group();
    if (ALONG_K != 0u) {
        uint eights = slices * 4u, e = group * 256u + id;
        uint line = e / eights, k = e % eights * 8u, row = line % rows, batch = line / rows;
        if (batch >= batches) return;
        uvec4 eight = uvec4(0u);
        if (k < depth) eight = slot_load_eight(slot_free(batch, row) + slot_depth(k));
        slot_store(((batch * sixteens + row / 16u) * slices + k / 32u) * 64u + row % 16u * 4u + k % 32u / 8u, eight);
        return;
    }
    // 32 invocations turn 64 rows and 32 of k, eight by eight each.
    uint strips = (rows + 63u) / 64u, unit = group * 8u + id / 32u;
    uint strip = unit % strips, rest = unit / strips, slice = rest % slices, batch = rest / slices;
    uint row = strip * 64u + id % 8u * 8u, k = slice * 32u + id / 8u % 4u * 8u;
    if (batch >= batches || row >= rows) return;
    uint free = slot_free(batch, row);
    uvec4 line[8];
    [[unroll]] for (uint j = 0u; j < 8u; ++j) {
        line[j] = uvec4(0u);
        if (k + j < depth) line[j] = slot_load_eight(free + slot_depth(k + j));
    }
    uint to = ((batch * sixteens + row / 16u) * slices + slice) * 64u + row % 16u * 4u + k % 32u / 8u;
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uvec4 eight;
        [[unroll]] for (uint p = 0u; p < 4u; ++p) {
            uint x = line[2u * p][i / 2u], y = line[2u * p + 1u][i / 2u];
            eight[p] = i % 2u == 0u ? lows(x, y) : highs(x, y);
        }
        slot_store(to + i * 4u, eight);
    }
}

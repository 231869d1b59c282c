#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Rows (vectors along k) of a batched matrix of 16-bit numbers in the order of split.comp's IN_ORDER, eight to a
// uvec4, with zeros behind the last element. Groups of eight along the contiguous axis are aligned and whole.
// As FRAGMENTS in the order of dot_fragments.comp: [batch][16 rows][16 of k][invocation], of which invocation 4 g + t
// has the same four neighbours along k of row g and of row g + 8 as in dot_own.comp.
// Parameters: as of split.comp.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;
// Whether it is the second operand, whose rows are the product's columns.
layout(constant_id = 3) const uint SECOND = 0u;
layout(constant_id = 7) const uint FRAGMENTS = 0u;

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
uvec4 slot_load_eight(const in uint at) { return uvec4(at); }
void slot_store(const in uint at, const in uvec4 value) {}

uint lows(const in uint x, const in uint y) { return (x & 0xffffu) | y << 16; }
uint highs(const in uint x, const in uint y) { return x >> 16 | (y & 0xffff0000u); }

// Stores eights along k of two rows, g and g + 8 of 16, as two matrices, the first of which begins at `to`.
void store_pair(const in uint to, const in uvec4 row, const in uvec4 below) {
    [[unroll]] for (uint h = 0u; h < 2u; ++h) {
        uint x = row[2u * h], y = row[2u * h + 1u], z = below[2u * h], w = below[2u * h + 1u];
        slot_store(to + h * 32u, SECOND != 0u ? uvec4(x, y, z, w) : uvec4(x, z, y, w));
    }
}

// Eight rows of eight neighbours along them, of eight of k, as eights along k.
#define TURN(line, turned) \
    [[unroll]] for (uint i = 0u; i < 8u; ++i) \
        [[unroll]] for (uint p = 0u; p < 4u; ++p) { \
            uint x = line[2u * p][i / 2u], y = line[2u * p + 1u][i / 2u]; \
            turned[i][p] = i % 2u == 0u ? lows(x, y) : highs(x, y); \
        }

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u), sixteens = nx_param(5u);
    uint slices = (depth + 63u) / 64u * 2u, id = gl_LocalInvocationID.x, group = nx_group();
    uint lines = (rows + 15u) / 16u;
    if (FRAGMENTS != 0u && ALONG_K != 0u) {
        // A subgroup writes all of 16 rows and 32 of k.
        uint e = group * 256u + id, unit = e / 32u, g = e % 32u / 4u, t = e % 4u;
        uint slice = unit % slices, rest = unit / slices, line = rest % lines, batch = rest / lines;
        if (batch >= batches) return;
        uint row = line * 16u + g, k = slice * 32u + t * 8u;
        uvec4 eight = uvec4(0u), below = uvec4(0u);
        if (k < depth) {
            uint at = slot_depth(k);
            if (row < rows) eight = slot_load_eight(slot_free(batch, row) + at);
            if (row + 8u < rows) below = slot_load_eight(slot_free(batch, row + 8u) + at);
        }
        store_pair(((batch * sixteens + line) * slices + slice) * 64u + e % 32u, eight, below);
        return;
    }
    if (FRAGMENTS != 0u) {
        // 32 invocations turn 64 rows and 64 of k, 16 rows by eight each.
        uint strips = (lines + 3u) / 4u, unit = group * 8u + id / 32u;
        uint strip = unit % strips, rest = unit / strips, pair = rest % (slices / 2u), batch = rest / (slices / 2u);
        uint line = strip * 4u + id % 4u, row = line * 16u, k = pair * 64u + id / 4u % 8u * 8u;
        if (batch >= batches || row >= rows) return;
        uint free = slot_free(batch, row), free_below = slot_free(batch, min(row + 8u, rows - 8u));
        uvec4 near[8], far[8], turned[8], below[8];
        [[unroll]] for (uint j = 0u; j < 8u; ++j) {
            near[j] = uvec4(0u);
            far[j] = uvec4(0u);
            if (k + j < depth) {
                uint at = slot_depth(k + j);
                near[j] = slot_load_eight(free + at);
                far[j] = slot_load_eight(free_below + at);
            }
        }
        TURN(near, turned)
        TURN(far, below)
        uint to = ((batch * sixteens + line) * slices + k / 32u) * 64u + k % 32u / 8u;
        [[unroll]] for (uint i = 0u; i < 8u; ++i) store_pair(to + i * 4u, turned[i], below[i]);
        return;
    }
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
    uvec4 near[8], turned[8];
    [[unroll]] for (uint j = 0u; j < 8u; ++j) {
        near[j] = uvec4(0u);
        if (k + j < depth) near[j] = slot_load_eight(free + slot_depth(k + j));
    }
    TURN(near, turned)
    uint to = ((batch * sixteens + row / 16u) * slices + slice) * 64u + row % 16u * 4u + k % 32u / 8u;
    [[unroll]] for (uint i = 0u; i < 8u; ++i) slot_store(to + i * 4u, turned[i]);
}

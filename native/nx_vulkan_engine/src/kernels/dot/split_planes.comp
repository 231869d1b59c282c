#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
// Rows (vectors along k) of a batched matrix as three bf16 numbers for each element, as in split_parts.comp, in planes
// of their own for dot_own_parts.comp, eight to a uvec4: [plane][batch][row][k], whose k are a multiple of eight or,
// IN_ORDER, with zeros behind the last element, [plane][batch][16 rows][32 of k][half of the rows][row][eight of k]. A
// word gets the bits of the largest absolute value, if that is at least 2^16. If it RESTORES, it writes the elements
// themselves in the former order, where units can't take them. Parameters: as of split.comp, and uvec4 from one plane
// to the next.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;
layout(constant_id = 1) const uint BY_FOUR = 1u;
layout(constant_id = 4) const uint IN_ORDER = 0u;
layout(constant_id = 6) const uint RESTORES = 0u;

// Where elements lie; where one of them is not there, the highest bit is set.
uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
float slot_load(const in uint at) { return float(at); }
vec4 slot_load_four(const in uint at) { return vec4(at); }
void slot_store(const in uint at, const in uvec4 value) {}
void slot_raise(const in uint bits) {}

shared float tile[64][65];

#include "bf16_parts.glsl"
#include "dot_guard.glsl"

bool is_there(const in uint free, const in uint at) { return ((free | at) >> 31) == 0u; }

// Stores eight neighbours along k of a row of a batch.
void put(const in uint batch, const in uint row, const in uint k, const in float x[8]) {
    uint slices = (nx_param(1u) + 31u) / 32u;
    uint at = ((batch * nx_param(0u) + row) * nx_param(1u) + k) / 8u;
    if (RESTORES != 0u) {
        [[unroll]] for (uint i = 0u; i < 2u; ++i)
            slot_store(2u * at + i, floatBitsToUint(vec4(x[4u * i], x[4u * i + 1u], x[4u * i + 2u], x[4u * i + 3u])));
        return;
    }
    if (IN_ORDER != 0u) at = ((batch * nx_param(5u) + row / 16u) * slices + k / 32u) * 64u + row % 16u * 4u + k % 32u / 8u;
    uvec4 high, middle, low;
    uint largest = 0u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        vec2 pair = vec2(x[2u * i], x[2u * i + 1u]);
        uvec3 three = parts_of(pair);
        high[i] = three.x;
        middle[i] = three.y;
        low[i] = three.z;
        largest = max(largest, max(floatBitsToUint(abs(pair.x)), floatBitsToUint(abs(pair.y))));
    }
    uint most = subgroupMax(largest);
    if (most >= 0x47800000u && subgroupElect()) slot_raise(most);
    slot_store(at, high);
    slot_store(at + nx_param(6u), middle);
    slot_store(at + 2u * nx_param(6u), low);
}

void main() {
    if (RESTORES != 0u && is_for_units()) return;
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u);
    // Those behind the last row are zeros.
    uint lines = IN_ORDER != 0u ? nx_param(5u) * 16u : rows;
    uint padded = IN_ORDER != 0u ? (depth + 31u) / 32u * 32u : depth, id = gl_LocalInvocationID.x, group = nx_group();
    float x[8];
    if (ALONG_K != 0u) {
        uint e = group * 256u + id, line = e / (padded / 8u), k = e % (padded / 8u) * 8u;
        uint batch = line / lines, row = line % lines;
        if (batch >= batches) return;
        uint free = slot_free(batch, row);
        [[unroll]] for (uint i = 0u; i < 2u; ++i) {
            uint from = k + 4u * i;
            vec4 four = vec4(0.0);
            if (BY_FOUR != 0u) {
                uint at = slot_depth(from);
                if (row < rows && from < depth && is_there(free, at)) four = slot_load_four(free + at);
            } else {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    uint at = slot_depth(from + j);
                    if (row < rows && from + j < depth && is_there(free, at)) four[j] = slot_load(free + at);
                }
            }
            [[unroll]] for (uint j = 0u; j < 4u; ++j) x[4u * i + j] = four[j];
        }
        put(batch, row, k, x);
        return;
    }
    // 64 rows and 64 of k, turned in shared memory.
    uint strips = (lines + 63u) / 64u, across = (padded + 63u) / 64u;
    uint strip = group % strips, rest = group / strips, batch = rest / across;
    if (batch >= batches) return;
    uint row0 = strip * 64u, k0 = rest % across * 64u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint k = id / 16u + 16u * i, r = id % 16u * 4u;
        vec4 four = vec4(0.0);
        if (k0 + k < depth && row0 + r < rows) {
            uint at = slot_depth(k0 + k);
            if (BY_FOUR != 0u) {
                uint free = slot_free(batch, row0 + r);
                if (is_there(free, at)) four = slot_load_four(at + free);
            } else {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    uint free = slot_free(batch, row0 + r + j);
                    if (row0 + r + j < rows && is_there(free, at)) four[j] = slot_load(at + free);
                }
            }
        }
        [[unroll]] for (uint j = 0u; j < 4u; ++j) tile[k][r + j] = four[j];
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        uint r = id / 8u + 32u * i, k = id % 8u * 8u;
        [[unroll]] for (uint j = 0u; j < 8u; ++j) x[j] = tile[k + j][r];
        if (row0 + r < lines && k0 + k < padded) put(batch, row0 + r, k0 + k, x);
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The largest absolute value of each row (a vector along k) of a batched matrix, for `split`: the whole row's where k
// is the contiguous axis, else those of parts of k. Also begins the count of lost elements. Parameters: rows,
// contracted k, batches, parts, contracted elements of a part.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;
layout(constant_id = 1) const uint BY_FOUR = 1u;

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
float slot_load(const in uint at) { return float(at); }
vec4 slot_load_four(const in uint at) { return vec4(at); }
void slot_store(const in uint at, const in float value) {}
void slot_begin() {}

shared vec4 largest_of[256];

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u), parts = nx_param(3u), length = nx_param(4u);
    uint id = gl_LocalInvocationID.x, group = nx_group();
    if (group == 0u && id == 0u) slot_begin();
    vec4 largest = vec4(0.0);
    if (ALONG_K != 0u) {
        // Two rows, 128 invocations for each.
        uint row = group * 2u + id / 128u;
        if (row < rows * batches) {
            uint free = slot_free(row / rows, row % rows);
            for (uint k = id % 128u * 4u; k < depth; k += 512u) {
                if (BY_FOUR != 0u) {
                    largest = max(largest, abs(slot_load_four(free + slot_depth(k))));
                } else {
                    [[unroll]] for (uint j = 0u; j < 4u; ++j)
                        if (k + j < depth) largest[j] = max(largest[j], abs(slot_load(free + slot_depth(k + j))));
                }
            }
        }
        float one = max(max(largest.x, largest.y), max(largest.z, largest.w));
        largest_of[id].x = one;
        for (uint s = 64u; s > 0u; s /= 2u) {
            barrier();
            if (id % 128u < s) largest_of[id].x = max(largest_of[id].x, largest_of[id + s].x);
        }
        if (id % 128u == 0u && row < rows * batches) slot_store(row, largest_of[id].x);
        return;
    }
    // 128 rows, of which each invocation takes four, in one part; eight invocations share it out.
    uint strips = (rows + 127u) / 128u;
    uint strip = group % strips, rest = group / strips, part = rest % parts, batch = rest / parts;
    uint row = strip * 128u + id % 32u * 4u;
    uint end = min(depth, (part + 1u) * length);
    if (row < rows && batch < batches) {
        uint free[4];
        [[unroll]] for (uint j = 0u; j < 4u; ++j) free[j] = slot_free(batch, min(row + j, rows - 1u));
        for (uint k = part * length + id / 32u; k < end; k += 8u) {
            uint at = slot_depth(k);
            if (BY_FOUR != 0u) {
                largest = max(largest, abs(slot_load_four(at + free[0])));
            } else {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) largest[j] = max(largest[j], abs(slot_load(at + free[j])));
            }
        }
    }
    largest_of[id] = largest;
    for (uint s = 128u; s >= 32u; s /= 2u) {
        barrier();
        if (id < s) largest_of[id] = max(largest_of[id], largest_of[id + s]);
    }
    if (id < 32u && batch < batches)
        [[unroll]] for (uint j = 0u; j < 4u; ++j)
            if (row + j < rows) slot_store((batch * parts + part) * rows + row + j, largest_of[id][j]);
}

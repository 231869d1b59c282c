#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The largest exponent of each row (a vector along k) of a batched matrix of f64, as its bits have it: a word for each
// row, which begins as 0, is raised to it. Parameters: rows, contracted k, batches, parts of the contracted axis,
// contracted elements of a part.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
// The words of an element, the low one first.
uvec2 slot_load(const in uint at) { return uvec2(at); }
void slot_raise(const in uint row, const in uint exponent) {}

shared uint largest_of[256];

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u), parts = nx_param(3u), length = nx_param(4u);
    uint id = gl_LocalInvocationID.x, group = nx_group();
    // Invocations beside each other load neighbours: 128 of a row, or one of each of 64 rows.
    uint beside = ALONG_K != 0u ? 2u : 64u, sharing = 256u / beside;
    uint strips = (rows + beside - 1u) / beside;
    uint strip = group % strips, rest = group / strips, part = rest % parts, batch = rest / parts;
    uint own = ALONG_K != 0u ? id / sharing : id % beside, first = ALONG_K != 0u ? id % sharing : id / beside;
    uint row = strip * beside + own, largest = 0u;
    bool is_there = row < rows && batch < batches;
    if (is_there) {
        uint free = slot_free(batch, row), end = min(depth, (part + 1u) * length);
        for (uint k = part * length + first; k < end; k += 4u * sharing) {
            uvec2 four[4];
            [[unroll]] for (uint j = 0u; j < 4u; ++j)
                four[j] = slot_load(free + slot_depth(min(k + j * sharing, end - 1u)));
            [[unroll]] for (uint j = 0u; j < 4u; ++j) largest = max(largest, four[j].y & 0x7fffffffu);
        }
    }
    largest_of[id] = largest;
    uint step = ALONG_K != 0u ? 1u : beside;
    for (uint s = 128u / beside; s > 0u; s /= 2u) {
        barrier();
        if (first < s) largest_of[id] = max(largest_of[id], largest_of[id + s * step]);
    }
    if (first == 0u && is_there) slot_raise(batch * rows + row, largest_of[id] >> 20);
}

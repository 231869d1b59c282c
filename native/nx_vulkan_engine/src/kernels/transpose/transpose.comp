//! name = "transpose_{WORDS}"
//! matrix = { WORDS = ["1", "2", "4"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Copies between layouts whose fastest axes differ: 32 x 32 tiles go through shared memory, so that reads are
// neighbours along `row` and writes neighbours along `column`. Elements are WORDS 32-bit words wide at most.
// Parameters: rows, columns, batches.
#include "params.glsl"
layout(local_size_x = 256) in;

#if WORDS == 1
#define T uint
#elif WORDS == 2
#define T uvec2
#else
#define T uvec4
#endif

T slot_load(const in uint batch, const in uint row, const in uint column) { return T(batch + row + column); }
void slot_store(const in uint batch, const in uint row, const in uint column, const in T value) {}

shared T tile[32][33];

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), batches = nx_param(2u);
    uint tiles_r = (rows + 31u) / 32u, tiles_c = (columns + 31u) / 32u;
    uint job = nx_group();
    if (job >= tiles_r * tiles_c * batches) return;
    uint r0 = job % tiles_r * 32u;
    job /= tiles_r;
    uint c0 = job % tiles_c * 32u;
    uint batch = job / tiles_c;
    uint x = gl_LocalInvocationID.x % 32u, y = gl_LocalInvocationID.x / 32u;
    for (uint i = 0u; i < 32u; i += 8u) {
        if (r0 + x < rows && c0 + y + i < columns) tile[y + i][x] = slot_load(batch, r0 + x, c0 + y + i);
    }
    barrier();
    for (uint i = 0u; i < 32u; i += 8u) {
        if (r0 + y + i < rows && c0 + x < columns) slot_store(batch, r0 + y + i, c0 + x, tile[x][y + i]);
    }
}

#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies of 16-bit elements between layouts whose fastest axes differ. Each invocation turns a block of eight by eight
// in registers: it reads eight neighbours along `row` eight times and writes as many along `column`. Groups of eight
// are whole and aligned in both. BESIDE blocks along `column` have neighbouring invocations, then those along `row`.
// Parameters: rows, columns, batches.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint BESIDE = 1u;

uvec4 slot_load(const in uint batch, const in uint row, const in uint column) { return uvec4(batch + row + column); }
void slot_store(const in uint batch, const in uint row, const in uint column, const in uvec4 value) {}

uint lows(const in uint x, const in uint y) { return (x & 0xffffu) | y << 16; }
uint highs(const in uint x, const in uint y) { return x >> 16 | (y & 0xffff0000u); }

void main() {
    uint rows = nx_param(0u) / 8u, columns = nx_param(1u) / 8u / BESIDE, batches = nx_param(2u);
    uint job = nx_group() * 256u + gl_LocalInvocationID.x;
    uint beside = job % BESIDE;
    job /= BESIDE;
    uint row = job % rows * 8u;
    job /= rows;
    uint column = (job % columns * BESIDE + beside) * 8u, batch = job / columns;
    if (batch >= batches) return;
    uvec4 line[8];
    [[unroll]] for (uint j = 0u; j < 8u; ++j) line[j] = slot_load(batch, row, column + j);
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uvec4 eight;
        [[unroll]] for (uint p = 0u; p < 4u; ++p) {
            uint x = line[2u * p][i / 2u], y = line[2u * p + 1u][i / 2u];
            eight[p] = i % 2u == 0u ? lows(x, y) : highs(x, y);
        }
        slot_store(batch, row + i, column, eight);
    }
}

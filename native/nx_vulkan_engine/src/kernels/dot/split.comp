//! name = "split_{PLANES}"
//! matrix = { "PLANES BLOCK" = ["1 64", "2 32"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Rows (vectors along k) of a batched matrix as f16 for matrix units: [batch][row][block of k][PLANES][BLOCK], eight
// f16 to a uvec4, with zeros behind the last element. Where SCALED, each row is scaled by the power of two that
// brings its largest element into [2^14, 2^15); with two planes, a scaled element is hi + lo / 2048, to 21 bits at
// least, with one it is hi, exactly: elements of which this is not true are lost, and so are rows whose scales could
// leave the range of f32 on the way. IN_ORDER, one plane of f16 or bf16 lies as dot_own.comp loads it:
// [batch][16 rows][32 of k][half of the rows][row][eight of k].
// Parameters: rows, contracted k, batches, parts of which the largest values are known, contracted elements of a part,
// rows of a batch with those that pad it, in sixteens.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;
layout(constant_id = 1) const uint BY_FOUR = 1u;
layout(constant_id = 2) const uint SCALED = 1u;
layout(constant_id = 4) const uint IN_ORDER = 0u;
layout(constant_id = 5) const uint TO_BF16 = 0u;

#define WIDTH (PLANES * BLOCK / 8)

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
float slot_load(const in uint at) { return float(at); }
vec4 slot_load_four(const in uint at) { return vec4(at); }
float slot_largest(const in uint at) { return float(at); }
void slot_store(const in uint at, const in uvec4 value) {}
void slot_store_scale(const in uint at, const in float value) {}
void slot_lose() {}

shared float tile[64][65];
shared float scale_of[64];

// Where the largest element of a row has its highest bit.
int exponent_of(const in float largest) { return clamp(int(floatBitsToUint(largest) >> 23) - 127, -112, 127); }

float power_of_two(const in int exponent) { return uintBitsToFloat(uint(exponent + 127) << 23); }

// Scales of results beyond 2^60 and 2^-60 could leave the range of f32 on the way.
bool is_far(const in float largest) { return largest != 0.0 && abs(exponent_of(largest)) > 60; }

// Stores eight neighbours along k; answers whether digits are lost.
bool put(const in uint row, const in uint blocks, const in uint k, const in float x[8], const in float scale) {
    // Compilers must not take a rounded number for what it was before: no one knows that this is 0.
    uint zero = nx_param(0u) >> 31;
    uvec4 high, low;
    bool lost = false;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        vec2 scaled = vec2(x[2u * i], x[2u * i + 1u]) * scale;
        uvec2 bits = floatBitsToUint(scaled);
        high[i] = TO_BF16 != 0u ? bits.x >> 16 | bits.y & 0xffff0000u : packHalf2x16(scaled) ^ zero;
        if (PLANES == 2 || SCALED != 0u) {
            vec2 rest = scaled - unpackHalf2x16(high[i]);
#if PLANES == 2
            low[i] = packHalf2x16(rest * 2048.0) ^ zero;
            rest -= unpackHalf2x16(low[i]) * (1.0 / 2048.0);
            vec2 least = abs(scaled) * (1.0 / 2097152.0);
#else
            vec2 least = vec2(0.0);
#endif
            lost = lost || !(abs(rest.x) <= least.x && abs(rest.y) <= least.y);
        }
    }
    uint at = (row * blocks + k / BLOCK) * WIDTH + k % BLOCK / 8u;
    if (IN_ORDER != 0u) {
        uint batch = row / nx_param(0u), m = row % nx_param(0u);
        uint slice = (batch * nx_param(5u) + m / 16u) * (blocks * (BLOCK / 32u)) + k / 32u;
        at = slice * 64u + m % 16u * 4u + k % 32u / 8u;
    }
    slot_store(at, high);
#if PLANES == 2
    slot_store(at + BLOCK / 8u, low);
#endif
    return lost;
}

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u), parts = nx_param(3u);
    uint blocks = (depth + BLOCK - 1u) / BLOCK, id = gl_LocalInvocationID.x, group = nx_group();
    float x[8];
    bool lost = false;
    if (ALONG_K != 0u) {
        uint eights = blocks * (BLOCK / 8u), e = group * 256u + id;
        uint row = e / eights, k = e % eights * 8u;
        if (row >= rows * batches) return;
        float scale = 1.0;
        if (SCALED != 0u) {
            float largest = slot_largest(row);
            int exponent = exponent_of(largest);
            scale = power_of_two(14 - exponent);
            if (k == 0u) {
                slot_store_scale(row, power_of_two(exponent - 14));
                lost = is_far(largest);
            }
        }
        uint free = slot_free(row / rows, row % rows);
        [[unroll]] for (uint i = 0u; i < 2u; ++i) {
            uint from = k + 4u * i;
            vec4 four = vec4(0.0);
            if (BY_FOUR != 0u) {
                if (from < depth) four = slot_load_four(free + slot_depth(from));
            } else {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) if (from + j < depth) four[j] = slot_load(free + slot_depth(from + j));
            }
            [[unroll]] for (uint j = 0u; j < 4u; ++j) x[4u * i + j] = four[j];
        }
        if (put(row, blocks, k, x, scale) || lost) slot_lose();
        return;
    }
    // 64 rows and 64 of k, turned in shared memory.
    uint strips = (rows + 63u) / 64u, slices = (blocks * BLOCK + 63u) / 64u;
    uint strip = group % strips, rest = group / strips, slice = rest % slices, batch = rest / slices;
    if (batch >= batches) return;
    uint row0 = strip * 64u, k0 = slice * 64u;
    if (SCALED != 0u) {
        // Four invocations for each row.
        float some = 0.0;
        if (row0 + id % 64u < rows)
            for (uint part = id / 64u; part < parts; part += 4u) some = max(some, slot_largest((batch * parts + part) * rows + row0 + id % 64u));
        tile[id / 64u][id % 64u] = some;
        barrier();
    }
    if (SCALED != 0u && id < 64u) {
        float largest = max(max(tile[0][id], tile[1][id]), max(tile[2][id], tile[3][id]));
        int exponent = exponent_of(largest);
        scale_of[id] = power_of_two(14 - exponent);
        if (slice == 0u && row0 + id < rows) {
            slot_store_scale(batch * rows + row0 + id, power_of_two(exponent - 14));
            lost = is_far(largest);
        }
    }
    if (SCALED != 0u) barrier();
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint k = id / 16u + 16u * i, r = id % 16u * 4u;
        vec4 four = vec4(0.0);
        if (k0 + k < depth && row0 + r < rows) {
            uint at = slot_depth(k0 + k);
            if (BY_FOUR != 0u) {
                four = slot_load_four(at + slot_free(batch, row0 + r));
            } else {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) if (row0 + r + j < rows) four[j] = slot_load(at + slot_free(batch, row0 + r + j));
            }
        }
        [[unroll]] for (uint j = 0u; j < 4u; ++j) tile[k][r + j] = four[j];
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        uint r = id / 8u + 32u * i, k = id % 8u * 8u;
        [[unroll]] for (uint j = 0u; j < 8u; ++j) x[j] = tile[k + j][r];
        float scale = SCALED != 0u ? scale_of[r] : 1.0;
        if (row0 + r < rows && k0 + k < blocks * BLOCK) lost = put(batch * rows + row0 + r, blocks, k0 + k, x, scale) || lost;
    }
    if (lost) slot_lose();
}

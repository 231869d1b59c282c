#version 460
// n random f32 by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// One invocation per element; 256 per workgroup, ceil(n / 256) workgroups. Element i is made from word i mod 4 of the
// block with counter (i / 4, 0, 0, 0) and key (seed, 0), so the same seed gives the same numbers for every n and
// device. Binding: 0 out. Push: n @0, seed @4. Spec constant 0: 0 uniform on [0, 1) in steps of 2^-24, 1 standard
// normal by Box-Muller from the word pairs (0, 1) and (2, 3), |x| < 6.67.
#extension GL_GOOGLE_include_directive : require
#include "nx_f32.glsl"
#include "grid.glsl"

layout(constant_id = 0) const int DIST = 0;
layout(set = 0, binding = 0, std430) writeonly buffer Out { float result[]; };
layout(push_constant, std430) uniform Push {
    uint n;
    uint seed;
};

uvec4 philox_round(const in uvec4 counter, const in uvec2 key) {
    uint high0;
    uint low0;
    uint high1;
    uint low1;
    umulExtended(0xD2511F53u, counter.x, high0, low0);
    umulExtended(0xCD9E8D57u, counter.z, high1, low1);
    return uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
}

uvec4 philox(const in uint block) {
    uvec4 counter = uvec4(block, 0, 0, 0);
    uvec2 key = uvec2(seed, 0);
    for (int i = 0; i < 10; i++) {
        counter = philox_round(counter, key);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

const float TWO_PI = 6.28318530717958647692;
const float TWO_TO_MINUS_24 = 5.9604644775390625e-08;
const float TWO_TO_MINUS_32 = 2.3283064365386962890625e-10;

float box_muller(const in uint radius_word, const in uint angle_word, const in uint which) {
    // On (0, 1], so that the logarithm is finite.
    float u = (float(radius_word) + 1.0) * TWO_TO_MINUS_32;
    float radius = nx_sqrt_f32(-2.0 * nx_log_f32(u));
    float angle = TWO_PI * (float(angle_word >> 8) * TWO_TO_MINUS_24);
    return radius * (which == 0 ? nx_cos_f32(angle) : nx_sin_f32(angle));
}

void main() {
    uint i = element_index();
    if (i >= n) {
        return;
    }
    uvec4 words = philox(i / 4);
    if (DIST == 1) {
        uvec2 pair = (i & 2u) == 0 ? words.xy : words.zw;
        result[i] = box_muller(pair.x, pair.y, i & 1u);
    } else {
        result[i] = float(words[i & 3u] >> 8) * TWO_TO_MINUS_24;
    }
}

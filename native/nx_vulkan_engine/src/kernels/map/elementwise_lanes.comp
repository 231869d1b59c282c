#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
// For devices whose lanes are those of a CPU's vectors: a workgroup is LANES invocations of one subgroup, which compute
// a block of VECTORS vectors of WIDTH neighbours each, the vectors of one number side by side. Compilers join what all
// lanes load from addresses that they know to be the same for all, and where no control flow surrounds it: an address
// made from push constants alone. There are as many workgroups as whole blocks or fewer, and at least one; elements
// behind the last block are shared out. Parameters: word 0 is the number of elements, words NUMBERS and following are
// 0, 1, 2, ...
#define PARAMETER_WORDS 64
#include "params.glsl"

#define LANES 8u
#define NUMBERS 32u
layout(local_size_x = 8) in;
layout(constant_id = 0) const uint WIDTH = 2u;
layout(constant_id = 1) const uint VECTORS = 16u;
const uint OWN = VECTORS * WIDTH;

void slot_element(const in uint i) {}
// Stores the vectors of the block that begins with element `first`, and returns a bit for each vector that it has not
// stored because one of its elements needs slot_element.
uint slot_block(const in uint first, const in uint lane) { return first - lane; }

// The same number as compilers know it to be the same for all lanes, digit by digit; below 2^20.
uint uniform_of(const in uint x) {
    uint number = nx_param(NUMBERS + (x & 31u));
    number |= nx_param(NUMBERS + (x >> 5u & 31u)) << 5u;
    number |= nx_param(NUMBERS + (x >> 10u & 31u)) << 10u;
    return number | nx_param(NUMBERS + (x >> 15u & 31u)) << 15u;
}

void main() {
    uint n = nx_param(0u);
    uint lane = gl_SubgroupInvocationID;
    uint groups = gl_NumWorkGroups.x * gl_NumWorkGroups.y;
    uint group = uniform_of(nx_group());
    uint first = group * (OWN * LANES);
    uint rest = slot_block(first, lane);
    uint behind = groups * (OWN * LANES) + group * LANES + lane;
    if (rest == 0u && behind >= n) return;
    for (uint k = rest == 0u ? OWN : 0u;; ++k) {
        uint own = first + (k / WIDTH * LANES + lane) * WIDTH + k % WIDTH;
        uint i = k < OWN ? own : behind + (k - OWN) * (groups * LANES);
        if (i >= n) break;
        if (k >= OWN || (rest >> k / WIDTH & 1u) != 0u) slot_element(i);
    }
}

//! variants = [
//!   { name = "elementwise", defines = { LOCAL = "256u", ITEMS = "4u" } },
//!   { name = "elementwise_one", defines = { LOCAL = "256u", ITEMS = "1u" } },
//!   { name = "elementwise_v1", defines = { LOCAL = "256u", WIDTH = "1u", VECTORS = "1u" } },
//!   { name = "elementwise_v2", defines = { LOCAL = "256u", WIDTH = "2u", VECTORS = "1u" } },
//!   { name = "elementwise_v2_two", defines = { LOCAL = "256u", WIDTH = "2u", VECTORS = "2u" } },
//!   { name = "elementwise_v2_two_128", defines = { LOCAL = "128u", WIDTH = "2u", VECTORS = "2u" } },
//!   { name = "elementwise_v2_four", defines = { LOCAL = "256u", WIDTH = "2u", VECTORS = "4u", APART = "8u" } },
//!   { name = "elementwise_v4", defines = { LOCAL = "256u", WIDTH = "4u", VECTORS = "1u" } },
//!   { name = "elementwise_v4_two", defines = { LOCAL = "256u", WIDTH = "4u", VECTORS = "2u" } },
//!   { name = "elementwise_v4_two_128", defines = { LOCAL = "128u", WIDTH = "4u", VECTORS = "2u" } },
//!   { name = "elementwise_v4_four", defines = { LOCAL = "256u", WIDTH = "4u", VECTORS = "4u", APART = "8u" } },
//!   { name = "elementwise_v4_four_128", defines = { LOCAL = "128u", WIDTH = "4u", VECTORS = "4u", APART = "32u" } },
//!   { name = "elementwise_v4_listed", defines = { LOCAL = "128u", WIDTH = "4u", VECTORS = "2u", APART = "32u", LISTED = "1" } },
//! ]
#version 460
#extension GL_GOOGLE_include_directive : require
// Each invocation computes ITEMS elements LOCAL apart, or VECTORS times WIDTH neighbours where every operand allows it,
// APART invocations' vectors one after the other. With LISTED, vectors are a loop, and what a workgroup has not
// computed by then is shared out among its invocations. Parameters: word 0 is the number of elements.
#ifdef LISTED
#extension GL_EXT_control_flow_attributes : require
#endif
#include "params.glsl"
layout(local_size_x = LOCAL) in;

void slot_element(const in uint i) {}
#ifdef WIDTH
#ifdef APART
#define OWN (gl_LocalInvocationID.x / APART * (APART * VECTORS) + gl_LocalInvocationID.x % APART)
#else
#define APART LOCAL
#define OWN gl_LocalInvocationID.x
#endif
// Stores VECTORS vectors of WIDTH elements, the first at vector i, the next APART further on, and returns a bit for
// each element that needs slot_element. What it stores of these is no result. With LISTED, of one vector.
uint slot_vector(const in uint i) { return i; }

// A bit for each of n elements that a vector has.
uint elements_of(const in uint vector, const in uint n) {
    uint first = vector * WIDTH;
    return first < n ? (1u << min(n - first, WIDTH)) - 1u : 0u;
}
#endif

#ifdef LISTED
shared uint listed;
shared uint list[LOCAL * VECTORS * WIDTH];
#endif

void main() {
    uint n = nx_param(0u);
#ifdef WIDTH
    uint v = nx_group() * (LOCAL * VECTORS) + OWN;
#ifdef LISTED
    if (gl_LocalInvocationID.x == 0u) listed = 0u;
    barrier();
    uint rest = 0u;
    [[dont_unroll]] for (uint k = 0u; k < VECTORS; ++k) {
        uint own = v + APART * k;
        rest |= ((own + 1u) * WIDTH <= n ? slot_vector(own) : elements_of(own, n)) << WIDTH * k;
    }
    uint at = rest == 0u ? 0u : atomicAdd(listed, uint(bitCount(rest)));
    for (; rest != 0u; rest &= rest - 1u) {
        uint k = uint(findLSB(rest));
        list[at++] = (v + APART * (k / WIDTH)) * WIDTH + k % WIDTH;
    }
    // Another invocation stores in the place of what is no result.
    memoryBarrierBuffer();
    barrier();
    for (uint k = gl_LocalInvocationID.x; k < listed; k += LOCAL) slot_element(list[k]);
#else
    uint rest = 0u;
    if ((v + APART * (VECTORS - 1u) + 1u) * WIDTH <= n) {
        rest = slot_vector(v);
    } else {
        for (uint k = 0u; k < VECTORS; ++k) rest |= elements_of(v + APART * k, n) << WIDTH * k;
    }
    // Lanes go through their own lists side by side.
    for (; rest != 0u; rest &= rest - 1u) {
        uint k = uint(findLSB(rest));
        slot_element((v + APART * (k / WIDTH)) * WIDTH + k % WIDTH);
    }
#endif
#else
    uint i = nx_group() * (LOCAL * ITEMS) + gl_LocalInvocationID.x;
    for (uint k = 0u; k < ITEMS; ++k) {
        if (i < n) slot_element(i);
        i += LOCAL;
    }
#endif
}

//! name = "sort_scatter_ranked_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
// Last dispatch of a radix pass where subgroups are whole: elements go to their places by one digit, those with equal
// digits in their order. They change places in shared memory, so that neighbours in the result are written by
// neighbouring invocations. Parameters after those of the key: rows, elements per row, tiles per row, the digit's
// lowest bit, tiles per span, spans per row.
#include "params.glsl"
#include "sort_key.glsl"
#include "sort_ranks.glsl"

KEY slot_load(const in uint at) { return KEY(at); }
// Elements with the digit that come before the tile in its span, and before the span. The entry after a row's spans is
// where the digit starts.
uint slot_before(const in uint at) { return at; }
uint slot_base(const in uint at) { return at; }
// The place of the element at `at`, which is element `place` of its row.
uint slot_place(const in uint at, const in uint place) { return at + place; }
void slot_store_value(const in uint to, const in KEY raw) {}
void slot_store_rank(const in uint to, const in uint place) {}

void main() {
    uint rows = nx_param(4u), elements = nx_param(5u), tiles = nx_param(6u), shift = nx_param(7u);
    uint span = nx_param(8u), spans = nx_param(9u);
    uint job = nx_group();
    if (job >= rows * tiles) return;
    uint row = job / tiles;
    uint tile = job - row * tiles;
    uint begin = tile * TILE;
    uint count = min(elements - begin, TILE);
    uint first = row * elements + begin;
    uint id = own_id();
    uint mine = gl_SubgroupID * SUBGROUP * ITEMS + own_lane();
    KEY raw[ITEMS];
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
        uint at = mine + k * SUBGROUP;
        raw[k] = KEY(0u);
        if (at < count) raw[k] = slot_load(first + at);
    }
    EXCHANGE_BY_DIGIT
    // From here on: what is added to a place in the tile to get the one in the row.
    for (uint d = id; d < DIGITS; d += LOCAL) {
        uint base = row * (spans + 1u);
        uint before = slot_before(job * DIGITS + d) + slot_base((base + tile / span) * DIGITS + d);
        starts[d] = before + slot_base((base + spans) * DIGITS + d) - starts[d];
    }
    barrier();
    uint targets[ITEMS];
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
        uint at = id + k * LOCAL;
        KEY element = get_shared(at);
        targets[k] = row * elements + starts[digit_of(key_of(element), shift)] + at;
        if (VALUES != 0u && at < count) slot_store_value(targets[k], element);
    }
    if (RANKS == 0u) return;
    barrier();
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
        uint at = mine + k * SUBGROUP;
        if (at < count) shared_words[places[k]] = slot_place(first + at, begin + at);
    }
    barrier();
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
        uint at = id + k * LOCAL;
        if (at < count) slot_store_rank(targets[k], shared_words[at]);
    }
}

//! name = "sort_rows_ranked_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
// Sorts a contiguous row that a workgroup holds in its registers, digit by digit from the lowest on, where subgroups
// are whole. The first `kept` elements of each row are stored. Parameters after those of the key: rows, elements per
// row, bytes of a key, elements kept per row.
#include "params.glsl"
#include "sort_key.glsl"
#include "sort_ranks.glsl"

KEY slot_load(const in uint at) { return KEY(at); }
// The place of the element at `at`, which is element `place` of its row.
uint slot_place(const in uint at, const in uint place) { return at + place; }
void slot_store_value(const in uint to, const in KEY raw) {}
void slot_store_rank(const in uint to, const in uint place) {}

void main() {
    uint rows = nx_param(4u), count = nx_param(5u), bytes = nx_param(6u), kept = nx_param(7u);
    uint row = nx_group();
    if (row >= rows) return;
    uint mine = gl_SubgroupID * SUBGROUP * ITEMS + own_lane();
    KEY raw[ITEMS];
    uint origins[ITEMS];
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
        origins[k] = mine + k * SUBGROUP;
        raw[k] = KEY(0u);
        if (origins[k] < count) raw[k] = slot_load(row * count + origins[k]);
    }
    for (uint shift = 0u; shift < 8u * bytes; shift += 8u) {
        EXCHANGE_BY_DIGIT
        barrier();
        [[unroll]] for (uint k = 0u; k < ITEMS; ++k) raw[k] = get_shared(mine + k * SUBGROUP);
        barrier();
        if (RANKS != 0u) {
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) shared_words[places[k]] = origins[k];
            barrier();
            [[unroll]] for (uint k = 0u; k < ITEMS; ++k) origins[k] = shared_words[mine + k * SUBGROUP];
            barrier();
        }
    }
    [[unroll]] for (uint k = 0u; k < ITEMS; ++k) {
        uint at = mine + k * SUBGROUP;
        if (at < kept) {
            if (VALUES != 0u) slot_store_value(row * kept + at, raw[k]);
            if (RANKS != 0u) slot_store_rank(row * kept + at, slot_place(row * count + origins[k], origins[k]));
        }
    }
}

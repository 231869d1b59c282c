//! name = "sort_scatter_{KEY_WORDS}"
//! matrix = { KEY_WORDS = ["1", "2"] }
#version 460
#extension GL_GOOGLE_include_directive : require
// Last dispatch of a radix pass: elements go to their places by one digit, those with equal digits in their order. Each
// workgroup first sorts its tile by the digit in shared memory, four bits at a time, so that neighbours in the result
// are written by neighbouring invocations. Parameters after those of the key: rows, elements per row, tiles per row,
// the digit's lowest bit, tiles per span, spans per row.
#include "params.glsl"
#include "sort_key.glsl"
layout(local_size_x = 256) in;
#define ITEMS 16u
#define TILE 4096u

KEY slot_load(const in uint at) { return KEY(at); }
// Elements with the digit that come before the tile in its span, and before the span. The entry after a row's spans is
// where the digit starts.
uint slot_before(const in uint at) { return at; }
uint slot_base(const in uint at) { return at; }
// The element at `from` becomes element `to` of the result; `place` counts from the row's first element.
void slot_store(const in uint to, const in uint from, const in uint place) {}

#define AT(i) ((i) + ((i) >> 5u))
// Digit in the high half, place in the tile in the low half.
shared uint items[AT(TILE)];
// Per digit of four bits and invocation; digits 8 to 15 in the high halves of those of 0 to 7.
shared uint counts[AT(2048u)];
shared uint sums[256];
shared uint starts[256];

void sort_by(const in uint id, const in uint shift) {
    uint mine[ITEMS];
    uint ranks[ITEMS];
    for (uint k = 0u; k < ITEMS; ++k) mine[k] = items[AT(id * ITEMS + k)];
    for (uint d = 0u; d < 8u; ++d) counts[AT(d * 256u + id)] = 0u;
    for (uint k = 0u; k < ITEMS; ++k) {
        uint digit = (mine[k] >> shift) & 15u;
        uint at = AT((digit & 7u) * 256u + id), high = (digit >> 3u) * 16u;
        uint seen = counts[at];
        ranks[k] = (seen >> high) & 0xffffu;
        counts[at] = seen + (1u << high);
    }
    barrier();
    uint sum = 0u;
    for (uint k = 0u; k < 8u; ++k) sum += counts[AT(id * 8u + k)];
    uint running = sum;
    sums[id] = running;
    for (uint step = 1u; step < 256u; step <<= 1u) {
        barrier();
        if (id >= step) running += sums[id - step];
        barrier();
        sums[id] = running;
    }
    barrier();
    // The high digits start where the low ones end.
    uint before = running - sum + (sums[255] << 16);
    for (uint k = 0u; k < 8u; ++k) {
        uint count = counts[AT(id * 8u + k)];
        counts[AT(id * 8u + k)] = before;
        before += count;
    }
    barrier();
    for (uint k = 0u; k < ITEMS; ++k) {
        uint digit = (mine[k] >> shift) & 15u;
        uint start = counts[AT((digit & 7u) * 256u + id)] >> ((digit >> 3u) * 16u);
        items[AT(ranks[k] + (start & 0xffffu))] = mine[k];
    }
    barrier();
}

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
    uint id = gl_LocalInvocationID.x;
    // What fills the tile sorts last.
    for (uint i = id; i < TILE; i += 256u) {
        uint digit = i < count ? digit_of(key_of(slot_load(first + i)), shift) : 255u;
        items[AT(i)] = (digit << 16) | i;
    }
    barrier();
    for (uint bit = 16u; bit <= 20u; bit += 4u) sort_by(id, bit);
    for (uint i = id; i < count; i += 256u) {
        uint digit = items[AT(i)] >> 16;
        if (i == 0u || items[AT(i - 1u)] >> 16 != digit) {
            uint first = row * (spans + 1u);
            uint before = slot_before(job * 256u + digit) + slot_base((first + tile / span) * 256u + digit);
            before += slot_base((first + spans) * 256u + digit);
            starts[digit] = before - i;
        }
    }
    barrier();
    for (uint i = id; i < count; i += 256u) {
        uint item = items[AT(i)];
        uint place = item & 0xffffu;
        slot_store(row * elements + starts[item >> 16] + i, first + place, begin + place);
    }
}

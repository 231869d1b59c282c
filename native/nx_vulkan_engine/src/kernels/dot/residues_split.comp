#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Rows (vectors along k) of a batched matrix of f64 as whole numbers of BITS bits, by what is left of these when they
// are divided by each of the moduli: bytes with a sign, in planes of their own, and behind those one more with the
// highest COARSE bits of absolute values. Whole numbers are elements times a power of two, the same for a row, rounded
// to the nearest. Planes lie as the invocations of a subgroup hold 16 rows x 32 of k on NVIDIA's matrix units:
// [plane][batch][16 rows][32 of k][invocation], 16 to a uvec4, with zeros past the ends. Invocation 4 g + t has eight
// neighbours along k of two rows, so that contracted elements are in another order than matrices have them, alike in
// both operands. A word for each row, behind the largest exponents, which begins as 0, gets the sum of the coarse
// values, each plus one if the element is no zero, and its highest bit if an element was rounded. Parameters: rows,
// contracted k, batches, planes, bits, coarse bits, times 32 of k that an invocation takes.
#include "params.glsl"
#include "residues_moduli.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;
// Whether rows are columns of the second operand.
layout(constant_id = 1) const uint SECOND = 0u;
layout(constant_id = 2) const uint MODULI = MOST_MODULI;

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
uvec2 slot_load(const in uint at) { return uvec2(at); }
// The largest exponent of a row.
uint slot_exponent(const in uint row) { return row; }
void slot_add(const in uint row, const in uint value) {}
void slot_mark(const in uint row) {}
void slot_store(const in uint at, const in uvec4 value) {}

// Of each team, the sums of its rows.
shared uint sums[8 * 16], marks[8];

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u);
    uint bits = nx_param(4u), coarse = nx_param(5u), times = nx_param(6u);
    uint id = gl_LocalInvocationID.x, group = nx_group(), team = id / 32u, lane = id % 32u;
    if (id < 128u) sums[id] = 0u;
    if (id < 8u) marks[id] = 0u;
    barrier();
    uint sixteens = (rows + 15u) / 16u, blocks = (depth + 31u) / 32u, shares = (blocks + times - 1u) / times;
    // The eight teams of 32 take neighbours along the contiguous axis.
    uint along = ALONG_K != 0u ? shares : sixteens, across = ALONG_K != 0u ? sixteens : shares;
    uint eights = (along + 7u) / 8u;
    uint one = group % eights * 8u + team, rest = group / eights, other = rest % across, batch = rest / across;
    bool is_there = batch < batches && one < along;
    uint sixteen = ALONG_K != 0u ? other : one, share = ALONG_K != 0u ? one : other;
    uint g = lane / 4u, t = lane % 4u;
    // An invocation's sums are those of four neighbouring columns of two rows each.
    uint own = SECOND != 0u ? g / 2u * 4u + g % 2u : g, below = SECOND != 0u ? own + 2u : g + 8u;
    if (is_there) {
        [[dont_unroll]] for (uint block = share * times; block < min(blocks, (share + 1u) * times); ++block) {
            uvec3 limbs[16];
            uvec4 coarse_words = uvec4(0u);
            [[unroll]] for (uint r = 0u; r < 2u; ++r) {
                uint row = sixteen * 16u + (r == 0u ? own : below), total = 0u;
                bool is_row = row < rows, is_marked = false;
                uint largest = 1u, free = 0u;
                if (is_row) {
                    largest = max(slot_exponent(batch * rows + row), 1u);
                    free = slot_free(batch, row);
                }
                [[unroll]] for (uint j = 0u; j < 8u; ++j) {
                    uint k = block * 32u + t * 8u + j;
                    uvec2 element = uvec2(0u);
                    if (is_row && k < depth) element = slot_load(free + slot_depth(k));
                    uint exponent = element.y >> 20 & 0x7ffu;
                    uvec2 whole = uvec2(element.x, element.y & 0xfffffu);
                    if (exponent != 0u) whole.y |= 0x100000u;
                    bool is_zero = (whole.x | whole.y) == 0u;
                    uint left = bits - 53u, right = min(largest - max(exponent, 1u), 63u);
                    whole = uvec2(whole.x << left, whole.y << left | whole.x >> 32u - left);
                    // Half of what the last bit will be.
                    uint half_bit = 1u << ((right + 31u) & 31u);
                    uvec2 more = right == 0u ? uvec2(0u) : right <= 32u ? uvec2(half_bit, 0u) : uvec2(0u, half_bit);
                    uint near = right & 31u;
                    uint lost = right < 32u ? whole.x & (1u << near) - 1u : whole.x | (whole.y & (1u << near) - 1u);
                    is_marked = is_marked || lost != 0u;
                    uint carry;
                    whole.x = uaddCarry(whole.x, more.x, carry);
                    whole.y += more.y + carry;
                    uvec2 shifted = uvec2(whole.x >> near | whole.y << 1u << (31u - near), whole.y >> near);
                    whole = right < 32u ? shifted : uvec2(shifted.y, 0u);
                    // The highest bits, all in the high word.
                    uint down = bits - coarse;
                    uint high = min(whole.y >> (down - 32u), (1u << coarse) - 1u);
                    if (!is_zero) total += high + 1u;
                    bool is_second = j >= 4u;
                    uint word = SECOND != 0u ? 2u * r + (is_second ? 1u : 0u) : r + (is_second ? 2u : 0u);
                    coarse_words[word] |= high << 8u * (j % 4u);
                    // Above zero, with a multiple of each modulus to come.
                    uint borrow, low = 0u, top = OFFSET_HIGH;
                    if (element.y >> 31 != 0u) {
                        low = usubBorrow(0u, whole.x, borrow);
                        top -= whole.y + borrow;
                    } else {
                        low = whole.x;
                        top += whole.y;
                    }
                    limbs[8u * r + j] = uvec3(low & 0x3fffffu, (low >> 22 | top << 10) & 0x3fffffu, top >> 12);
                }
                if (total != 0u) atomicAdd(sums[team * 16u + r * 8u + g], total);
                if (is_marked) atomicOr(marks[team], 1u << (r * 8u + g));
            }
            uint matrix = ((batch * sixteens + sixteen) * blocks + block) * 32u + lane;
            uint plane = batches * sixteens * blocks * 32u;
            [[unroll]] for (uint i = 0u; i < MOST_MODULI; ++i) {
                uvec4 words;
                [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                    uint r = SECOND != 0u ? w / 2u : w % 2u, from = 8u * r + 4u * (SECOND != 0u ? w % 2u : w / 2u), word = 0u;
                    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                        uvec3 x = limbs[from + j];
                        uint sum = x.x + x.y * SPLIT[i].x + (x.z * SPLIT[i].y + SPLIT[i].z), quotient, unused;
                        umulExtended(sum, SPLIT[i].w, quotient, unused);
                        word += sum - (quotient >> 7) * MODULUS[i] << 8u * j;
                    }
                    // From 0 on as from -128 on.
                    words[w] = word ^ 0x80808080u;
                }
                if (i < MODULI) slot_store(i * plane + matrix, words);
            }
            slot_store(MODULI * plane + matrix, coarse_words);
        }
    }
    barrier();
    if (id < 128u) {
        uint from = id / 16u, r = id % 16u;
        uint one_of = group % eights * 8u + from, row16 = ALONG_K != 0u ? other : one_of, g_of = r % 8u;
        uint row = row16 * 16u + (SECOND != 0u ? g_of / 2u * 4u + g_of % 2u + r / 8u * 2u : r);
        if (batch < batches && one_of < along && row < rows) {
            if (sums[id] != 0u) slot_add(batch * rows + row, sums[id]);
            if ((marks[from] >> r & 1u) != 0u) slot_mark(batch * rows + row);
        }
    }
}

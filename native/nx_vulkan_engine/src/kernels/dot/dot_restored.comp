//! name = "dot_restored_{MODULI}"
//! matrix = { MODULI = ["16", "17", "18"] }
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The results of a batched product of f64 from residues of sums of products of whole numbers, as dot_residues.comp wrote
// them: the whole number that is nearest to zero and leaves them, exactly, times a power of two, rounded once to the
// nearest, ties to even. Nothing is done if a word was raised. Where results have several parts, the others are zeros.
// Parameters: rows, columns, batches, parts of the contracted axis, 16 rows and 16 columns of a batch, bits of whole
// numbers, parts of results.
#include "params.glsl"
#include "residues_moduli.glsl"
#include "residues_weights.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;

uint slot_residues(const in uint at) { return at; }
uint slot_a_exponent(const in uint row) { return row; }
uint slot_b_exponent(const in uint row) { return row + 1u; }
uint slot_raised() { return 0u; }
void slot_store(const in uint at, const in double value) {}
void slot_store_four(const in uint at, const in dvec4 value) {}

#define R4 dvec4
#include "dot_store.glsl"

// The whole number of these residues, each within its modulus, times 2^(power - 2044).
double restored(const in uint residues[MODULI], const in int power) {
    uint sums[8], share = 1u << 18;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) sums[k] = 0u;
    [[unroll]] for (uint i = 0u; i < MODULI; ++i) {
        share += residues[i] * SHARE[i];
        [[unroll]] for (uint k = 0u; k < 8u; ++k) sums[k] += residues[i] * WEIGHT[i][k];
    }
    // How often the sum has the product of all moduli in it; the rest is nearer to zero than half of that.
    share >>= 19;
    int x[8], carry = 0;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        x[k] = int(sums[k] - share * PRODUCT[k]) + carry;
        carry = x[k] >> 18;
        if (k < 7u) x[k] &= 0x3ffff;
    }
    uint words[5];
    words[0] = uint(x[0] | x[1] << 18);
    words[1] = uint(x[1] >> 14 | x[2] << 4 | x[3] << 22);
    words[2] = uint(x[3] >> 10 | x[4] << 8 | x[5] << 26);
    words[3] = uint(x[5] >> 6 | x[6] << 12 | x[7] << 30);
    words[4] = uint(x[7] >> 2);
    uint sign = uint(x[7] >> 31), up = sign & 1u;
    [[unroll]] for (uint k = 0u; k < 5u; ++k) words[k] = uaddCarry(words[k] ^ sign, up, up);
    int top = 159 - 1021 + power;
    [[unroll]] for (uint times = 0u; times < 4u; ++times) {
        bool is_empty = words[4] == 0u;
        [[unroll]] for (uint k = 4u; k > 0u; --k) words[k] = is_empty ? words[k - 1u] : words[k];
        words[0] = is_empty ? 0u : words[0];
        top -= is_empty ? 32 : 0;
    }
    // Loops around this are unrolled, which takes one way out.
    bool is_zero = words[4] == 0u;
    uint empty = uint(31 - findMSB(words[4] | 1u));
    uint high = words[4] << empty | words[3] >> 1 >> (31u - empty);
    uint low = words[3] << empty | words[2] >> 1 >> (31u - empty);
    bool is_more = (words[2] << empty | words[1] | words[0]) != 0u;
    uint cut = low & 0x7ffu;
    bool is_up = cut > 0x400u || (cut == 0x400u && (is_more || (low & 0x800u) != 0u));
    uint carried;
    uvec2 bits = uvec2(low >> 11 | high << 21, high >> 11);
    bits.x = uaddCarry(bits.x, is_up ? 1u : 0u, carried);
    // The highest bit of the number counts one in the exponent.
    bits.y += carried + (uint(top - int(empty) - 1) << 20) + (sign << 31);
    return packDouble2x32(is_zero ? uvec2(0u) : bits);
}

void main() {
    if (slot_raised() != 0u) return;
    uint rows = nx_param(0u), columns = nx_param(1u), batches = nx_param(2u), parts = nx_param(3u);
    uint sixteens_m = nx_param(4u), sixteens_n = nx_param(5u), bits = nx_param(6u), of_results = nx_param(7u);
    uint at = nx_group() * 256u + gl_LocalInvocationID.x;
    uint lane = at / 2u % 32u, matrix = at / 64u, batch = matrix / (sixteens_m * sixteens_n);
    uint within = matrix - batch * sixteens_m * sixteens_n;
    uint row = within / sixteens_n * 16u + lane / 4u + at % 2u * 8u, column = within % sixteens_n * 16u + lane % 4u * 4u;
    if (batch >= batches || row >= rows || column >= columns) return;
    uint part = batches * sixteens_m * sixteens_n * 64u, words[MODULI];
    [[unroll]] for (uint i = 0u; i < MODULI; ++i) words[i] = slot_residues(i * parts * part + at);
    int power = int(max(slot_a_exponent(batch * rows + row), 1u)) - int(2u * bits);
    dvec4 results;
    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
        uint residues[MODULI];
        [[unroll]] for (uint i = 0u; i < MODULI; ++i) residues[i] = words[i] >> 8u * j & 255u;
        if (parts > 1u) {
            [[dont_unroll]] for (uint p = 1u; p < parts; ++p)
                [[unroll]] for (uint i = 0u; i < MODULI; ++i)
                    residues[i] += slot_residues((i * parts + p) * part + at) >> 8u * j & 255u;
            [[unroll]] for (uint i = 0u; i < MODULI; ++i) residues[i] %= MODULUS[i];
        }
        uint other = max(slot_b_exponent(batch * columns + min(column + j, columns - 1u)), 1u);
        results[j] = restored(residues, power + int(other));
    }
    [[dont_unroll]] for (uint s = 0u; s < of_results; ++s)
        store((s * batches + batch) * rows + row, column, columns, s == 0u ? results : dvec4(0.0LF));
}

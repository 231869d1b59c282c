#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Raises a word where a product by residues would not be exact enough: where what was rounded of a row and a column may
// change a result by more than a share of the sum of its terms' absolute values, or a result's exponent may leave the
// range of normal numbers. Sums of coarse values are in the order in which dot_residues.comp wrote them. Parameters:
// rows, columns, batches, parts of the contracted axis, 16 rows and 16 columns of a batch, how many bits a sum of coarse
// values counts for more than the sums of rows, the least and the largest sum of exponents.
#include "params.glsl"
layout(local_size_x = 256) in;

uvec4 slot_sums(const in uint at) { return uvec4(at); }
uint slot_a_exponent(const in uint row) { return row; }
uint slot_b_exponent(const in uint row) { return row + 1u; }
// Sums of a row's coarse values, and in the highest bit whether an element was rounded.
uint slot_a_total(const in uint row) { return row + 2u; }
uint slot_b_total(const in uint row) { return row + 3u; }
void slot_raise() {}

const uint ROUNDED = 0x80000000u, SPECIAL = 0x7ffu;

void main() {
    uint rows = nx_param(0u), columns = nx_param(1u), batches = nx_param(2u), parts = nx_param(3u);
    uint sixteens_m = nx_param(4u), sixteens_n = nx_param(5u), more = nx_param(6u);
    uint least = nx_param(7u), most = nx_param(8u);
    uint at = nx_group() * 256u + gl_LocalInvocationID.x;
    uint lane = at / 2u % 32u, matrix = at / 64u, batch = matrix / (sixteens_m * sixteens_n);
    uint within = matrix - batch * sixteens_m * sixteens_n;
    uint row = within / sixteens_n * 16u + lane / 4u + at % 2u * 8u, column = within % sixteens_n * 16u + lane % 4u * 4u;
    if (batch >= batches || row >= rows || column >= columns) return;
    uvec4 sums = uvec4(0u);
    for (uint part = 0u; part < parts; ++part) sums += slot_sums(part * batches * sixteens_m * sixteens_n * 64u + at);
    uint of_row = slot_a_total(batch * rows + row), exponent = slot_a_exponent(batch * rows + row);
    bool is_bad = false;
    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
        if (column + j >= columns) break;
        uint of_column = slot_b_total(batch * columns + column + j);
        uint other = slot_b_exponent(batch * columns + column + j);
        uint error = ((of_row & ROUNDED) != 0u ? of_column & ~ROUNDED : 0u) + ((of_column & ROUNDED) != 0u ? of_row & ~ROUNDED : 0u);
        is_bad = is_bad || (error + (1u << more) - 1u) >> more > sums[j] || max(exponent, other) == SPECIAL;
        bool is_zero = of_row == 0u || of_column == 0u;
        uint together = max(exponent, 1u) + max(other, 1u);
        is_bad = is_bad || (!is_zero && (together < least || together > most));
    }
    if (is_bad) slot_raise();
}

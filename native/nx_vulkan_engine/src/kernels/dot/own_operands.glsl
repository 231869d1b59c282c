// Operands that are found where they lie, or as split.comp wrote them in the order of its IN_ORDER.

// Whether operands are found by their axes, eight neighbours along k at a time.
layout(constant_id = 14) const uint A_BY_AXES = 0u;
layout(constant_id = 15) const uint B_BY_AXES = 0u;
// Whether they may end within the last 64 contracted elements, behind which zeros are to be.
layout(constant_id = 16) const uint ENDS_EARLY = 0u;

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
// Where the elements of a row (or column) of a batch begin, and where an element along k lies behind that.
uint slot_a_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_a_depth(const in uint k) { return k; }
uint slot_b_free(const in uint batch, const in uint column) { return batch + column + 1u; }
uint slot_b_depth(const in uint k) { return k + 1u; }

#ifdef BORDERED
// Which operand is the windows of an image that reach beyond it.
layout(constant_id = 17) const uint A_BORDERED = 0u;
layout(constant_id = 18) const uint B_BORDERED = 0u;
// The positions of the window of a row that lie in the image, a bit for each of up to 32, and the one that an element
// along k has.
uint slot_inside(const in uint row) { return row; }
uint slot_position(const in uint k) { return k; }
// Blocks of the image, zeros beyond it. A branch takes less time than a load of another place whose bits are masked.
uvec4 a_block_inside(const in uint at, const in bool inside) {
    uvec4 found = uvec4(0u);
    if (inside) found = slot_a_block(at);
    return found;
}
uvec4 b_block_inside(const in uint at, const in bool inside) {
    uvec4 found = uvec4(0u);
    if (inside) found = slot_b_block(at);
    return found;
}
#endif

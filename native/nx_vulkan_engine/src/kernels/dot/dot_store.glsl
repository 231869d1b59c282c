// Stores four neighbours of a row of a product, R4 of R, through slot_store_four, or those that are columns one by one
// through slot_store.
void store(const in uint row, const in uint n, const in uint columns, const in R4 value) {
    if (STORE_BY_FOUR != 0u) {
        if (n < columns) slot_store_four((row * columns + n) >> 2, value);
    } else {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) if (n + j < columns) slot_store(row * columns + n + j, value[j]);
    }
}

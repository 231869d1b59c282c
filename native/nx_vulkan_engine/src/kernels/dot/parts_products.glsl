// Products of elements that are three bf16 numbers each, hi + mid + lo. Of the nine products of parts six are added up,
// the smallest first: what is missing is below 2^-25 of a product.

// Whether the low parts of B come first. Where they do so if there are more columns than rows, and only then, a
// transposed product of transposed operands has the same bits.
layout(constant_id = 8) const uint LOW_B_FIRST = 0u;

// The products of two parts of x and y with FRAGMENTS_M matrices, if the operands have those parts.
#define ADD(a_part, b_part) \
    if (a_part < A_PARTS && b_part < B_PARTS) { \
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][a_part], y[b_part], products[i]); \
    }
// Adds them up for column j of matrices. Units cut off instead of rounding, so that sums are taken out of them at every
// step.
#define ADD_PRODUCTS(j) { \
    Sums products[FRAGMENTS_M]; \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = Sums(0.0); \
    ADD(1u, 1u) \
    if (LOW_B_FIRST != 0u) { \
        ADD(0u, 2u) \
        ADD(2u, 0u) \
        ADD(0u, 1u) \
        ADD(1u, 0u) \
    } else { \
        ADD(2u, 0u) \
        ADD(0u, 2u) \
        ADD(1u, 0u) \
        ADD(0u, 1u) \
    } \
    ADD(0u, 0u) \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) sums[i][j] = sums[i][j] + products[i]; \
}

// Elements of both operands were multiplied by 2^16.
#define SCALE_OF_SUMS (1.0 / 4294967296.0)

// Whether sums left the range.
#define HAS_SPECIAL(found) \
    uint found = 0u; \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) \
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) \
            [[unroll]] for (uint e = 0u; e < 8u; ++e) found = max(found, floatBitsToUint(sums[i][j][e]) & 0x7fffffffu);

// Puts eight sums of a line of 16 x 16 from column `from` on in the place of the last ones; the others move up:
// matrices have no index.
#define PUT_SUMS(exact, room, line, from) { \
    [[unroll]] for (uint c = 0u; c < 2u; ++c) \
        tiles[room + line * 4u + from / 4u + c] = floatBitsToUint(vec4(exact[4u * c], exact[4u * c + 1u], exact[4u * c + 2u], exact[4u * c + 3u])); \
    subgroupBarrier(); \
    [[unroll]] for (uint q = 1u; q < FRAGMENTS_M * FRAGMENTS_N; ++q) \
        sums[(q - 1u) / FRAGMENTS_N][(q - 1u) % FRAGMENTS_N] = sums[q / FRAGMENTS_N][q % FRAGMENTS_N]; \
    coopMatLoad(sums[FRAGMENTS_M - 1][FRAGMENTS_N - 1], tiles, room, 4, gl_CooperativeMatrixLayoutRowMajor); \
}

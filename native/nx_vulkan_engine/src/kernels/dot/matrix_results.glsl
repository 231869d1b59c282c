// Stores the sums of a tile on matrix units through shared memory, in strips of 16 rows and 32 columns for each
// subgroup, as the last part of main: RESULTS(value, m, n) changes four neighbours of row m from column n on before
// that. No subgroup uses that memory for anything else anymore: WAIT() may be a barrier of the subgroup alone.
    uint base = (split * batches + batch) * rows;
    uint strip = gl_SubgroupID * ROOM;
#define STORE_STRIP(one, other, q) \
    { \
        uint strip_m = m0 + own_m + q / (FRAGMENTS_N / 2) * 16u, strip_n = n0 + own_n + q % (FRAGMENTS_N / 2) * 32u; \
        WAIT(); \
        coopMatStore(one, tiles, strip, STRIP, gl_CooperativeMatrixLayoutRowMajor); \
        coopMatStore(other, tiles, strip + 4u, STRIP, gl_CooperativeMatrixLayoutRowMajor); \
        WAIT(); \
        [[dont_unroll]] for (uint e = gl_SubgroupInvocationID; e < 128u; e += 32u) { \
            uint r = e / 8u, c = e % 8u; \
            uint m = strip_m + r, n = strip_n + 4u * c; \
            if (m >= rows || n >= columns) continue; \
            vec4 value = uintBitsToFloat(tiles[strip + r * STRIP + c]); \
            RESULTS(value, m, n) \
            store(base + m, n, columns, value); \
        } \
    }
    if (STORE_IN_LOOP != 0u) {
        // The others move up: matrices have no index.
        [[dont_unroll]] for (uint q = 0u; q < FRAGMENTS_M * (FRAGMENTS_N / 2); ++q) {
            STORE_STRIP(sums[0][0], sums[0][1], q)
            [[unroll]] for (uint r = 2u; r < FRAGMENTS_M * FRAGMENTS_N; ++r)
                sums[(r - 2u) / FRAGMENTS_N][(r - 2u) % FRAGMENTS_N] = sums[r / FRAGMENTS_N][r % FRAGMENTS_N];
        }
        return;
    }
    // One loop alone: drivers unroll it, which arrays of matrices need, but not one within another.
    [[unroll]] for (uint q = 0u; q < FRAGMENTS_M * (FRAGMENTS_N / 2); ++q)
        STORE_STRIP(sums[q / (FRAGMENTS_N / 2)][q % (FRAGMENTS_N / 2) * 2u], sums[q / (FRAGMENTS_N / 2)][q % (FRAGMENTS_N / 2) * 2u + 1u], q)

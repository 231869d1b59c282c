// Stores the sums of a tile on matrix units through shared memory, in strips of 16 rows and 32 columns for each
// subgroup, as the last part of main: RESULTS(value, m, n) changes four neighbours of row m from column n on before
// that. No subgroup uses that memory for anything else anymore.
    uint base = (split * batches + batch) * rows;
    uint strip = gl_SubgroupID * ROOM;
    // One loop alone: drivers unroll it, which arrays of matrices need, but not one within another.
    [[unroll]] for (uint q = 0u; q < FRAGMENTS_M * (FRAGMENTS_N / 2); ++q) {
        uint i = q / (FRAGMENTS_N / 2), j = q % (FRAGMENTS_N / 2);
        subgroupBarrier();
        coopMatStore(sums[i][2u * j], tiles, strip, STRIP, gl_CooperativeMatrixLayoutRowMajor);
        coopMatStore(sums[i][2u * j + 1u], tiles, strip + 4u, STRIP, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        [[dont_unroll]] for (uint e = gl_SubgroupInvocationID; e < 128u; e += 32u) {
            uint r = e / 8u, c = e % 8u;
            uint m = m0 + own_m + 16u * i + r, n = n0 + own_n + 32u * j + 4u * c;
            if (m >= rows || n >= columns) continue;
            vec4 value = uintBitsToFloat(tiles[strip + r * STRIP + c]);
            RESULTS(value, m, n)
            store(base + m, n, columns, value);
        }
    }

// Stores the sums of a tile on matrix units through shared memory, in strips of 16 rows for each subgroup, as the last part of main: RESULTS(value, m, n)
// changes four neighbours of row m from column n on before that.
    uint base = (split * batches + batch) * rows;
    uint strip = gl_SubgroupID * ROOM;
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
        barrier();
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
            coopMatStore(sums[i][j], tiles, strip + 4u * j, STRIP, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        [[dont_unroll]] for (uint e = gl_SubgroupInvocationID; e < 4u * OWN_N; e += 32u) {
            uint r = e / (OWN_N / 4), c = e % (OWN_N / 4);
            uint m = m0 + own_m + 16u * i + r, n = n0 + own_n + 4u * c;
            if (m >= rows || n >= columns) continue;
            vec4 value = uintBitsToFloat(tiles[strip + r * STRIP + c]);
            RESULTS(value, m, n)
            store(base + m, n, columns, value);
        }
    }

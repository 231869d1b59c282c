// Stores the sums of a tile of f16 or bf16 products through shared memory, eight neighbours of a row at once, and
// returns, if STORE_BY_EIGHT; as a part of main where invocations hold matrices as NVIDIA's do. PUT_EIGHT(at, eight)
// stores eight numbers of 16 bits; `at` counts groups of eight.

// uvec4 from one row to the next.
#define EIGHTS_PITCH (OWN_N / 8 + 1)
// Two neighbours of a row, g or g + 8, are rounded at once and go through shared memory as a word.
#define SHARE_ROWS(of) \
    subgroupBarrier(); \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) { \
        [[unroll]] for (uint p = 0u; p < 4u; ++p) { \
            uint to = room + (g + p / 2u * 8u) * EIGHTS_PITCH + 2u * j + p % 2u; \
            tiles[to][t] = rounded(vec2(sums[of][j][2u * p], sums[of][j][2u * p + 1u])); \
        } \
    } \
    subgroupBarrier();
#define STORE_SHARED(i, e) { \
    uint at = e * 32u + gl_SubgroupInvocationID, r = at / (OWN_N / 8u), c = at % (OWN_N / 8u); \
    uint m = m0 + own_m + 16u * i + r, n = n0 + own_n + 8u * c; \
    if (m < rows && n < columns) PUT_EIGHT(((line + m) * columns + n) / 8u, tiles[room + r * EIGHTS_PITCH + c]) \
}
    if (STORE_BY_EIGHT != 0u) {
        uint room = gl_SubgroupID * ROOM, line = (split * batches + batch) * rows;
#ifdef LOOPS_OVER_EIGHTS
        if (STORE_IN_LOOP != 0u) {
            // The others move up: matrices have no index.
            [[dont_unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
                SHARE_ROWS(0)
                [[dont_unroll]] for (uint e = 0u; e < OWN_N / 16u; ++e) STORE_SHARED(i, e)
                [[unroll]] for (uint r = 1u; r < FRAGMENTS_M; ++r)
                    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[r - 1u][j] = sums[r][j];
            }
            return;
        }
#endif
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
            SHARE_ROWS(i)
            [[unroll]] for (uint e = 0u; e < OWN_N / 16u; ++e) STORE_SHARED(i, e)
        }
        return;
    }

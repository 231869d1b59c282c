// Stores the sums of a tile of f16 or bf16 results through shared memory, eight neighbours of a row at once, and
// returns, if STORE_BY_EIGHT; as a part of main where invocations hold matrices as NVIDIA's do.

// uvec4 from one row to the next.
#define EIGHTS_PITCH (OWN_N / 8 + 1)
    // Two neighbours of a row, g or g + 8, are rounded at once and go through shared memory as a word.
    if (STORE_BY_EIGHT != 0u) {
        uint room = gl_SubgroupID * ROOM, line = (split * batches + batch) * rows;
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
            subgroupBarrier();
            [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) {
                [[unroll]] for (uint p = 0u; p < 4u; ++p) {
                    uint to = room + (g + p / 2u * 8u) * EIGHTS_PITCH + 2u * j + p % 2u;
                    tiles[to][t] = rounded(vec2(sums[i][j][2u * p], sums[i][j][2u * p + 1u]));
                }
            }
            subgroupBarrier();
            [[unroll]] for (uint e = 0u; e < OWN_N / 16u; ++e) {
                uint at = e * 32u + gl_SubgroupInvocationID, r = at / (OWN_N / 8u), c = at % (OWN_N / 8u);
                uint m = m0 + own_m + 16u * i + r, n = n0 + own_n + 8u * c;
                if (m < rows && n < columns) slot_store_eight(((line + m) * columns + n) / 8u, tiles[room + r * EIGHTS_PITCH + c]);
            }
        }
        return;
    }

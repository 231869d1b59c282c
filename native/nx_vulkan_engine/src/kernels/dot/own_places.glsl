// Where a subgroup's rows of A and columns of B begin, of which it loads eight neighbours along k, and in shared memory
// where those lie behind that, as the part of main behind `first` and `end`: ROW and LINE say where a row and a slice
// of 32 elements along k are.
#ifdef BORDERED
// The position in the window stands beside the place.
#define A_PLACE(k) (A_BORDERED != 0u ? slot_a_depth(k) / 8u << 5u | slot_position(k) : slot_a_depth(k) / 8u)
#define B_PLACE(k) (B_BORDERED != 0u ? slot_b_depth(k) / 8u << 5u | slot_position(k) : slot_b_depth(k) / 8u)
#define TAKE_POSITIONS(a_line, b_line) \
    uint position = 1u << ((A_BORDERED != 0u ? a_line : b_line) & 31u); \
    if (A_BORDERED != 0u) a_line >>= 5u; \
    if (B_BORDERED != 0u) b_line >>= 5u;
#define A_BLOCK(at, r) (A_BORDERED != 0u ? a_block_inside(at, (a_inside[r] & position) != 0u) : slot_a_block(at))
#define B_BLOCK(at, r) (B_BORDERED != 0u ? b_block_inside(at, (b_inside[r] & position) != 0u) : slot_b_block(at))
#else
#define A_PLACE(k) slot_a_depth(k) / 8u
#define B_PLACE(k) slot_b_depth(k) / 8u
#define TAKE_POSITIONS(a_line, b_line)
#define A_BLOCK(at, r) slot_a_block(at)
#define B_BLOCK(at, r) slot_b_block(at)
#endif
    uint own_m = gl_SubgroupID / (TILE_N / OWN_N) * OWN_M, own_n = gl_SubgroupID % (TILE_N / OWN_N) * OWN_N;
    uint g = gl_SubgroupInvocationID / 4u, t = gl_SubgroupInvocationID % 4u;
    uint a_16 = nx_param(6u), a_8 = nx_param(7u), a_32 = nx_param(9u);
    uint b_16 = nx_param(13u), b_8 = nx_param(14u), b_32 = nx_param(16u);
    uint a_at = batch / nx_param(10u) * nx_param(11u) + batch % nx_param(10u) * nx_param(12u)
              + (m0 + own_m) / 16u * a_16 + g * nx_param(8u) + t;
    uint b_at = batch / nx_param(17u) * nx_param(18u) + batch % nx_param(17u) * nx_param(19u)
              + (n0 + own_n) / 16u * b_16 + g * nx_param(15u) + t;

    // Rows past the end repeat the last one, and are not stored.
    uint a_rows[2 * FRAGMENTS_M], b_rows[2 * FRAGMENTS_N], eights = first < end ? (end - first) * 4u : 0u;
    if (A_BY_AXES != 0u) {
        [[unroll]] for (uint i = 0u; i < 2u * FRAGMENTS_M; ++i)
            a_rows[i] = slot_a_free(batch, min(m0 + own_m + 8u * i + g, rows - 1u)) / 8u;
    }
    if (B_BY_AXES != 0u) {
        [[unroll]] for (uint j = 0u; j < 2u * FRAGMENTS_N; ++j)
            b_rows[j] = slot_b_free(batch, min(n0 + own_n + 8u * j + g, columns - 1u)) / 8u;
    }
#ifdef BORDERED
    uint a_inside[2 * FRAGMENTS_M], b_inside[2 * FRAGMENTS_N], lead = nx_param(20u);
    if (A_BORDERED != 0u) {
        [[unroll]] for (uint i = 0u; i < 2u * FRAGMENTS_M; ++i) {
            a_rows[i] -= lead;
            a_inside[i] = slot_inside(min(m0 + own_m + 8u * i + g, rows - 1u));
        }
    }
    if (B_BORDERED != 0u) {
        [[unroll]] for (uint j = 0u; j < 2u * FRAGMENTS_N; ++j) {
            b_rows[j] -= lead;
            b_inside[j] = slot_inside(min(n0 + own_n + 8u * j + g, columns - 1u));
        }
    }
#endif
    if (A_BY_AXES != 0u || B_BY_AXES != 0u) {
        [[dont_unroll]] for (uint e = gl_LocalInvocationID.x; e < eights; e += SUBGROUPS * 32u) {
            uint k = min((first * 4u + e) * 8u, depth - 8u);
            if (A_BY_AXES != 0u) tiles[e / 4u][e % 4u] = A_PLACE(k);
            if (B_BY_AXES != 0u) tiles[(A_BY_AXES * eights + e) / 4u][e % 4u] = B_PLACE(k);
        }
        barrier();
    }

#define ROW(rows, by_axes, r, of_16, of_8) (by_axes != 0u ? rows[r] : (r) / 2u * of_16 + (r) % 2u * of_8)
#define LINE(by_axes, from, slice, at, of_32) (by_axes != 0u ? tiles[from + (slice) - first][t] : at + (slice) * of_32)

#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
// Batched matrix product of f32 on matrix units: TILE_M x TILE_N results per workgroup, OWN_M x OWN_N per subgroup of 32, 16 contracted elements
// per step. Elements are the three bf16 numbers that split_parts.comp wrote, in the order in which invocations hold them, so that they go from memory to the units without
// shared memory and its barriers. Of the nine products of parts six are added up, the smallest first: what is missing is below 2^-25 of a product.
// Units cut off instead of rounding, so that sums are taken out of them at every step. Elements that the units can't
// take (split_parts.comp), and results beyond f32's range on the way, are left to fma: the workgroup computes its tile
// from the elements themselves, one multiplication after the other, as tiles without units do. What the largest
// elements tell is known before the units begin, and so costs nothing there; sums that overflow all the same are found
// at the end.
// float16_t stands for bf16, which the linker makes of it.
// Parameters: rows m, columns n, contracted k, batches, elements of k per split (a multiple of 16), splits, uvec4 between 16 rows and batches of A,
// and between 16 columns and batches of B. Behind all batches of an operand lie the bits of its largest values.
#include "params.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)
// 16 rows of a subgroup's results on their way out.
#define STRIP (OWN_N / 4 + 1)
#define ROOM (16 * STRIP)
// A step's elements of A, then of B, for fma: by contracted element a line of the tile's rows or columns, and one uvec4
// between lines, so that what invocations put there does not meet in one bank. There is room for two steps.
#define LINE_M (TILE_M / 4 + 1)
#define LINE_N (TILE_N / 4 + 1)
#define STAGE (16 * (LINE_M + LINE_N))
#if SUBGROUPS * ROOM > 2 * STAGE
#define SHARED (SUBGROUPS * ROOM)
#else
#define SHARED (2 * STAGE)
#endif
// Results of an invocation by fma: PER_M x 4 of the subgroup's, of whose invocations ACROSS x DOWN are neighbours.
#define ACROSS (OWN_N / 4)
#define DOWN (32 / ACROSS)
#define PER_M (OWN_M / DOWN)
// Elements of an operand, 16 x 16 at a time, that a subgroup puts there.
#define LOADS_M (TILE_M / 16 / SUBGROUPS)
#define LOADS_N (TILE_N / 16 / SUBGROUPS)

layout(local_size_x = SUBGROUPS * 32) in;

// Whether four neighbouring results are stored at a time.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether the low parts of B come first. Where they do so if there are more columns than rows, and only then, a transposed product of
// transposed operands has the same bits.
layout(constant_id = 8) const uint LOW_B_FIRST = 0u;

uvec4 slot_a_block(const in uint at) { return uvec4(at); }
uvec4 slot_b_block(const in uint at) { return uvec4(at + 1u); }
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}

shared uvec4 tiles[SHARED];
// The bits of the largest elements of both operands that each subgroup has seen, and whether it has sums that are no
// numbers.
shared uvec2 largest[SUBGROUPS];
shared bool overflowed[SUBGROUPS];

#include "matrix_fragments.glsl"

#define R4 vec4
#include "dot_store.glsl"

// Elements from 2^111 on may be no numbers as parts are. Products of such that reach 2^95 would be 2^127 there.
bool leaves_range(const in uvec2 most) {
    return max(most.x, most.y) >= 0x77000000u || (most.x >> 23) + (most.y >> 23) >= 254u + 95u;
}

// The bits of the first or second element of a word of each part.
uint whole(const in uvec3 parts, const in uint second) {
    uvec3 halves = second != 0u ? parts & 0xffff0000u : parts << 16;
    vec3 values = uintBitsToFloat(halves);
    float value = ((values.x + values.y) + values.z) * (1.0 / 65536.0);
    return (halves.x & 0x7fffffffu) > 0x7f800000u ? halves.y | halves.z >> 16 : floatBitsToUint(value);
}

void main() {
#include "dot_tile.glsl"
    uint blocks = (depth + 15u) / 16u;
    uint first = split * (chunk / 16u), end = min(first + chunk / 16u, blocks);

    // Rows and columns past the end repeat the last 16, and are not stored.
    uint own_m = gl_SubgroupID / (TILE_N / OWN_N) * OWN_M, own_n = gl_SubgroupID % (TILE_N / OWN_N) * OWN_N;
    uint a_at[FRAGMENTS_M], b_at[FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        a_at[i] = batch * nx_param(7u) + min((m0 + own_m) / 16u + i, (rows - 1u) / 16u) * nx_param(6u) + gl_SubgroupInvocationID;
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
        b_at[j] = batch * nx_param(9u) + min((n0 + own_n) / 16u + j, (columns - 1u) / 16u) * nx_param(8u) + gl_SubgroupInvocationID;

    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0.0);

    // The next step's parts are fetched while the current ones are multiplied.
    uvec4 a_next[FRAGMENTS_M * 3], b_next[FRAGMENTS_N * 3];
#define FETCH(block) \
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) \
        [[unroll]] for (uint part = 0u; part < 3u; ++part) a_next[3u * i + part] = slot_a_block(a_at[i] + (block) * 96u + part * 32u); \
    [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) \
        [[unroll]] for (uint part = 0u; part < 3u; ++part) b_next[3u * j + part] = slot_b_block(b_at[j] + (block) * 96u + part * 32u);

    FETCH(min(first, blocks - 1u))
    // Each subgroup looks at 16 rows and 16 columns at a time.
    uint quads = (blocks + 3u) / 4u;
    uvec2 most = uvec2(0u);
    [[unroll]] for (uint i = 0u; i < max(LOADS_M, LOADS_N); ++i) {
        uint m = min(m0 / 16u + i * SUBGROUPS + gl_SubgroupID, (rows - 1u) / 16u);
        uint n = min(n0 / 16u + i * SUBGROUPS + gl_SubgroupID, (columns - 1u) / 16u);
        uint a_marks = batches * nx_param(7u) + (batch * ((rows + 15u) / 16u) + m) * quads;
        uint b_marks = batches * nx_param(9u) + (batch * ((columns + 15u) / 16u) + n) * quads;
        [[dont_unroll]] for (uint quad = first / 4u + gl_SubgroupInvocationID; quad * 4u < end; quad += 32u) {
            uvec4 a = slot_a_block(a_marks + quad), b = slot_b_block(b_marks + quad);
            [[unroll]] for (uint c = 0u; c < 4u; ++c)
                if (quad * 4u + c >= first && quad * 4u + c < end) most = max(most, uvec2(a[c], b[c]));
        }
    }
    most = subgroupMax(most);
    if (gl_SubgroupInvocationID == 0u) largest[gl_SubgroupID] = most;
    barrier();
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; ++s) most = max(most, largest[s]);
    bool by_fma = leaves_range(most);

    if (!by_fma) {
        [[dont_unroll]] for (uint block = first; block < end; ++block) {
            uvec4 a[FRAGMENTS_M * 3] = a_next, b[FRAGMENTS_N * 3] = b_next;
            uint next = min(block + 1u, end - 1u);
            FETCH(next)
            MatrixA x[FRAGMENTS_M][3];
            [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
                [[unroll]] for (uint part = 0u; part < 3u; ++part) HOLD(x[i][part], a[3u * i + part])
            [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) {
                MatrixB y[3];
                [[unroll]] for (uint part = 0u; part < 3u; ++part) HOLD(y[part], b[3u * j + part])
                Sums products[FRAGMENTS_M];
                [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][1], y[1], Sums(0.0));
                if (LOW_B_FIRST != 0u) {
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][0], y[2], products[i]);
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][2], y[0], products[i]);
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][0], y[1], products[i]);
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][1], y[0], products[i]);
                } else {
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][2], y[0], products[i]);
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][0], y[2], products[i]);
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][1], y[0], products[i]);
                    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][0], y[1], products[i]);
                }
                [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) products[i] = coopMatMulAdd(x[i][0], y[0], products[i]);
                [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) sums[i][j] = sums[i][j] + products[i];
            }
        }
        uint special = 0u;
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
            [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
                [[unroll]] for (uint e = 0u; e < 8u; ++e) special = max(special, floatBitsToUint(sums[i][j][e]) & 0x7fffffffu);
        bool any = subgroupAny(special >= 0x7f800000u);
        if (gl_SubgroupInvocationID == 0u) overflowed[gl_SubgroupID] = any;
        barrier();
        [[unroll]] for (uint s = 0u; s < SUBGROUPS; ++s) by_fma = by_fma || overflowed[s];
    }

    // Elements of both operands were multiplied by 2^16.
    float scale = 1.0 / 4294967296.0;
    if (by_fma) {
        scale = 1.0;
        uint lane = gl_SubgroupInvocationID;
        // Which elements of 16 x 16 this invocation holds of either factor: what it gets of a matrix of their numbers.
        uint own = gl_SubgroupID * 32u;
        uint number = lane * 8u | (lane * 8u + 1u) << 16;
        tiles[own + lane] = uvec4(number, number + 0x20002u, number + 0x40004u, number + 0x60006u);
        subgroupBarrier();
        MatrixA x;
        coopMatLoad(x, tiles, own, 2, gl_CooperativeMatrixLayoutRowMajor);
        MatrixB y;
        coopMatLoad(y, tiles, own, 2, gl_CooperativeMatrixLayoutColumnMajor);
        uvec4 a_numbers = HELD(x), b_numbers = HELD(y);
        // Where they go: uvec4 and component, for the first 16 rows or columns of the subgroup.
        uint a_to[8], a_part[8], b_to[8], b_part[8];
        [[unroll]] for (uint e = 0u; e < 8u; ++e) {
            uint a = a_numbers[e / 2u] >> e % 2u * 16u & 0xffu, b = b_numbers[e / 2u] >> e % 2u * 16u & 0xffu;
            uint line = gl_SubgroupID * 16u + a / 16u;
            a_to[e] = a % 16u * LINE_M + line / 4u;
            a_part[e] = line % 4u;
            line = gl_SubgroupID * 16u + b / 16u;
            b_to[e] = 16u * LINE_M + b % 16u * LINE_N + line / 4u;
            b_part[e] = line % 4u;
        }
        uvec4 a_parts[LOADS_M * 3], b_parts[LOADS_N * 3];
        uint a_from[LOADS_M], b_from[LOADS_N];
        [[unroll]] for (uint i = 0u; i < LOADS_M; ++i)
            a_from[i] = batch * nx_param(7u) + min(m0 / 16u + i * SUBGROUPS + gl_SubgroupID, (rows - 1u) / 16u) * nx_param(6u) + lane;
        [[unroll]] for (uint j = 0u; j < LOADS_N; ++j)
            b_from[j] = batch * nx_param(9u) + min(n0 / 16u + j * SUBGROUPS + gl_SubgroupID, (columns - 1u) / 16u) * nx_param(8u) + lane;
#define FETCH_PARTS(block) \
        [[unroll]] for (uint i = 0u; i < LOADS_M; ++i) \
            [[unroll]] for (uint part = 0u; part < 3u; ++part) a_parts[3u * i + part] = slot_a_block(a_from[i] + (block) * 96u + part * 32u); \
        [[unroll]] for (uint j = 0u; j < LOADS_N; ++j) \
            [[unroll]] for (uint part = 0u; part < 3u; ++part) b_parts[3u * j + part] = slot_b_block(b_from[j] + (block) * 96u + part * 32u);
        FETCH_PARTS(min(first, blocks - 1u))

        // 32 neighbours make a block of DOWN x ACROSS, 16 of them half of its lines: so few different groups are read
        // at once.
        uint tx = lane >> 1 & (ACROSS - 1u), ty = (lane & 1u) + lane / (2u * ACROSS) * 2u;
        uint a_row = own_m / 4u + ty, b_row = 16u * LINE_M + own_n / 4u + tx;
        vec4 exact[PER_M];
        [[unroll]] for (uint i = 0u; i < PER_M; ++i) exact[i] = vec4(0.0);
        uint current = 0u;
        barrier();
        [[dont_unroll]] for (uint block = first; block < end; ++block) {
            [[unroll]] for (uint i = 0u; i < LOADS_M; ++i)
                [[unroll]] for (uint e = 0u; e < 8u; ++e)
                    tiles[current + a_to[e] + i * (SUBGROUPS * 4)][a_part[e]] =
                        whole(uvec3(a_parts[3u * i][e / 2u], a_parts[3u * i + 1u][e / 2u], a_parts[3u * i + 2u][e / 2u]), e % 2u);
            [[unroll]] for (uint j = 0u; j < LOADS_N; ++j)
                [[unroll]] for (uint e = 0u; e < 8u; ++e)
                    tiles[current + b_to[e] + j * (SUBGROUPS * 4)][b_part[e]] =
                        whole(uvec3(b_parts[3u * j][e / 2u], b_parts[3u * j + 1u][e / 2u], b_parts[3u * j + 2u][e / 2u]), e % 2u);
            uint next = min(block + 1u, end - 1u);
            FETCH_PARTS(next)
            barrier();
            [[unroll]] for (uint k = 0u; k < 16u; ++k) {
                vec4 a[PER_M / 4], b = uintBitsToFloat(tiles[current + b_row + k * LINE_N]);
                [[unroll]] for (uint i = 0u; i < PER_M / 4; ++i) a[i] = uintBitsToFloat(tiles[current + a_row + i * DOWN + k * LINE_M]);
                [[unroll]] for (uint i = 0u; i < PER_M; ++i) exact[i] = fma(vec4(a[i / 4u][i % 4u]), b, exact[i]);
            }
            current = STAGE - current;
        }
        // Into the order of sums, of which 16 rows are DOWN groups of four.
        barrier();
        uint strip = gl_SubgroupID * ROOM;
        [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i) {
            [[unroll]] for (uint r = 0u; r < 4u; ++r) tiles[strip + (ty * 4u + r) * STRIP + tx] = floatBitsToUint(exact[4u * i + r]);
            subgroupBarrier();
            [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j)
                coopMatLoad(sums[i][j], tiles, strip + 4u * j, STRIP, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
        }
    }

#define RESULTS(value, m, n) value *= scale;
#include "matrix_results.glsl"
}

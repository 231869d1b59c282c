//! variants = [{ name = "dot_own_64x64_3", defines = { TILE_M = "64", TILE_N = "64", OWN_M = "32", OWN_N = "32" } }]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
// Batched product of f32 matrices on matrix units, as dot_parts.comp computes it, of operands that lie as those of
// dot_own.comp do, as windows of an image: the three bf16 numbers of elements, which split.comp wrote, are in planes of
// their own, each in the order of the elements. TILE_M x TILE_N results per workgroup, OWN_M x OWN_N per subgroup of
// 32, 32 contracted elements per step. Where sums leave the range, though no product does, the subgroup computes its
// results anew from the elements, one multiplication after the other. float16_t stands for bf16, which the linker makes
// of it. Parameters: as of dot_own.comp, with elements of k per split a multiple of 32, and uvec4 from one part of A to
// the next, and of B.
#include "params.glsl"

#define SUBGROUPS (TILE_M / OWN_M * (TILE_N / OWN_N))
#define FRAGMENTS_M (OWN_M / 16)
#define FRAGMENTS_N (OWN_N / 16)
// 16 rows and 32 columns of a subgroup's results on their way out.
#define STRIP 9
#define ROOM (16 * STRIP)

layout(local_size_x = SUBGROUPS * 32) in;

// Whether four neighbouring results are stored at a time.
layout(constant_id = 4) const uint STORE_BY_FOUR = 1u;
// Whether what comes with a store is so much code that it stands once.
layout(constant_id = 5) const uint STORE_IN_LOOP = 0u;

#include "own_operands.glsl"
// One result, and four neighbours of a row; `at` counts groups of four.
void slot_store(const in uint at, const in float value) {}
void slot_store_four(const in uint at, const in vec4 value) {}

// While products are added up: where eights along k lie, those of A before those of B. Then the results.
shared uvec4 tiles[SUBGROUPS * ROOM];

#include "matrix_fragments.glsl"

#define A_PARTS 3u
#define B_PARTS 3u
#include "parts_products.glsl"

#define R4 vec4
#include "dot_guard.glsl"
#include "dot_store.glsl"

#include "own_half.glsl"

// Element k of those of which three words each hold the parts of two.
float element(const in uvec4 high, const in uvec4 middle, const in uvec4 low, const in uint k) {
    uvec3 words = uvec3(high[k / 2u], middle[k / 2u], low[k / 2u]);
    vec3 parts = uintBitsToFloat((k & 1u) == 0u ? words << 16 : words & 0xffff0000u);
    return ((parts.x + parts.y) + parts.z) * (1.0 / 65536.0);
}

// Where a row of A or a column of B begins, and where the eighth e along k lies behind that.
uint a_row(const in uint batch, const in uint m) {
    if (A_BY_AXES != 0u) return slot_a_free(batch, m) / 8u;
    uint from = batch / nx_param(10u) * nx_param(11u) + batch % nx_param(10u) * nx_param(12u);
    return from + m / 16u * nx_param(6u) + m % 16u / 8u * nx_param(7u) + m % 8u * nx_param(8u);
}
uint b_row(const in uint batch, const in uint n) {
    if (B_BY_AXES != 0u) return slot_b_free(batch, n) / 8u;
    uint from = batch / nx_param(17u) * nx_param(18u) + batch % nx_param(17u) * nx_param(19u);
    return from + n / 16u * nx_param(13u) + n % 16u / 8u * nx_param(14u) + n % 8u * nx_param(15u);
}
uint a_eighth(const in uint e) { return A_BY_AXES != 0u ? slot_a_depth(e * 8u) / 8u : e / 4u * nx_param(9u) + e % 4u; }
uint b_eighth(const in uint e) { return B_BY_AXES != 0u ? slot_b_depth(e * 8u) / 8u : e / 4u * nx_param(16u) + e % 4u; }

void main() {
    if (!is_for_units()) return;
#include "dot_tile.glsl"
    uint slices = (depth + 31u) / 32u, first = split * (chunk / 32u), end = min(first + chunk / 32u, slices);
    uint a_part = nx_param(20u), b_part = nx_param(21u);

#include "own_places.glsl"

    Sums sums[FRAGMENTS_M][FRAGMENTS_N];
    [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
        [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) sums[i][j] = Sums(0.0);

    // Other workgroups stand in for those that wait.
    [[dont_unroll]] for (uint slice = first; slice < end; ++slice) {
        // Rows g and g + 8 of each 16, 32 elements along k.
        uvec4 a[2 * FRAGMENTS_M][3], b[2 * FRAGMENTS_N][3];
        uint a_line = LINE(A_BY_AXES, 0u, slice, a_at, a_32), b_line = LINE(B_BY_AXES, A_BY_AXES * eights / 4u, slice, b_at, b_32);
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_M; ++r)
            [[unroll]] for (uint part = 0u; part < 3u; ++part)
                a[r][part] = slot_a_block(a_line + ROW(a_rows, A_BY_AXES, r, a_16, a_8) + part * a_part);
        [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_N; ++r)
            [[unroll]] for (uint part = 0u; part < 3u; ++part)
                b[r][part] = slot_b_block(b_line + ROW(b_rows, B_BY_AXES, r, b_16, b_8) + part * b_part);
        if (ENDS_EARLY != 0u) {
            uint mask = slice * 32u + t * 8u < depth ? ~0u : 0u;
            [[unroll]] for (uint part = 0u; part < 3u; ++part) {
                [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_M; ++r) a[r][part] &= uvec4(mask);
                [[unroll]] for (uint r = 0u; r < 2u * FRAGMENTS_N; ++r) b[r][part] &= uvec4(mask);
            }
        }
        [[unroll]] for (uint k = 0u; k < 2u; ++k) {
            MatrixA x[FRAGMENTS_M][3];
            [[unroll]] for (uint i = 0u; i < FRAGMENTS_M; ++i)
                [[unroll]] for (uint part = 0u; part < 3u; ++part) {
                    uvec4 held = HALF(a[2u * i][part], a[2u * i + 1u][part], k);
                    HOLD(x[i][part], held)
                }
            [[unroll]] for (uint j = 0u; j < FRAGMENTS_N; ++j) {
                MatrixB y[3];
                [[unroll]] for (uint part = 0u; part < 3u; ++part) {
                    uvec4 held = HALF(b[2u * j][part], b[2u * j + 1u][part], k);
                    HOLD(y[part], held)
                }
                ADD_PRODUCTS(j)
            }
        }
    }

    if (A_BY_AXES != 0u || B_BY_AXES != 0u) barrier();

    float scale = SCALE_OF_SUMS;
    HAS_SPECIAL(special)
    if (subgroupAny(special >= 0x7f800000u)) {
        scale = 1.0;
        uint room = gl_SubgroupID * ROOM, line = gl_SubgroupInvocationID / 2u, from = gl_SubgroupInvocationID % 2u * 8u;
        [[dont_unroll]] for (uint fragment = 0u; fragment < FRAGMENTS_M * FRAGMENTS_N; ++fragment) {
            uint a_from = a_row(batch, min(m0 + own_m + fragment / FRAGMENTS_N * 16u + line, rows - 1u));
            uint b_from[8];
            float exact[8];
            [[unroll]] for (uint c = 0u; c < 8u; ++c) {
                b_from[c] = b_row(batch, min(n0 + own_n + fragment % FRAGMENTS_N * 16u + from + c, columns - 1u));
                exact[c] = 0.0;
            }
            [[dont_unroll]] for (uint e = first * 4u; e < min(end * 4u, (depth + 7u) / 8u); ++e) {
                uint at = a_from + a_eighth(e), b_at = b_eighth(e);
                uvec4 high = slot_a_block(at), middle = slot_a_block(at + a_part), low = slot_a_block(at + 2u * a_part);
                float factors[8];
                [[unroll]] for (uint k = 0u; k < 8u; ++k) factors[k] = element(high, middle, low, k);
                [[unroll]] for (uint c = 0u; c < 8u; ++c) {
                    at = b_from[c] + b_at;
                    high = slot_b_block(at);
                    middle = slot_b_block(at + b_part);
                    low = slot_b_block(at + 2u * b_part);
                    [[unroll]] for (uint k = 0u; k < 8u; ++k) exact[c] = fma(factors[k], element(high, middle, low, k), exact[c]);
                }
            }
            subgroupBarrier();
            PUT_SUMS(exact, room, line, from)
        }
    }

// As in dot_parts.comp.
#define WAIT() barrier()
#define RESULTS(value, m, n) value *= scale;
#include "matrix_results.glsl"
}

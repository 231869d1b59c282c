//! variants = [{ name = "split_3" }]
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
// Rows (vectors along k) of a batched matrix as three bf16 numbers for each element, hi + mid + lo, exactly. They lie
// as the invocations of a subgroup hold 16 rows x 16 of k on matrix units: [batch][16 rows][16 of k][hi, mid,
// lo][invocation], eight to a uvec4, those of a first factor in the order of FIRST, with zeros past the ends. Elements are multiplied by 2^16 first, so that no part
// of a normal number is denormal. What leaves the range of f32 is not for units: a word gets the bits of the largest
// absolute value, if that is at least 2^16. float16_t stands for bf16, which the linker makes of it. Parameters: rows,
// contracted k, batches.
#include "params.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ALONG_K = 1u;
layout(constant_id = 1) const uint BY_FOUR = 1u;
// Whether rows are columns of the second operand.
layout(constant_id = 3) const uint SECOND = 0u;

uint slot_free(const in uint batch, const in uint row) { return batch + row; }
uint slot_depth(const in uint k) { return k; }
float slot_load(const in uint at) { return float(at); }
vec4 slot_load_four(const in uint at) { return vec4(at); }
void slot_store(const in uint at, const in uvec4 value) {}
void slot_raise(const in uint bits) {}

shared uvec4 parts[8 * 96];

#include "matrix_fragments.glsl"

#include "bf16_parts.glsl"

void main() {
    uint rows = nx_param(0u), depth = nx_param(1u), batches = nx_param(2u);
    uint blocks_m = (rows + 15u) / 16u, blocks_k = (depth + 15u) / 16u;
    // The eight subgroups take neighbours along the contiguous axis.
    uint along = ALONG_K != 0u ? blocks_k : blocks_m, across = ALONG_K != 0u ? blocks_m : blocks_k;
    uint eights = (along + 7u) / 8u, group = nx_group();
    uint one = group % eights * 8u + gl_SubgroupID, rest = group / eights, other = rest % across, batch = rest / across;
    if (batch >= batches || one >= along) return;
    uint m = (ALONG_K != 0u ? other : one) * 16u, k = (ALONG_K != 0u ? one : other) * 16u;
    // Two invocations for each line along the contiguous axis.
    uint line = gl_SubgroupInvocationID / 2u, from = gl_SubgroupInvocationID % 2u * 8u;
    uvec4 high = uvec4(0u), middle = uvec4(0u), low = uvec4(0u), largest = uvec4(0u);
    uint row = m + (ALONG_K != 0u ? line : from), at = k + (ALONG_K != 0u ? from : line);
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        vec4 four = vec4(0.0);
        if (row < rows && at < depth) {
            if (BY_FOUR != 0u) {
                four = slot_load_four(slot_free(batch, row) + slot_depth(at));
            } else {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    uint r = ALONG_K != 0u ? row : row + j, c = ALONG_K != 0u ? at + j : at;
                    if (r < rows && c < depth) four[j] = slot_load(slot_free(batch, r) + slot_depth(c));
                }
            }
        }
        largest = max(largest, floatBitsToUint(abs(four)));
        [[unroll]] for (uint j = 0u; j < 2u; ++j) {
            uvec3 three = parts_of(j == 0u ? four.xy : four.zw);
            high[2u * i + j] = three.x;
            middle[2u * i + j] = three.y;
            low[2u * i + j] = three.z;
        }
        if (ALONG_K != 0u) at += 4u; else row += 4u;
    }
    uint most = subgroupMax(max(max(largest.x, largest.y), max(largest.z, largest.w)));
    if (most >= 0x47800000u && subgroupElect()) slot_raise(most);
    uint mine = gl_SubgroupID * 96u;
    parts[mine + gl_SubgroupInvocationID] = high;
    parts[mine + 32u + gl_SubgroupInvocationID] = middle;
    parts[mine + 64u + gl_SubgroupInvocationID] = low;
    subgroupBarrier();
    uint to = ((batch * blocks_m + m / 16u) * blocks_k + k / 16u) * 96u + gl_SubgroupInvocationID;
    [[unroll]] for (uint part = 0u; part < 3u; ++part) {
        if (SECOND == 0u) {
            MatrixA x;
            if (ALONG_K != 0u) {
                coopMatLoad(x, parts, mine + part * 32u, 2, gl_CooperativeMatrixLayoutRowMajor);
            } else {
                coopMatLoad(x, parts, mine + part * 32u, 2, gl_CooperativeMatrixLayoutColumnMajor);
            }
            slot_store(to + part * 32u, FIRST(HELD(x)));
        } else {
            MatrixB x;
            if (ALONG_K != 0u) {
                coopMatLoad(x, parts, mine + part * 32u, 2, gl_CooperativeMatrixLayoutColumnMajor);
            } else {
                coopMatLoad(x, parts, mine + part * 32u, 2, gl_CooperativeMatrixLayoutRowMajor);
            }
            slot_store(to + part * 32u, HELD(x));
        }
    }
}

// Product of split operands. Macros: BM, BN (tile of a workgroup), BLOCK (step in K), PLANES (2: split, 1: plain f16), LO_SHIFT.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require

layout(local_size_x = THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Planes { uvec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Floats { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Counter { uint x; };
layout(push_constant) uniform Push {
  Planes a, b;
  Floats c, a_scales, b_scales;
  Counter lost;
  uint m, n, blocks, blocks_per_split;
  uint check; // 1: leave the results alone where elements were lost
};

// Workgroups take tiles in bands of eight rows of tiles, so that those in flight share operands in the L2.
uvec2 tile_of(uint id) {
  uint rows = m / BM, columns = n / BN, band = id / (8 * columns), height = min(8, rows - 8 * band);
  id -= band * 8 * columns;
  return uvec2(8 * band + id % height, id / height);
}

#version 460
#extension GL_GOOGLE_include_directive : require
#include "split.glsl"
// One workgroup per row of f32[rows][k], k a multiple of 8.
shared float largest_of[256];

void main() {
  uint row = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x, fours = k / 4;
  float largest = 0.0;
  for (uint i = lane; i < fours; i += 256) {
    vec4 x = abs(source.x[row * fours + i]);
    largest = max(largest, max(max(x.x, x.y), max(x.z, x.w)));
  }
  largest = subgroupMax(largest);
  if (subgroupElect()) largest_of[gl_SubgroupID] = largest;
  barrier();
  for (uint i = 0; i < gl_NumSubgroups; i++) largest = max(largest, largest_of[i]);
  float exponent = exponent_of(largest), scale = exp2(14.0 - exponent);
  if (lane == 0) scales.x[row] = exp2(exponent - 14.0);
  uint lost_here = 0;
  for (uint i = lane; i < padded / 8; i += 256) {
    float x[8];
    [[unroll]] for (uint j = 0; j < 2; j++) {
      vec4 four = 8 * i < k ? source.x[row * fours + 2 * i + j] : vec4(0.0);
      [[unroll]] for (uint c = 0; c < 4; c++) x[4 * j + c] = four[c];
    }
    lost_here += store(row, 8 * i, x, scale);
  }
  uint in_subgroup = subgroupAdd(lost_here);
  barrier();
  if (subgroupElect()) largest_of[gl_SubgroupID] = float(in_subgroup);
  barrier();
  if (lane > 0) return;
  float sum = far(exponent) ? 1.0 : 0.0;
  for (uint i = 0; i < gl_NumSubgroups; i++) sum += largest_of[i];
  scales.x[rows + row] = sum;
}

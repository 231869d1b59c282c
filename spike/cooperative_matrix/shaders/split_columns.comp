#version 460
#extension GL_GOOGLE_include_directive : require
#include "split.glsl"
// 64 columns and 64 of K of f32[k][columns] per workgroup (columns / 64, padded / 64 rounded up): the planes' rows are the columns.
shared float tile[64][65];
shared float scale_of[64];

void main() {
  uint lane = gl_LocalInvocationID.x, fours = columns / 4;
  uint column = gl_WorkGroupID.x * 64, from = gl_WorkGroupID.y * 64;
  if (lane < 64) {
    float largest = 0.0;
    for (uint i = 0; i < parts; i++) largest = max(largest, partials.x[i * columns + column + lane]);
    float exponent = exponent_of(largest);
    scale_of[lane] = exp2(14.0 - exponent);
    if (gl_WorkGroupID.y == 0) {
      scales.x[column + lane] = exp2(exponent - 14.0);
      if (far(exponent)) atomicAdd(lost.x, 1);
    }
  }
  [[unroll]] for (uint i = 0; i < 4; i++) {
    uint r = lane / 16 + 16 * i, c = lane % 16;
    vec4 four = from + r < k ? source.x[(from + r) * fours + column / 4 + c] : vec4(0.0);
    [[unroll]] for (uint j = 0; j < 4; j++) tile[r][4 * c + j] = four[j];
  }
  barrier();
  uint lost_here = 0;
  [[unroll]] for (uint i = 0; i < 2; i++) {
    uint c = lane / 8 + 32 * i, at = 8 * (lane % 8);
    float x[8];
    [[unroll]] for (uint j = 0; j < 8; j++) x[j] = tile[at + j][c];
    if (from + at < padded) lost_here += store(column + c, from + at, x, scale_of[c]);
  }
  uint row = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 256 + lane;
  if (row < rows) lost_here += uint(a_scales.x[rows + row]);
  uint sum = subgroupAdd(lost_here);
  if (sum > 0 && subgroupElect()) atomicAdd(lost.x, sum);
}

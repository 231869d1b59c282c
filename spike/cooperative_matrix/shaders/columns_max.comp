#version 460
#extension GL_GOOGLE_include_directive : require
#include "split.glsl"
// The largest |x| of 128 columns in one part of K of f32[k][columns]: workgroups (columns / 128, parts).
shared vec4 largest_of[8][32];

void main() {
  if (gl_GlobalInvocationID == uvec3(0)) lost.x = 0;
  uint column = gl_LocalInvocationID.x % 32, row = gl_LocalInvocationID.x / 32, fours = columns / 4;
  uint at = gl_WorkGroupID.x * 32 + column, rows = (k + parts - 1) / parts;
  uint end = min(k, (gl_WorkGroupID.y + 1) * rows);
  vec4 largest = vec4(0.0);
  [[unroll]] for (uint r = 0; r < 16; r++) {
    uint i = gl_WorkGroupID.y * rows + row + 8 * r;
    if (i < end) largest = max(largest, abs(source.x[i * fours + at]));
  }
  largest_of[row][column] = largest;
  barrier();
  if (row > 0) return;
  for (uint i = 1; i < 8; i++) largest = max(largest, largest_of[i][column]);
  [[unroll]] for (uint c = 0; c < 4; c++) partials.x[gl_WorkGroupID.y * columns + 4 * at + c] = largest[c];
}

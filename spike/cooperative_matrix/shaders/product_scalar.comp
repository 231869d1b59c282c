#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#define THREADS 64
#include "product.glsl"
// One result per invocation from the same planes, for devices without matrix units: it tests the split and the driver.
float at(Planes p, uint row, uint k, uint plane) {
  uint i = row * blocks * PLANES * BLOCK + k / BLOCK * PLANES * BLOCK + plane * BLOCK + k % BLOCK;
  return float(unpackFloat2x16(p.x[i / 8][i % 8 / 2])[i % 2]);
}
void main() {
  if (gl_GlobalInvocationID.x >= m * n) return;
  uint row = gl_GlobalInvocationID.x / n, column = gl_GlobalInvocationID.x % n;
  float sum = 0.0, small = 0.0;
  for (uint k = 0; k < blocks * BLOCK; k++) {
    sum += at(a, row, k, 0) * at(b, column, k, 0);
    small += at(a, row, k, 0) * at(b, column, k, 1) + at(a, row, k, 1) * at(b, column, k, 0);
  }
  c.x[row * n + column] = (sum + small / float(1 << LO_SHIFT)) * a_scales.x[row] * b_scales.x[column];
}

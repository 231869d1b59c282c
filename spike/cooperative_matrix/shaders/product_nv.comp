#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require
#include "product.glsl"
// The tile belongs to the workgroup as a whole (VK_NV_cooperative_matrix2); the planes are [PLANES][rows][K].
#define MatrixA coopmat<float16_t, gl_ScopeWorkgroup, BM, BLOCK, gl_MatrixUseA>
#define MatrixB coopmat<float16_t, gl_ScopeWorkgroup, BLOCK, BN, gl_MatrixUseB>
#define MatrixC coopmat<float, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Halves { float16_t x[]; };

void main() {
  if (check != 0 && lost.x != 0) return;
  uvec2 tile = tile_of(gl_WorkGroupID.x);
  uint k = blocks * BLOCK;
  Halves a_hi = Halves(a), b_hi = Halves(b), a_lo = Halves(uint64_t(a) + 2ul * m * k), b_lo = Halves(uint64_t(b) + 2ul * n * k);
  tensorLayoutNV<2> a_layout = setTensorLayoutDimensionNV(createTensorLayoutNV(2), m, k);
  tensorLayoutNV<2> b_layout = setTensorLayoutDimensionNV(createTensorLayoutNV(2), n, k);
  tensorLayoutNV<2> c_layout = setTensorLayoutDimensionNV(createTensorLayoutNV(2), m, n);
  tensorViewNV<2, false, 1, 0> transposed = createTensorViewNV(2, false, 1, 0);
  MatrixC partial = MatrixC(0.0);
#if DRAIN > 0
  MatrixC sum = MatrixC(0.0);
#endif
  for (uint block = 0; block < blocks; block++) {
    MatrixA x, x_lo;
    MatrixB y, y_lo;
    coopMatLoadTensorNV(x, a_hi.x, 0, sliceTensorLayoutNV(a_layout, tile.x * BM, BM, block * BLOCK, BLOCK));
    coopMatLoadTensorNV(y, b_hi.x, 0, sliceTensorLayoutNV(b_layout, tile.y * BN, BN, block * BLOCK, BLOCK), transposed);
#if PLANES == 2
    coopMatLoadTensorNV(x_lo, a_lo.x, 0, sliceTensorLayoutNV(a_layout, tile.x * BM, BM, block * BLOCK, BLOCK));
    coopMatLoadTensorNV(y_lo, b_lo.x, 0, sliceTensorLayoutNV(b_layout, tile.y * BN, BN, block * BLOCK, BLOCK), transposed);
    partial = coopMatMulAdd(x_lo, y, partial);
    partial = coopMatMulAdd(x, y_lo, partial);
#if ORDER == 3
    partial *= 1.0 / float(1 << LO_SHIFT);
#endif
#endif
    partial = coopMatMulAdd(x, y, partial);
#if DRAIN > 0
    if (block % DRAIN == DRAIN - 1) {
      sum = sum + partial;
      partial = MatrixC(0.0);
    }
#endif
  }
#if DRAIN > 0
  partial = sum + partial;
#endif
  MatrixC scale;
  tensorLayoutNV<2> a_scale = setTensorLayoutStrideNV(c_layout, 1, 0), b_scale = setTensorLayoutStrideNV(c_layout, 0, 1);
  coopMatLoadTensorNV(scale, a_scales.x, 0, sliceTensorLayoutNV(a_scale, tile.x * BM, BM, tile.y * BN, BN));
  partial = partial * scale;
  coopMatLoadTensorNV(scale, b_scales.x, 0, sliceTensorLayoutNV(b_scale, tile.x * BM, BM, tile.y * BN, BN));
  partial = partial * scale;
  coopMatStoreTensorNV(partial, c.x, 0, sliceTensorLayoutNV(c_layout, tile.x * BM, BM, tile.y * BN, BN));
}

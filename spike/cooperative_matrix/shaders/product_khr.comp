#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#define THREADS (BM / WM * (BN / WN) * 32)
#include "product.glsl"
// Subgroups own WM x WN of the tile. Three products per step of 16 in K go to `partial`, which is added to `sum` every DRAIN blocks
// (0: never, one accumulator). ORDER 1: all products into one partial. 2: hi lo + lo hi in an accumulator of their own, never drained.
// 3: hi lo + lo hi first, times 2^-LO_SHIFT, then hi hi on top; DRAIN is 1 then.
const uint ROW = PLANES * BLOCK / 8, SHARED_ROW = ROW + 1;
const uint A_LOADS = BM * ROW / THREADS, B_LOADS = BN * ROW / THREADS;
const uint I = WM / 16, J = WN / 16, LO = BLOCK / 8;
shared uvec4 a_tile[BM * SHARED_ROW];
shared uvec4 b_tile[BN * SHARED_ROW];
#define MatrixA coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MatrixB coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MatrixC coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

void load_a(out MatrixA x[I], uint at) {
  [[unroll]] for (uint i = 0; i < I; i++) coopMatLoad(x[i], a_tile, at + 16 * i * SHARED_ROW, SHARED_ROW, gl_CooperativeMatrixLayoutRowMajor);
}
void load_b(out MatrixB x[J], uint at) {
  [[unroll]] for (uint j = 0; j < J; j++) coopMatLoad(x[j], b_tile, at + 16 * j * SHARED_ROW, SHARED_ROW, gl_CooperativeMatrixLayoutColumnMajor);
}
void add(MatrixA x[I], MatrixB y[J], inout MatrixC z[I][J]) {
  [[unroll]] for (uint j = 0; j < J; j++)
    [[unroll]] for (uint i = 0; i < I; i++) z[i][j] = coopMatMulAdd(x[i], y[j], z[i][j]);
}

void main() {
  if (check != 0 && lost.x != 0) return;
  uvec2 tile = tile_of(gl_WorkGroupID.x);
  uint lane = gl_LocalInvocationID.x, first = gl_WorkGroupID.y * blocks_per_split, end = min(blocks, first + blocks_per_split);
  uint wm = gl_SubgroupID / (BN / WN) * WM, wn = gl_SubgroupID % (BN / WN) * WN;
  uint row = lane / ROW, column = lane % ROW;
  uint a_from = (tile.x * BM + row) * blocks * ROW + column, b_from = (tile.y * BN + row) * blocks * ROW + column;
  uint to = row * SHARED_ROW + column;
  const uint STEP = THREADS / ROW;

  uvec4 a_next[A_LOADS], b_next[B_LOADS];
  [[unroll]] for (uint i = 0; i < A_LOADS; i++) a_next[i] = a.x[a_from + i * STEP * blocks * ROW + first * ROW];
  [[unroll]] for (uint i = 0; i < B_LOADS; i++) b_next[i] = b.x[b_from + i * STEP * blocks * ROW + first * ROW];

  MatrixC partial[I][J];
  [[unroll]] for (uint i = 0; i < I; i++) [[unroll]] for (uint j = 0; j < J; j++) partial[i][j] = MatrixC(0.0);
#if DRAIN > 0
  MatrixC sum[I][J];
  [[unroll]] for (uint i = 0; i < I; i++) [[unroll]] for (uint j = 0; j < J; j++) sum[i][j] = MatrixC(0.0);
#endif
#if ORDER == 2
  MatrixC small[I][J];
  [[unroll]] for (uint i = 0; i < I; i++) [[unroll]] for (uint j = 0; j < J; j++) small[i][j] = MatrixC(0.0);
#endif

  for (uint block = first; block < end; block++) {
    barrier();
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) a_tile[to + i * STEP * SHARED_ROW] = a_next[i];
    [[unroll]] for (uint i = 0; i < B_LOADS; i++) b_tile[to + i * STEP * SHARED_ROW] = b_next[i];
    barrier();
    if (block + 1 < end) {
      [[unroll]] for (uint i = 0; i < A_LOADS; i++) a_next[i] = a.x[a_from + i * STEP * blocks * ROW + (block + 1) * ROW];
      [[unroll]] for (uint i = 0; i < B_LOADS; i++) b_next[i] = b.x[b_from + i * STEP * blocks * ROW + (block + 1) * ROW];
    }
    uint a_at = wm * SHARED_ROW, b_at = wn * SHARED_ROW;
    MatrixA x[I];
    MatrixB y[J];
#if PLANES == 2
    [[unroll]] for (uint k = 0; k < BLOCK / 16; k++) {
      MatrixA x_lo[I];
      MatrixB y_lo[J];
      load_a(x, a_at + 2 * k);
      load_b(y, b_at + 2 * k);
      load_a(x_lo, a_at + 2 * k + LO);
      load_b(y_lo, b_at + 2 * k + LO);
#if ORDER == 2
      add(x_lo, y, small);
      add(x, y_lo, small);
#else
      add(x_lo, y, partial);
      add(x, y_lo, partial);
#endif
#if ORDER < 3
      add(x, y, partial);
#endif
    }
#endif
#if PLANES == 2 && ORDER == 3
    [[unroll]] for (uint i = 0; i < I; i++) [[unroll]] for (uint j = 0; j < J; j++) partial[i][j] *= 1.0 / float(1 << LO_SHIFT);
#endif
#if PLANES == 1 || ORDER == 3
    [[unroll]] for (uint k = 0; k < BLOCK / 16; k++) {
      load_a(x, a_at + 2 * k);
      load_b(y, b_at + 2 * k);
      add(x, y, partial);
    }
#endif
#if DRAIN > 0
    if ((block - first) % DRAIN == DRAIN - 1) {
      [[unroll]] for (uint i = 0; i < I; i++)
        [[unroll]] for (uint j = 0; j < J; j++) {
          sum[i][j] = sum[i][j] + partial[i][j];
          partial[i][j] = MatrixC(0.0);
        }
    }
#endif
  }

  uint c_row = tile.x * BM + wm, c_column = tile.y * BN + wn;
  [[unroll]] for (uint i = 0; i < I; i++) {
    MatrixC a_scale;
    coopMatLoad(a_scale, a_scales.x, c_row + 16 * i, 0, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint j = 0; j < J; j++) {
      MatrixC b_scale, result = partial[i][j];
      coopMatLoad(b_scale, b_scales.x, c_column + 16 * j, 0, gl_CooperativeMatrixLayoutRowMajor);
#if DRAIN > 0
      result = sum[i][j] + result;
#endif
#if ORDER == 2
      result = result + small[i][j] * (1.0 / float(1 << LO_SHIFT));
#endif
      result = result * a_scale * b_scale;
      coopMatStore(result, c.x, gl_WorkGroupID.y * m * n + (c_row + 16 * i) * n + c_column + 16 * j, n, gl_CooperativeMatrixLayoutRowMajor);
    }
  }
}

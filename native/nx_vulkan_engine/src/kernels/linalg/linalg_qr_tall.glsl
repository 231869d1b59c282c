// What the kernels that factorize tall panels of QR share. Each workgroup takes the same number of chunks of rows; an
// invocation has a column and every LANES-th row of a chunk. V holds the panel until its columns are those of V. `sums`
// of a matrix: for each column what it was scaled by, inverted; then twice, for even and for odd passes, the pivot row
// and each workgroup's sums. A pass reads what the one before it wrote.
#ifndef LINALG_QR_TALL_GLSL
#define LINALG_QR_TALL_GLSL
#include "linalg_qr.glsl"

#define WIDTH 32u
#define LANES 8u
// Rows of a chunk, and of them those of an invocation.
#define CHUNK 64u
#define OWN (CHUNK / LANES)

uint qr_sums_size(const in uint blocks) { return WIDTH * (3u + 2u * blocks); }
uint qr_pivot_row(const in uint parity, const in uint blocks) { return WIDTH * (1u + (parity & 1u) * (1u + blocks)); }
uint qr_block_sums(const in uint parity, const in uint blocks) { return qr_pivot_row(parity, blocks) + WIDTH; }

#endif

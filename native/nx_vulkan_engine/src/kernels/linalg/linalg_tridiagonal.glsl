// What the kernels that reduce a Hermitian matrix to a tridiagonal one share. They go by panels of NB columns: of
// column k of the panel X holds the reflection v in row k and w in row NB + k, Y their conjugates in rows NB + k and k,
// and until the panel ends the rest of the matrix is A - X^T Y. Rows are as long as the order. `vectors` of a matrix: A
// v; the next column; W^H v; V^H v; tau; parts of w^H v.
#ifndef LINALG_TRIDIAGONAL_GLSL
#define LINALG_TRIDIAGONAL_GLSL
#include "linalg_jacobi.glsl"

#define NB 32u

uint td_column(const in uint n) { return n; }
uint td_products(const in uint n) { return 2u * n; }
uint td_tau(const in uint n) { return 2u * n + 2u * NB; }
uint td_parts(const in uint n) { return 2u * n + 2u * NB + 1u; }

// Squares that count as nothing beside the largest element, which lies between 1 and 2.
#if defined(F32) || defined(C64)
#define NOTHING R(1e-30)
#else
#define NOTHING R(1e-250LF)
#endif

#endif

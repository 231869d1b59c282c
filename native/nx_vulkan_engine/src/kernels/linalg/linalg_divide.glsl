// What the kernels that solve the tridiagonal eigenproblem by divide and conquer share. A node of `m` columns joins two
// halves: their eigenvalues d with rho z z^T added, where z is the last row of one half's vectors and the first of the
// other's. `state` of a node: 6 rows of m: poles d in ascending order, weights z, distances of the new eigenvalues from
// their poles, cosines, sines, new weights. `places` of a node: 4 rows of m: which column a pole is (kept ones in
// front), the pole next to a new eigenvalue, the columns of rotations; and the numbers of kept poles and of rotations.
// Sources: LAPACK's dlaed1 to dlaed3; Gu and Eisenstat, "A divide-and-conquer algorithm for the symmetric tridiagonal
// eigenproblem", 1995.
#ifndef LINALG_DIVIDE_GLSL
#define LINALG_DIVIDE_GLSL
#include "linalg_jacobi.glsl"

#define POLE 0u
#define WEIGHT 1u
#define DISTANCE 2u
#define COSINE 3u
#define SINE 4u
#define NEW_WEIGHT 5u

#define COLUMN 0u
#define ORIGIN 1u
#define ROTATED 2u
#define KEPT_ROTATED 3u

uint dc_state(const in uint node, const in uint row, const in uint m) { return (node * 6u + row) * m; }
uint dc_places(const in uint node, const in uint row, const in uint m) { return node * (4u * m + 2u) + row * m; }
uint dc_kept(const in uint node, const in uint m) { return dc_places(node, 4u, m); }
uint dc_rotations(const in uint node, const in uint m) { return dc_places(node, 4u, m) + 1u; }

// Where the element beside the diagonal that couples the halves of a node is in matrices of order n; false where it is
// 0.
bool dc_coupling(const in uint node, const in uint m, const in uint nodes, const in uint n, out uint at) {
    uint last = node % nodes * m + m / 2u - 1u;
    at = node / nodes * 2u * n + n + last;
    return last + 1u < n;
}

#endif

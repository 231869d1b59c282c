//! Ops on batches of matrices, which are the last two axes of their operands.

/// Smaller elements of a Cholesky factor become zeros, and divisors that are zero become this number, as in Nx.
pub const EPSILON: f64 = 1e-10;

/// What `triangular_solve` makes of its matrix first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Nothing.
    None,
    /// Its transpose.
    Transpose,
    /// Its conjugate transpose.
    Conjugate,
}

/// Solvers and factorizations. The operands are listed beside each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Linalg {
    /// a, b; X of `op(A) X = B`, or of `X op(A) = B`. A triangle of A is not read.
    TriangularSolve {
        /// Whether the lower triangle is read.
        lower: bool,
        /// Whether A stands left of X.
        left_side: bool,
        /// What A becomes first.
        transform: Transform,
    },
    /// a; the lower factor. The upper triangle of A is not read.
    Cholesky,
    /// a; P, L and U of `A = P L U`, where P has the type of A
    Lu,
    /// a, b; X of `A X = B`, and a u8 scalar: whether no pivot is zero
    Solve,
    /// a
    Determinant,
}

//! Ops on batches of matrices, which are the last two axes of their operands.

use super::Op;
use super::wire::{Attr, Attrs};
use crate::{DType, Result, Type};

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
    #[allow(missing_docs)]
    TriangularSolve { lower: bool, left_side: bool, transform: Transform },
    /// a; the lower factor. The upper triangle of A is not read.
    Cholesky,
    /// a; P, L and U of `A = P L U`, where P has the type of A
    Lu,
    /// a, b; X of `A X = B`, and a u8 scalar: whether no pivot is zero
    Solve,
    /// a
    Determinant,
}

impl Linalg {
    /// Nx's names of the ops.
    pub(super) const NAMES: [&'static str; 5] = ["triangular_solve", "cholesky", "lu", "solve", "determinant"];

    /// Reads the op of one of the names.
    pub(super) fn read(name: &str, attrs: &Attrs<'_>) -> Result<Op> {
        Ok(Op::Linalg(match name {
            "triangular_solve" => Self::triangular_solve(attrs)?,
            "cholesky" => Linalg::Cholesky,
            "lu" => Linalg::Lu,
            "solve" => Linalg::Solve,
            "determinant" => Linalg::Determinant,
            _ => return Err(attrs.fail("name", "a solver or a factorization")),
        }))
    }

    fn triangular_solve(attrs: &Attrs<'_>) -> Result<Linalg> {
        let transform = match attrs.find("transform_a") {
            Some(Attr::Name(name)) if name == "none" => Transform::None,
            Some(Attr::Name(name)) if name == "transpose" => Transform::Transpose,
            Some(Attr::Name(name)) if name == "conjugate" => Transform::Conjugate,
            _ => return Err(attrs.fail("transform_a", "none, transpose or conjugate")),
        };
        let [lower, left_side] = ["lower", "left_side"].map(|name| match attrs.find(name) {
            Some(Attr::Bool(value)) => Ok(*value),
            _ => Err(attrs.fail(name, "true or false")),
        });
        Ok(Linalg::TriangularSolve { lower: lower?, left_side: left_side?, transform })
    }

    pub(super) fn wire_attrs(self) -> Vec<(String, Attr)> {
        match self {
            Linalg::TriangularSolve { lower, left_side, transform } => {
                let transform = match transform {
                    Transform::None => "none",
                    Transform::Transpose => "transpose",
                    Transform::Conjugate => "conjugate",
                };
                vec![
                    ("lower".to_string(), Attr::Bool(lower)),
                    ("left_side".to_string(), Attr::Bool(left_side)),
                    ("transform_a".to_string(), Attr::Name(transform.to_string())),
                ]
            }
            Linalg::Cholesky | Linalg::Lu | Linalg::Solve | Linalg::Determinant => vec![],
        }
    }

    /// Checks operands and results.
    pub(super) fn check_types(self, operands: &[&Type], outs: &[Type]) -> std::result::Result<(), String> {
        let a = operands[0];
        let [batch @ .., rows, columns] = &a.shape[..] else {
            return Err(format!("{:?} are not matrices", a.shape));
        };
        if rows != columns || *rows == 0 {
            return Err(format!("{:?} are not square matrices", a.shape));
        }
        let solution = |left_side: bool| -> Vec<Type> {
            let b = operands.get(1).copied().unwrap_or(a);
            let fits = match b.shape.strip_prefix(batch) {
                Some([n]) => n == rows,
                Some([m, n]) => rows == if left_side { m } else { n },
                _ => false,
            };
            if fits { vec![b.clone()] } else { vec![] }
        };
        let floats = |types: &[Type]| types.iter().all(|t| !t.dtype.is_integer());
        let expected: Vec<Type> = match self {
            Linalg::TriangularSolve { left_side, .. } => solution(left_side),
            Linalg::Solve => solution(true).into_iter().chain([Type::new(DType::U8, &[])]).collect(),
            Linalg::Cholesky => vec![a.clone()],
            Linalg::Lu => vec![a.clone(); 3],
            Linalg::Determinant => vec![Type::new(a.dtype, batch)],
        };
        // The types that Nx gives: floats that hold the operands.
        let computed = match self {
            Linalg::Lu => outs.get(1..).unwrap_or_default(),
            Linalg::Solve => outs.get(..1).unwrap_or_default(),
            _ => outs,
        };
        let complex = operands.iter().any(|t| t.dtype.is_complex());
        let shapes = |types: &[Type]| types.iter().map(|t| t.shape.clone()).collect::<Vec<_>>();
        let holds = floats(computed) && computed.iter().all(|t| t.dtype.is_complex() || !complex);
        let same = match self {
            Linalg::Lu => outs.first().is_some_and(|p| p.dtype == a.dtype),
            Linalg::Solve => outs.last().is_some_and(|flag| flag.dtype == DType::U8),
            _ => true,
        };
        if shapes(&expected) != shapes(outs) || !holds || !same {
            let types: Vec<String> = operands.iter().map(|t| format!("{}{:?}", t.dtype, t.shape)).collect();
            let got: Vec<String> = outs.iter().map(|t| format!("{}{:?}", t.dtype, t.shape)).collect();
            return Err(format!("{} do not give {}", types.join(", "), got.join(", ")));
        }
        Ok(())
    }
}

//! Factorizations and solvers of matrices, which are the last two axes of their operands.

use super::kind::{Check, Class, Facts, Names, OpKind, family, named};
use super::rules::{PHASE_WORK, f32, flag_attr, require};
use crate::program::factorization;
use crate::program::linalg::{Linalg, Transform};
use crate::program::wire::{Attr, Attrs};
use crate::{DType, Result, Type};

/// Instructions that one step of an elimination takes for each element, where one workgroup runs it as other ops.
const ELIMINATION_COST: u64 = 6;

family! {
    /// Ops on batches of matrices, which are the last two axes of their operands.
    Matrix { Linalg, Qr, Eigh, Svd }
}

/// A matrix, for samples.
fn matrix() -> Type {
    f32(&[3, 3])
}

impl Linalg {
    fn names<Of: From<Linalg> + 'static>() -> Names<Of> {
        vec![
            named(
                "triangular_solve",
                |_, a| Ok(read_triangular_solve(a)?.into()),
                || {
                    let (lower, left_side, transform) = (true, false, Transform::Transpose);
                    let op = Linalg::TriangularSolve { lower, left_side, transform };
                    (op.into(), [matrix(), f32(&[2, 3])], [f32(&[2, 3])])
                },
            ),
            named("cholesky", |_, _| Ok(Linalg::Cholesky.into()), || (Linalg::Cholesky.into(), [matrix()], [matrix()])),
            named(
                "lu",
                |_, _| Ok(Linalg::Lu.into()),
                || (Linalg::Lu.into(), [matrix()], [matrix(), matrix(), matrix()]),
            ),
            named(
                "solve",
                |_, _| Ok(Linalg::Solve.into()),
                || {
                    let regular = Type::new(DType::U8, &[]);
                    (Linalg::Solve.into(), [matrix(), f32(&[3, 2])], [f32(&[3, 2]), regular])
                },
            ),
            named(
                "determinant",
                |_, _| Ok(Linalg::Determinant.into()),
                || (Linalg::Determinant.into(), [matrix()], [f32(&[])]),
            ),
        ]
    }
}

fn read_triangular_solve(attrs: &Attrs<'_>) -> Result<Linalg> {
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

impl Matrix {
    /// The types of the factors of matrices of type `a`, or `None` where the op is no factorization, or `a` no matrix
    /// that it takes.
    pub(in crate::program) fn factors(&self, a: &Type) -> Option<Vec<Type>> {
        match self {
            Matrix::Linalg(_) => None,
            Matrix::Qr(op) => factorization::qr(a, op.complete),
            Matrix::Eigh(_) => factorization::eigh(a),
            Matrix::Svd(op) => factorization::svd(a, op.full),
        }
    }
}

/// Whether the results are those of a factorization of the first operand.
fn gives(expected: Option<Vec<Type>>, outs: &[Type]) -> Check {
    let expected = expected.ok_or_else(|| "needs a matrix that it can factorize".to_string())?;
    require(expected == outs, || format!("gives {expected:?}, not {outs:?}"))
}

/// a; gives q and r
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Qr {
    /// With as many columns of q as `a` has rows, else as many as the shorter axis.
    pub complete: bool,
}

impl Qr {
    fn names<Of: From<Qr> + 'static>() -> Names<Of> {
        vec![named(
            "qr",
            |_, a| Ok(Qr { complete: a.flag("complete")? }.into()),
            || (Qr { complete: false }.into(), [f32(&[3, 2])], [f32(&[3, 2]), f32(&[2, 2])]),
        )]
    }
}

impl OpKind for Qr {
    fn facts(&self) -> Facts {
        Facts::alone("qr", Class::Matrix, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![flag_attr("complete", self.complete)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        gives(factorization::qr(operands[0], self.complete), outs)
    }
}

/// a; gives eigenvalues, the largest first, and eigenvectors as columns
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Eigh;

impl Eigh {
    fn names<Of: From<Eigh> + 'static>() -> Names<Of> {
        vec![named("eigh", |_, _| Ok(Eigh.into()), || (Eigh.into(), [matrix()], [f32(&[3]), matrix()]))]
    }
}

impl OpKind for Eigh {
    fn facts(&self) -> Facts {
        Facts::alone("eigh", Class::Matrix, 1)
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        gives(factorization::eigh(operands[0]), outs)
    }
}

/// a; gives u, s and v transposed
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Svd {
    /// Both square, else with as many vectors as the shorter axis.
    pub full: bool,
}

impl Svd {
    fn names<Of: From<Svd> + 'static>() -> Names<Of> {
        vec![named(
            "svd",
            |_, a| Ok(Svd { full: a.flag("full")? }.into()),
            || (Svd { full: false }.into(), [f32(&[3, 2])], [f32(&[3, 2]), f32(&[2]), f32(&[2, 2])]),
        )]
    }
}

impl OpKind for Svd {
    fn facts(&self) -> Facts {
        Facts::alone("svd", Class::Matrix, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![flag_attr("full", self.full)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        gives(factorization::svd(operands[0], self.full), outs)
    }
}

impl OpKind for Linalg {
    fn facts(&self) -> Facts {
        let (name, operands) = match self {
            Linalg::TriangularSolve { .. } => ("triangular_solve", 2),
            Linalg::Cholesky => ("cholesky", 1),
            Linalg::Lu => ("lu", 1),
            Linalg::Solve => ("solve", 2),
            Linalg::Determinant => ("determinant", 1),
        };
        Facts::alone(name, Class::Matrix, operands)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        match *self {
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

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
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
        let expected: Vec<Type> = match *self {
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
            Linalg::TriangularSolve { .. } | Linalg::Cholesky | Linalg::Determinant => outs,
        };
        let complex = operands.iter().any(|t| t.dtype.is_complex());
        let shapes = |types: &[Type]| types.iter().map(|t| t.shape.clone()).collect::<Vec<_>>();
        let holds = floats(computed) && computed.iter().all(|t| t.dtype.is_complex() || !complex);
        let same = match self {
            Linalg::Lu => outs.first().is_some_and(|p| p.dtype == a.dtype),
            Linalg::Solve => outs.last().is_some_and(|flag| flag.dtype == DType::U8),
            Linalg::TriangularSolve { .. } | Linalg::Cholesky | Linalg::Determinant => true,
        };
        if shapes(&expected) != shapes(outs) || !holds || !same {
            let types: Vec<String> = operands.iter().map(|t| format!("{}{:?}", t.dtype, t.shape)).collect();
            let got: Vec<String> = outs.iter().map(|t| format!("{}{:?}", t.dtype, t.shape)).collect();
            return Err(format!("{} do not give {}", types.join(", "), got.join(", ")));
        }
        Ok(())
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        let Some((a, out)) = operands.first().zip(outs.first()) else { return 0 };
        let step = match self {
            // All rows are eliminated from the matrix and the right sides, one at a time, and each waits for its pivot.
            Linalg::Solve | Linalg::Determinant => {
                let elements = a.elements().saturating_add(out.elements());
                elements.saturating_mul(2 * ELIMINATION_COST) + 6 * PHASE_WORK
            }
            Linalg::TriangularSolve { .. } | Linalg::Cholesky | Linalg::Lu => {
                out.elements().saturating_mul(ELIMINATION_COST) + PHASE_WORK / 2
            }
        };
        step.saturating_mul(a.shape.last().copied().unwrap_or(1))
    }
}

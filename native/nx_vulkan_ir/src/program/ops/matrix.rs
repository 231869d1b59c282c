//! Factorizations and solvers of matrices, which are the last two axes of their operands.

use super::kind::{Check, Class, Facts, Names, OpKind, named};
use super::rules::{f32, flag_attr, require};
use crate::program::linalg::{Linalg, Transform};
use crate::program::wire::{Attr, Attrs};
use crate::program::workgroup::PHASE_WORK;
use crate::program::{Op, factorization};
use crate::{DType, Result, Type};

/// Instructions that one step of an elimination takes for each element, where one workgroup runs it as other ops.
const ELIMINATION_COST: u64 = 6;

pub(super) fn names() -> Names {
    let matrix = || f32(&[3, 3]);
    vec![
        named(
            "triangular_solve",
            |_, a| Ok(Op::Linalg(read_triangular_solve(a)?)),
            move || {
                let (lower, left_side, transform) = (true, false, Transform::Transpose);
                let op = Op::Linalg(Linalg::TriangularSolve { lower, left_side, transform });
                (op, [matrix(), f32(&[2, 3])], [f32(&[2, 3])])
            },
        ),
        named(
            "cholesky",
            |_, _| Ok(Op::Linalg(Linalg::Cholesky)),
            move || (Op::Linalg(Linalg::Cholesky), [matrix()], [matrix()]),
        ),
        named(
            "lu",
            |_, _| Ok(Op::Linalg(Linalg::Lu)),
            move || (Op::Linalg(Linalg::Lu), [matrix()], [matrix(), matrix(), matrix()]),
        ),
        named(
            "solve",
            |_, _| Ok(Op::Linalg(Linalg::Solve)),
            move || {
                let regular = Type::new(DType::U8, &[]);
                (Op::Linalg(Linalg::Solve), [matrix(), f32(&[3, 2])], [f32(&[3, 2]), regular])
            },
        ),
        named(
            "determinant",
            |_, _| Ok(Op::Linalg(Linalg::Determinant)),
            move || (Op::Linalg(Linalg::Determinant), [matrix()], [f32(&[])]),
        ),
        named(
            "qr",
            |_, a| Ok(Op::Qr { complete: a.flag("complete")? }),
            || (Op::Qr { complete: false }, [f32(&[3, 2])], [f32(&[3, 2]), f32(&[2, 2])]),
        ),
        named("eigh", |_, _| Ok(Op::Eigh), move || (Op::Eigh, [matrix()], [f32(&[3]), matrix()])),
        named(
            "svd",
            |_, a| Ok(Op::Svd { full: a.flag("full")? }),
            || (Op::Svd { full: false }, [f32(&[3, 2])], [f32(&[3, 2]), f32(&[2]), f32(&[2, 2])]),
        ),
    ]
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

impl Op {
    /// The types of the factors of matrices of type `a`, or `None` where the op is no factorization, or `a` no matrix
    /// that it takes.
    pub fn factors(&self, a: &Type) -> Option<Vec<Type>> {
        match self {
            Op::Qr { complete } => factorization::qr(a, *complete),
            Op::Eigh => factorization::eigh(a),
            Op::Svd { full } => factorization::svd(a, *full),
            _ => None,
        }
    }
}

/// Whether the results are those of a factorization of the first operand.
fn gives(expected: Option<Vec<Type>>, outs: &[Type]) -> Check {
    let expected = expected.ok_or_else(|| "needs a matrix that it can factorize".to_string())?;
    require(expected == outs, || format!("gives {expected:?}, not {outs:?}"))
}

pub(in crate::program) struct Qr {
    pub complete: bool,
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

pub(in crate::program) struct Eigh;

impl OpKind for Eigh {
    fn facts(&self) -> Facts {
        Facts::alone("eigh", Class::Matrix, 1)
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        gives(factorization::eigh(operands[0]), outs)
    }
}

pub(in crate::program) struct Svd {
    pub full: bool,
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

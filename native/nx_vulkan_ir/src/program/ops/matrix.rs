//! Factorizations and solvers of matrices, which are the last two axes of their operands.

use super::{Check, Class, Facts, Names, OpKind, flag_attr, require};
use crate::Type;
use crate::program::linalg::Linalg;
use crate::program::wire::Attr;
use crate::program::workgroup::PHASE_WORK;
use crate::program::{Op, factorization};

/// Instructions that one step of an elimination takes for each element, where one workgroup runs it as other ops.
const ELIMINATION_COST: u64 = 6;

pub(super) fn names() -> Names {
    let solvers = Linalg::NAMES.iter().map(|&name| (name, Linalg::read as super::Reader));
    let factorizations: [(&str, super::Reader); 3] = [
        ("qr", |_, a| Ok(Op::Qr { complete: a.flag("complete")? })),
        ("eigh", |_, _| Ok(Op::Eigh)),
        ("svd", |_, a| Ok(Op::Svd { full: a.flag("full")? })),
    ];
    solvers.chain(factorizations).collect()
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
        self.wire_attrs()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        self.check_types(operands, outs)
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

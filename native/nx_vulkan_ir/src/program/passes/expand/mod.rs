//! Writes what one workgroup has no code for as ops that it has: scans and sorts of some elements, factors and systems
//! of small matrices. The device's own kernels are better wherever a dispatch for each costs little.

mod linear;
mod order;

use super::rewrite::Rewriter;
use crate::program::linalg::{Linalg, Transform};
use crate::program::ops::matrix::Matrix;
use crate::program::{Builder, Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};
use linear::Triangle;

/// Rows and columns of the largest matrix.
const MAX_ORDER: u64 = 64;

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let types: Vec<Type> = instruction.operands.iter().map(|&o| new.ty(o).cloned()).collect::<Result<_>>()?;
        match expanded(&instruction, &types)? {
            Some(program) => {
                let outputs = new.append(&program, &instruction.operands);
                outputs.into_iter().for_each(|output| new.moved(output));
            }
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The program of an instruction whose operands have these types, where it is one of those.
fn expanded(instruction: &Instruction, types: &[Type]) -> Result<Option<Program>> {
    let (Some(a), Some(out)) = (types.first(), instruction.outs.first()) else { return Ok(None) };
    let b = Builder::new();
    let inputs: Vec<Operand> = types.iter().map(|ty| b.input(ty.dtype, &ty.shape)).collect();
    let is_small = a.shape.last().is_some_and(|&n| (1..=MAX_ORDER).contains(&n));
    let is_real = types.iter().chain([out]).all(|ty| matches!(ty.dtype, DType::F32 | DType::F64));
    let results = match (&instruction.op, &inputs[..]) {
        (Op::Order(op), &[a]) => match op.accept(order::Expansion { b: &b, a, out: out.dtype }) {
            Some(result) => vec![result],
            None => return Ok(None),
        },
        (&Op::Matrix(Matrix::Linalg(op)), _) if is_small && is_real => {
            let same = |&a: &Operand| if b.ty(a).dtype == out.dtype { a } else { b.as_type(a, out.dtype) };
            match (op, &inputs.iter().map(same).collect::<Vec<_>>()[..]) {
                (Linalg::Cholesky, &[a]) => vec![linear::cholesky(&b, a)],
                (Linalg::TriangularSolve { lower, left_side, transform }, &[a, right]) => {
                    let form = Triangle { lower, left_side, transposed: transform == Transform::Transpose };
                    vec![linear::triangular(&b, a, right, form)]
                }
                (Linalg::Solve, &[a, right]) => linear::solve(&b, a, right).to_vec(),
                (Linalg::Determinant, &[a]) => vec![linear::determinant(&b, a)],
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    b.finish(&results).map(Some)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::program::ops::order::{Argsort, Cumulative, Scan, Sort};
    use crate::reference::{self, Array};
    use crate::value::Value;

    /// The greatest difference between the elements of what the op gives and of what its other words do; NaN and
    /// infinities must be in the same places.
    fn apart(op: &Op, inputs: &[Array], out: &Type) -> f64 {
        let b = Builder::new();
        let operands: Vec<Operand> = inputs.iter().map(|a| b.input(a.ty.dtype, &a.ty.shape)).collect();
        let result = b.push(op.clone(), &operands, out);
        let program = b.finish(&[result]).unwrap();
        let other = run(&program).unwrap();
        assert!(other.instructions.iter().all(|i| i.op != *op), "{op:?} stays");
        crate::program::verify::program(&other).unwrap();
        let [want, got] = [&program, &other].map(|program| reference::run(program, inputs).unwrap().remove(0));
        assert_eq!(want.ty, got.ty);
        let differences = want.values.iter().zip(&got.values).map(|(want, got)| {
            let (want, got) = (want.real(), got.real());
            if want.is_finite() && got.is_finite() {
                return (want - got).abs() / want.abs().max(1.0);
            }
            assert!(want == got || want.is_nan() && got.is_nan(), "{op:?}: {got} instead of {want}");
            0.0
        });
        differences.fold(0.0, f64::max)
    }

    fn number(i: usize) -> f64 {
        (i as f64 * 0.618_033_988_75).fract() - 0.4
    }

    fn numbers(ty: &Type) -> Array {
        Array::new(ty, (0..ty.elements() as usize).map(|i| Value::Float(number(i))))
    }

    #[test]
    fn scans_of_all_kinds_lengths_and_axes() {
        let shapes: [(&[u64], usize); 9] = [
            (&[1], 0),
            (&[7], 0),
            (&[16], 0),
            (&[17], 0),
            (&[50], 0),
            (&[257], 0),
            (&[3, 50], 1),
            (&[19, 2, 3], 0),
            (&[2, 33, 3], 1),
        ];
        for (scan, reverse) in Cumulative::ALL.iter().flat_map(|&kind| [(kind, false), (kind, true)]) {
            for (shape, axis) in shapes {
                let ty = Type::new(DType::F64, shape);
                let op = Op::from(Scan { scan, axis, reverse });
                assert!(apart(&op, &[numbers(&ty)], &ty) < 1e-13, "{op:?} of {shape:?}");
            }
            let ty = Type::new(DType::S32, &[40]);
            let integers = Array::new(&ty, (0..40).map(|i| Value::Int((i * 7 % 5) - 2)));
            assert_eq!(apart(&Scan { scan, axis: 0, reverse }.into(), &[integers], &ty), 0.0);
            for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let ty = Type::new(DType::F64, &[41]);
                let mut a = numbers(&ty);
                a.values[20] = Value::Float(special);
                assert!(apart(&Scan { scan, axis: 0, reverse }.into(), &[a], &ty) < 1e-13);
            }
        }
    }

    /// Matrices that are positive definite, with numbers where nobody looks.
    fn definite(batch: &[u64], n: u64) -> Array {
        let ty = Type::new(DType::F64, &[batch, &[n, n]].concat());
        let value = |i: usize| {
            let (row, column) = (i as u64 / n % n, i as u64 % n);
            if row == column { 2.0 + 0.1 * number(i) } else { number(i) / n as f64 }
        };
        Array::new(&ty, (0..ty.elements() as usize).map(|i| Value::Float(value(i))))
    }

    #[test]
    fn factors_of_matrices() {
        for (batch, n) in [(&[][..], 1), (&[], 2), (&[], 7), (&[2, 3], 5), (&[], 31)] {
            let a = definite(batch, n);
            let op = Op::from(Linalg::Cholesky);
            assert!(apart(&op, std::slice::from_ref(&a), &a.ty.clone()) < 1e-13, "{batch:?} of {n}");
            let mut indefinite = a.clone();
            let last = indefinite.values.len() - 1;
            indefinite.values[last] = Value::Float(-1.0);
            indefinite.values[0] = Value::Float(1e-22);
            assert!(apart(&op, &[indefinite], &a.ty) < 1e-13);
        }
    }

    #[test]
    fn triangular_systems_of_all_forms() {
        let transforms = [Transform::None, Transform::Transpose, Transform::Conjugate];
        for (batch, n, columns) in [(&[][..], 1, 1), (&[], 7, 4), (&[2, 3], 5, 6), (&[], 20, 20)] {
            for k in 0..12 {
                let (lower, left_side, transform) = (k % 2 == 0, k / 2 % 2 == 0, transforms[k / 4]);
                let op = Op::from(Linalg::TriangularSolve { lower, left_side, transform });
                let sizes = if left_side { [n, columns] } else { [columns, n] };
                for right in [[batch, &sizes].concat(), [batch, &[n]].concat()] {
                    let right = Type::new(DType::F64, &right);
                    let (mut a, right_values) = (definite(batch, n), numbers(&right));
                    if n > 1 {
                        a.values[if lower { 1 } else { n as usize }] = Value::Float(f64::NAN);
                    }
                    assert!(apart(&op, &[a, right_values], &right) < 1e-13, "{op:?} of {n}, {right:?}");
                }
            }
        }
    }

    #[test]
    fn sorts_of_all_axes_with_equal_elements_and_nan() {
        for (shape, axis) in [(&[1][..], 0), (&[37], 0), (&[3, 11], 1), (&[9, 2, 3], 0)] {
            let ty = Type::new(DType::F64, shape);
            let mut a = numbers(&ty);
            for (i, value) in a.values.iter_mut().enumerate() {
                match i % 7 {
                    2 => *value = Value::Float(f64::NAN),
                    3 => *value = Value::Float(f64::INFINITY),
                    4 => *value = Value::Float(-0.25),
                    5 => *value = Value::Float(if i % 2 == 0 { 0.0 } else { -0.0 }),
                    _ => {}
                }
            }
            let integers = Type::new(DType::S32, shape);
            let whole = Array::new(&integers, (0..integers.elements()).map(|i| Value::Int((i * 7 % 5).into())));
            for descending in [false, true] {
                assert_eq!(apart(&Sort { axis, descending }.into(), std::slice::from_ref(&a), &ty), 0.0);
                assert_eq!(apart(&Argsort { axis, descending }.into(), std::slice::from_ref(&a), &integers), 0.0);
                assert_eq!(apart(&Sort { axis, descending }.into(), std::slice::from_ref(&whole), &integers), 0.0);
            }
        }
    }

    #[test]
    fn systems_and_determinants() {
        for (batch, n) in [(&[][..], 1), (&[], 2), (&[], 3), (&[], 9), (&[2, 3], 5), (&[], 31)] {
            let ty = Type::new(DType::F64, &[batch, &[n, n]].concat());
            // Pivots are not on the diagonal.
            let mut a = numbers(&ty);
            for (i, value) in a.values.iter_mut().enumerate() {
                let (row, column) = (i as u64 / n % n, i as u64 % n);
                *value = Value::Float(number(i) + if (row + 1) % n == column { 2.0 } else { 0.0 });
            }
            let determinant = Op::from(Linalg::Determinant);
            assert!(apart(&determinant, std::slice::from_ref(&a), &Type::new(DType::F64, batch)) < 1e-12);
            let mut singular = a.clone();
            (0..n as usize).for_each(|i| singular.values[i] = Value::Float(0.0));
            assert!(apart(&determinant, &[singular], &Type::new(DType::F64, batch)) < 1e-12);
            for right in [[batch, &[n, 3]].concat(), [batch, &[n]].concat()] {
                let right = Type::new(DType::F64, &right);
                let outs = [right.clone(), Type::new(DType::U8, &[])];
                let b = Builder::new();
                let operands = [b.input(DType::F64, &ty.shape), b.input(DType::F64, &right.shape)];
                let results = b.push_all(Op::from(Linalg::Solve), &operands, &outs);
                let program = b.finish(&results).unwrap();
                let other = run(&program).unwrap();
                let inputs = [a.clone(), numbers(&right)];
                let [want, got] = [&program, &other].map(|program| reference::run(program, &inputs).unwrap());
                assert_eq!(want[1], got[1]);
                for (want, got) in want[0].values.iter().zip(&got[0].values) {
                    let (want, got) = (want.real(), got.real());
                    assert!((want - got).abs() <= 1e-9 * want.abs().max(1.0), "{got} instead of {want} of {n}");
                }
            }
        }
    }
}

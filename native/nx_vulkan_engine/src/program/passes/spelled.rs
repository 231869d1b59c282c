//! Writes what one workgroup has no code for as ops that it has: scans of a few thousand elements, and factors and triangular systems of small matrices.
//! The device's own kernels are better wherever a dispatch for each costs little.

use smallvec::{SmallVec, smallvec};

use super::rewrite::Rewriter;
use crate::program::linalg::{EPSILON, Linalg, Transform};
use crate::program::op::Scalar;
use crate::program::{Binary, Builder, Cumulative, Instruction, Op, Operand, Program, Reduction};
use crate::{DType, Result, Type};

/// Rows and columns of the largest matrix.
pub const MAX_ORDER: u64 = 64;

/// Elements that each element of a scan is combined of in one reduction, which one invocation does where it is read.
const BLOCK: u64 = 16;

/// Elements of the longest scan: three levels of blocks.
const MAX_SCAN: u64 = BLOCK * BLOCK * BLOCK;

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let types: Vec<Type> = instruction.operands.iter().map(|&o| new.ty(o).cloned()).collect::<Result<_>>()?;
        match spelled(&instruction, &types)? {
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
fn spelled(instruction: &Instruction, types: &[Type]) -> Result<Option<Program>> {
    let (Some(a), Some(out)) = (types.first(), instruction.outs.first()) else { return Ok(None) };
    let b = Builder::new();
    let inputs: Vec<Operand> = types.iter().map(|ty| b.input(ty.dtype, &ty.shape)).collect();
    let is_small = a.shape.last().is_some_and(|&n| (1..=MAX_ORDER).contains(&n));
    let is_real = types.iter().all(|ty| ty.dtype == out.dtype) && matches!(out.dtype, DType::F32 | DType::F64);
    let result = match (&instruction.op, &inputs[..]) {
        (&Op::Scan { scan, axis, reverse }, &[a]) if has_scan(&types[0], axis) => {
            cumulative(&b, a, scan, axis, reverse)
        }
        (Op::Linalg(Linalg::Cholesky), &[a]) if is_small && is_real => cholesky(&b, a),
        (&Op::Linalg(Linalg::TriangularSolve { lower, left_side, transform }), &[a, right]) if is_small && is_real => {
            let form = Triangle { lower, left_side, transposed: transform == Transform::Transpose };
            triangular(&b, a, right, form)
        }
        _ => return Ok(None),
    };
    b.finish(&[result]).map(Some)
}

fn has_scan(ty: &Type, axis: usize) -> bool {
    // Sums of u64 are s64.
    let dtype = ty.dtype.is_canonical() && ty.dtype != DType::U64;
    dtype && ty.shape.get(axis).is_some_and(|n| (1..=MAX_SCAN).contains(n))
}

/// Elements before and after an axis, for each place along it.
fn around(shape: &[u64], axis: usize) -> [u64; 2] {
    [shape[..axis].iter().product(), shape[axis + 1..].iter().product()]
}

fn cumulative(b: &Builder, a: Operand, scan: Cumulative, axis: usize, reverse: bool) -> Operand {
    let ty = b.ty(a);
    let turned = |a: Operand| match reverse {
        true => b.push(Op::Reverse { axes: smallvec![axis] }, &[a], &ty),
        false => a,
    };
    let [outer, inner] = around(&ty.shape, axis);
    let lines = b.reshape(turned(a), &[outer, ty.shape[axis], inner]);
    turned(b.reshape(along_lines(b, lines, scan), &ty.shape))
}

/// The number that changes nothing.
fn identity(scan: Cumulative, dtype: DType) -> Scalar {
    let lowest = |dtype: DType| match dtype {
        DType::U32 => 0,
        DType::S32 => i128::from(i32::MIN),
        _ => i128::from(i64::MIN),
    };
    match (scan, dtype.is_integer()) {
        (Cumulative::Sum, true) => Scalar::Int(0),
        (Cumulative::Product, true) => Scalar::Int(1),
        (Cumulative::Max, true) => Scalar::Int(lowest(dtype)),
        // As many bits of one.
        (Cumulative::Min, true) => Scalar::Int(if dtype == DType::U32 { u32::MAX.into() } else { -1 - lowest(dtype) }),
        (Cumulative::Sum, false) => Scalar::Float(0.0),
        (Cumulative::Product, false) => Scalar::Float(1.0),
        (Cumulative::Max, false) => Scalar::Float(f64::NEG_INFINITY),
        (Cumulative::Min, false) => Scalar::Float(f64::INFINITY),
    }
}

/// The scan along the middle one of three axes: in blocks, each of whose elements is a reduction of those up to it, and of the blocks.
fn along_lines(b: &Builder, a: Operand, scan: Cumulative) -> Operand {
    let ty = b.ty(a);
    let &[outer, n, inner] = &ty.shape[..] else { return a };
    let nothing = b.constant(ty.dtype, identity(scan, ty.dtype));
    let (reduction, combine) = match scan {
        Cumulative::Sum => (Reduction::Sum, Binary::Add),
        Cumulative::Product => (Reduction::Product, Binary::Multiply),
        Cumulative::Max => (Reduction::Max, Binary::Max),
        Cumulative::Min => (Reduction::Min, Binary::Min),
    };
    if n <= BLOCK {
        let place = |axis| b.iota(DType::U32, &[n, n, 1], Some(axis));
        let all = b.push(Op::Broadcast { axes: smallvec![0, 2, 3] }, &[a], &Type::new(ty.dtype, &[outer, n, n, inner]));
        // What comes later is left out, not multiplied by zero: so NaN and infinities stay where they are.
        let up_to = b.select(b.less_equal(place(1), place(0)), all, nothing);
        return b.reduce(reduction, up_to, &[2], false);
    }
    let size = (1..BLOCK).find(|size| size * size >= n).unwrap_or(BLOCK);
    let blocks = n.div_ceil(size);
    let padded = |a: Operand, low: i64, high: i64, length: u64| {
        let config = smallvec![(0, 0, 0), (low, high, 0), (0, 0, 0)];
        b.push(Op::Pad { config }, &[a, nothing], &Type::new(ty.dtype, &[outer, length, inner]))
    };
    let whole = padded(a, 0, (blocks * size - n) as i64, blocks * size);
    let within = along_lines(b, b.reshape(whole, &[outer * blocks, size, inner]), scan);
    let totals = b.slice(within, &[0, size - 1, 0], &[outer * blocks, 1, inner]);
    let ends = along_lines(b, b.reshape(totals, &[outer, blocks, inner]), scan);
    let before = b.reshape(padded(ends, 1, -1, blocks), &[outer * blocks, 1, inner]);
    let all = b.reshape(b.binary(combine, before, within), &[outer, blocks * size, inner]);
    b.slice(all, &[0, 0, 0], &[outer, n, inner])
}

/// Columns or rows that one iteration eliminates, so that fewer wait for each other.
const PANEL: u64 = 4;

/// What begins at these places, one element along their axes and all along others.
fn window(b: &Builder, a: Operand, places: [Option<Operand>; 3]) -> Operand {
    let ty = b.ty(a);
    let lengths = ty.shape.iter().zip(places).map(|(&n, place)| if place.is_some() { 1 } else { n });
    let lengths: SmallVec<[u64; 6]> = lengths.collect();
    let starts = places.iter().map(|place| if place.is_some() { None } else { Some(0) }).collect();
    let operands: Vec<Operand> = std::iter::once(a).chain(places.into_iter().flatten()).collect();
    let out = Type::new(ty.dtype, &lengths);
    b.push(Op::Slice { starts, strides: smallvec![1; 3], lengths }, &operands, &out)
}

/// Runs `step` on matrices for each panel: the places of its rows or columns.
fn for_panels(
    b: &Builder,
    (n, panel): (u64, u64),
    start: Operand,
    captured: &[Operand],
    step: impl FnOnce(&Builder, &[Operand], Operand, &[Operand]) -> Operand,
) -> Operand {
    let none = b.number(DType::U32, 0.0);
    let body = |b: &Builder, v: &[Operand]| {
        let places: Vec<Operand> = (0..panel).map(|k| if k == 0 { v[0] } else { b.add(v[0], k as f64) }).collect();
        vec![b.add(v[0], panel as f64), step(b, &places, v[1], &v[2..])]
    };
    let last = b.while_loop(&[none, start], captured, |b, v| b.less(v[0], n as f64), body);
    last.get(1).copied().unwrap_or(start)
}

/// Matrices one after the other, with rows and columns of the identity so that panels fit.
fn matrices(b: &Builder, a: Operand, size: u64) -> Operand {
    let ty = b.ty(a);
    let [batch @ .., n, _] = &ty.shape[..] else { return a };
    let (batch, n) = (batch.iter().product(), *n);
    let all = b.reshape(a, &[batch, n, n]);
    if size == n {
        return all;
    }
    let more = (0, (size - n) as i64, 0);
    let config = smallvec![(0, 0, 0), more, more];
    let zero = b.number(ty.dtype, 0.0);
    let padded = b.push(Op::Pad { config }, &[all, zero], &Type::new(ty.dtype, &[batch, size, size]));
    let [row, column] = [0, 1].map(|axis| b.iota(DType::U32, &[size, size], Some(axis)));
    let is_added = b.logical_and(b.equal(row, column), b.greater_equal(row, n as f64));
    b.select(is_added, 1.0, padded)
}

/// `a` less a product.
fn less(b: &Builder, a: Operand, x: Operand, y: Operand) -> Operand {
    b.subtract(a, b.multiply(x, y))
}

/// Columns are divided by the roots of their pivots, and their products with each other are taken from what is right of them.
fn cholesky(b: &Builder, a: Operand) -> Operand {
    let ty = b.ty(a);
    let n = ty.shape.last().copied().unwrap_or(1);
    let panel = n.min(PANEL);
    let size = n.next_multiple_of(panel);
    let place = |b: &Builder, axis| b.iota(DType::U32, &[size, size], Some(axis));
    let last = for_panels(b, (size, panel), matrices(b, a, size), &[], |b, places, work, _| {
        let batch = b.ty(work).shape[0];
        let (row, column) = (place(b, 0), place(b, 1));
        let row_alone = b.iota(DType::U32, &[size, 1], Some(0));
        // Elements of the factor in the panel's own rows, and all of its columns.
        let mut own: Vec<Vec<Operand>> = places.iter().map(|_| vec![]).collect();
        let mut columns: Vec<Operand> = vec![];
        for (k, &at) in places.iter().enumerate() {
            let pivot =
                (0..k).fold(window(b, work, [None, Some(at), Some(at)]), |a, t| less(b, a, own[k][t], own[k][t]));
            let root = b.sqrt(pivot);
            let divisor = b.select(b.equal(root, 0.0), EPSILON, root);
            for i in k + 1..places.len() {
                let element = window(b, work, [None, Some(places[i]), Some(at)]);
                let rest = (0..k).fold(element, |a, t| less(b, a, own[i][t], own[k][t]));
                own[i].push(b.divide(rest, divisor));
            }
            let column = window(b, work, [None, None, Some(at)]);
            let rest = (0..k).fold(column, |a, t| less(b, a, columns[t], own[k][t]));
            columns.push(b.select(b.equal(row_alone, at), root, b.divide(rest, divisor)));
        }
        let rest = columns.iter().fold(work, |a, &x| less(b, a, x, b.reshape(x, &[batch, 1, size])));
        let last = places.last().copied().unwrap_or(row);
        let others = b.select(b.greater(column, last), rest, work);
        let found = places.iter().zip(columns).fold(others, |a, (&at, x)| b.select(b.equal(column, at), x, a));
        b.select(b.greater_equal(row, column), found, work)
    });
    // NaN is not small.
    let cleaned = b.select(b.less_equal(b.abs(last), EPSILON), 0.0, last);
    let factor = b.select(b.greater_equal(place(b, 0), place(b, 1)), cleaned, 0.0);
    let batch = b.ty(factor).shape[0];
    b.reshape(b.slice(factor, &[0, 0, 0], &[batch, n, n]), &ty.shape)
}

#[derive(Debug, Clone, Copy)]
struct Triangle {
    lower: bool,
    left_side: bool,
    transposed: bool,
}

/// Rows are divided by their pivots, and their multiples are taken from those that follow.
fn triangular(b: &Builder, a: Operand, right: Operand, form: Triangle) -> Operand {
    let (matrix, out) = (b.ty(a), b.ty(right));
    let n = matrix.shape.last().copied().unwrap_or(1);
    let panel = n.min(PANEL);
    let size = n.next_multiple_of(panel);
    let is_vector = out.shape.len() < matrix.shape.len();
    // X A = B is A' X' = B'.
    let is_transposed = form.left_side == form.transposed;
    let is_backward = form.lower == is_transposed;
    let is_turned = !form.left_side && !is_vector;
    let transpose = |a: Operand, turned: bool| if turned { b.transpose(a, &[0, 2, 1]) } else { a };
    let reversed = |a: Operand, axes: &[usize]| match is_backward {
        true => b.push(Op::Reverse { axes: axes.into() }, &[a], &b.ty(a)),
        false => a,
    };
    let batch = matrix.elements() / (n * n);
    let columns = out.elements() / (batch * n);
    let right = b.reshape(right, &if is_turned { [batch, columns, n] } else { [batch, n, columns] });
    let right = reversed(transpose(right, is_turned), &[1]);
    let config = smallvec![(0, 0, 0), (0, (size - n) as i64, 0), (0, 0, 0)];
    let zero = b.number(out.dtype, 0.0);
    let start = b.push(Op::Pad { config }, &[right, zero], &Type::new(out.dtype, &[batch, size, columns]));
    let a = b.reshape(a, &[batch, n, n]);
    let a = matrices(b, reversed(transpose(a, is_transposed), &[1, 2]), size);
    let last = for_panels(b, (size, panel), start, &[a], |b, places, work, captured| {
        let Some(&a) = captured.first() else { return work };
        let row = b.iota(DType::U32, &[size, 1], Some(0));
        let mut solved: Vec<Operand> = vec![];
        for (k, &at) in places.iter().enumerate() {
            let element = |t: usize| window(b, a, [None, Some(at), Some(places[t])]);
            let rest = window(b, work, [None, Some(at), None]);
            let rest = (0..k).fold(rest, |rest, t| less(b, rest, element(t), solved[t]));
            solved.push(b.divide(rest, element(k)));
        }
        let each = || places.iter().zip(&solved);
        let rest = each().fold(work, |rest, (&at, &x)| less(b, rest, window(b, a, [None, None, Some(at)]), x));
        let last = places.last().copied().unwrap_or(row);
        let others = b.select(b.greater(row, last), rest, work);
        each().fold(others, |others, (&at, &x)| b.select(b.equal(row, at), x, others))
    });
    let all = reversed(b.slice(last, &[0, 0, 0], &[batch, n, columns]), &[1]);
    b.reshape(transpose(all, is_turned), &out.shape)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::reference::{self, Array};
    use crate::value::Value;

    /// The greatest difference between the elements of what the op gives and of what its other words do; NaN and infinities must be in the same places.
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
        let kinds = [Cumulative::Sum, Cumulative::Product, Cumulative::Max, Cumulative::Min];
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
        for (scan, reverse) in kinds.iter().flat_map(|&kind| [(kind, false), (kind, true)]) {
            for (shape, axis) in shapes {
                let ty = Type::new(DType::F64, shape);
                let op = Op::Scan { scan, axis, reverse };
                assert!(apart(&op, &[numbers(&ty)], &ty) < 1e-13, "{op:?} of {shape:?}");
            }
            let ty = Type::new(DType::S32, &[40]);
            let integers = Array::new(&ty, (0..40).map(|i| Value::Int((i * 7 % 5) - 2)));
            assert_eq!(apart(&Op::Scan { scan, axis: 0, reverse }, &[integers], &ty), 0.0);
            for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let ty = Type::new(DType::F64, &[41]);
                let mut a = numbers(&ty);
                a.values[20] = Value::Float(special);
                assert!(apart(&Op::Scan { scan, axis: 0, reverse }, &[a], &ty) < 1e-13);
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
            let op = Op::Linalg(Linalg::Cholesky);
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
                let op = Op::Linalg(Linalg::TriangularSolve { lower, left_side, transform });
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
}

//! Makes a comparison of updates that put at most one element into each line of a tensor of equal elements, as one-hot
//! rows and the gradient of a loss of labels do, or of one that is computed for each element, as a matrix with another
//! diagonal is: elementwise, it becomes part of the kernels beside it.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::index::{IndexedAdd, IndexedPut, Indexing};
use crate::program::{Binary, Instruction, Op, Operand, Program};
use crate::shape::Dims;
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let chosen = match &instruction.op {
            Op::Indexing(Indexing::IndexedAdd(IndexedAdd { axes })) => chosen(&mut new, &instruction, axes, true)?,
            Op::Indexing(Indexing::IndexedPut(IndexedPut { axes })) => chosen(&mut new, &instruction, axes, false)?,
            _ => None,
        };
        match chosen {
            Some(result) => new.moved(result),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The same result by comparing places along the one axis whose index is not counted.
fn chosen(new: &mut Rewriter, instruction: &Instruction, axes: &Axes, adds: bool) -> Result<Option<Operand>> {
    let (&[target, indices, updates], [out]) = (&instruction.operands[..], instruction.outs.as_slice()) else {
        return Ok(None);
    };
    let rank = out.shape.len();
    let before = new.constant(target);
    let is_computed = !adds && new.maker(target).is_some_and(|maker| maker.op.elementwise().is_some());
    if before.is_none() && !is_computed {
        return Ok(None);
    }
    // Sums of updates begin with 0.0, which makes it of -0.0, and of what is rounded to that.
    let changes_sign = adds && matches!(before, Some(Scalar::Float(x)) if x.abs() < 1e-30 && x.is_sign_negative());
    // Kernels write one NaN in narrow floats, and what is put as it is may be another.
    let dtype = new.ty(updates)?.dtype;
    let is_moved = !adds && dtype == out.dtype && !dtype.is_integer() && !dtype.is_canonical();
    let is_complex = matches!(before, Some(Scalar::Complex(..))) || before.is_none() && out.dtype.is_complex();
    if changes_sign || is_moved || is_complex || !axes.iter().copied().eq(0..rank) {
        return Ok(None);
    }
    let Some(columns) = columns(new, indices, rank)? else { return Ok(None) };
    let count = new.ty(updates)?.elements();
    let mut found = None;
    for axis in 0..rank {
        let mut lines: Dims = out.shape.clone();
        lines[axis] = 1;
        let counts = |(other, &column): (usize, &Operand)| other == axis || is_counted(new, column, &lines, other);
        if lines.iter().product::<u64>() == count && columns.iter().enumerate().all(counts) {
            found = Some((axis, lines));
            break;
        }
    }
    let Some((axis, lines)) = found else { return Ok(None) };
    if out.shape[axis] > i32::MAX as u64 {
        return Ok(None);
    }
    let mut of_lines = |operand: Operand| {
        let ty = Type { dtype: new.ty(operand)?.dtype, shape: lines.clone() };
        Ok(new.push_one(Op::Reshape, &[operand], &ty))
    };
    let (place, update) = (of_lines(columns[axis])?, of_lines(updates)?);
    let mut along = Dims::from_elem(1, rank);
    along[axis] = out.shape[axis];
    let along = Type { dtype: DType::S32, shape: along };
    let along = new.push_one(Op::Iota { axis: Some(axis) }, &[], &along);
    let is_there = Type { dtype: DType::U8, shape: out.shape.clone() };
    let is_there = new.push_one(Op::Binary(Binary::Equal), &[along, place], &is_there);
    let (stored, update) = (new.ty(target)?.dtype, cast(new, update, out.dtype)?);
    let target = cast(new, target, out.dtype)?;
    let update = if let (true, Some(before)) = (adds, before) {
        let before = new.push_one(Op::Constant(before), &[], &Type { dtype: stored, shape: lines.clone() });
        let before = cast(new, before, out.dtype)?;
        new.push_one(Op::Binary(Binary::Add), &[before, update], &Type { dtype: out.dtype, shape: lines })
    } else {
        update
    };
    Ok(Some(new.push_one(Op::Select, &[is_there, update, target], out)))
}

fn cast(new: &mut Rewriter, operand: Operand, dtype: DType) -> Result<Operand> {
    let ty = Type { dtype, ..new.ty(operand)?.clone() };
    Ok(if *new.ty(operand)? == ty { operand } else { new.push_one(Op::AsType, &[operand], &ty) })
}

/// What indices are made of, an operand for each axis of the target.
fn columns(new: &Rewriter, indices: Operand, rank: usize) -> Result<Option<SmallVec<[Operand; 4]>>> {
    let whole = unwrapped(new, indices);
    if rank == 1 {
        return Ok(Some(SmallVec::from_elem(whole, 1)));
    }
    let Some(Instruction { op: Op::Concatenate { axis }, operands, .. }) = new.maker(whole) else { return Ok(None) };
    let is_column = |&operand: &Operand| Ok(new.ty(operand)?.shape.get(*axis) == Some(&1));
    let is_last = axis + 1 == new.ty(whole)?.shape.len();
    let are_columns = operands.iter().map(is_column).collect::<Result<SmallVec<[bool; 4]>>>()?;
    let fits = is_last && operands.len() == rank && are_columns.iter().all(|&is| is);
    Ok(fits.then(|| operands.iter().map(|&operand| unwrapped(new, operand)).collect()))
}

/// What an operand is without changes of shape and, of integers, to a type that holds all of them.
fn unwrapped(new: &Rewriter, mut operand: Operand) -> Operand {
    while let Some(Instruction { op, operands, outs }) = new.maker(operand) {
        let Some(&inner) = operands.first() else { break };
        let holds = |inner: &Type, out: &Type| {
            let (from, to) = (inner.dtype, out.dtype);
            let is_wider = to.bits() > from.bits() && (to.is_signed() || from.is_unsigned());
            from.is_integer() && to.is_integer() && is_wider
        };
        let is_same = match op {
            Op::Reshape | Op::Squeeze => true,
            Op::AsType => new.ty(inner).is_ok_and(|from| outs.first().is_some_and(|out| holds(from, out))),
            _ => false,
        };
        if !is_same {
            break;
        }
        operand = inner;
    }
    operand
}

/// Whether an operand counts along an axis of a tensor of this shape, element by element.
fn is_counted(new: &Rewriter, operand: Operand, shape: &[u64], axis: usize) -> bool {
    if shape[axis] == 1 && matches!(new.constant(operand), Some(Scalar::Int(0))) {
        return true;
    }
    let Some(Instruction { op: Op::Iota { axis: along }, outs, .. }) = new.maker(operand) else { return false };
    let Some(counted) = outs.first().map(|ty| &ty.shape) else { return false };
    let inner = |shape: &[u64], axis: usize| shape[axis + 1..].iter().product::<u64>();
    let (size, steps) = match *along {
        Some(along) => (counted[along], inner(counted, along)),
        None => (counted.iter().product(), 1),
    };
    // Narrow integers begin anew.
    let dtype = outs[0].dtype;
    let most = 1u64.checked_shl(dtype.bits() - u32::from(dtype.is_signed())).unwrap_or(u64::MAX);
    let has_all = counted.iter().product::<u64>() == shape.iter().product::<u64>();
    size == shape[axis] && size <= most && (size == 1 || steps == inner(shape, axis)) && has_all
}

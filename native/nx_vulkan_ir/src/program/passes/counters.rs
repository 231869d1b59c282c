//! Indices that count, and tensors that do. What is taken from numbers that count are the indices: a first round of a
//! shuffle, which takes by sorted random ones, is the order of those. What is taken by numbers that count is a slice,
//! as embeddings of positions are, and its gradient is put among zeros with no sort of the indices.

use smallvec::smallvec;

use super::fold_constants::put;
use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::ops::index::{IndexedAdd, Indexing, Take, TakeAlongAxis};
use crate::program::ops::moved::Pad;
use crate::program::{Binary, Instruction, Op, Operand};
use crate::{Result, Type, value};

/// What takes the place of an instruction that takes from or by numbers that count, or adds by such.
pub fn replaced(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let Op::Indexing(op) = &instruction.op else { return Ok(None) };
    match (op, &instruction.operands[..]) {
        (&Indexing::Take(Take { axis }), &[a, indices]) => match sliced(new, [a, indices], axis, &instruction.outs[0])?
        {
            Some(slice) => Ok(Some(slice)),
            None => taken(new, [a, indices], (axis, false), &instruction.outs[0]),
        },
        (&Indexing::TakeAlongAxis(TakeAlongAxis { axis }), &[a, indices]) => {
            taken(new, [a, indices], (axis, true), &instruction.outs[0])
        }
        (Indexing::IndexedAdd(IndexedAdd { axes }), &[a, indices, updates]) if axes[..] == [0] => {
            padded(new, [a, indices, updates], &instruction.outs[0])
        }
        _ => Ok(None),
    }
}

/// What is taken from numbers that count along the axis: the indices, those out of bounds as the first or the last one.
fn taken(
    new: &mut Rewriter,
    [a, indices]: [Operand; 2],
    (axis, along): (usize, bool),
    out: &Type,
) -> Result<Option<Operand>> {
    let from = new.ty(a)?.clone();
    let Some(&Op::Iota { axis: counted }) = new.maker(a).map(|maker| &maker.op) else { return Ok(None) };
    let counts = from.shape.len() == 1 || along && counted == Some(axis);
    if !counts || !from.dtype.is_integer() || out.elements() == 0 {
        return Ok(None);
    }
    let ty = Type::new(new.ty(indices)?.dtype, &out.shape);
    let last = i128::from(from.shape[axis] - 1).min(value::range(ty.dtype).1);
    let mut index = indices;
    for (op, bound) in [(Binary::Max, 0), (Binary::Min, last)] {
        let bound = new.push_one(Op::Constant(Scalar::Int(bound)), &[], &ty);
        index = put(new, Op::Binary(op), &[index, bound], &ty)?;
    }
    put(new, Op::AsType, &[index], out).map(Some)
}

/// What is taken by numbers that count, if all of them are in bounds.
fn sliced(new: &mut Rewriter, [a, indices]: [Operand; 2], axis: usize, out: &Type) -> Result<Option<Operand>> {
    let from = new.ty(a)?.clone();
    let count = new.ty(indices)?.elements();
    let Some(start) = first_of(new, indices)?.filter(|start| start + count <= from.shape[axis]) else {
        return Ok(None);
    };
    let mut part = from.clone();
    part.shape[axis] = count;
    let starts = (0..from.shape.len()).map(|of| Some(if of == axis { start as i64 } else { 0 })).collect();
    let strides = from.shape.iter().map(|_| 1).collect();
    let slice = Op::Slice { starts, strides, lengths: part.shape.iter().copied().collect() };
    let slice = put(new, slice, &[a], &part)?;
    put(new, Op::Reshape, &[slice], out).map(Some)
}

/// Updates that are added to equal numbers, to lines that count, if all of these are in bounds.
fn padded(new: &mut Rewriter, [a, indices, updates]: [Operand; 3], out: &Type) -> Result<Option<Operand>> {
    let count = new.ty(indices)?.elements();
    let (Some(before), Some(start)) = (new.constant(a), first_of(new, indices)?) else { return Ok(None) };
    let Some(behind) = out.shape[0].checked_sub(start + count) else { return Ok(None) };
    // Sums of updates begin with 0.0, which makes it of -0.0, and of what is rounded to that.
    let changes_sign = matches!(before, Scalar::Float(x) if x.abs() < 1e-30 && x.is_sign_negative());
    if changes_sign || matches!(before, Scalar::Complex(..)) {
        return Ok(None);
    }
    let mut lines = out.clone();
    lines.shape[0] = count;
    let number = |new: &mut Rewriter, ty: &Type| {
        let number = new.push_one(Op::Constant(before), &[], &Type::new(new.ty(a)?.dtype, &ty.shape));
        put(new, Op::AsType, &[number], ty)
    };
    let updates = put(new, Op::Reshape, &[updates], &Type::new(new.ty(updates)?.dtype, &lines.shape))?;
    let updates = put(new, Op::AsType, &[updates], &lines)?;
    let zeros = number(new, &lines)?;
    let sums = put(new, Op::Binary(Binary::Add), &[zeros, updates], &lines)?;
    let around = number(new, &Type::new(out.dtype, &[]))?;
    let mut config = smallvec![(start as i64, behind as i64, 0)];
    config.extend(out.shape[1..].iter().map(|_| (0, 0, 0)));
    put(new, Op::from(Pad { config }), &[sums, around], out).map(Some)
}

/// The number from which an operand counts by ones through all of its elements, if it does.
fn first_of(new: &Rewriter, mut operand: Operand) -> Result<Option<u64>> {
    let mut start = 0;
    // What counts within the bounds of a type is not wrapped by it.
    let holds = |ty: &Type, start: i128| {
        ty.dtype.is_integer() && start + i128::from(ty.elements()) - 1 <= value::range(ty.dtype).1
    };
    let mut types = vec![];
    while let Some(Instruction { op, operands, outs }) = new.maker(operand) {
        types.push((&outs[0], start));
        match (op, &operands[..]) {
            (Op::Iota { axis }, _) => {
                let counts = axis.is_none_or(|axis| outs[0].shape[axis] == outs[0].elements());
                // What was added on the way is part of what the types before that hold.
                let all_hold = types.iter().all(|&(ty, behind)| holds(ty, start - behind));
                return Ok((counts && all_hold && outs[0].elements() > 0).then_some(start as u64));
            }
            (Op::Reshape | Op::Squeeze | Op::AsType, &[from]) => operand = from,
            (Op::Binary(Binary::Add), &[a, b]) => {
                let (from, number) = match (new.constant(a), new.constant(b)) {
                    (None, Some(number)) => (a, number),
                    (Some(number), None) => (b, number),
                    _ => return Ok(None),
                };
                let Scalar::Int(number @ 0..=0xffff_ffff) = number else { return Ok(None) };
                if new.ty(from)?.shape != outs[0].shape {
                    return Ok(None);
                }
                (operand, start) = (from, start + number);
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

//! Takes from a tensor that counts along the axis give the indices, within its bounds: a first round of a shuffle, which
//! takes from numbers that count by sorted random ones, is the order of those.

use super::fold_constants::put;
use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::ops::index::{Indexing, Take, TakeAlongAxis};
use crate::program::{Binary, Instruction, Op, Operand};
use crate::{Result, Type, value};

/// What an instruction takes, if it takes from such a tensor.
pub fn taken(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let (&Op::Indexing(Indexing::Take(Take { axis }) | Indexing::TakeAlongAxis(TakeAlongAxis { axis })), &[a, indices]) =
        (&instruction.op, &instruction.operands[..])
    else {
        return Ok(None);
    };
    let (from, out) = (new.ty(a)?.clone(), &instruction.outs[0]);
    let Some(&Op::Iota { axis: along }) = new.maker(a).map(|maker| &maker.op) else { return Ok(None) };
    let counts = from.shape.len() == 1
        || along == Some(axis) && matches!(instruction.op, Op::Indexing(Indexing::TakeAlongAxis(_)));
    if !counts || !from.dtype.is_integer() || out.elements() == 0 {
        return Ok(None);
    }
    // Indices out of bounds are those of the first and the last element.
    let ty = Type::new(new.ty(indices)?.dtype, &out.shape);
    let last = i128::from(from.shape[axis] - 1).min(value::range(ty.dtype).1);
    let mut index = indices;
    for (op, bound) in [(Binary::Max, 0), (Binary::Min, last)] {
        let bound = new.push_one(Op::Constant(Scalar::Int(bound)), &[], &ty);
        index = put(new, Op::Binary(op), &[index, bound], &ty)?;
    }
    put(new, Op::AsType, &[index], out).map(Some)
}

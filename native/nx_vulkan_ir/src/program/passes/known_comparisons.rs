//! Comparisons whose answer the range of their operands tells: a random number below 1 is less than 1, so that dropout
//! that drops nothing costs nothing. `Nx.Random` takes the larger of each number and the least one that there can be.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use crate::program::fused::is_view;
use crate::program::ops::order::{Argsort, Order};
use crate::program::ranges::{Range, below, is_known, range_of, range_of_step, range_of_type};
use crate::program::{Binary, Elementwise, Instruction, Op, Operand};
use crate::value::Value;
use crate::{DType, Result, Type};

/// How many ops are looked at for a range.
const MOST_OPS: usize = 32;

/// What a comparison gives for all elements, if that is known.
pub fn answer(new: &Rewriter, instruction: &Instruction) -> Result<Option<bool>> {
    let &[a, b] = instruction.operands.as_slice() else { return Ok(None) };
    // Which operand is less, or is not, where the comparison holds.
    let (lesser, other, holds) = match instruction.op {
        Op::Binary(Binary::Less) => (a, b, true),
        Op::Binary(Binary::Greater) => (b, a, true),
        Op::Binary(Binary::LessEqual) => (b, a, false),
        Op::Binary(Binary::GreaterEqual) => (a, b, false),
        // Of no other op is an answer known.
        _ => return Ok(None),
    };
    // What types have in common may round or wrap.
    if new.ty(a)?.dtype != new.ty(b)?.dtype {
        return Ok(None);
    }
    let (Some(lesser), Some(other)) = (range_from(new, lesser)?, range_from(new, other)?) else { return Ok(None) };
    Ok(match () {
        () if below(lesser.most, other.least) => Some(holds),
        () if !below(lesser.least, other.most) => Some(!holds),
        () => None,
    })
}

/// The operand that a maximum or minimum is for all elements, if that is known.
pub fn extreme(new: &Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let &[a, b] = instruction.operands.as_slice() else { return Ok(None) };
    let is_max = match instruction.op {
        Op::Binary(Binary::Max) => true,
        Op::Binary(Binary::Min) => false,
        // No other op gives one of its operands.
        _ => return Ok(None),
    };
    if new.ty(a)?.dtype != new.ty(b)?.dtype {
        return Ok(None);
    }
    let (Some(first), Some(second)) = (range_from(new, a)?, range_from(new, b)?) else { return Ok(None) };
    for (operand, range, other) in [(a, first, second), (b, second, first)] {
        let (larger, lesser) = if is_max { (range.least, other.most) } else { (other.least, range.most) };
        // Of zeros it is the first operand, whatever their signs.
        let are_zeros = [larger, lesser].iter().all(|end| end.real() == 0.0);
        let is_it = !below(larger, lesser) && (operand == a || !are_zeros);
        if is_it && new.ty(operand)? == &instruction.outs[0] {
            return Ok(Some(operand));
        }
    }
    Ok(None)
}

/// The range of an operand, which what made it tells.
fn range_from(new: &Rewriter, operand: Operand) -> Result<Option<Range>> {
    let mut left = MOST_OPS;
    range(new, operand, &mut left)
}

/// The range of an operand, of which so many ops may still tell.
fn range(new: &Rewriter, operand: Operand, left: &mut usize) -> Result<Option<Range>> {
    let dtype = new.ty(operand)?.dtype;
    let found = match (new.maker(operand), left.checked_sub(1)) {
        (Some(maker), Some(rest)) => {
            *left = rest;
            range_of_result(new, maker, left)?
        }
        _ => None,
    };
    Ok(found.or_else(|| range_of_type(dtype)))
}

fn range_of_result(new: &Rewriter, instruction: &Instruction, left: &mut usize) -> Result<Option<Range>> {
    let Instruction { op, operands, outs } = instruction;
    let Type { dtype, shape } = &outs[0];
    if let Op::Constant(number) = op {
        return Ok(range_of(&[Value::from(*number).cast(*dtype)], *dtype));
    }
    if let Op::Iota { axis } = op {
        let length = axis.map_or_else(|| outs[0].elements(), |axis| shape[axis]);
        // Counters of few bits wrap, and such have no ends.
        let end = |i: u64| if dtype.is_integer() { Value::Int(i.into()) } else { Value::Int(i.into()).cast(*dtype) };
        return Ok(range_of(&[0, length.saturating_sub(1)].map(end), *dtype));
    }
    if let (&Op::Order(Order::Argsort(Argsort { axis, .. })), true) = (op, dtype.is_integer()) {
        return Ok(range_of(&[0, shape[axis].saturating_sub(1)].map(|i| Value::Int(i.into())), *dtype));
    }
    if is_view(op) {
        return operands.first().map_or(Ok(None), |&from| range(new, from, left));
    }
    let op = if *op == Op::Bitcast { Some(Elementwise::Bitcast) } else { op.elementwise() };
    let Some(op) = op.filter(|&op| is_known(op)) else { return Ok(None) };
    let mut args: SmallVec<[(Range, DType); 2]> = SmallVec::new();
    for &operand in operands {
        let Some(range) = range(new, operand, left)? else { return Ok(None) };
        args.push((range, new.ty(operand)?.dtype));
    }
    Ok(range_of_step(op, &args, *dtype))
}

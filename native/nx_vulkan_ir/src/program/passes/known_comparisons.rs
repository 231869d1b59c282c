//! Comparisons whose answer the range of their operands tells: a random number below 1 is less than 1, so that dropout
//! that drops nothing costs nothing. `Nx.Random` takes the larger of each number and the least one that there can be.

use super::rewrite::Rewriter;
use crate::program::fused::is_view;
use crate::program::{Binary, Elementwise, Instruction, Op, Operand, Unary};
use crate::value::{self, Value};
use crate::{DType, Result, Type, reference};

/// How many ops are looked at for a range.
const MOST_OPS: usize = 32;

/// What a comparison gives for all elements, if that is known.
pub fn answer(new: &Rewriter, instruction: &Instruction) -> Result<Option<bool>> {
    let (&Op::Binary(op), &[a, b]) = (&instruction.op, instruction.operands.as_slice()) else { return Ok(None) };
    let is_comparison = matches!(op, Binary::Less | Binary::LessEqual | Binary::Greater | Binary::GreaterEqual);
    // What types have in common may round or wrap.
    if !is_comparison || new.ty(a)?.dtype != new.ty(b)?.dtype {
        return Ok(None);
    }
    let (Some(a), Some(b)) = (range_from(new, a)?, range_from(new, b)?) else { return Ok(None) };
    let less = |a: Range, b: Range| match () {
        () if below(a.most, b.least) => Some(true),
        () if !below(a.least, b.most) => Some(false),
        () => None,
    };
    Ok(match op {
        Binary::Less => less(a, b),
        Binary::Greater => less(b, a),
        Binary::LessEqual => less(b, a).map(|answer| !answer),
        _ => less(a, b).map(|answer| !answer),
    })
}

/// The operand that a maximum or minimum is for all elements, if that is known.
pub fn extreme(new: &Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let (&Op::Binary(op @ (Binary::Max | Binary::Min)), &[a, b]) = (&instruction.op, instruction.operands.as_slice())
    else {
        return Ok(None);
    };
    if new.ty(a)?.dtype != new.ty(b)?.dtype {
        return Ok(None);
    }
    let (Some(first), Some(second)) = (range_from(new, a)?, range_from(new, b)?) else { return Ok(None) };
    for (operand, range, other) in [(a, first, second), (b, second, first)] {
        let (larger, lesser) = match op {
            Binary::Max => (range.least, other.most),
            _ => (other.least, range.most),
        };
        // Of zeros it is the first operand, whatever their signs.
        let are_zeros = [larger, lesser].iter().all(|end| end.real() == 0.0);
        let is_it = !below(larger, lesser) && (operand == a || !are_zeros);
        if is_it && new.ty(operand)? == &instruction.outs[0] {
            return Ok(Some(operand));
        }
    }
    Ok(None)
}

/// No element is outside of it, or NaN. Devices take denormals as zeros, so that none is an end.
#[derive(Debug, Clone, Copy)]
struct Range {
    least: Value,
    most: Value,
}

fn below(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a < b,
        _ => a.real() < b.real(),
    }
}

/// The range of these values of a type, if they can be its ends.
fn range_of(values: &[Value], dtype: DType) -> Option<Range> {
    let is_end = |value: Value| match value {
        Value::Int(i) => value::wrap(dtype, i) == i,
        Value::Float(x) => x == 0.0 || x.is_finite() && !value::is_denormal(value, dtype),
        Value::Complex(..) => false,
    };
    let lesser = |a, b| if below(b, a) { b } else { a };
    let larger = |a, b| if below(a, b) { b } else { a };
    if !values.iter().all(|&value| is_end(value)) {
        return None;
    }
    let least = values.iter().copied().reduce(lesser)?;
    Some(Range { least, most: values.iter().copied().reduce(larger)? })
}

/// The range of an operand, which what made it tells.
fn range_from(new: &Rewriter, operand: Operand) -> Result<Option<Range>> {
    let mut left = MOST_OPS;
    range(new, operand, &mut left)
}

/// The same, of what so many ops tell.
fn range(new: &Rewriter, operand: Operand, left: &mut usize) -> Result<Option<Range>> {
    let dtype = new.ty(operand)?.dtype;
    let found = match (new.maker(operand), left.checked_sub(1)) {
        (Some(maker), Some(rest)) => {
            *left = rest;
            range_of_result(new, maker, left)?
        }
        _ => None,
    };
    let (least, most) = if dtype.is_integer() { value::range(dtype) } else { return Ok(found) };
    Ok(found.or(Some(Range { least: Value::Int(least), most: Value::Int(most) })))
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
    let &[first, ..] = operands.as_slice() else { return Ok(None) };
    let from = new.ty(first)?.dtype;
    let Some(a) = range(new, first, left)? else { return Ok(None) };
    let mut both = |of: &dyn Fn(Range, Range) -> Option<Range>| {
        // Operands of other types are cast before.
        let same = new.ty(operands[1])?.dtype == *dtype && from == *dtype;
        Ok(if same { range(new, operands[1], left)?.and_then(|b| of(a, b)) } else { None })
    };
    match *op {
        Op::AsType if from.is_integer() == dtype.is_integer() || from.is_integer() => {
            Ok(range_of(&[a.least, a.most].map(|x| if dtype.is_integer() { x } else { x.cast(*dtype) }), *dtype))
        }
        Op::Bitcast if from.is_unsigned() && dtype.is_float() => Ok(bits_as_floats(a, *dtype)),
        Op::Binary(Binary::RightShift) if dtype.is_unsigned() => both(&|a, b| shifted(a, b, *dtype)),
        Op::Binary(op @ (Binary::BitwiseAnd | Binary::BitwiseOr)) if dtype.is_unsigned() => both(&|a, b| {
            let (Value::Int(least), Value::Int(most)) = (a.least, a.most) else { return None };
            let (Value::Int(other_least), Value::Int(other_most)) = (b.least, b.most) else { return None };
            let (least, most) = match op {
                Binary::BitwiseAnd => (0, most.min(other_most)),
                // No bit above the highest one of both is set.
                _ => (least.max(other_least), (1 << (128 - (most | other_most).leading_zeros())) - 1),
            };
            range_of(&[Value::Int(least), Value::Int(most)], *dtype)
        }),
        Op::Binary(op @ (Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Max | Binary::Min)) => {
            both(&|a, b| at_corners(op, a, b, *dtype))
        }
        Op::Unary(Unary::Negate) if from == *dtype && dtype.is_float() => {
            Ok(range_of(&[a.least, a.most].map(|x| Value::Float(-x.real())), *dtype))
        }
        ref op if is_view(op) => Ok(Some(a)),
        _ => Ok(None),
    }
}

/// The floats whose bits lie in a range, which has no negative number, infinity or NaN.
fn bits_as_floats(bits: Range, dtype: DType) -> Option<Range> {
    let (Value::Int(least), Value::Int(most)) = (bits.least, bits.most) else { return None };
    let values = [least, most].map(|bits| Value::from_bits(dtype, bits as u128));
    let is_ordered = matches!(values, [_, Value::Float(x)] if x.is_finite() && most >> (dtype.bits() - 1) == 0);
    if is_ordered { range_of(&values, dtype) } else { None }
}

fn shifted(a: Range, by: Range, dtype: DType) -> Option<Range> {
    let (Value::Int(least), Value::Int(most)) = (a.least, a.most) else { return None };
    match (by.least, by.most) {
        (Value::Int(few), Value::Int(many)) if (0..i128::from(dtype.bits())).contains(&many) => {
            range_of(&[Value::Int(least >> many), Value::Int(most >> few)], dtype)
        }
        _ => None,
    }
}

/// The range of an op whose results grow, or shrink, with each of its operands.
fn at_corners(op: Binary, a: Range, b: Range, dtype: DType) -> Option<Range> {
    let exact = |x: Value, y: Value| match (op, x, y) {
        (Binary::Add, Value::Int(x), Value::Int(y)) => x.checked_add(y).map(Value::Int),
        (Binary::Subtract, Value::Int(x), Value::Int(y)) => x.checked_sub(y).map(Value::Int),
        (Binary::Multiply, Value::Int(x), Value::Int(y)) => x.checked_mul(y).map(Value::Int),
        _ => reference::apply(Elementwise::Binary(op), &[(x, dtype), (y, dtype)], dtype),
    };
    let corners = [(a.least, b.least), (a.least, b.most), (a.most, b.least), (a.most, b.most)];
    let values = corners.iter().map(|&(x, y)| exact(x, y)).collect::<Option<Vec<_>>>()?;
    range_of(&values, dtype)
}

//! What is known of numbers by what computes them: the least and the largest that there can be.

use super::step::{Ref, Step};
use super::{Binary, Elementwise, Unary};
use crate::value::{self, Value};
use crate::{DType, reference};

/// No element is outside of it, or NaN. Devices take denormals as zeros, so that none is an end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub least: Value,
    pub most: Value,
}

pub(crate) fn below(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a < b,
        _ => a.real() < b.real(),
    }
}

/// The range of these values of a type, if they can be its ends.
pub(crate) fn range_of(values: &[Value], dtype: DType) -> Option<Range> {
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

/// The range of a type, if all of its values are ends.
pub(crate) fn range_of_type(dtype: DType) -> Option<Range> {
    let (least, most) = dtype.is_integer().then(|| value::range(dtype))?;
    Some(Range { least: Value::Int(least), most: Value::Int(most) })
}

/// Whether the range of an op's result may follow from those of its operands.
pub(crate) fn is_known(op: Elementwise) -> bool {
    use Binary::{Add, BitwiseAnd, BitwiseOr, LeftShift, Max, Min, Multiply, RightShift, Subtract};
    match op {
        Elementwise::AsType | Elementwise::Bitcast | Elementwise::Unary(Unary::Negate | Unary::Log) => true,
        Elementwise::Binary(op) => {
            matches!(op, Add | Subtract | Multiply | Max | Min | LeftShift | RightShift | BitwiseAnd | BitwiseOr)
        }
        // Of no other op is anything known.
        _ => false,
    }
}

/// The range of an op's result, by those of its operands and their types.
pub(crate) fn range_of_step(op: Elementwise, args: &[(Range, DType)], dtype: DType) -> Option<Range> {
    let &[(a, from), ref others @ ..] = args else { return None };
    // Operands of other types are cast before, which integers within the range of the type stand.
    let is_same = |range: Range, of: DType| {
        let is_within = |x: Value| matches!(x, Value::Int(i) if value::wrap(dtype, i) == i);
        of == dtype || (dtype.is_integer() && of.is_integer() && is_within(range.least) && is_within(range.most))
    };
    let b = others.first().filter(|&&(b, of)| is_same(b, of) && is_same(a, from)).map(|&(b, _)| b);
    match op {
        Elementwise::AsType if from.is_integer() == dtype.is_integer() || from.is_integer() => {
            range_of(&[a.least, a.most].map(|x| if dtype.is_integer() { x } else { x.cast(dtype) }), dtype)
        }
        Elementwise::Bitcast if from.is_unsigned() && dtype.is_float() => bits_as_floats(a, dtype),
        Elementwise::Binary(Binary::RightShift) if dtype.is_unsigned() => shifted(a, b?, dtype),
        Elementwise::Binary(Binary::LeftShift) if dtype.is_unsigned() => shifted_left(a, b?, dtype),
        Elementwise::Binary(Binary::BitwiseAnd) if dtype.is_unsigned() => {
            let ((_, most), (_, other_most)) = (whole(a)?, whole(b?)?);
            range_of(&[Value::Int(0), Value::Int(most.min(other_most))], dtype)
        }
        Elementwise::Binary(Binary::BitwiseOr) if dtype.is_unsigned() => {
            let ((least, most), (other_least, other_most)) = (whole(a)?, whole(b?)?);
            // No bit above the highest one of both is set.
            let all_bits = (1 << (128 - (most | other_most).leading_zeros())) - 1;
            range_of(&[Value::Int(least.max(other_least)), Value::Int(all_bits)], dtype)
        }
        Elementwise::Binary(op @ (Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Max | Binary::Min)) => {
            at_corners(op, a, b?, dtype)
        }
        Elementwise::Unary(Unary::Negate) if from == dtype && dtype.is_float() => {
            range_of(&[a.least, a.most].map(|x| Value::Float(-x.real())), dtype)
        }
        // A logarithm is less than an ulp off, of a number that may be as much.
        Elementwise::Unary(Unary::Log) if [from, dtype] == [DType::F32; 2] && a.least.real() > 0.0 => {
            let off = |x: f64, side: f64| Value::Float(x.ln() + side * x.ln().abs() * f64::from(f32::EPSILON));
            range_of(&[off(a.least.real(), -1.0), off(a.most.real(), 1.0)], dtype)
        }
        _ => None,
    }
}

/// Of each step, whether it is of f32 and its first operand is a positive normal number for certain.
pub fn are_of_normal(steps: &[Step]) -> Vec<bool> {
    // An end above 0 is normal.
    let is_normal = |range: &Range| range.least.real() > 0.0;
    let ranges = of_steps(steps, &[]);
    let first = |step: &Step| of(*step.args.first()?, steps, &[], &ranges);
    steps.iter().map(|step| matches!(first(step), Some((range, DType::F32)) if is_normal(&range))).collect()
}

/// The least and the largest that each of these may be, of steps on inputs of types; `None` of what is no integer, and
/// where nothing is known.
pub fn integers(values: &[Ref], steps: &[Step], inputs: &[DType]) -> Vec<Option<(i128, i128)>> {
    let ranges = of_steps(steps, inputs);
    values.iter().map(|&value| whole(of(value, steps, inputs, &ranges)?.0)).collect()
}

/// The range of each step's result, as far as it follows from its operands.
fn of_steps(steps: &[Step], inputs: &[DType]) -> Vec<Option<Range>> {
    let mut ranges: Vec<Option<Range>> = Vec::new();
    for step in steps {
        let args: Option<Vec<(Range, DType)>> = step.args.iter().map(|&arg| of(arg, steps, inputs, &ranges)).collect();
        ranges.push(args.and_then(|args| range_of_step(step.op, &args, step.out)));
    }
    ranges
}

/// The range of a value, at least that of its type, where the ranges of the first steps are these.
fn of(value: Ref, steps: &[Step], inputs: &[DType], ranges: &[Option<Range>]) -> Option<(Range, DType)> {
    match value {
        Ref::Result(k) => {
            let made = usize::from(k);
            let dtype = steps.get(made)?.out;
            Some((ranges.get(made).copied().flatten().or_else(|| range_of_type(dtype))?, dtype))
        }
        Ref::Coordinate(_) | Ref::Linear => Some((range_of_type(DType::U32)?, DType::U32)),
        Ref::Constant(dtype, bits) if dtype.is_integer() || dtype == dtype.ctype().dtype() => {
            Some((range_of(&[Value::from_bits(dtype.ctype().dtype(), bits.into())], dtype)?, dtype))
        }
        Ref::Input(k) => {
            let dtype = *inputs.get(usize::from(k))?;
            Some((range_of_type(dtype)?, dtype))
        }
        Ref::Constant(..) => None,
    }
}

/// The ends of a range of integers.
fn whole(range: Range) -> Option<(i128, i128)> {
    match (range.least, range.most) {
        (Value::Int(least), Value::Int(most)) => Some((least, most)),
        _ => None,
    }
}

/// The floats whose bits lie in a range, which has no negative number, infinity or NaN.
fn bits_as_floats(bits: Range, dtype: DType) -> Option<Range> {
    let (least, most) = whole(bits)?;
    let values = [least, most].map(|bits| Value::from_bits(dtype, bits as u128));
    let is_ordered = matches!(values, [_, Value::Float(x)] if x.is_finite() && most >> (dtype.bits() - 1) == 0);
    if is_ordered { range_of(&values, dtype) } else { None }
}

fn shifted(a: Range, by: Range, dtype: DType) -> Option<Range> {
    let ((least, most), (few, many)) = (whole(a)?, whole(by)?);
    let is_within = (0..i128::from(dtype.bits())).contains(&many);
    if is_within { range_of(&[Value::Int(least >> many), Value::Int(most >> few)], dtype) } else { None }
}

/// As above, of integers that lose no bit.
fn shifted_left(a: Range, by: Range, dtype: DType) -> Option<Range> {
    let ((least, most), (few, many)) = (whole(a)?, whole(by)?);
    let is_within = (0..i128::from(dtype.bits())).contains(&many) && most << many < 1 << dtype.bits();
    if is_within { range_of(&[Value::Int(least << few), Value::Int(most << many)], dtype) } else { None }
}

/// The range of an op whose results grow, or shrink, with each of its operands.
fn at_corners(op: Binary, a: Range, b: Range, dtype: DType) -> Option<Range> {
    let exact = |x: Value, y: Value| match (x, y) {
        (Value::Int(x), Value::Int(y)) => match op {
            Binary::Add => x.checked_add(y),
            Binary::Subtract => x.checked_sub(y),
            Binary::Multiply => x.checked_mul(y),
            Binary::Max => Some(x.max(y)),
            Binary::Min => Some(x.min(y)),
            // No other op is known to have its ends there.
            _ => None,
        }
        .map(Value::Int),
        _ => reference::apply(Elementwise::Binary(op), &[(x, dtype), (y, dtype)], dtype),
    };
    let corners = [(a.least, b.least), (a.least, b.most), (a.most, b.least), (a.most, b.most)];
    let values = corners.iter().map(|&(x, y)| exact(x, y)).collect::<Option<Vec<_>>>()?;
    range_of(&values, dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_of_random_numbers_are_known_to_be_of_normal_ones() {
        let number = |x: f32| Ref::Constant(DType::F32, x.to_bits().into());
        let word = |x: u64| Ref::Constant(DType::U32, x);
        let step = |op, args: &[Ref], out| Step { op, args: args.into(), out };
        let binary = |op, a, b, out| step(Elementwise::Binary(op), &[a, b], out);
        let log = |k| step(Elementwise::Unary(Unary::Log), &[Ref::Result(k)], DType::F32);
        let draws = |least: f32| {
            vec![
                binary(Binary::RightShift, Ref::Linear, word(9), DType::U32),
                binary(Binary::BitwiseOr, Ref::Result(0), word(0x3f80_0000), DType::U32),
                step(Elementwise::Bitcast, &[Ref::Result(1)], DType::F32),
                binary(Binary::Subtract, Ref::Result(2), number(1.0), DType::F32),
                binary(Binary::Add, Ref::Result(3), number(least), DType::F32),
                log(4),
                step(Elementwise::Unary(Unary::Negate), &[Ref::Result(5)], DType::F32),
                log(6),
            ]
        };
        let of = |steps: &[Step]| [5, 7].map(|k| are_of_normal(steps)[k]);
        assert_eq!(of(&draws(f32::MIN_POSITIVE)), [true, true]);
        // Of zeros, denormals, and numbers up to 1, the logarithms of which are zeros.
        assert_eq!(of(&draws(0.0)), [false, false]);
        assert_eq!(of(&draws(1e-40)), [false, false]);
        assert_eq!(of(&draws(1.0)), [true, false]);
        // Of what is read, nothing is known.
        assert_eq!(are_of_normal(&[step(Elementwise::Unary(Unary::Log), &[Ref::Input(0)], DType::F32)]), [false]);
    }
}

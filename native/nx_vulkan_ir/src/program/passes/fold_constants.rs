//! Computes ahead with constants, and comparisons that ranges answer, where the device would give the same bits, and
//! makes one view of several.

use super::known_comparisons;
use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::fused::is_view;
use crate::program::index_map::{self, IndexMap};
use crate::program::{Binary, Elementwise, Instruction, Op, Operand, Program, Unary};
use crate::value::{Value, is_denormal};
use crate::{DType, Result, Type, reference};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        known_starts(&new, &mut instruction)?;
        match replacement(&new, &instruction)? {
            Some(Replacement::Same(operand)) => new.moved(operand),
            Some(Replacement::Constant(value)) => {
                let made = new.push_one(Op::Constant(value), &[], &instruction.outs[0]);
                new.moved(made);
            }
            Some(Replacement::Ops(ops, operand)) => {
                let made = ops.iter().fold(operand, |operand, (op, out)| new.push_one(op.clone(), &[operand], out));
                new.moved(made);
            }
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// Makes attributes of starts that are constants, which the host would read from the device.
fn known_starts(new: &Rewriter, instruction: &mut Instruction) -> Result<()> {
    let (starts, first) = match &mut instruction.op {
        Op::Slice { starts, .. } => (starts, 1),
        Op::PutSlice { starts } => (starts, 2),
        _ => return Ok(()),
    };
    let mut at = first;
    for start in starts.iter_mut().filter(|start| start.is_none()) {
        let Some(&operand) = instruction.operands.get(at) else { return Ok(()) };
        let dtype = new.ty(operand)?.dtype;
        match new.constant(operand).map(|value| Value::from(value).cast(dtype)) {
            Some(Value::Int(i)) => {
                *start = Some(i.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
                instruction.operands.remove(at);
            }
            _ => at += 1,
        }
    }
    Ok(())
}

enum Replacement {
    Same(Operand),
    Constant(Scalar),
    /// Ops, one on the result of the other, and their types, the first on the operand.
    Ops(Vec<(Op, Type)>, Operand),
}

fn replacement(new: &Rewriter, instruction: &Instruction) -> Result<Option<Replacement>> {
    let [out] = instruction.outs.as_slice() else { return Ok(None) };
    if let Some(op) = instruction.op.elementwise() {
        if op == Elementwise::AsType && new.ty(instruction.operands[0])? == out {
            return Ok(Some(Replacement::Same(instruction.operands[0])));
        }
        if let Some(answer) = known_comparisons::answer(new, instruction)? {
            return Ok(Some(Replacement::Constant(Value::bool(answer).into())));
        }
        if let Some(operand) = known_comparisons::extreme(new, instruction)? {
            return Ok(Some(Replacement::Same(operand)));
        }
        let mut args = Vec::new();
        for &operand in &instruction.operands {
            let Some(value) = new.constant(operand) else { return Ok(None) };
            let dtype = new.ty(operand)?.dtype;
            args.push((Value::from(value).cast(dtype), dtype));
        }
        return Ok(computed(op, &args, out.dtype).map(|value| Replacement::Constant(value.into())));
    }
    let &[operand] = instruction.operands.as_slice() else { return Ok(None) };
    let from = new.ty(operand)?;
    if !is_view(&instruction.op) {
        return Ok(None);
    }
    if let Some(value) = new.constant(operand) {
        return Ok(Some(Replacement::Constant(value)));
    }
    if is_identity(&instruction.op, from, out) {
        return Ok(Some(Replacement::Same(operand)));
    }
    if let Some((ops, part)) = of_part(new, &instruction.op, operand, out)? {
        return Ok(Some(match (new.constant(part), &ops[..]) {
            (Some(value), _) => Replacement::Constant(value),
            (None, [(op, _)]) if is_identity(op, new.ty(part)?, out) => Replacement::Same(part),
            (None, _) => Replacement::Ops(ops, part),
        }));
    }
    if let Some(Instruction { op: Op::AsType, operands, .. }) = new.maker(operand)
        && let &[source] = operands.as_slice()
    {
        // Of a cast of what has parts, as of random bits that make up wider ones.
        let part = of_part(new, &instruction.op, source, &Type::new(new.ty(source)?.dtype, &out.shape))?;
        return Ok(part.map(|(mut ops, part)| {
            ops.push((Op::AsType, out.clone()));
            Replacement::Ops(ops, part)
        }));
    }
    let Some(inner) = new.maker(operand) else { return Ok(None) };
    let &[source] = inner.operands.as_slice() else { return Ok(None) };
    let op = match (&instruction.op, &inner.op) {
        (Op::Reshape | Op::Squeeze, Op::Reshape | Op::Squeeze) => Op::Reshape,
        (Op::Transpose { axes }, Op::Transpose { axes: inner }) => {
            Op::Transpose { axes: axes.iter().map(|&axis| inner[axis]).collect() }
        }
        (Op::Broadcast { axes }, Op::Broadcast { axes: inner }) => {
            Op::Broadcast { axes: inner.iter().map(|&axis| axes[axis]).collect() }
        }
        _ => return Ok(None),
    };
    if is_identity(&op, new.ty(source)?, out) {
        return Ok(Some(Replacement::Same(source)));
    }
    Ok(Some(Replacement::Ops(vec![(op, out.clone())], source)))
}

/// Ops on an operand, one on the result of the other, with their types.
type Ops = (Vec<(Op, Type)>, Operand);

/// What a slice shows of a concatenation, if that is of one part, as ops on that.
fn of_part(new: &Rewriter, op: &Op, operand: Operand, out: &Type) -> Result<Option<Ops>> {
    let found = match within_part(new, op, operand, out)? {
        Some((op, part)) => Some((vec![(op, out.clone())], part)),
        None => within_rows(new, op, operand, out)?,
    };
    // Parts of other types are cast.
    Ok(found.filter(|(_, part)| new.ty(*part).is_ok_and(|ty| ty.dtype == out.dtype)))
}

/// What a slice shows of a concatenation, if that is of one part: an op on that. A part of which rows of a reshape are
/// all is shown whole.
fn within_part(new: &Rewriter, op: &Op, operand: Operand, out: &Type) -> Result<Option<(Op, Operand)>> {
    let Op::Slice { starts, strides, lengths } = op else { return Ok(None) };
    let (Some(inner), shape) = (new.maker(operand), &new.ty(operand)?.shape) else { return Ok(None) };
    let start = |axis: usize| starts[axis].map(|start| (start.max(0) as u64).min(shape[axis] - lengths[axis]));
    if let Op::Concatenate { axis } = inner.op {
        let Some(mut start) = start(axis) else { return Ok(None) };
        for &part in &inner.operands {
            let size = new.ty(part)?.shape[axis];
            if start + lengths[axis] <= size {
                let mut starts = starts.clone();
                starts[axis] = Some(start as i64);
                return Ok(Some((Op::Slice { starts, strides: strides.clone(), lengths: lengths.clone() }, part)));
            }
            let Some(behind) = start.checked_sub(size) else { return Ok(None) };
            start = behind;
        }
        return Ok(None);
    }
    let is_whole = |axis: usize| strides[axis] == 1 && (axis == 0 || lengths[axis] == shape[axis]);
    let (Op::Reshape | Op::Squeeze, Some(Instruction { op: Op::Concatenate { axis: 0 }, operands, .. })) =
        (&inner.op, inner.operands.first().and_then(|&source| new.maker(source)))
    else {
        return Ok(None);
    };
    if shape.is_empty() || !(0..shape.len()).all(is_whole) {
        return Ok(None);
    }
    let Some(mut before) = start(0).map(|start| start * shape[1..].iter().product::<u64>()) else { return Ok(None) };
    for &part in operands {
        let elements = new.ty(part)?.elements();
        if before == 0 && elements == out.elements() {
            return Ok(Some((Op::Reshape, part)));
        }
        let Some(behind) = before.checked_sub(elements) else { return Ok(None) };
        before = behind;
    }
    Ok(None)
}

/// The same for a slice of a reshape, if all its rows are of one part and that has whole rows.
fn within_rows(new: &Rewriter, op: &Op, operand: Operand, out: &Type) -> Result<Option<Ops>> {
    let Op::Slice { starts, strides, lengths } = op else { return Ok(None) };
    let ty = new.ty(operand)?;
    let reshape = new.maker(operand).filter(|inner| matches!(inner.op, Op::Reshape | Op::Squeeze));
    let source = reshape.and_then(|inner| inner.operands.first().and_then(|&source| new.maker(source)));
    let Some(Instruction { op: Op::Concatenate { axis: 0 }, operands, .. }) = source else { return Ok(None) };
    let (Some(Some(start)), Some(&length), Some(&size)) = (starts.first(), lengths.first(), ty.shape.first()) else {
        return Ok(None);
    };
    let mut start = ((*start).max(0) as u64).min(size - length);
    let row: u64 = ty.shape[1..].iter().product();
    for &part in operands {
        let elements = new.ty(part)?.elements();
        if row == 0 || elements % row != 0 {
            return Ok(None);
        }
        let count = elements / row;
        if start + length <= count {
            let mut rows = ty.clone();
            rows.shape[0] = count;
            let starts = std::iter::once(Some(start as i64)).chain(starts[1..].iter().copied()).collect();
            let slice = Op::Slice { starts, strides: strides.clone(), lengths: lengths.clone() };
            return Ok(Some((vec![(Op::Reshape, rows), (slice, out.clone())], part)));
        }
        let Some(behind) = start.checked_sub(count) else { return Ok(None) };
        start = behind;
    }
    Ok(None)
}

/// Whether a view op shows its operand as it is.
fn is_identity(op: &Op, from: &Type, out: &Type) -> bool {
    let is_straight =
        |map: IndexMap| map.parts.iter().all(|part| index_map::is_identity(&part.lines, &from.shape, &out.shape));
    from == out && op.index_map(&[&from.shape], &out.shape).is_none_or(is_straight)
}

/// The value of an op whose result the device rounds as the reference does. `None` where it might not.
pub fn computed(op: Elementwise, args: &[(Value, DType)], out: DType) -> Option<Value> {
    let real = |t: DType| !t.is_complex();
    let alike = args.iter().all(|&(_, t)| t.is_integer() == out.is_integer());
    let integers = args.iter().all(|&(_, t)| t.is_integer());
    let exact = match op {
        Elementwise::AsType => true,
        Elementwise::Select => args.iter().skip(1).all(|&(_, t)| t.is_integer() == out.is_integer()),
        Elementwise::Clip => alike,
        Elementwise::Bitcast => false,
        Elementwise::Unary(op) => match op {
            Unary::Abs | Unary::Negate | Unary::Sign | Unary::Ceil | Unary::Floor | Unary::Round => alike,
            Unary::Sqrt => !integers,
            Unary::BitwiseNot => true,
            _ => false,
        },
        Elementwise::Binary(op) => match op {
            Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Min | Binary::Max => alike,
            Binary::Divide => !integers && alike,
            Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => true,
            Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => true,
            op => op.is_predicate(),
        },
    };
    if !exact || !real(out) || !args.iter().all(|&(value, t)| real(t) && !is_denormal(value, t)) {
        return None;
    }
    reference::apply(op, args, out).filter(|&value| !is_denormal(value, out))
}

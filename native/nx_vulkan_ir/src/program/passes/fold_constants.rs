//! Computes ahead with constants, and comparisons that ranges answer, where the device would give the same bits, and
//! makes one view of several.

use smallvec::smallvec;

use super::rewrite::Rewriter;
use super::{counters, known_comparisons};
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
        if let Some(other) = counters::replaced(&mut new, &instruction)? {
            new.moved(other);
            continue;
        }
        match replacement(&new, &instruction)? {
            Some(replacement) => {
                let made = made(&mut new, replacement, &instruction.outs[0])?;
                new.moved(made);
            }
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// Adds an instruction of one result, or what takes its place.
pub(super) fn put(new: &mut Rewriter, op: Op, operands: &[Operand], out: &Type) -> Result<Operand> {
    let instruction = Instruction { op, operands: operands.into(), outs: smallvec![out.clone()] };
    match replacement(new, &instruction)? {
        Some(replacement) => made(new, replacement, out),
        None => Ok(new.push(instruction)),
    }
}

/// What takes the place of an instruction, each of the ops in it replaced in its turn.
fn made(new: &mut Rewriter, by: Replacement, out: &Type) -> Result<Operand> {
    match by {
        Replacement::Same(operand) => Ok(operand),
        Replacement::Constant(value) => Ok(new.push_one(Op::Constant(value), &[], out)),
        Replacement::Ops(ops, operand) => {
            ops.into_iter().try_fold(operand, |operand, (op, out)| put(new, op, &[operand], &out))
        }
    }
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
        return Ok(Some(Replacement::Ops(ops, part)));
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

/// What a slice shows of parts side by side, perhaps by way of a reshape, if that is of one part: ops on that.
fn of_part(new: &Rewriter, op: &Op, operand: Operand, out: &Type) -> Result<Option<Ops>> {
    let Op::Slice { starts, strides, lengths } = op else { return Ok(None) };
    let is_reshape = |inner: &&Instruction| matches!(inner.op, Op::Reshape | Op::Squeeze);
    let joined = match new.maker(operand).filter(is_reshape) {
        Some(reshape) => reshape.operands[0],
        None => operand,
    };
    let Some(Instruction { op: Op::Concatenate { axis } | Op::Stack { axis }, operands, .. }) = new.maker(joined)
    else {
        return Ok(None);
    };
    // There are so many lines one behind the other, each with its elements of all parts. The axis along which the slice
    // sees the parts counts rows of a line.
    let shape = &new.ty(operand)?.shape;
    let lines: u64 = new.ty(joined)?.shape[..*axis].iter().product();
    let Some(along) = (0..shape.len()).rev().find(|&along| shape[..along].iter().product::<u64>() == lines) else {
        return Ok(None);
    };
    let (row, length): (u64, u64) = (shape[along + 1..].iter().product(), lengths[along]);
    let Some(start) = starts[along].filter(|_| lines * row > 0) else { return Ok(None) };
    let mut before = (start.max(0) as u64).min(shape[along] - length) * row;
    for &part in operands {
        let ty = new.ty(part)?;
        let elements = ty.elements() / lines;
        if let Some(behind) = before.checked_sub(elements) {
            before = behind;
            continue;
        }
        // Parts of other types are cast.
        let is_of_rows = before.is_multiple_of(row) && elements.is_multiple_of(row);
        if !is_of_rows || before + length * row > elements || ty.dtype != out.dtype {
            break;
        }
        let (mut rows, mut starts) = (Type::new(ty.dtype, shape), starts.clone());
        rows.shape[along] = elements / row;
        starts[along] = Some((before / row) as i64);
        let slice = Op::Slice { starts, strides: strides.clone(), lengths: lengths.clone() };
        return Ok(Some((vec![(Op::Reshape, rows), (slice, out.clone())], part)));
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

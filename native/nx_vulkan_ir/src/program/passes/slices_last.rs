//! Moves the slice that drops an odd last one of random bits, of each key if there are several, behind the steps that
//! follow it. What draws them counts in pairs, of which no kernel leaves one out; behind the steps, the slice shows
//! memory without the last element of a line.

use std::collections::HashMap;

use super::halves_to_choice::together;
use super::rewrite::Rewriter;
use crate::program::ops::keeps_bits;
use crate::program::{Instruction, Op, Operand, Program};
use crate::shape::Dims;
use crate::{Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    let (type_of, maker) = (program.types(), program.makers());
    // Of old results, what they are a slice of in the new program, as lines.
    let mut whole: HashMap<Operand, (Op, Operand)> = HashMap::new();
    let mut result = 0;
    for old in &program.instructions {
        let at = Operand::Result(result);
        result += old.outs.len() as u32;
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let known = old.operands.iter().find_map(|operand| whole.get(operand).cloned());
        let (Some(&first), [out]) = (old.operands.first(), &old.outs[..]) else {
            new.replace(instruction);
            continue;
        };
        match (&old.op, known) {
            (op, _)
                if type_of(first).is_some_and(|from| leaves_last(op, from, out))
                    && maker(first)
                        .is_some_and(|at| together(program, &program.instructions[at], &type_of, &maker)) =>
            {
                whole.insert(at, (old.op.clone(), instruction.operands[0]));
            }
            (Op::Reshape | Op::Squeeze, Some(known)) => {
                whole.insert(at, known);
            }
            (op, Some((slice, _))) if is_step(old, &type_of) => {
                let args = old.operands.iter().map(|&operand| match whole.get(&operand) {
                    Some(&(_, whole)) if type_of(operand).map(Type::elements) == Some(out.elements()) => {
                        Some(Ok(whole))
                    }
                    Some(_) => None,
                    None => single(program, operand, &type_of, &maker)
                        .map(|found| scalar(program, &mut new, found, &type_of, &maker)),
                });
                let args = args.collect::<Option<Result<Vec<Operand>>>>().transpose()?;
                if let Some((shape, args)) = args.and_then(|args| Some((lines(&new, &args)?, args))) {
                    let mut part = Type::new(out.dtype, &shape);
                    let all = new.push_one(op.clone(), &args, &part);
                    part.shape.last_mut().into_iter().for_each(|size| *size -= 1);
                    let part = new.push_one(slice.clone(), &[all], &part);
                    let part = new.push_one(Op::Reshape, &[part], out);
                    new.moved(part);
                    whole.insert(at, (slice, all));
                    continue;
                }
            }
            _ => {}
        }
        new.replace(instruction);
    }
    new.finish(program)
}

/// Whether an op leaves out the last element of each line, and nothing else.
fn leaves_last(op: &Op, from: &Type, out: &Type) -> bool {
    let Op::Slice { starts, strides, .. } = op else { return false };
    let Some((left, lines)) = out.shape.split_last() else { return false };
    starts.iter().all(|&start| start == Some(0))
        && strides.iter().all(|&stride| stride == 1)
        && from.shape.split_last() == Some((&(left + 1), lines))
}

/// The shape of all operands that have axes, if they are alike.
fn lines(new: &Rewriter, operands: &[Operand]) -> Option<Dims> {
    let mut shapes =
        operands.iter().filter_map(|&operand| Some(&new.ty(operand).ok()?.shape)).filter(|s| !s.is_empty());
    let first = shapes.next()?;
    shapes.all(|shape| shape == first).then(|| first.clone())
}

/// Whether an instruction computes each element of its result from one of each operand.
fn is_step<'a>(instruction: &Instruction, type_of: impl Fn(Operand) -> Option<&'a Type>) -> bool {
    let dtypes = || instruction.operands.first().and_then(|&from| type_of(from)).zip(instruction.outs.first());
    match instruction.op {
        Op::Bitcast => dtypes().is_some_and(|(from, to)| keeps_bits(from.dtype, to.dtype)),
        ref op => op.elementwise().is_some(),
    }
}

/// What has the only element that an operand repeats.
fn single<'a>(
    program: &Program,
    mut operand: Operand,
    type_of: impl Fn(Operand) -> Option<&'a Type>,
    maker: impl Fn(Operand) -> Option<usize>,
) -> Option<Operand> {
    loop {
        let instruction = maker(operand).map(|at| &program.instructions[at]);
        if type_of(operand)?.elements() == 1 || instruction.is_some_and(|i| matches!(i.op, Op::Constant(_))) {
            return Some(operand);
        }
        operand = *instruction.filter(|i| matches!(i.op, Op::Broadcast { .. } | Op::Reshape))?.operands.first()?;
    }
}

/// An operand of one element, or a number, as one without axes in the new program.
fn scalar<'a>(
    program: &Program,
    new: &mut Rewriter,
    operand: Operand,
    type_of: impl Fn(Operand) -> Option<&'a Type>,
    maker: impl Fn(Operand) -> Option<usize>,
) -> Result<Operand> {
    let moved = new.operand(operand)?;
    let Some(ty) = type_of(operand) else { return Ok(moved) };
    let none = Type::new(ty.dtype, &[]);
    Ok(match maker(operand).map(|at| &program.instructions[at].op) {
        Some(op @ Op::Constant(_)) => new.push_one(op.clone(), &[], &none),
        _ if ty.shape.is_empty() => moved,
        _ => new.push_one(Op::Reshape, &[moved], &none),
    })
}

//! Moves the slice that drops an odd last one of random bits behind the steps that follow it. What draws them counts in
//! pairs, of which no kernel leaves one out; behind the steps, the slice shows memory without its last element.

use std::collections::HashMap;

use super::halves_to_choice::together;
use super::rewrite::Rewriter;
use crate::program::ops::keeps_bits;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    let (type_of, maker) = (program.types(), program.makers());
    // Of old results, what they are a slice of in the new program, as a line.
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
            (Op::Slice { starts, strides, .. }, _)
                if starts[..] == [Some(0)]
                    && strides[..] == [1]
                    && type_of(first).is_some_and(|from| from.elements() == out.elements() + 1)
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
                if let Some(args) = args.collect::<Option<Result<Vec<Operand>>>>() {
                    let args = args?;
                    let line = args.iter().filter_map(|&arg| new.ty(arg).ok()).find(|ty| !ty.shape.is_empty());
                    let line = Type::new(out.dtype, &line.map_or_else(Default::default, |ty| ty.shape.clone()));
                    let all = new.push_one(op.clone(), &args, &line);
                    let part = new.push_one(slice.clone(), &[all], &Type::new(out.dtype, &[out.elements()]));
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

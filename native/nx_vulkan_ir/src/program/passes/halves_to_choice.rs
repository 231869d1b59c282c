//! Makes a choice of a concatenation or stack of two halves that are for the most part computed together, as those of
//! random bits are: one kernel has both at each index, and either is stored. As parts of something larger each would be
//! computed for itself, at places of its own.

use std::collections::HashSet;

use super::rewrite::Rewriter;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    let (type_of, maker) = (program.types(), program.makers());
    // Of a part of a choice no kernel can say where its elements are, if that does not begin and end with a row.
    let sliced = program.instructions.iter().filter(|i| matches!(i.op, Op::Slice { .. }));
    let sliced: HashSet<usize> = sliced.filter_map(|slice| reshaped(program, slice, &maker)).collect();
    for (at, old) in program.instructions.iter().enumerate() {
        let are_together = |old| !sliced.contains(&at) && together(program, old, &type_of, &maker);
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        match (&instruction.op, &instruction.operands[..]) {
            (&(Op::Concatenate { axis } | Op::Stack { axis }), &[a, b]) if are_together(old) => {
                let half = new.ty(a)?.clone();
                let mut both = half.clone();
                both.shape.insert(axis, 2);
                let which = Type { dtype: DType::U8, shape: both.shape.clone() };
                let which = new.push_one(Op::Iota { axis: Some(axis) }, &[], &which);
                let axes = (0..both.shape.len()).filter(|&of| of != axis).collect();
                let repeat = Op::Broadcast { axes };
                let [a, b] = [a, b].map(|half| new.push_one(repeat.clone(), &[half], &both));
                let chosen = new.push_one(Op::Select, &[which, b, a], &both);
                let whole = new.push_one(Op::Reshape, &[chosen], &instruction.outs[0]);
                new.moved(whole);
            }
            _ => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// What an instruction reads by way of reshapes.
fn reshaped(program: &Program, instruction: &Instruction, maker: impl Fn(Operand) -> Option<usize>) -> Option<usize> {
    let mut at = maker(*instruction.operands.first()?)?;
    while matches!(program.instructions[at].op, Op::Reshape | Op::Squeeze) {
        at = maker(*program.instructions[at].operands.first()?)?;
    }
    Some(at)
}

/// Whether a concatenation's parts are of one type, and all that computes them costs little and serves both for the
/// most part.
pub(super) fn together<'a>(
    program: &Program,
    concatenation: &Instruction,
    type_of: impl Fn(Operand) -> Option<&'a Type>,
    maker: impl Fn(Operand) -> Option<usize>,
) -> bool {
    let &[a, b] = &concatenation.operands[..] else { return false };
    let Some(half) = type_of(a).filter(|_| type_of(a) == type_of(b)) else { return false };
    // The steps of so many elements before an operand; `None` where one of them costs more.
    let steps = |operand: Operand| -> Option<HashSet<usize>> {
        let (mut steps, mut seen, mut stack) = (HashSet::new(), HashSet::new(), vec![operand]);
        while let Some(operand) = stack.pop() {
            let Some(at) = maker(operand).filter(|&at| seen.insert(at)) else { continue };
            let instruction = &program.instructions[at];
            let ([out], Some(op)) = (instruction.outs.as_slice(), instruction.op.elementwise()) else { continue };
            if out.shape != half.shape {
                continue;
            }
            let dtypes: Vec<DType> = instruction.operands.iter().filter_map(|&o| Some(type_of(o)?.dtype)).collect();
            if !op.is_cheap(&dtypes, out.dtype) {
                return None;
            }
            steps.insert(at);
            stack.extend(&instruction.operands);
        }
        Some(steps)
    };
    let (Some(a), Some(b)) = (steps(a), steps(b)) else { return false };
    a.intersection(&b).count() > a.symmetric_difference(&b).count()
}

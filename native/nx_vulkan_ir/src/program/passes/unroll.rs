//! Writes the iterations of loops one after the other where their number is known and what they do is elementwise, or
//! there is one at most. It then becomes kernels together with what is around the loop, the counter is a number in each
//! iteration, and so is what it picks from numbers.

use smallvec::SmallVec;

use super::rewrite::{Operands, Rewriter};
use super::target::Target;
use super::tidied;
use super::workgroup::iteration_cost;
use crate::Result;
use crate::program::fused::{MAX_VALUES, weight};
use crate::program::ops::Class;
use crate::program::{Instruction, Loop, Op, Operand, Program};

/// Instructions that a loop may be written as, and those for each element that may be left of them when what is known
/// is computed. The executable captures longer loops iteration by iteration, too.
const MAX_WRITTEN: u64 = 1024;
const MAX_INSTRUCTIONS: u64 = 512;

/// Whether there is anything to write out.
pub fn has_loops(program: &Program) -> bool {
    program.instructions.iter().any(|instruction| matches!(instruction.op, Op::While(_) | Op::Cond(_)))
}

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        if let Some((unrolled, operands)) = unrolled(&instruction, &new, target)? {
            new.append(&unrolled, &operands).into_iter().for_each(|state| new.moved(state));
            continue;
        }
        match &mut instruction.op {
            // What runs once at most is no loop.
            Op::While(op) if op.known_trips().is_some_and(|trips| trips <= 1) && !is_small(op, target) => {
                let states = match op.known_trips() {
                    Some(1) => new.append(&run(&op.body, target)?, &instruction.operands),
                    _ => instruction.operands.to_vec(),
                };
                states.into_iter().take(instruction.outs.len()).for_each(|state| new.moved(state));
                continue;
            }
            Op::While(op) if !is_small(op, target) => {
                op.condition = run(&op.condition, target)?;
                op.body = run(&op.body, target)?;
            }
            Op::Cond(op) => {
                op.on_true = run(&op.on_true, target)?;
                op.on_false = run(&op.on_false, target)?;
            }
            _ => {}
        }
        new.replace(instruction);
    }
    new.finish(program)
}

/// A loop as a program without it, and what that takes. `None` where the loop is better off as it is.
fn unrolled(instruction: &Instruction, new: &Rewriter, target: &Target) -> Result<Option<(Program, Operands)>> {
    let Op::While(op) = &instruction.op else { return Ok(None) };
    if written(op).is_none_or(|count| count > MAX_WRITTEN) {
        return Ok(None);
    }
    let (program, operands) = with_numbers(instruction, new)?;
    let mut flat = Rewriter::new(&program);
    for old in &program.instructions {
        add(&mut flat, old)?;
    }
    let program = tidied(flat.finish(&program)?, target.joins.unit_work)?;
    let steps = || program.instructions.iter().filter_map(|i| Some((i.op.elementwise()?, i.outs.first()?.dtype)));
    let fits = match is_small(op, target) {
        // One workgroup runs the loop in less time than several kernels what it becomes.
        true => steps().map(|(_, dtype)| weight(dtype)).sum::<usize>() <= 4 * MAX_VALUES,
        false => steps().map(|(op, _)| op.instructions()).sum::<u64>() <= MAX_INSTRUCTIONS,
    };
    Ok(fits.then_some((program, operands)))
}

/// Whether one workgroup can run the loop.
fn is_small(op: &Loop, target: &Target) -> bool {
    target.workgroups && iteration_cost(op).is_some_and(|cost| cost.work <= target.iteration_work)
}

/// Instructions that a loop of elementwise ops is written as.
fn written(op: &Loop) -> Option<u64> {
    let of = |instruction: &Instruction| match &instruction.op {
        Op::While(op) => written(op),
        op => matches!(op.class(), Class::Elementwise | Class::View | Class::Source).then_some(1),
    };
    op.known_trips()?.checked_mul(op.body.instructions.iter().map(of).sum::<Option<u64>>()?)
}

/// Adds an instruction of an old program, of loops their iterations.
fn add(new: &mut Rewriter, old: &Instruction) -> Result<()> {
    let operands = new.operands(old)?;
    let Op::While(op) = &old.op else {
        new.replace(Instruction { operands, ..old.clone() });
        return Ok(());
    };
    let mut body = Rewriter::new(&op.body);
    for old in &op.body.instructions {
        add(&mut body, old)?;
    }
    let body = body.finish(&op.body)?;
    let mut operands = operands.to_vec();
    for _ in 0..op.known_trips().unwrap_or(0) {
        let next = new.append(&body, &operands);
        operands.splice(..next.len(), next);
    }
    operands.into_iter().take(old.outs.len()).for_each(|state| new.moved(state));
    Ok(())
}

/// A program of an instruction and the numbers that it takes, and its other operands.
pub(super) fn with_numbers(instruction: &Instruction, new: &Rewriter) -> Result<(Program, Operands)> {
    let (mut program, mut operands) = (Program::default(), Operands::new());
    let push = |program: &mut Program, instruction: Instruction| {
        let first = program.results().count() as u32;
        program.instructions.push(instruction);
        (first..program.results().count() as u32).map(Operand::Result).collect::<SmallVec<[Operand; 3]>>()
    };
    let mut own = Operands::new();
    for &operand in &instruction.operands {
        let maker = new.maker(operand);
        let numbers: Option<Vec<&Instruction>> = match maker.map(|maker| &maker.op) {
            Some(Op::Concatenate { .. }) => {
                maker.iter().flat_map(|maker| &maker.operands).map(|&o| new.constant(o).and(new.maker(o))).collect()
            }
            Some(Op::Constant(_)) => Some(Vec::new()),
            _ => None,
        };
        match (maker, numbers) {
            (Some(maker), Some(numbers)) => {
                let operands = numbers.into_iter().flat_map(|number| push(&mut program, number.clone())).collect();
                own.extend(push(&mut program, Instruction { operands, ..maker.clone() }));
            }
            _ => {
                own.push(Operand::Input(operands.len() as u32));
                program.inputs.push(new.ty(operand)?.clone());
                operands.push(operand);
            }
        }
    }
    program.outputs = push(&mut program, Instruction { operands: own, ..instruction.clone() }).to_vec();
    Ok((program, operands))
}

//! Kernels of loops within loops of which nobody knows how often they run: they burn fuel, and stop when it is used up.
//!
//! A kernel must end within some milliseconds, and what an iteration has done within it can't be taken up again. So an
//! inner loop that runs out of fuel ends early, its iteration of the outer loop is given up, and the kernel says that
//! it is stuck: the host then drives this one iteration.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use super::workgroup::{alone, iteration_cost, program_cost};
use crate::program::attribute::Scalar;
use crate::program::{Binary, Branches, Instruction, Loop, Op, Operand, Program};
use crate::{DType, Result, Type};

/// No operand: what asks for one is no program.
const NOWHERE: Operand = Operand::Result(u32::MAX);

fn fuel_type() -> Type {
    Type::new(DType::U32, &[])
}

fn bit() -> Type {
    Type::new(DType::U8, &[])
}

/// A body that runs the loop in a kernel for `fuel` units of work, and one more iteration by `slow` if that gets stuck.
/// The condition holds when it begins.
pub(super) fn block(op: &Loop, outs: &[Type], fuel: u64, slow: Program) -> Result<Program> {
    let states = outs.len();
    let inputs = op.body.inputs.clone();
    // The state of the loop in the kernel: the state, the fuel, whether it is stuck.
    let condition = {
        let mut new = Rewriter::new(&with_input(&with_input(&op.condition, states, fuel_type()), states + 1, bit()));
        let holds = condition_of(&mut new, op, states, 2);
        let has_fuel = above_zero(&mut new, Operand::Input(states as u32));
        let stuck = Operand::Input(states as u32 + 1);
        let goes_on = not(&mut new, stuck);
        let both = new.push_one(Op::Binary(Binary::LogicalAnd), &[has_fuel, goes_on], &bit());
        let all = new.push_one(Op::Binary(Binary::LogicalAnd), &[holds, both], &bit());
        new.finish_with(vec![all])
    };
    let body = {
        let burning = fueled(&op.body, states)?;
        let mut new = Rewriter::new(&with_input(&burning, states + 1, bit()));
        let mut next = new.append(&burning, &skipping(&burning, states + 1, 1));
        let Some(left) = next.pop() else { return Ok(slow) };
        let has_fuel = above_zero(&mut new, left);
        let stuck = not(&mut new, has_fuel);
        let mut outputs: Vec<Operand> = Vec::with_capacity(states + 2);
        for (i, (next, ty)) in next.into_iter().zip(outs).enumerate() {
            outputs.push(new.push_one(Op::Select, &[stuck, Operand::Input(i as u32), next], ty));
        }
        let cost = iteration_cost(op).unwrap_or_default();
        outputs.push(burn(&mut new, left, cost.work));
        outputs.push(stuck);
        new.finish_with(outputs)
    };
    let mut kernel = Rewriter::new(&Program { inputs: inputs.clone(), ..Program::default() });
    let full = kernel.push_one(Op::Constant(Scalar::Int(fuel.min(u64::from(u32::MAX)).into())), &[], &fuel_type());
    let free = kernel.push_one(Op::Constant(Scalar::Int(0)), &[], &bit());
    let all = (0..inputs.len() as u32).map(Operand::Input);
    let operands = all.clone().take(states).chain([full, free]).chain(all.skip(states)).collect();
    let types: SmallVec<[Type; 1]> = outs.iter().cloned().chain([fuel_type(), bit()]).collect();
    let first = kernel.push(Instruction { op: Op::While(Box::new(Loop::new(condition, body))), operands, outs: types });
    let Operand::Result(first) = first else { return Ok(slow) };
    let stuck = Operand::Result(first + states as u32 + 1);
    let kernel = kernel.finish_with((first..first + states as u32).map(Operand::Result).chain([stuck]).collect());

    let kernel_outs: Vec<Type> = outs.iter().cloned().chain([bit()]).collect();
    let mut whole = alone(Op::Workgroup(Box::new(kernel)), inputs.clone(), &kernel_outs);
    let stay = Program {
        inputs: inputs.clone(),
        instructions: vec![],
        outputs: (0..states as u32).map(Operand::Input).collect(),
    };
    let captured = (states as u32..inputs.len() as u32).map(Operand::Input);
    let operands = [Operand::Result(states as u32)]
        .into_iter()
        .chain((0..states as u32).map(Operand::Result))
        .chain(captured)
        .collect();
    let branches = Branches { on_true: slow, on_false: stay };
    whole.instructions.push(Instruction { op: Op::Cond(Box::new(branches)), operands, outs: outs.into() });
    whole.outputs = (0..states as u32).map(|i| Operand::Result(states as u32 + 1 + i)).collect();
    Ok(whole)
}

/// The program with fuel as input `at`, and what is left of it as its last output. Loops of which nobody knows how
/// often they run burn their work in each iteration, and end without fuel.
fn fueled(program: &Program, at: usize) -> Result<Program> {
    let mut new = Rewriter::new(&with_input(program, at, fuel_type()));
    let mut fuel = Operand::Input(at as u32);
    let moved = |new: &Rewriter, operand: Operand| match operand {
        Operand::Input(i) => Ok(Operand::Input(skip(i, at, 1))),
        result => new.operand(result),
    };
    for instruction in &program.instructions {
        let mut operands: SmallVec<[Operand; 3]> =
            instruction.operands.iter().map(|&o| moved(&new, o)).collect::<Result<_>>()?;
        let states = instruction.outs.len();
        let burning = match &instruction.op {
            Op::While(op) => {
                let cost = iteration_cost(op).unwrap_or_default();
                (cost.open || op.known_trips().is_none()).then(|| burning_loop(op, states, cost.work)).transpose()?
            }
            Op::Cond(op) => {
                let open = |program: &Program| program_cost(program).is_some_and(|cost| cost.open);
                let captured = op.on_true.inputs.len();
                (open(&op.on_true) || open(&op.on_false))
                    .then(|| {
                        let branch = |program: &Program| fueled(program, captured);
                        Ok(Op::Cond(Box::new(Branches {
                            on_true: branch(&op.on_true)?,
                            on_false: branch(&op.on_false)?,
                        })))
                    })
                    .transpose()?
            }
            _ => None,
        };
        let Some(op) = burning else {
            new.replace(Instruction { operands, ..instruction.clone() });
            continue;
        };
        let place = if matches!(op, Op::While(_)) { states } else { operands.len() };
        operands.insert(place, fuel);
        let outs = instruction.outs.iter().cloned().chain([fuel_type()]).collect();
        let first = new.push(Instruction { op, operands, outs });
        if let Operand::Result(first) = first {
            (first..first + states as u32).for_each(|r| new.moved(Operand::Result(r)));
            fuel = Operand::Result(first + states as u32);
        }
    }
    let outputs = program.outputs.iter().map(|&o| moved(&new, o)).collect::<Result<Vec<_>>>()?;
    Ok(new.finish_with(outputs.into_iter().chain([fuel]).collect()))
}

/// The loop with fuel as the last part of its state.
fn burning_loop(op: &Loop, states: usize, work: u64) -> Result<Op> {
    let mut new = Rewriter::new(&with_input(&op.condition, states, fuel_type()));
    let holds = condition_of(&mut new, op, states, 1);
    let has_fuel = above_zero(&mut new, Operand::Input(states as u32));
    let both = new.push_one(Op::Binary(Binary::LogicalAnd), &[holds, has_fuel], &bit());
    let condition = new.finish_with(vec![both]);
    let burning = fueled(&op.body, states)?;
    let mut new = Rewriter::new(&Program { instructions: vec![], outputs: vec![], ..burning.clone() });
    let mut next = new.append(&burning, &skipping(&burning, 0, 0));
    if let Some(left) = next.pop() {
        next.push(burn(&mut new, left, work));
    }
    Ok(Op::While(Box::new(Loop::new(condition, new.finish_with(next)))))
}

/// The inputs of a program with one more; its instructions are left out.
fn with_input(program: &Program, at: usize, ty: Type) -> Program {
    let mut inputs = program.inputs.clone();
    inputs.insert(at.min(inputs.len()), ty);
    Program { inputs, ..Program::default() }
}

/// The number of an input when `count` more come in at `at`.
fn skip(input: u32, at: usize, count: u32) -> u32 {
    if (input as usize) < at { input } else { input + count }
}

/// The inputs of a program when `count` more come in at `at`.
fn skipping(program: &Program, at: usize, count: u32) -> Vec<Operand> {
    (0..program.inputs.len() as u32).map(|i| Operand::Input(skip(i, at, count))).collect()
}

/// Adds a loop's condition, whose inputs make room for `count` more at `at`. Answers whether it holds.
fn condition_of(new: &mut Rewriter, op: &Loop, at: usize, count: u32) -> Operand {
    new.append(&op.condition, &skipping(&op.condition, at, count)).pop().unwrap_or(NOWHERE)
}

fn above_zero(new: &mut Rewriter, fuel: Operand) -> Operand {
    let zero = new.push_one(Op::Constant(Scalar::Int(0)), &[], &fuel_type());
    new.push_one(Op::Binary(Binary::Greater), &[fuel, zero], &bit())
}

fn not(new: &mut Rewriter, holds: Operand) -> Operand {
    let zero = new.push_one(Op::Constant(Scalar::Int(0)), &[], &bit());
    new.push_one(Op::Binary(Binary::Equal), &[holds, zero], &bit())
}

/// The fuel less the work, or none.
fn burn(new: &mut Rewriter, fuel: Operand, work: u64) -> Operand {
    let work = new.push_one(Op::Constant(Scalar::Int(work.min(u64::from(u32::MAX)).into())), &[], &fuel_type());
    let least = new.push_one(Op::Binary(Binary::Max), &[fuel, work], &fuel_type());
    new.push_one(Op::Binary(Binary::Subtract), &[least, work], &fuel_type())
}

//! What is small runs in one workgroup: runs of instructions, and loops, whose iterations then cost no dispatch.

use std::collections::{HashMap, HashSet};

use smallvec::{SmallVec, smallvec};

use super::rewrite::Rewriter;
use super::target::{Saving, Target};
use super::{loop_fuel, unroll};
use crate::program::attribute::Scalar;
use crate::program::counted::Trips;
use crate::program::fused::Plan;
use crate::program::ops::PHASE_WORK;
use crate::program::workgroup::{keeps_digits, supports_op, work};
use crate::program::{Binary, Instruction, Loop, Op, Operand, Program};
use crate::{DType, Result, Type};

/// Iterations between two looks at the condition by the host, at most.
const MAX_ITERATIONS: u64 = 1 << 16;

/// Instructions of one kernel; compilers take longer than in proportion.
const MAX_INSTRUCTIONS: usize = 300;

/// Operands of one kernel: their numbers are bytes.
const MAX_OPERANDS: usize = 250;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let program = loops(program, target)?;
    // Where memory is short, ops stay where the program has them.
    match target.joins_small_ops && target.saving == Saving::Nothing {
        true => regions(&sunk(&program, target), target),
        false => Ok(program),
    }
}

/// What a workgroup has to do for a program or an instruction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub work: u64,
    /// Whether it has loops of which nobody knows how often they run; their work is that of one iteration.
    pub open: bool,
}

impl Cost {
    fn and(self, other: Cost) -> Cost {
        Cost { work: self.work.saturating_add(other.work), open: self.open || other.open }
    }
}

/// What one workgroup has to do for an instruction whose operands have these types; `None` where it can't run it.
fn instruction_cost<'a>(instruction: &Instruction, type_of: impl Fn(Operand) -> Option<&'a Type>) -> Option<Cost> {
    let operands: &[&Type] = &instruction.operands.iter().map(|&o| type_of(o)).collect::<Option<Vec<_>>>()?;
    let (op, outs) = (&instruction.op, &instruction.outs);
    if !supports_op(op, operands, outs) || !keeps_digits(op, operands, outs) {
        return None;
    }
    match &instruction.op {
        Op::Workgroup(_) => None,
        Op::While(op) => {
            let iteration = iteration_cost(op)?;
            match op.known_trips() {
                Some(trips) => Some(Cost { work: iteration.work.saturating_mul(trips), ..iteration }),
                None => Some(Cost { open: true, ..iteration }),
            }
        }
        Op::Cond(op) => {
            let (on_true, on_false) = (program_cost(&op.on_true)?, program_cost(&op.on_false)?);
            Some(Cost { work: on_true.work.max(on_false.work), open: on_true.open || on_false.open })
        }
        // Nothing is known of what else runs programs.
        op if op.inside().next().is_some() => None,
        op => Some(Cost { work: work(op, operands, &instruction.outs), open: false }),
    }
}

/// What one iteration of a loop takes.
pub(super) fn iteration_cost(op: &Loop) -> Option<Cost> {
    let condition = program_cost(&op.condition).filter(|cost| !cost.open)?;
    let iteration = condition.and(program_cost(&op.body)?);
    Some(Cost { work: iteration.work.saturating_add(PHASE_WORK), ..iteration })
}

/// What one workgroup has to do for a program; `None` where it can't run it.
pub(super) fn program_cost(program: &Program) -> Option<Cost> {
    if program.instructions.len() > MAX_INSTRUCTIONS {
        return None;
    }
    let type_of = program.types();
    program
        .instructions
        .iter()
        .try_fold(Cost::default(), |cost, instruction| Some(cost.and(instruction_cost(instruction, &type_of)?)))
}

/// Puts loops into kernels, and treats the programs of those that stay.
fn loops(program: &Program, target: &Target) -> Result<Program> {
    let mut new = Rewriter::new(program);
    let stays_together = |program: &Program| program_cost(program).is_some_and(|cost| !cost.open);
    for instruction in &program.instructions {
        let operands = new.operands(instruction)?;
        let mut instruction = Instruction { operands, ..instruction.clone() };
        match &mut instruction.op {
            Op::While(op) => match iteration_cost(op) {
                Some(cost) if cost.work <= target.iteration_work => {
                    let most = (target.max_work / cost.work).clamp(1, MAX_ITERATIONS);
                    if cost.open {
                        let slow = run(&op.body, target)?;
                        op.body = loop_fuel::block(op, &instruction.outs, target.max_work, slow)?;
                        op.trips = None;
                    } else if op.known_trips().is_some_and(|trips| trips <= most) {
                        instruction = whole(&instruction, &new)?;
                    } else {
                        op.body = block(op, &instruction.outs, most as u32);
                        op.trips = op.known_trips().map(|trips| Trips::Known(trips.div_ceil(most)));
                    }
                }
                _ => {
                    op.condition = run(&op.condition, target)?;
                    op.body = run(&op.body, target)?;
                }
            },
            Op::Cond(op) if !stays_together(&op.on_true) || !stays_together(&op.on_false) => {
                op.on_true = run(&op.on_true, target)?;
                op.on_false = run(&op.on_false, target)?;
            }
            _ => {}
        }
        new.replace(instruction);
    }
    new.finish(program)
}

/// A program of one instruction whose operands are its inputs.
pub(super) fn alone(op: Op, inputs: Vec<Type>, outs: &[Type]) -> Program {
    let operands = (0..inputs.len() as u32).map(Operand::Input).collect();
    let outputs = (0..outs.len() as u32).map(Operand::Result).collect();
    Program { inputs, instructions: vec![Instruction { op, operands, outs: outs.into() }], outputs }
}

/// The whole loop in a kernel, with the numbers that it takes.
fn whole(instruction: &Instruction, new: &Rewriter) -> Result<Instruction> {
    let (kernel, operands) = unroll::with_numbers(instruction, new)?;
    Ok(Instruction { op: Op::Workgroup(Box::new(kernel)), operands, outs: instruction.outs.clone() })
}

/// A body that runs the loop in a kernel, up to `most` times. The condition holds when it begins.
fn block(op: &Loop, outs: &[Type], most: u32) -> Program {
    let states = outs.len() as u32;
    let counter = Type::new(DType::U32, &[]);
    let bit = Type::new(DType::U8, &[]);
    let inputs = op.body.inputs.clone();
    let mut inner_inputs = inputs.clone();
    inner_inputs.insert(states as usize, counter.clone());
    let count = Operand::Input(states);
    // The programs have one more input, after the state.
    let shifted = |program: &Program| -> Program {
        let map = |operand: &mut Operand| {
            if let Operand::Input(i) = operand
                && *i >= states
            {
                *i += 1;
            }
        };
        let mut program = Program { inputs: inner_inputs.clone(), ..program.clone() };
        program.instructions.iter_mut().flat_map(|i| &mut i.operands).for_each(map);
        program.outputs.iter_mut().for_each(map);
        program
    };
    let push = |program: &mut Program, op: Op, operands: &[Operand], ty: &Type| {
        let result = program.results().count() as u32;
        program.instructions.push(Instruction { op, operands: operands.into(), outs: smallvec![ty.clone()] });
        Operand::Result(result)
    };
    let mut condition = shifted(&op.condition);
    let end = push(&mut condition, Op::Constant(Scalar::Int(most.into())), &[], &counter);
    let below = push(&mut condition, Op::Binary(Binary::Less), &[count, end], &bit);
    let both: SmallVec<[Operand; 2]> = condition.outputs.iter().copied().chain([below]).collect();
    let holds = push(&mut condition, Op::Binary(Binary::LogicalAnd), &both, &bit);
    condition.outputs = vec![holds];
    let mut body = shifted(&op.body);
    let one = push(&mut body, Op::Constant(Scalar::Int(1)), &[], &counter);
    let next = push(&mut body, Op::Binary(Binary::Add), &[count, one], &counter);
    body.outputs.push(next);

    let mut kernel = Program { inputs: inputs.clone(), ..Program::default() };
    let zero = push(&mut kernel, Op::Constant(Scalar::Int(0)), &[], &counter);
    let all = (0..inputs.len() as u32).map(Operand::Input);
    let operands = all.clone().take(states as usize).chain([zero]).chain(all.skip(states as usize)).collect();
    let types = outs.iter().cloned().chain([counter]).collect();
    let inner = Op::While(Box::new(Loop::new(condition, body)));
    kernel.instructions.push(Instruction { op: inner, operands, outs: types });
    kernel.outputs = (1..=states).map(Operand::Result).collect();
    alone(Op::Workgroup(Box::new(kernel)), inputs, outs)
}

/// Dispatches in whose time an instruction that ends a run could be done.
const MEMBER_DISPATCHES: u64 = 4;

/// The program with large elementwise instructions behind those that don't read them, so that they don't part runs of
/// small ones.
fn sunk(program: &Program, target: &Target) -> Program {
    let most = MEMBER_DISPATCHES * target.joins.dispatch_work;
    let (type_of, maker) = (program.types(), program.makers());
    let sinks = |at: usize| {
        let instruction = &program.instructions[at];
        let is_small = instruction_cost(instruction, &type_of).is_some_and(|cost| cost.work <= most);
        instruction.op.elementwise().is_some() && !is_small
    };
    let mut placed = vec![false; program.instructions.len()];
    let mut order: Vec<usize> = Vec::with_capacity(placed.len());
    let (rest, first): (Vec<usize>, Vec<usize>) = (0..placed.len()).partition(|&at| sinks(at));
    for wanted in first.into_iter().chain(rest) {
        let mut stack = vec![wanted];
        while let Some(&at) = stack.last() {
            let sources = program.instructions[at].operands.iter().filter_map(|&o| maker(o));
            let missing: Vec<usize> = sources.filter(|&source| !placed[source]).collect();
            if placed[at] || missing.is_empty() {
                if !std::mem::replace(&mut placed[at], true) {
                    order.push(at);
                }
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
    }
    program.reordered(&order)
}

/// Puts runs of neighbouring instructions into kernels, where that takes less time than their dispatches.
fn regions(program: &Program, target: &Target) -> Result<Program> {
    let dispatch_work = target.joins.dispatch_work;
    let type_of = program.types();
    let closed = |i: &Instruction| instruction_cost(i, &type_of).filter(|cost| !cost.open);
    let works: Vec<Option<u64>> = program.instructions.iter().map(|i| closed(i).map(|cost| cost.work)).collect();
    let mut new = Rewriter::new(program);
    let mut at = 0;
    while at < program.instructions.len() {
        let mut end = at;
        let (mut total, mut saved) = (0, 0);
        while let Some(Some(work)) = works.get(end)
            && *work <= MEMBER_DISPATCHES * dispatch_work
            && end - at < MAX_INSTRUCTIONS
        {
            total += work;
            if program.instructions[end].op.class().takes_a_dispatch() {
                total += PHASE_WORK;
                saved += 1;
            }
            end += 1;
        }
        // What is left after its last reduction is one dispatch more.
        if saved >= 2 && total <= saved * dispatch_work && operand_count(program, at, end) <= MAX_OPERANDS {
            let region = Region::of(program, at, end, &new)?;
            if !(target.fusion && region.is_one_kernel(target)) {
                region.put(&mut new);
                at = end;
                continue;
            }
        }
        for instruction in &program.instructions[at..end.max(at + 1)] {
            let operands = new.operands(instruction)?;
            new.replace(Instruction { operands, ..instruction.clone() });
        }
        at = end.max(at + 1);
    }
    new.finish(program)
}

/// Operands and results that instructions `at .. end` would have as one, at most.
fn operand_count(program: &Program, at: usize, end: usize) -> usize {
    let inside = &program.instructions[at..end];
    inside.iter().map(|i| i.outs.len()).sum::<usize>()
        + inside.iter().flat_map(|i| &i.operands).collect::<HashSet<_>>().len()
}

/// Neighbouring instructions as a program.
struct Region {
    inner: Program,
    /// What it takes, in the new program.
    operands: SmallVec<[Operand; 3]>,
    /// Which of the instructions' results come out, and how many there are.
    read: Vec<u32>,
    results: u32,
}

impl Region {
    /// Instructions `at .. end`.
    fn of(program: &Program, at: usize, end: usize, new: &Rewriter) -> Result<Region> {
        let count = |range: &[Instruction]| range.iter().map(|i| i.outs.len() as u32).sum::<u32>();
        let first = count(&program.instructions[..at]);
        let last = first + count(&program.instructions[at..end]);
        let mut inner = Program::default();
        let mut captured: HashMap<Operand, u32> = HashMap::new();
        let mut operands: SmallVec<[Operand; 3]> = smallvec![];
        for instruction in &program.instructions[at..end] {
            let mut copy = instruction.clone();
            for operand in &mut copy.operands {
                *operand = match *operand {
                    Operand::Result(r) if r >= first => Operand::Result(r - first),
                    outside => {
                        let moved = new.operand(outside)?;
                        let number = captured.len() as u32;
                        let input = *captured.entry(moved).or_insert(number);
                        if input == number {
                            inner.inputs.push(new.ty(moved)?.clone());
                            operands.push(moved);
                        }
                        Operand::Input(input)
                    }
                };
            }
            inner.instructions.push(copy);
        }
        // What others read comes out.
        let after = program.instructions[end..].iter().flat_map(|i| &i.operands).chain(&program.outputs);
        let mut read: Vec<u32> = after
            .filter_map(|operand| match *operand {
                Operand::Result(r) if (first..last).contains(&r) => Some(r - first),
                _ => None,
            })
            .collect();
        read.sort_unstable();
        read.dedup();
        inner.outputs = read.iter().map(|&r| Operand::Result(r)).collect();
        Ok(Region { inner, operands, read, results: last - first })
    }

    /// Whether fusion makes one kernel of it, too, which shares out rows among workgroups, and whose first steps a
    /// product's kernel may take.
    fn is_one_kernel(&self, target: &Target) -> bool {
        Plan::of(&self.inner, target.live_words).is_ok_and(|plan| plan.phases() > 0 && target.takes(&plan))
    }

    /// Puts it into the new program, in one kernel.
    fn put(self, new: &mut Rewriter) {
        let Region { inner, operands, read, results } = self;
        let outs: SmallVec<[Type; 1]> = inner.output_types().into_iter().cloned().collect();
        let kernel = new.push(Instruction { op: Op::Workgroup(Box::new(inner)), operands, outs });
        let Operand::Result(start) = kernel else { return };
        for r in 0..results {
            // Results that nobody reads have no place; what asks for one would be wrong.
            let place = read.iter().position(|&out| out == r).map_or(u32::MAX, |place| start + place as u32);
            new.moved(Operand::Result(place));
        }
    }
}

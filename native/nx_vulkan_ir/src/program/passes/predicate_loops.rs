//! Loops of which nobody knows how often they run, with iterations that change nothing once the condition has failed:
//! so several run between two looks of the host, and the choice between old and new state is part of the kernels that
//! compute the new one.

use smallvec::smallvec;

use super::rewrite::Rewriter;
use super::target::Target;
use crate::program::counted::Trips;
use crate::program::ops::Class;
use crate::program::{Binary, Instruction, Loop, Op, Operand, Program};
use crate::{DType, Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let is_cheap = |program: &Program| is_cheap(program, target);
    let mut new = Rewriter::new(program);
    for instruction in &program.instructions {
        let operands = new.operands(instruction)?;
        let instruction = Instruction { operands, ..instruction.clone() };
        match &instruction.op {
            Op::While(op)
                if op.trips.is_none() && is_cheap(&op.body) && is_cheap(&op.condition) && is_bit(&op.condition) =>
            {
                let states = instruction.outs.len();
                let going = new.append(&op.condition, &instruction.operands);
                let mut operands = instruction.operands.clone();
                operands.insert_many(states, going);
                let mut outs = instruction.outs.clone();
                outs.push(bit());
                let op = Op::While(Box::new(guarded(op, states)));
                let Operand::Result(first) = new.push(Instruction { op, operands, outs }) else { continue };
                (first..).take(states).for_each(|r| new.moved(Operand::Result(r)));
            }
            _ => new.replace(instruction),
        }
    }
    new.finish(program)
}

fn bit() -> Type {
    Type::new(DType::U8, &[])
}

fn is_bit(condition: &Program) -> bool {
    condition.output_types() == [&bit()]
}

/// Whether the body takes little time and is sure to end, whatever its inputs are.
fn is_cheap(body: &Program, target: &Target) -> bool {
    let type_of = body.types();
    let bytes = |instruction: &Instruction| {
        let operands = instruction.operands.iter().filter_map(|&o| type_of(o));
        operands.chain(&instruction.outs).map(Type::size_bytes).sum::<u64>()
    };
    body.instructions.iter().all(|i| ends(&i.op))
        && body.instructions.iter().map(bytes).sum::<u64>() <= target.short_bytes
        && body.flops().is_some_and(|flops| flops <= target.short_flops)
}

/// Whether an op is sure to end, whatever its operands are.
fn ends(op: &Op) -> bool {
    match op.class() {
        Class::Loop | Class::Branch => false,
        Class::Kernel => !matches!(op, Op::Workgroup(_)),
        Class::Elementwise | Class::Source | Class::View | Class::Placement | Class::Padding | Class::Fence => true,
        Class::Reduction | Class::Fold | Class::Window | Class::Order | Class::Product => true,
        Class::Gather | Class::Scatter | Class::Transform | Class::Matrix => true,
    }
}

/// The loop whose last state says whether it goes on.
fn guarded(op: &Loop, states: usize) -> Loop {
    let mut inputs = op.body.inputs.clone();
    inputs.insert(states, bit());
    let going = Operand::Input(states as u32);
    let condition = Program { inputs: inputs.clone(), outputs: vec![going], ..Program::default() };
    let (before, captured): (Vec<Operand>, Vec<Operand>) = (0..inputs.len() as u32)
        .map(Operand::Input)
        .filter(|&input| input != going)
        .partition(|&input| matches!(input, Operand::Input(i) if (i as usize) < states));
    let all = |state: &[Operand]| -> Vec<Operand> { state.iter().chain(&captured).copied().collect() };
    let mut body = Program { inputs, ..Program::default() };
    let next = body.append(&op.body, &all(&before));
    let holds = body.append(&op.condition, &all(&next));
    let mut push = |op: Op, operands: &[Operand], ty: &Type| {
        let result = Operand::Result(body.results().count() as u32);
        body.instructions.push(Instruction { op, operands: operands.into(), outs: smallvec![ty.clone()] });
        result
    };
    let mut outputs: Vec<Operand> = next
        .iter()
        .zip(&before)
        .zip(&op.body.inputs)
        .map(
            |((&next, &before), ty)| if next == before { before } else { push(Op::Select, &[going, next, before], ty) },
        )
        .collect();
    let goes_on = [going].into_iter().chain(holds).collect::<Vec<Operand>>();
    outputs.push(push(Op::Binary(Binary::LogicalAnd), &goes_on, &bit()));
    body.outputs = outputs;
    Loop { condition, body, trips: Some(Trips::Guarded) }
}

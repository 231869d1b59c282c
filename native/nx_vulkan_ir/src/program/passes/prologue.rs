//! Moves cheap elementwise ops into the kernels of the small products that alone read their results, such as
//! activations between layers: each then reads what the op reads.

use std::collections::{HashMap, HashSet};

use smallvec::{SmallVec, smallvec};

use super::rewrite::{body_of, with_joined};
use super::target::Target;
use crate::program::epilogue::{self, takes_steps};
use crate::program::fused::is_view;
use crate::program::step::{Prologue, Step};
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// Steps that a product takes for each element that it loads.
const MAX_STEPS: usize = 4;

/// Bytes of an element that products read in place of a narrower one: parameters in f32 beside activations in half of
/// that.
const MAX_BYTES: u64 = 4;

/// An elementwise instruction: its only operand that is no constant, and what it does, as a body of that operand.
#[derive(Clone)]
struct Moved {
    operand: Operand,
    body: Program,
    steps: Box<[Step]>,
}

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    // With the first result of each.
    let mut readers: HashMap<Operand, Vec<(u32, &Instruction)>> = HashMap::new();
    let mut first = 0;
    for instruction in &program.instructions {
        for &operand in instruction.operands.iter().collect::<HashSet<_>>() {
            readers.entry(operand).or_default().push((first, instruction));
        }
        first += instruction.outs.len() as u32;
    }
    let outputs: HashSet<Operand> = program.outputs.iter().copied().collect();
    let type_of = program.types();
    let mut moved: HashMap<Operand, Moved> = HashMap::new();
    let mut first = 0;
    for instruction in &program.instructions {
        let result = Operand::Result(first);
        first += instruction.outs.len() as u32;
        if instruction.outs.len() != 1 || outputs.contains(&result) {
            continue;
        }
        // All that reads a view of what has moved takes it in.
        let found = seen(instruction, &moved).or_else(|| {
            let found = steps(&type_of, instruction, target)?;
            let from = type_of(found.operand)?;
            let taken = |results: &[Operand]| -> bool {
                let mut left = results.to_vec();
                while let Some(result) = left.pop() {
                    let Some(readers) = readers.get(&result).filter(|_| !outputs.contains(&result)) else {
                        return false;
                    };
                    for (first, reader) in readers {
                        if is_rearrangement(&type_of, reader) {
                            left.push(Operand::Result(*first));
                        } else if !takes(target, &type_of, reader, result, from, &found.steps) {
                            return false;
                        }
                    }
                }
                true
            };
            taken(&[result]).then_some(found)
        });
        moved.extend(found.map(|found| (result, found)));
    }
    with_joined(
        program,
        |_, result| moved.contains_key(&result),
        |_, instruction| {
            let (body, operands) = joined(target, &type_of, instruction, &moved)?;
            Some((Op::Fused(Box::new(body)), operands.to_vec()))
        },
    )
}

/// A product and what follows it as a body, whose inputs are the instruction's operands.
fn product<'a>(
    target: &Target,
    type_of: &impl Fn(Operand) -> Option<&'a Type>,
    instruction: &Instruction,
) -> Option<Program> {
    match &instruction.op {
        op if epilogue::is_product(op) => body_of(instruction, type_of),
        Op::Fused(body) => {
            let found = epilogue::of(body, target.joins.unit_work, target.live_words)?;
            (found.product == 0).then(|| (**body).clone())
        }
        _ => None,
    }
}

/// Whether an instruction is a product that takes steps in from one type to that of an operand, and reads it as its
/// factor alone.
fn takes<'a>(
    target: &Target,
    type_of: &impl Fn(Operand) -> Option<&'a Type>,
    instruction: &Instruction,
    operand: Operand,
    from: &Type,
    steps: &[Step],
) -> bool {
    let Some(body) = product(target, type_of, instruction) else { return false };
    let Some((product, rest)) = body.instructions.split_first() else { return false };
    let reads = |o: &Operand| matches!(o, Operand::Input(k) if instruction.operands.get(*k as usize) == Some(&operand));
    let types: Option<Vec<&Type>> = product.operands.iter().map(|&o| body.type_of(o)).collect();
    let (Some([a, b]), [out]) = (types.as_deref(), product.outs.as_slice()) else { return false };
    takes_steps(target.joins.unit_work, &product.op, [a, b], out, from, steps)
        && !rest.iter().any(|i| i.operands.iter().any(reads))
}

/// Whether an instruction only says where the elements of its operand are, all of them once.
fn is_rearrangement<'a>(type_of: &impl Fn(Operand) -> Option<&'a Type>, instruction: &Instruction) -> bool {
    let ([operand], [out]) = (instruction.operands.as_slice(), instruction.outs.as_slice()) else { return false };
    is_view(&instruction.op) && type_of(*operand).is_some_and(|ty| ty.elements() == out.elements())
}

/// A view of what has moved.
fn seen(instruction: &Instruction, moved: &HashMap<Operand, Moved>) -> Option<Moved> {
    let [operand] = instruction.operands.as_slice() else { return None };
    let Moved { operand, mut body, steps } = moved.get(operand).filter(|_| is_view(&instruction.op))?.clone();
    let result = Operand::Result(body.results().count() as u32);
    let operands = body.outputs.as_slice().into();
    body.instructions.push(Instruction { operands, ..instruction.clone() });
    body.outputs = vec![result];
    Some(Moved { operand, body, steps })
}

/// What an elementwise instruction does to the elements of its only operand, if that is cheap, reads no more bytes than
/// it gives, and gives few enough elements.
fn steps<'a>(
    type_of: &impl Fn(Operand) -> Option<&'a Type>,
    instruction: &Instruction,
    target: &Target,
) -> Option<Moved> {
    let mut operands: SmallVec<[Operand; 3]> = smallvec![];
    let inputs = instruction.operands.iter().map(|&operand| input(&mut operands, operand)).collect::<Vec<_>>();
    let [operand] = *operands else { return None };
    let ty = type_of(operand)?;
    let mut body = Program { inputs: vec![ty.clone()], ..Program::default() };
    body.outputs = match &instruction.op {
        Op::Fused(steps) => body.append(steps, &inputs),
        op => {
            op.elementwise()?;
            body.instructions.push(Instruction { operands: inputs.into(), ..instruction.clone() });
            vec![Operand::Result(0)]
        }
    };
    let [out] = instruction.outs.as_slice() else { return None };
    let (_, Prologue { steps, .. }) = epilogue::prologue(&body, target.live_words)?;
    let is_cheap = steps.len() <= MAX_STEPS && steps.iter().all(|s| s.op.is_cheap(&[s.out], s.out));
    let is_narrow = !ty.dtype.is_complex() && ty.dtype.size_bytes() <= out.dtype.size_bytes().max(MAX_BYTES);
    (is_cheap && is_narrow && out.elements() <= target.joins.loaded_elements).then_some(Moved { operand, body, steps })
}

/// The input of a body that is this one of its operands.
pub(super) fn input(operands: &mut SmallVec<[Operand; 3]>, operand: Operand) -> Operand {
    let known = operands.iter().position(|&other| other == operand);
    let at = known.unwrap_or(operands.len());
    if known.is_none() {
        operands.push(operand);
    }
    Operand::Input(at as u32)
}

/// A product with the steps on its operands as a body, and the operands that it takes then; `None` where no operand has
/// moved.
fn joined<'a>(
    target: &Target,
    type_of: &impl Fn(Operand) -> Option<&'a Type>,
    instruction: &Instruction,
    moved: &HashMap<Operand, Moved>,
) -> Option<(Program, SmallVec<[Operand; 3]>)> {
    if !instruction.operands.iter().any(|operand| moved.contains_key(operand)) {
        return None;
    }
    let mut body = Program::default();
    let mut operands: SmallVec<[Operand; 3]> = smallvec![];
    let mut inputs: Vec<Operand> = Vec::new();
    for operand in &instruction.operands {
        inputs.push(match moved.get(operand) {
            Some(before) => {
                let own = input(&mut operands, before.operand);
                *body.append(&before.body, &[own]).first()?
            }
            None => input(&mut operands, *operand),
        });
    }
    body.outputs = body.append(&product(target, type_of, instruction)?, &inputs);
    body.inputs = operands.iter().map(|&o| type_of(o).cloned()).collect::<Option<_>>()?;
    Some((body, operands))
}

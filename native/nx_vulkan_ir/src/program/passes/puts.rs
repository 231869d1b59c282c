//! Moves what computes a row into the kernel that puts it into something larger, which alone reads it: rotated keys,
//! and heads that a cache has repeated, in the cache.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::rewrite::with_joined;
use super::target::Target;
use crate::program::fused::is_view;
use crate::program::put::Put;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let (maker, reads, type_of) = (program.makers(), program.reads(), program.types());
    let mut taken: HashSet<usize> = HashSet::new();
    let mut joined: HashMap<usize, (Op, Vec<Operand>)> = HashMap::new();
    for (at, put) in program.instructions.iter().enumerate() {
        let (Op::PutSlice { .. }, Some(&update)) = (&put.op, put.operands.get(1)) else { continue };
        // Steps stand in a loop there, and no vectors are stored.
        if type_of(update).is_none_or(|ty| ty.elements() > target.joins.looped_results) {
            continue;
        }
        let mut leading = leading(program, &maker, &reads, update);
        while !leading.is_empty() {
            if let Some(found) = join(program, target, &type_of, &leading, put) {
                taken.extend(&leading);
                joined.insert(at, found);
                break;
            }
            leading.pop();
        }
    }
    with_joined(program, |at, _| taken.contains(&at), |at, _| joined.remove(&at))
}

/// What leads to an operand and is read by nothing else, the last first: views of what steps or something else makes.
fn leading(
    program: &Program,
    maker: &impl Fn(Operand) -> Option<usize>,
    reads: &HashMap<Operand, usize>,
    mut operand: Operand,
) -> Vec<usize> {
    let mut leading = Vec::new();
    while let Some(at) = maker(operand).filter(|_| reads.get(&operand) == Some(&1)) {
        let instruction = &program.instructions[at];
        let computes = matches!(instruction.op, Op::Fused(_)) || instruction.op.elementwise().is_some();
        let (true, Some(&next)) = (computes || is_view(&instruction.op), instruction.operands.first()) else { break };
        if instruction.outs.len() != 1 {
            break;
        }
        leading.push(at);
        if computes {
            break;
        }
        operand = next;
    }
    leading
}

/// A fused op of a put and of what leads to what it puts, with its operands: where that saves a kernel, and one kernel
/// can do it.
fn join<'a>(
    program: &Program,
    target: &Target,
    type_of: &impl Fn(Operand) -> Option<&'a Type>,
    leading: &[usize],
    put: &Instruction,
) -> Option<(Op, Vec<Operand>)> {
    let mut operands: Vec<Operand> = Vec::new();
    let mut input = |operand: Operand| {
        let known = operands.iter().position(|&other| other == operand);
        if known.is_none() {
            operands.push(operand);
        }
        Operand::Input(known.unwrap_or(operands.len() - 1) as u32)
    };
    let mut body = Program::default();
    let mut update = None;
    let mut saves = false;
    for &at in leading.iter().rev() {
        let instruction = &program.instructions[at];
        // Views read what comes before them alone.
        let inputs: SmallVec<[Operand; 3]> = match update {
            Some(before) => SmallVec::from_slice(&[before]),
            None => instruction.operands.iter().map(|&operand| input(operand)).collect(),
        };
        saves |= !is_view(&instruction.op) || matches!(instruction.op, Op::Broadcast { .. });
        update = match &instruction.op {
            Op::Fused(steps) => body.append(steps, &inputs).first().copied(),
            _ => {
                body.instructions.push(Instruction { operands: inputs, ..instruction.clone() });
                body.results().count().checked_sub(1).map(|last| Operand::Result(last as u32))
            }
        };
    }
    let (update, own) = (update?, put.operands.get(1)?);
    let taken = put.operands.iter().map(|operand| if operand == own { update } else { input(*operand) }).collect();
    body.instructions.push(Instruction { operands: taken, ..put.clone() });
    body.outputs = vec![Operand::Result(body.results().count().checked_sub(1)? as u32)];
    body.inputs = operands.iter().map(|&operand| type_of(operand).cloned()).collect::<Option<_>>()?;
    (saves && Put::of(&body, target.live_words).is_some()).then(|| (Op::Fused(Box::new(body)), operands))
}

//! Removes instructions whose results nobody uses.

use std::borrow::Cow;

use super::rewrite::Rewriter;
use crate::Result;
use crate::program::{Instruction, Op, Operand, Program};

pub fn run(program: &Program) -> Result<Program> {
    swept(program, false)
}

/// And such results of fused ops.
pub fn run_within(program: &Program) -> Result<Program> {
    swept(program, true)
}

fn swept(program: &Program, within: bool) -> Result<Program> {
    let mut used = vec![false; program.results().count()];
    let mark = |used: &mut Vec<bool>, operand: &Operand| {
        if let Operand::Result(r) = operand
            && let Some(slot) = used.get_mut(*r as usize)
        {
            *slot = true;
        }
    };
    program.outputs.iter().for_each(|o| mark(&mut used, o));
    let mut live: Vec<Option<Cow<'_, Instruction>>> = vec![None; program.instructions.len()];
    let mut first = used.len();
    for (i, instruction) in program.instructions.iter().enumerate().rev() {
        first -= instruction.outs.len();
        let own = &used[first..first + instruction.outs.len()];
        if own.contains(&true) {
            let left = match within && own.contains(&false) {
                true => with_outputs(instruction, own)?.map_or(Cow::Borrowed(instruction), Cow::Owned),
                false => Cow::Borrowed(instruction),
            };
            left.operands.iter().for_each(|o| mark(&mut used, o));
            live[i] = Some(left);
        }
    }
    let mut new = Rewriter::new(program);
    let mut first = 0;
    for (instruction, left) in program.instructions.iter().zip(live) {
        let own = &used[first..first + instruction.outs.len()];
        first += instruction.outs.len();
        let Some(left) = left else {
            // Nobody asks for these again.
            own.iter().for_each(|_| new.moved(Operand::Result(u32::MAX)));
            continue;
        };
        let left = Instruction { operands: new.operands(&left)?, ..left.into_owned() };
        if left.outs.len() == own.len() {
            new.replace(left);
            continue;
        }
        let Operand::Result(mut next) = new.push(left) else { continue };
        for &used in own {
            new.moved(Operand::Result(if used { next } else { u32::MAX }));
            next += u32::from(used);
        }
    }
    new.finish(program)
}

/// A fused op that gives some of its results only, and reads what these need.
pub fn with_outputs(instruction: &Instruction, wanted: &[bool]) -> Result<Option<Instruction>> {
    let Op::Fused(body) = &instruction.op else { return Ok(None) };
    fn kept<'a, T: Clone>(list: &'a [T], wanted: &'a [bool]) -> impl Iterator<Item = T> + 'a {
        list.iter().zip(wanted).filter(|(_, wanted)| **wanted).map(|(item, _)| item.clone())
    }
    let body = run(&Program { outputs: kept(&body.outputs, wanted).collect(), ..(**body).clone() })?;
    let read = |i: u32| {
        let operands = body.instructions.iter().flat_map(|instruction| &instruction.operands);
        operands.chain(&body.outputs).any(|&operand| operand == Operand::Input(i))
    };
    let read: Vec<bool> = (0..body.inputs.len() as u32).map(read).collect();
    let mut places = 0..;
    let inputs: Vec<Operand> =
        read.iter().map(|&read| Operand::Input(if read { places.next().unwrap_or(0) } else { u32::MAX })).collect();
    let mut less = Program { inputs: kept(&body.inputs, &read).collect(), ..Program::default() };
    less.outputs = less.append(&body, &inputs);
    Ok(Some(Instruction {
        op: Op::Fused(Box::new(less)),
        operands: kept(&instruction.operands, &read).collect(),
        outs: kept(&instruction.outs, wanted).collect(),
    }))
}

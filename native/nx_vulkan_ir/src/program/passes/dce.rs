//! Removes instructions whose results nobody uses.

use super::rewrite::Rewriter;
use crate::Result;
use crate::program::{Instruction, Operand, Program};

pub fn run(program: &Program) -> Result<Program> {
    let mut used = vec![false; program.results().count()];
    let mark = |used: &mut Vec<bool>, operand: &Operand| {
        if let Operand::Result(r) = operand
            && let Some(slot) = used.get_mut(*r as usize)
        {
            *slot = true;
        }
    };
    program.outputs.iter().for_each(|o| mark(&mut used, o));
    let mut live = vec![false; program.instructions.len()];
    let mut first = used.len();
    for (i, instruction) in program.instructions.iter().enumerate().rev() {
        first -= instruction.outs.len();
        if used[first..first + instruction.outs.len()].iter().any(|&used| used) {
            live[i] = true;
            instruction.operands.iter().for_each(|o| mark(&mut used, o));
        }
    }
    let mut new = Rewriter::new(program);
    for (instruction, live) in program.instructions.iter().zip(live) {
        if live {
            let operands = new.operands(instruction)?;
            new.replace(Instruction { operands, ..instruction.clone() });
        } else {
            // Nobody asks for these again.
            instruction.outs.iter().for_each(|_| new.moved(Operand::Result(u32::MAX)));
        }
    }
    new.finish(program)
}

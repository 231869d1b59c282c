//! Puts what reads a large result last, and makes less, as early as it can be: gradients by weights, which a program
//! may have after the gradients of all layers before.

use super::lives::Lives;
use crate::Result;
use crate::program::fused::shares_memory;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Operand, Program};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let lives = Lives::of(program, target);
    // Behind which instruction of the old order each comes, itself where it stays.
    let mut places: Vec<usize> = Vec::with_capacity(program.instructions.len());
    for (at, instruction) in program.instructions.iter().enumerate() {
        let makers = instruction.operands.iter().filter_map(|&operand| Some(places[lives.made(operand)?.maker])).max();
        let place = makers.and_then(|makers| match shares_memory(&instruction.op) {
            true => Some(makers),
            false => lives.frees_behind(at).map(|before| makers.max(places[before])),
        });
        places.push(place.unwrap_or(at));
    }
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&at| (places[at], at));
    if order.iter().copied().eq(0..places.len()) {
        return Ok(program.clone());
    }
    let mut numbers = vec![0u32; lives.results.len()];
    let mut next = 0;
    for &at in &order {
        for k in 0..program.instructions[at].outs.len() {
            numbers[lives.first[at] + k] = next;
            next += 1;
        }
    }
    let moved = |operand: &Operand| match *operand {
        Operand::Result(r) => Operand::Result(numbers[r as usize]),
        input => input,
    };
    let instructions = order.iter().map(|&at| {
        let old = &program.instructions[at];
        Instruction { operands: old.operands.iter().map(moved).collect(), ..old.clone() }
    });
    Ok(Program {
        inputs: program.inputs.clone(),
        instructions: instructions.collect(),
        outputs: program.outputs.iter().map(moved).collect(),
    })
}

impl Lives<'_> {
    /// The instruction that one comes after at the earliest, but for what makes its operands, if it is among the last
    /// readers of a large result that together make less by far: the reader before those.
    fn frees_behind(&self, at: usize) -> Option<usize> {
        let operands = &self.program.instructions[at].operands;
        let freed = operands.iter().flat_map(|&operand| self.behind(self.base_of(operand)));
        freed.filter_map(|r| self.before_last_readers(r, at)).min()
    }

    /// The last reader of a result, or what makes it, before its last ones that together make less by far, if an
    /// instruction is one of these.
    fn before_last_readers(&self, result: usize, at: usize) -> Option<usize> {
        let freed = &self.results[result];
        let mut left = freed.bytes.checked_sub(self.target.joins.read_bytes).filter(|_| freed.last != usize::MAX)?;
        for &reader in freed.readers.iter().rev() {
            let made: u64 = self.program.instructions[reader].outs.iter().map(|out| out.size_bytes()).sum();
            match left.checked_sub(made) {
                Some(rest) => left = rest,
                None => return (reader < at).then_some(reader),
            }
        }
        Some(freed.maker)
    }
}

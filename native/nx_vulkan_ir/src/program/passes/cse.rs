//! Computes equal instructions of equal operands once.

use std::collections::HashMap;

use super::rewrite::{Operands, Rewriter};
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut known: HashMap<(&Op, Operands, &[Type]), u32> = HashMap::with_capacity(program.instructions.len());
    let mut new = Rewriter::new(program);
    let mut results = 0;
    for instruction in &program.instructions {
        let operands = new.operands(instruction)?;
        let first = *known.entry((&instruction.op, operands.clone(), &instruction.outs)).or_insert(results);
        if first < results {
            (first..).take(instruction.outs.len()).for_each(|same| new.moved(Operand::Result(same)));
            continue;
        }
        results += instruction.outs.len() as u32;
        new.replace(Instruction { operands, ..instruction.clone() });
    }
    new.finish(program)
}

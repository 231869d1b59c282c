//! Computes equal instructions of equal operands once.

use std::collections::HashMap;

use super::rewrite::{Operands, Rewriter};
use crate::program::{Instruction, Operand, Program};
use crate::{Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    // The text of an op says all of it: floats are written so that they read back the same, with their sign.
    let mut known: HashMap<(String, Operands, Vec<Type>), Vec<Operand>> = HashMap::new();
    let mut new = Rewriter::new(program);
    let mut results = 0;
    for instruction in &program.instructions {
        let operands = new.operands(instruction)?;
        let key = (format!("{:?}", instruction.op), operands.clone(), instruction.outs.to_vec());
        if let Some(same) = known.get(&key) {
            same.iter().for_each(|&operand| new.moved(operand));
            continue;
        }
        let made = (results..results + instruction.outs.len() as u32).map(Operand::Result).collect();
        results += instruction.outs.len() as u32;
        known.insert(key, made);
        new.replace(Instruction { operands, ..instruction.clone() });
    }
    new.finish(program)
}

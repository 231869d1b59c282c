//! A whole program, one op at a time.

use std::sync::Arc;

use super::run_all;
use crate::kernels::Compile;
use crate::program::{Operand, Program};
use crate::{Engine, Error, Result, Tensor};

/// Runs a program's instructions in order and returns its outputs. Inputs must have the program's types.
///
/// # Errors
/// `InvalidProgram` for inputs that don't fit and operands that don't exist; else what the ops answer.
pub fn run_program(engine: &Arc<Engine>, program: &Program, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let invalid = |reason: String| Error::InvalidProgram { op: "program".to_string(), reason };
    if inputs.len() != program.inputs.len() || inputs.iter().zip(&program.inputs).any(|(t, ty)| t.view.ty() != *ty) {
        let got: Vec<_> = inputs.iter().map(|t| t.view.ty()).collect();
        return Err(invalid(format!("inputs {got:?}, expected {:?}", program.inputs)));
    }
    run_instructions(engine, program, inputs, Compile::Allowed)
}

/// Runs a program's ops one by one on inputs that are known to fit.
pub(super) fn run_instructions(
    engine: &Arc<Engine>,
    program: &Program,
    inputs: &[Tensor],
    compile: Compile,
) -> Result<Vec<Tensor>> {
    let invalid = |reason: String| Error::InvalidProgram { op: "program".to_string(), reason };
    let mut results: Vec<Tensor> = Vec::with_capacity(program.instructions.len());
    let find = |results: &[Tensor], operand: &Operand| {
        let found = match *operand {
            Operand::Input(i) => inputs.get(i as usize),
            Operand::Result(i) => results.get(i as usize),
        };
        found.cloned().ok_or_else(|| invalid(format!("{operand:?} does not exist")))
    };
    for instruction in &program.instructions {
        let operands = instruction.operands.iter().map(|o| find(&results, o)).collect::<Result<Vec<_>>>()?;
        results.extend(run_all(engine, &instruction.op, &operands, &instruction.outs, compile)?);
    }
    program.outputs.iter().map(|o| find(&results, o)).collect()
}

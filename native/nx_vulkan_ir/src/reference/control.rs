//! Loops and branches.

use super::array::Array;
use super::run;
use crate::program::{Branches, Loop};
use crate::{Error, Result};

fn is_true(results: &[Array]) -> Result<bool> {
    let value = results.first().and_then(|a| a.values.first());
    value.map(|v| v.truthy()).ok_or_else(|| Error::InvalidProgram {
        op: "while".to_string(),
        reason: "the condition gives nothing".to_string(),
    })
}

/// Runs the body for as long as the condition holds. The first `state` operands are the state.
pub fn repeat(op: &Loop, operands: &[Array], state: usize) -> Result<Vec<Array>> {
    let mut values = operands.to_vec();
    while is_true(&run(&op.condition, &values)?)? {
        let next = run(&op.body, &values)?;
        values.splice(..state, next);
    }
    values.truncate(state);
    Ok(values)
}

/// Runs the program that the first operand chooses.
pub fn choose(op: &Branches, operands: &[Array]) -> Result<Vec<Array>> {
    let captured = operands.get(1..).unwrap_or_default();
    let chosen = if is_true(operands)? { &op.on_true } else { &op.on_false };
    run(chosen, captured)
}

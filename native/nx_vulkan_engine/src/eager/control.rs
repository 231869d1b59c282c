//! Loops and branches, decided by the host: each decision waits for the device.

use std::sync::Arc;

use super::call::Results;
use super::run_program;
use crate::kernels::Compile;
use crate::program::counted::whole_number;
use crate::program::{Branches, Loop};
use crate::{DType, Engine, Error, Result, Tensor, Value};

/// Whether a scalar counts as true: everything but zero. Waits for it.
pub fn is_true(engine: &Engine, scalar: &Tensor) -> Result<bool> {
    Ok(read(engine, scalar)?.truthy())
}

/// The whole number that a scalar holds, if it does. Waits for it.
pub fn read_number(engine: &Engine, scalar: &Tensor) -> Result<Option<i64>> {
    Ok(whole_number(read(engine, scalar)?.into()))
}

fn read(engine: &Engine, scalar: &Tensor) -> Result<Value> {
    let dtype: DType = scalar.view.dtype;
    let bytes = scalar.to_nx_bytes(engine, Some(1))?;
    let bits = bytes.iter().rev().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
    // An element of a sub-byte type lies in the high bits of its byte.
    let bits = if dtype.bits() < 8 { bits >> (8 - dtype.bits()) } else { bits };
    Ok(Value::from_bits(dtype, bits))
}

fn waits(compile: Compile) -> Result<()> {
    if compile == Compile::Refused { Err(Error::NeedsCompile) } else { Ok(()) }
}

/// Runs the body for as long as the condition holds. The first `state` operands are the state.
pub fn repeat(engine: &Arc<Engine>, op: &Loop, operands: &[Tensor], state: usize, compile: Compile) -> Result<Results> {
    waits(compile)?;
    let mut values = operands.to_vec();
    loop {
        let going_on = run_program(engine, &op.condition, &values)?;
        let going_on = going_on.first().ok_or_else(|| Error::InvalidProgram {
            op: "while".to_string(),
            reason: "the condition gives nothing".to_string(),
        })?;
        if !is_true(engine, going_on)? {
            values.truncate(state);
            return Ok(values.into_iter().collect());
        }
        let next = run_program(engine, &op.body, &values)?;
        values.splice(..state.min(values.len()), next);
    }
}

/// Runs the program that the first operand chooses.
pub fn choose(engine: &Arc<Engine>, op: &Branches, operands: &[Tensor], compile: Compile) -> Result<Results> {
    waits(compile)?;
    let (predicate, captured) = operands
        .split_first()
        .ok_or_else(|| Error::InvalidProgram { op: "cond".to_string(), reason: "needs a predicate".to_string() })?;
    let chosen = if is_true(engine, predicate)? { &op.on_true } else { &op.on_false };
    Ok(run_program(engine, chosen, captured)?.into_iter().collect())
}

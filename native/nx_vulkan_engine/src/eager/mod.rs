//! One op at a time: a program of one instruction, run as soon as it is known.
//!
//! View ops only change the view. Every other op looks its kernel up, fills parameter words and records a dispatch.

mod attention;
mod call;
mod constant;
mod control;
mod conv;
mod copies;
mod dot;
mod eigh;
mod epilogue;
mod fft;
mod fold;
mod fused;
mod halves;
mod index;
mod indexed;
mod linalg;
mod matrix;
mod movement;
mod order;
mod program;
mod put;
mod qr;
mod read;
mod svd;
mod transfer;
mod window;
mod workgroup;

use std::sync::Arc;

pub use crate::kernels::Compile;
pub use call::Results;
pub(crate) use constant::ConstantCache;
pub(crate) use control::{is_true, read_number};
pub use copies::{contiguous, copied, copy};
#[cfg(test)]
pub(crate) use linalg::cholesky::tiles as cholesky_tiles;
pub use program::run_program;
use smallvec::{SmallVec, smallvec};

use crate::program::ops::Class;
use crate::program::{Op, passes, verify};
use crate::shape::Type;
use crate::{Engine, Error, Result, Tensor};
use call::Call;

/// Runs one op of any number of results, of the types `outs`.
///
/// # Errors
/// As [`run`].
pub fn run_all(engine: &Arc<Engine>, op: &Op, operands: &[Tensor], outs: &[Type], compile: Compile) -> Result<Results> {
    match op {
        Op::While(body) => {
            check(op, operands, outs)?;
            return control::repeat(engine, body, operands, outs.len(), compile);
        }
        Op::Workgroup(program) => {
            check(op, operands, outs)?;
            return workgroup::run(engine, program, operands, outs, compile);
        }
        Op::Cond(branches) => {
            check(op, operands, outs)?;
            return control::choose(engine, branches, operands, compile);
        }
        Op::Fused(body) => {
            check(op, operands, outs)?;
            let missing = || Error::InvalidProgram { op: "fused".to_string(), reason: "has results".to_string() };
            let out = outs.first().ok_or_else(missing)?;
            return fused::fused(&Call { engine, op, operands, out, outs, compile }, body);
        }
        _ => {}
    }
    if let [out] = outs {
        return Ok(smallvec![run(engine, op, operands, out, compile)?]);
    }
    let missing = || Error::InvalidProgram { op: op.name().to_string(), reason: "has results".to_string() };
    let out = outs.first().ok_or_else(missing)?;
    check(op, operands, outs)?;
    structured(&Call { engine, op, operands, out, outs, compile })
}

/// Runs an op that is not elementwise, of operands and results that its rules accept.
fn structured(call: &Call<'_>) -> Result<Results> {
    let Call { engine, op, operands, outs, compile, .. } = *call;
    refuse_long(engine, op, operands, compile)?;
    if let Some(results) = halves::halves(engine, op, operands, outs, compile)? {
        return Ok(results);
    }
    let results = match op {
        Op::Order(op) => op.accept(call),
        Op::Indexing(op) => op.accept(call),
        Op::Windowed(op) => op.accept(call),
        Op::Spectral(op) => op.accept(call),
        Op::Matrix(op) => op.accept(call),
        _ => Ok(smallvec![single(call)?]),
    };
    match results {
        Err(error) if matches!(error, Error::TooLarge { .. }) => {
            halves::of_working_memory(engine, op, operands, outs, compile)?.ok_or(error)
        }
        results => results,
    }
}

/// Sides of matrices, and operands of one op, from which on recording takes long enough to wait for the device in
/// between.
const LONG_SIDE: u64 = 256;
const LONG_OPERANDS: usize = 32;

/// Sends ops of many launches to callers that may wait, and matrices whose kernels reach far.
fn refuse_long(engine: &Engine, op: &Op, operands: &[Tensor], compile: Compile) -> Result<()> {
    let matrices = op.class() == Class::Matrix;
    let is_long = |t: &Tensor| {
        let far = t.view.elements() > engine.reach().near(t.view.dtype.size_bytes());
        far || t.view.shape.iter().rev().take(2).any(|&n| n > LONG_SIDE)
    };
    let long_side = operands.iter().any(is_long);
    match compile {
        Compile::Refused if matrices && long_side || operands.len() > LONG_OPERANDS => Err(Error::NeedsCompile),
        Compile::Refused | Compile::Allowed => Ok(()),
    }
}

/// Checks all rules, in every build: kernels index by what they are told.
fn check(op: &Op, operands: &[Tensor], outs: &[Type]) -> Result<()> {
    let types: SmallVec<[Type; 3]> = operands.iter().map(|t| t.view.ty()).collect();
    verify::instruction(op, &types.iter().collect::<SmallVec<[&Type; 3]>>(), outs)
}

/// Runs one op of one result. Returns at once; the result's memory is filled when the device gets there.
///
/// # Errors
/// `NeedsCompile` when a kernel is missing and `compile` refuses to wait for it. `InvalidProgram` for operands or a
/// result that the op does not have. `TooLarge` for results that no memory holds.
pub fn run(engine: &Arc<Engine>, op: &Op, operands: &[Tensor], out: &Type, compile: Compile) -> Result<Tensor> {
    let outs = std::slice::from_ref(out);
    check(op, operands, outs)?;
    let call = Call { engine, op, operands, out, outs, compile };
    if let Some(elementwise) = op.elementwise() {
        if let Some(known) = constant::computed(engine, elementwise, operands, out)? {
            return Ok(known);
        }
        return call.elementwise(elementwise);
    }
    call.one(structured(&call)?)
}

/// Runs an op of one result that is a variant of `Op` itself.
fn single(call: &Call<'_>) -> Result<Tensor> {
    let Call { engine, op, operands, out, .. } = *call;
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => {
            Err(call.invalid("not elementwise".into()))
        }
        Op::Constant(value) => constant::constant(engine, *value, out),
        Op::Iota { axis } => call.iota(*axis),
        Op::Eye => call.eye(),
        Op::Bitcast => call.bitcast(),
        Op::Reshape | Op::Squeeze => call.reshape(),
        Op::After => call.view(|view| Ok(view.clone())),
        Op::Reduce { reduction, axes, tie_high } => call.reduce(*reduction, axes, *tie_high),
        Op::AllClose { equal_nan, rtol, atol } => {
            let types = operands.iter().map(|t| t.view.ty()).collect::<SmallVec<[Type; 2]>>();
            let [a, b] = &types[..] else { return Err(call.invalid("needs two operands".into())) };
            let steps = passes::steps_of_all_close([a, b], *equal_nan, [*rtol, *atol])?;
            call.one(fused::fused(call, &steps)?)
        }
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            dot::dot(call, [contract_a, contract_b], [batch_a, batch_b], [None, None], None)
        }
        Op::Fold { axes, function } => fold::fold(call, axes, function),
        Op::Conv(op) => conv::conv(call, op, [None, None], None),
        Op::While(_)
        | Op::Cond(_)
        | Op::Workgroup(_)
        | Op::Fused(_)
        | Op::Order(_)
        | Op::Indexing(_)
        | Op::Windowed(_)
        | Op::Spectral(_)
        | Op::Matrix(_) => Err(call.invalid("gives a list of results".into())),
        Op::Broadcast { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::PutSlice { .. }
        | Op::Moved(_)
        | Op::Concatenate { .. }
        | Op::Stack { .. } => movement::moved(call),
    }
}

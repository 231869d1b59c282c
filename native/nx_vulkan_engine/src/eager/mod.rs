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
mod qr;
mod read;
mod svd;
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
            return fused::fused(&Call { engine, op, operands, out, compile }, body);
        }
        _ => {}
    }
    if let [out] = outs {
        return Ok(smallvec![run(engine, op, operands, out, compile)?]);
    }
    let bad = |reason: String| Error::InvalidProgram { op: op.name().to_string(), reason };
    let out = outs.first().ok_or_else(|| bad("has results".to_string()))?;
    check(op, operands, outs)?;
    refuse_long(engine, op, operands, compile)?;
    if let Some(results) = halves::halves(engine, op, operands, outs, compile)? {
        return Ok(results);
    }
    let call = Call { engine, op, operands, out, compile };
    let results = match (op, outs) {
        (Op::Qr { complete }, _) => qr::qr(&call, *complete, outs),
        (Op::Eigh, _) => eigh::eigh(&call, outs),
        (Op::Svd { full }, _) => svd::svd(&call, *full, outs),
        (Op::Linalg(op), _) => linalg::run_all(&call, *op, outs),
        (Op::Order(op), _) => order::run(&call, op, outs),
        _ => Err(bad(format!("has one result, got {}", outs.len()))),
    };
    match results {
        Err(error) if matches!(error, Error::TooLarge { .. }) => {
            halves::of_batches(engine, op, operands, outs, compile)?.ok_or(error)
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
    check(op, operands, std::slice::from_ref(out))?;
    let call = Call { engine, op, operands, out, compile };
    if let Some(elementwise) = op.elementwise() {
        if let Some(known) = constant::computed(engine, elementwise, operands, out)? {
            return Ok(known);
        }
        return call.elementwise(elementwise);
    }
    refuse_long(engine, op, operands, compile)?;
    if let Some(result) =
        halves::halves(engine, op, operands, std::slice::from_ref(out), compile)?.and_then(|mut all| all.pop())
    {
        return Ok(result);
    }
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
            call.one(fused::fused(&call, &steps)?)
        }
        Op::Window { reduction, windows } => window::reduce_windows(&call, *reduction, windows),
        Op::Order(op) => call.one(order::run(&call, op, std::slice::from_ref(out))?),
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            dot::dot(&call, [contract_a, contract_b], [batch_a, batch_b], [None, None], None)
        }
        Op::Fold { axes, function } => fold::fold(&call, axes, function),
        Op::WindowFold { windows, function } => fold::fold_windows(&call, windows, function),
        Op::WindowScatter { max, windows } => window::scatter(&call, *max, windows),
        Op::Conv(op) => conv::conv(&call, op, [None, None], None),
        Op::Take { axis } => index::take(&call, *axis, false),
        Op::TakeAlongAxis { axis } => index::take(&call, *axis, true),
        Op::Fft { kind, axis, length, eps } => fft::transform(&call, *kind, *axis, *length, eps.real()),
        Op::Gather { axes } => index::gather(&call, axes),
        Op::Qr { .. } | Op::Eigh | Op::Svd { .. } => Err(call.invalid("has several results".into())),
        Op::While(_) | Op::Cond(_) | Op::Workgroup(_) | Op::Fused(_) => {
            Err(call.invalid("gives a list of results".into()))
        }
        Op::IndexedAdd { axes } => indexed::indexed(&call, axes, true),
        Op::IndexedPut { axes } => indexed::indexed(&call, axes, false),
        Op::Linalg(of) => match linalg::run(&call, *of) {
            Err(error) if matches!(error, Error::TooLarge { .. }) => {
                let halves = halves::of_batches(engine, op, operands, std::slice::from_ref(out), compile)?;
                halves.and_then(|mut all| all.pop()).ok_or(error)
            }
            result => result,
        },
        Op::Broadcast { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Slice { .. }
        | Op::PutSlice { .. }
        | Op::Pad { .. }
        | Op::Concatenate { .. }
        | Op::Stack { .. } => movement::moved(&call),
    }
}

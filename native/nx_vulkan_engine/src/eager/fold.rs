//! Reductions with a function of the user's, over axes and over windows.

use super::call::Call;
use super::window;
use crate::kernels::fold::{Fold, fold as launch};
use crate::program::attribute::Axes;
use crate::program::{Function, Windows};
use crate::{DType, Result, Tensor};

pub fn fold(call: &Call<'_>, axes: &Axes, function: &Function) -> Result<Tensor> {
    let a = call.operand(0)?;
    let rank = a.view.shape.len();
    if axes.iter().any(|&axis| axis >= rank) {
        return Err(call.invalid(format!("axes {axes:?} of rank {rank}")));
    }
    let kept: Axes = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let order: Axes = kept.iter().copied().chain((0..rank).filter(|axis| axes.contains(axis))).collect();
    let input = a.with_view(a.view.transpose(&order)?);
    run(call, &input, kept.len(), function)
}

/// Folds each window; the initial value stands in the padding.
pub fn fold_windows(call: &Call<'_>, windows: &Windows, function: &Function) -> Result<Tensor> {
    let a = call.operand(0)?;
    let input = window::windowed(call, a, windows, &call.out.shape, call.operand(1)?)?;
    run(call, &input, a.view.shape.len(), function)
}

/// Folds the axes of `input` from `kept` on.
fn run(call: &Call<'_>, input: &Tensor, kept: usize, function: &Function) -> Result<Tensor> {
    let results: u64 = input.view.shape[..kept].iter().product();
    if results != call.out.elements() || input.view.elements() == 0 {
        return Err(call.invalid(format!("{results} results for a shape of {:?}", call.out.shape)));
    }
    let (initial, captured) = (call.operand(1)?, call.operands.get(2..).unwrap_or_default());
    let scalars: Vec<DType> = captured.iter().map(|t| t.view.dtype).collect();
    let inputs = [&[input.view.dtype, call.out.dtype], &scalars[..]].concat();
    function.check(&inputs, call.out.dtype).map_err(|reason| call.invalid(reason))?;
    if call.operands[1..].iter().any(|t| t.view.elements() != 1) {
        return Err(call.invalid("the initial value and what is captured must be scalars".to_string()));
    }
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let what = Fold { input, kept, initial, captured, function, out: &result };
    launch(call.engine, &what, call.compile)?;
    Ok(result)
}

//! Ops over sliding windows: the windows are an overlapping view of the padded operand.

use smallvec::smallvec;

use super::call::{Call, Results};
use super::{constant, fold, movement};
use crate::kernels::reduce::{Reduce, Target, reduce};
use crate::kernels::window_scatter::{self, window_scatter};
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::Visitor;
use crate::program::ops::window::{Window, WindowFold, WindowScatter};
use crate::program::{Reduction, Windows};
use crate::shape::Dims;
use crate::{Result, Tensor, Type};

impl Visitor<Window, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Window) -> Result<Results> {
        Ok(smallvec![reduce_windows(self, op.reduction, &op.windows)?])
    }
}

impl Visitor<WindowFold, Result<Results>> for &Call<'_> {
    fn visit(self, op: &WindowFold) -> Result<Results> {
        Ok(smallvec![fold::fold_windows(self, &op.windows, &op.function)?])
    }
}

impl Visitor<WindowScatter, Result<Results>> for &Call<'_> {
    fn visit(self, op: &WindowScatter) -> Result<Results> {
        Ok(smallvec![scatter(self, op.max, &op.windows)?])
    }
}

fn reduce_windows(call: &Call<'_>, reduction: Reduction, windows: &Windows) -> Result<Tensor> {
    let a = call.operand(0)?;
    let neutral = match reduction {
        Reduction::Product => Scalar::Int(1),
        Reduction::Max => Scalar::Float(f64::NEG_INFINITY),
        Reduction::Min => Scalar::Float(f64::INFINITY),
        Reduction::Sum | Reduction::Any | Reduction::ArgMax | Reduction::ArgMin => Scalar::Int(0),
        Reduction::All => Scalar::Int(1),
    };
    let neutral = constant::constant(call.engine, neutral, &Type::new(a.view.dtype, &[]))?;
    let view = windowed(call, a, windows, &call.out.shape, &neutral)?;
    let rank = a.view.shape.len();
    let axes: Axes = (rank..2 * rank).collect();
    let what = Reduce { reduction, tie_high: false, axes: &axes, out: call.out.dtype };
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let target = Target { buffer: &result.buffer, offset_bytes: 0 };
    reduce(call.engine, &view.buffer, &view.view, what, target, call.compile)?;
    Ok(result)
}

/// Adds each window's source to its extreme element. Each element sums up what its windows give, so that nothing is
/// written twice.
fn scatter(call: &Call<'_>, max: bool, windows: &Windows) -> Result<Tensor> {
    let (a, source, initial) = (call.operand(0)?, call.operand(1)?, call.operand(2)?);
    if windows.dilations.iter().any(|&step| step != 1) || initial.view.elements() != 1 || a.view.shape != call.out.shape
    {
        return Err(call.invalid(format!("{:?} of {:?} to {:?}", windows, a.view.shape, call.out.shape)));
    }
    if a.view.dtype.is_complex() || call.out.dtype.is_complex() {
        return Err(call.invalid("complex numbers have no order".to_string()));
    }
    let a = &movement::ascending(call, a)?;
    let input = &windowed(call, a, windows, &source.view.shape, initial)?;
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let what = window_scatter::WindowScatter { max, windows, input, source, initial, out: &result };
    window_scatter(call.engine, &what, call.compile)?;
    Ok(result)
}

/// All windows of `a` as a view: the axes that count them, of the given sizes, then those of a window. `filling` stands
/// in the padding.
pub fn windowed(call: &Call<'_>, a: &Tensor, windows: &Windows, expected: &[u64], filling: &Tensor) -> Result<Tensor> {
    let counts = windows.counts(&a.view.shape).map_err(|reason| call.invalid(reason))?;
    if counts[..] != *expected {
        return Err(call.invalid(format!("{counts:?} windows for a shape of {expected:?}")));
    }
    let padded = padded(call, a, windows, filling)?;
    Ok(padded.with_view(windows.view(&padded.view, &counts)))
}

/// The operand with the padding of its windows: a view where nothing is added, else a copy.
fn padded(call: &Call<'_>, a: &Tensor, windows: &Windows, filling: &Tensor) -> Result<Tensor> {
    let shape = windows.padded(&a.view.shape).map_err(|reason| call.invalid(reason))?;
    if windows.padding.iter().all(|&(low, high)| low <= 0 && high <= 0) {
        let starts: Dims = windows.padding.iter().map(|&(low, _)| low.unsigned_abs()).collect();
        let ones = Dims::from_elem(1, shape.len());
        return Ok(a.with_view(a.view.slice(&starts, &shape, &ones)?));
    }
    let config: Vec<(i64, i64, u64)> = windows.padding.iter().map(|&(low, high)| (low, high, 0)).collect();
    let ty = Type { dtype: a.view.dtype, shape };
    let result = Tensor::uninitialized(call.engine, &ty)?;
    movement::fill_around(call, a, filling, &config, &result)?;
    Ok(result)
}

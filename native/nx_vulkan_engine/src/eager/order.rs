//! Ops along one axis whose results depend on the order of its elements.
//!
//! Kernels take contiguous rows. Where the axis is another than the last, it becomes the last of a copy, and the result is
//! a view that puts it back.

use super::{Call, movement};
use crate::kernel::launch::scan::{Scan, scan as launch_scan};
use crate::program::{Cumulative, op::Axes};
use crate::{Result, Tensor, View};

/// An operand as contiguous rows, and how to put their axis back.
struct Rows {
    /// The operand with the axis last.
    tensor: Tensor,
    rows: u64,
    elements: u64,
    /// Axes of a result with the axis last, in the order of the operand's.
    back: Axes,
}

impl Rows {
    fn of(call: &Call<'_>, axis: usize) -> Result<Rows> {
        let a = call.operand(0)?;
        let rank = a.view.shape.len();
        if axis >= rank {
            return Err(call.invalid(format!("axis {axis} of rank {rank}")));
        }
        let order: Axes = (0..rank).filter(|&i| i != axis).chain([axis]).collect();
        let back: Axes = (0..rank).map(|i| if i == axis { rank - 1 } else { i - usize::from(i > axis) }).collect();
        let turned = Tensor { buffer: a.buffer.clone(), view: a.view.transpose(&order)? };
        let elements = a.view.shape[axis];
        Ok(Rows {
            tensor: movement::contiguous(call.engine, &turned, call.compile)?,
            rows: a.view.elements() / elements.max(1),
            elements,
            back,
        })
    }

    /// A result whose last axis is the one of the rows, as the op gives it.
    fn result(&self, tensor: Tensor) -> Result<Tensor> {
        Ok(Tensor { view: tensor.view.transpose(&self.back)?, buffer: tensor.buffer })
    }
}

pub fn scan(call: &Call<'_>, scan: Cumulative, axis: usize, reverse: bool) -> Result<Tensor> {
    let rows = Rows::of(call, axis)?;
    let view = View::contiguous(call.out.dtype, &rows.tensor.view.shape);
    if rows.tensor.view.dtype != call.out.dtype {
        return Err(call.invalid(format!("{} does not give {}", rows.tensor.view.dtype, call.out.dtype)));
    }
    let out = Tensor { buffer: call.engine.alloc(call.out.size_bytes())?, view };
    let what = Scan {
        reduction: scan.reduction(),
        reverse,
        input: &rows.tensor,
        out: &out,
        rows: rows.rows,
        elements: rows.elements,
    };
    launch_scan(call.engine, &what, call.compile)?;
    call.result(rows.result(out)?)
}

//! dot with any contraction and batch axes, as a batched matrix product.

use super::{Call, movement};
use crate::kernel::launch::dot::{Group, Matrix, Product, product};
use crate::program::op::Axes;
use crate::{Result, Tensor};

pub fn dot(call: &Call<'_>, contract: [&Axes; 2], batch: [&Axes; 2]) -> Result<Tensor> {
    let (a, b) = (call.operand(0)?, call.operand(1)?);
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let left = matrix(call, a, batch[0], contract[0], true)?;
    let right = matrix(call, b, batch[1], contract[1], false)?;
    if left.batch.elements() != right.batch.elements() || left.depth.elements() != right.depth.elements() {
        return Err(call.invalid(format!(
            "{:?} and {:?} do not contract along {:?} and {:?}",
            a.view.shape, b.view.shape, contract[0], contract[1]
        )));
    }
    let (rows, columns) = (left.free.elements(), right.free.elements());
    if left.batch.elements() * rows * columns != call.out.elements() {
        return Err(call.invalid(format!("{rows} x {columns} results for {:?}", call.out.shape)));
    }
    product(call.engine, &Product { a: left, b: right, out: &result }, call.compile)?;
    Ok(result)
}

/// An operand with its batch, free and contracted axes grouped.
fn matrix(call: &Call<'_>, tensor: &Tensor, batch: &Axes, contract: &Axes, is_left: bool) -> Result<Matrix> {
    let rank = tensor.view.shape.len();
    let free: Axes = (0..rank).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect();
    let groups = if is_left { [batch, &free, contract] } else { [batch, contract, &free] };
    let order: Axes = groups.iter().flat_map(|g| g.iter().copied()).collect();
    let tensor = &movement::ascending(call, tensor)?;
    let view = tensor.view.transpose(&order)?;
    // Free and contracted axes merge to one each, or the operand is copied; batches may lie anywhere.
    let grouped = |tensor: &Tensor| -> Option<Matrix> {
        let mut at = 0;
        let [batch, second, third] = groups.map(|group| {
            let range = at..at + group.len();
            at = range.end;
            Group::new(&tensor.view.shape[range.clone()], &tensor.view.strides[range])
        });
        let (free, depth) = if is_left { (second, third) } else { (third, second) };
        let merged = free.rank() == 1 && depth.rank() == 1;
        merged.then(|| Matrix { tensor: tensor.clone(), batch, free, depth })
    };
    let tensor = Tensor { buffer: tensor.buffer.clone(), view };
    match grouped(&tensor) {
        Some(matrix) => Ok(matrix),
        None => grouped(&movement::contiguous(call.engine, &tensor, call.compile)?)
            .ok_or_else(|| call.invalid("axes do not merge".to_string())),
    }
}

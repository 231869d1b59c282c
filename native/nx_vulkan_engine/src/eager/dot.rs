//! dot with any contraction and batch axes, as a batched matrix product.

use super::{Call, movement};
use crate::kernel::launch::dot::{Matrix, Product, product};
use crate::program::op::Axes;
use crate::shape::{Space, elements};
use crate::{Result, Tensor};

pub fn dot(call: &Call<'_>, contract: [&Axes; 2], batch: [&Axes; 2]) -> Result<Tensor> {
    let (a, b) = (call.operand(0)?, call.operand(1)?);
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let left = matrix(call, a, batch[0], contract[0], true)?;
    let right = matrix(call, b, batch[1], contract[1], false)?;
    if left.batches != right.batches || left.depth != right.depth {
        return Err(call.invalid(format!(
            "{:?} and {:?} do not contract along {:?} and {:?}",
            a.view.shape, b.view.shape, contract[0], contract[1]
        )));
    }
    if left.batches * left.free * right.free != call.out.elements() {
        return Err(call.invalid(format!("{} x {} results for {:?}", left.free, right.free, call.out.shape)));
    }
    product(call.engine, &Product { a: left, b: right, out: &result }, call.compile)?;
    Ok(result)
}

/// An operand with its batch, free and contracted axes merged to one each; copied where strides don't allow that.
fn matrix(call: &Call<'_>, tensor: &Tensor, batch: &Axes, contract: &Axes, is_left: bool) -> Result<Matrix> {
    let rank = tensor.view.shape.len();
    let free: Axes = (0..rank).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect();
    let groups = if is_left { [batch, &free, contract] } else { [batch, contract, &free] };
    let order: Axes = groups.iter().flat_map(|g| g.iter().copied()).collect();
    let tensor = &movement::ascending(call, tensor)?;
    let view = tensor.view.transpose(&order)?;
    let merged = |tensor: &Tensor| -> Option<[(u64, i64); 3]> {
        let mut at = 0;
        let mut out = [(1, 0); 3];
        for (slot, group) in out.iter_mut().zip(groups) {
            let range = at..at + group.len();
            at = range.end;
            let (sizes, strides) = (&tensor.view.shape[range.clone()], &tensor.view.strides[range]);
            let space = Space::new(sizes, &[strides]);
            if space.rank() != 1 {
                return None;
            }
            *slot = (elements(sizes), space.strides[0][0]);
        }
        Some(out)
    };
    let mut tensor = Tensor { buffer: tensor.buffer.clone(), view };
    let axes = match merged(&tensor) {
        Some(axes) => axes,
        None => {
            tensor = movement::contiguous(call.engine, &tensor, call.compile)?;
            merged(&tensor).ok_or_else(|| call.invalid("axes do not merge".to_string()))?
        }
    };
    let [(batches, batch_stride), second, third] = axes;
    let ((free, free_stride), (depth, depth_stride)) = if is_left { (second, third) } else { (third, second) };
    Ok(Matrix { tensor, batches, free, depth, batch_stride, free_stride, depth_stride })
}

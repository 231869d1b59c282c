//! Convolutions.

use super::array::{Array, indices};
use super::{axes, window};
use crate::program::conv::{Conv, Sizes};
use crate::shape::Dims;
use crate::value::Value;
use crate::{Result, Type};

/// The index of a tensor whose axes are permuted.
fn permuted(axes: &[usize], own: impl IntoIterator<Item = u64>) -> Dims {
    let mut index = Dims::from_elem(0, axes.len());
    for (&axis, i) in axes.iter().zip(own) {
        index[axis] = i;
    }
    index
}

/// Sums of products in the compute type, rounded once.
pub fn conv([a, kernel]: [&Array; 2], op: &Conv, sizes: &Sizes, out: &Type) -> Result<Array> {
    let wide = out.dtype.ctype().dtype();
    let dilated = op.dilated(&sizes.space).unwrap_or_default();
    let results = indices(&out.shape).map(|index| {
        let own: Dims = op.output_axes.iter().map(|&axis| index[axis]).collect();
        let (image, filter, outer) = (own[0], own[1], &own[2..]);
        let group = filter / sizes.filters;
        let (batch, feature) = if op.batch_groups > 1 { (group, 0) } else { (0, group) };
        let channels = 0..sizes.channels;
        let terms = channels.flat_map(|channel| {
            indices(&sizes.windows.sizes)
                .map(|inner| {
                    let at = window::place(&sizes.windows, &dilated, outer, &inner)?;
                    let whole = at.iter().zip(&op.input_dilation).all(|(at, dilation)| at.is_multiple_of(*dilation));
                    if !whole {
                        return None;
                    }
                    let space = at.iter().zip(&op.input_dilation).map(|(at, dilation)| at / dilation);
                    let lead = [batch * sizes.images + image, feature * sizes.channels + channel];
                    let x = a.at(&permuted(&op.input_axes, lead.into_iter().chain(space)));
                    let lead = [filter, channel];
                    let w = kernel.at(&permuted(&op.kernel_axes, lead.into_iter().chain(inner.iter().copied())));
                    Some(axes::multiply(x.cast(wide), w.cast(wide)))
                })
                .collect::<Vec<Option<Value>>>()
        });
        axes::sum(terms.flatten().chain([Value::Int(0).cast(wide)]))
    });
    Ok(Array::new(out, results))
}

//! Ops over sliding windows.

use super::{Array, axes, elementwise, indices, invalid};
use crate::program::{Op, Reduction, Windows};
use crate::shape::Dims;
use crate::value::Value;
use crate::{Result, Type};

/// The position in the operand of element `inner` of window `outer`, or `None` in the padding.
pub fn place(windows: &Windows, shape: &[u64], outer: &[u64], inner: &[u64]) -> Option<Dims> {
    (0..shape.len())
        .map(|axis| {
            let at = (outer[axis] * windows.strides[axis] + inner[axis] * windows.dilations[axis]) as i64;
            u64::try_from(at - windows.padding[axis].0).ok().filter(|&at| at < shape[axis])
        })
        .collect()
}

/// The elements of window `outer` in row-major order, with `filling` in the padding.
pub fn elements<'a>(
    a: &'a Array,
    windows: &'a Windows,
    outer: &'a [u64],
    filling: Value,
) -> impl Iterator<Item = Value> + 'a {
    indices(&windows.sizes)
        .map(move |inner| place(windows, &a.ty.shape, outer, &inner).map_or(filling, |index| a.at(&index)))
}

/// The value that changes nothing, as an element of the operand's type.
pub fn neutral(reduction: Reduction) -> Value {
    match reduction {
        Reduction::Product => Value::Int(1),
        Reduction::Max => Value::Float(f64::NEG_INFINITY),
        Reduction::Min => Value::Float(f64::INFINITY),
        _ => Value::Int(0),
    }
}

pub fn reduce(reduction: Reduction, a: &Array, windows: &Windows, out: &Type) -> Result<Array> {
    let filling = neutral(reduction).cast(a.ty.dtype);
    let values = indices(&out.shape)
        .map(|outer| {
            let window = elements(a, windows, &outer, filling);
            match reduction {
                Reduction::Sum => Some(axes::sum(window)),
                Reduction::Product => window.reduce(axes::multiply),
                _ => window
                    .map(Some)
                    .reduce(|best, value| elementwise::extreme(best?, value?, reduction == Reduction::Min))
                    .flatten(),
            }
            .ok_or_else(|| invalid(&Op::Window { reduction, windows: windows.clone() }, "no meaning for this type"))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Array::new(out, values))
}

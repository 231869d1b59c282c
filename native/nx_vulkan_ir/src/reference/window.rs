//! Ops over sliding windows.

use super::array::{Array, Given, Values, indices, invalid, position};
use super::{axes, elementwise, fold};
use crate::Type;
use crate::program::ops::Visitor;
use crate::program::ops::window::{Window, WindowFold, WindowScatter};
use crate::program::{Function, Op, Reduction, Windows};
use crate::shape::Dims;
use crate::value::Value;

impl Visitor<Window, Values> for Given<'_> {
    fn visit(self, op: &Window) -> Values {
        self.one(op, reduce(op.reduction, &self.operands[0], &op.windows, &self.outs[0]))
    }
}

impl Visitor<WindowFold, Values> for Given<'_> {
    fn visit(self, op: &WindowFold) -> Values {
        self.one(op, fold_windows(self.operands, &op.windows, &op.function, &self.outs[0]))
    }
}

impl Visitor<WindowScatter, Values> for Given<'_> {
    fn visit(self, op: &WindowScatter) -> Values {
        let [a, source, initial] = [0, 1, 2].map(|i| &self.operands[i]);
        self.one(op, scatter([a, source, initial], &op.windows, op.max, &self.outs[0]))
    }
}

impl Given<'_> {
    /// The one result, which ops on other types than theirs don't have.
    fn one<T: Clone + Into<Op>>(self, op: &T, result: Option<Array>) -> Values {
        Ok(vec![result.ok_or_else(|| invalid(&op.clone().into(), "no meaning for this type"))?])
    }
}

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
        Reduction::Sum | Reduction::Any | Reduction::ArgMax | Reduction::ArgMin => Value::Int(0),
        Reduction::All => Value::Int(1),
    }
}

fn fold_windows(operands: &[Array], windows: &Windows, function: &Function, out: &Type) -> Option<Array> {
    let [a, initial, ..] = operands else { return None };
    let filling = initial.values.first()?.cast(a.ty.dtype);
    let results = indices(&out.shape)
        .map(|outer| fold::run(operands, function, elements(a, windows, &outer, filling), out))
        .collect::<Option<Vec<_>>>()?;
    Some(Array::new(out, results))
}

fn reduce(reduction: Reduction, a: &Array, windows: &Windows, out: &Type) -> Option<Array> {
    let filling = neutral(reduction).cast(a.ty.dtype);
    let values = indices(&out.shape)
        .map(|outer| {
            let window = elements(a, windows, &outer, filling);
            match reduction {
                Reduction::Sum => Some(axes::sum(window)),
                Reduction::Product => window.reduce(axes::multiply),
                Reduction::Max | Reduction::Min => window
                    .map(Some)
                    .reduce(|best, value| elementwise::extreme_of_all(best?, value?, reduction == Reduction::Min))
                    .flatten(),
                // Nx has none of these over windows.
                Reduction::All | Reduction::Any | Reduction::ArgMax | Reduction::ArgMin => None,
            }
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Array::new(out, values))
}

/// Each element starts with the initial value; each window adds its source to its extreme element, the last of equal
/// ones, if that is not in the padding. NaN is no extreme but at the start of a window.
fn scatter([a, source, initial]: [&Array; 3], windows: &Windows, max: bool, out: &Type) -> Option<Array> {
    let wide = out.dtype.ctype().dtype();
    let initial = *initial.values.first()?;
    let mut sums = vec![initial.cast(wide); out.elements() as usize];
    let filling = initial.cast(a.ty.dtype);
    for (outer, value) in indices(&source.ty.shape).zip(&source.values) {
        let (mut best, mut chosen) = (None, None);
        for (inner, element) in indices(&windows.sizes).zip(elements(a, windows, &outer, filling)) {
            let replaces = match (best, element) {
                (None, _) => true,
                (Some(Value::Int(best)), Value::Int(x)) => {
                    if max {
                        x >= best
                    } else {
                        x <= best
                    }
                }
                (Some(Value::Float(best)), Value::Float(x)) => {
                    if max {
                        x >= best
                    } else {
                        x <= best
                    }
                }
                _ => return None,
            };
            if replaces {
                (best, chosen) = (Some(element), Some(inner));
            }
        }
        if let Some(index) = place(windows, &a.ty.shape, &outer, &chosen?) {
            let sum = &mut sums[position(&out.shape, &index)];
            *sum = axes::sum([*sum, value.cast(wide)].into_iter()).cast(wide);
        }
    }
    Some(Array::new(out, sums))
}

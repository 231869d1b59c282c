//! Folds with a function of scalars.

use super::array::{Array, indices};
use super::{axes, elementwise};
use crate::program::attribute::Axes;
use crate::program::function::{Function, Scalars};
use crate::value::Value;
use crate::{DType, Type};

/// The function's result for its inputs.
fn apply(function: &Function, inputs: &[(Value, DType)]) -> Option<Value> {
    let mut values = inputs.to_vec();
    for step in &function.steps {
        let value = match step.op {
            Scalars::Constant(bits) => Value::from_bits(step.out, bits),
            Scalars::Elementwise(op) => {
                let args: Option<Vec<_>> = step.args.iter().map(|&arg| values.get(usize::from(arg)).copied()).collect();
                elementwise::apply(op, &args?, step.out)?
            }
        };
        values.push((value, step.out));
    }
    values.get(usize::from(function.result)).map(|&(value, _)| value)
}

/// The accumulator after all elements, in their order.
pub fn run(
    operands: &[Array],
    function: &Function,
    elements: impl Iterator<Item = Value>,
    out: &Type,
) -> Option<Value> {
    let [a, initial, captured @ ..] = operands else { return None };
    let mut acc = initial.values.first()?.cast(out.dtype);
    for element in elements {
        let mut inputs = vec![(element, a.ty.dtype), (acc, out.dtype)];
        for scalar in captured {
            inputs.push((*scalar.values.first()?, scalar.ty.dtype));
        }
        acc = apply(function, &inputs)?;
    }
    Some(acc)
}

pub fn fold(operands: &[Array], folded: &Axes, function: &Function, out: &Type) -> Option<Array> {
    let a = operands.first()?;
    let kept = axes::others(a.ty.shape.len(), &[folded]);
    let inner_axes = axes::others(a.ty.shape.len(), &[&kept]);
    let (kept_shape, folded_shape) = (axes::pick(&a.ty.shape, &kept), axes::pick(&a.ty.shape, &inner_axes));
    let results = indices(&kept_shape).map(|outer| {
        let elements = indices(&folded_shape).map(|inner| {
            let mut own = a.ty.shape.clone();
            axes::place(&mut own, &kept, &outer);
            axes::place(&mut own, &inner_axes, &inner);
            a.at(&own)
        });
        run(operands, function, elements, out)
    });
    Some(Array::new(out, results.collect::<Option<Vec<_>>>()?))
}

//! Ops whose results depend on the order of the elements along one axis.

use super::{Array, axes, elementwise, invalid, position};
use crate::program::{Cumulative, Op};
use crate::value::Value;
use crate::{Result, Type};

/// The positions of the elements of every line along an axis.
fn lines(shape: &[u64], axis: usize) -> Vec<Vec<usize>> {
    let mut outer = shape.to_vec();
    outer[axis] = 1;
    super::indices(&outer)
        .map(|mut index| {
            let line = (0..shape[axis]).map(|i| {
                index[axis] = i;
                position(shape, &index)
            });
            line.collect()
        })
        .collect()
}

fn add(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.wrapping_add(b)),
        (Value::Float(a), Value::Float(b)) => Value::Float(a + b),
        (a, b) => Value::Complex(a.real() + b.real(), a.imag() + b.imag()),
    }
}

/// Every element is reduced with all before it, in the compute type, and rounded once.
pub fn scan(scan: Cumulative, a: &Array, axis: usize, reverse: bool, out: &Type) -> Result<Array> {
    let wide = out.dtype.ctype().dtype();
    let mut result = a.clone();
    for mut line in lines(&a.ty.shape, axis) {
        if reverse {
            line.reverse();
        }
        let mut total: Option<Value> = None;
        for at in line {
            let value = a.values[at].cast(wide);
            let next = match (scan, total) {
                (_, None) => Some(value),
                (Cumulative::Sum, Some(total)) => Some(add(total, value)),
                (Cumulative::Product, Some(total)) => Some(axes::multiply(total, value)),
                (Cumulative::Max | Cumulative::Min, Some(total)) => {
                    elementwise::extreme(total, value, scan == Cumulative::Min)
                }
            };
            let next = next.ok_or_else(|| invalid(&Op::Scan { scan, axis, reverse }, "no meaning for this type"))?;
            result.values[at] = next.cast(out.dtype);
            total = Some(next);
        }
    }
    result.ty = out.clone();
    Ok(result)
}

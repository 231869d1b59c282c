//! Ops whose results depend on the order of the elements along one axis.

use std::cmp::Ordering;

use super::array::{Array, indices, invalid, position};
use super::{axes, elementwise};
use crate::program::{Cumulative, Op};
use crate::value::Value;
use crate::{Result, Type};

/// The positions of the elements of every line along an axis.
fn lines(shape: &[u64], axis: usize) -> Vec<Vec<usize>> {
    let mut outer = shape.to_vec();
    outer[axis] = 1;
    indices(&outer)
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
                    elementwise::extreme_of_all(total, value, scan == Cumulative::Min)
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

/// NaN is the largest; zeros of both signs are equal.
fn compare(a: Value, b: Value) -> Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(&b),
        (a, b) => {
            let (a, b) = (a.real(), b.real());
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
    }
}

/// The elements along an axis in order, or their places. Equal elements keep their order.
pub fn sort(a: &Array, axis: usize, descending: bool, places: bool, out: &Type) -> Result<Array> {
    let mut result = a.clone();
    for line in lines(&a.ty.shape, axis) {
        let mut order: Vec<usize> = (0..line.len()).collect();
        order.sort_by(|&i, &j| {
            let order = compare(a.values[line[i]], a.values[line[j]]);
            if descending { order.reverse() } else { order }
        });
        for (&at, i) in line.iter().zip(order) {
            result.values[at] = if places { Value::Int(i as i128) } else { a.values[line[i]] };
        }
    }
    Ok(Array::new(out, result.values))
}

/// The `k` first elements along the last axis of a descending sort, and their places.
pub fn top_k(a: &Array, k: u64, values: &Type, places: &Type) -> Result<Vec<Array>> {
    let axis = a.ty.shape.len() - 1;
    let first = |sorted: Array, out: &Type| {
        let rows = sorted.values.chunks(a.ty.shape[axis] as usize).flat_map(|row| &row[..k as usize]).copied();
        Array::new(out, rows.collect::<Vec<_>>())
    };
    let types = [(false, values), (true, places)];
    types
        .into_iter()
        .map(|(is_places, out)| {
            let full = Type::new(out.dtype, &a.ty.shape);
            Ok(first(sort(a, axis, true, is_places, &full)?, out))
        })
        .collect()
}

//! Ops whose results depend on the order of the elements along one axis.

use std::cmp::Ordering;

use super::array::{Array, indices, invalid, position};
use super::{axes, elementwise};
use crate::program::Cumulative;
use crate::program::ops::order::{self, Order};
use crate::value::Value;
use crate::{Result, Type};

/// Runs an op of operands and results that its rules accept.
pub fn evaluate(op: &Order, operands: &[Array], outs: &[Type]) -> Result<Vec<Array>> {
    let (a, out) = (&operands[0], &outs[0]);
    match op {
        Order::Sort(op) => Ok(vec![sort(a, op.axis, op.descending, false, out)]),
        Order::Argsort(op) => Ok(vec![sort(a, op.axis, op.descending, true, out)]),
        Order::TopK(op) => Ok(top_k(a, op.k, outs)),
        Order::Scan(op) => Ok(vec![scan(op, a, out)?]),
    }
}

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
fn scan(op: &order::Scan, a: &Array, out: &Type) -> Result<Array> {
    let order::Scan { scan, axis, reverse } = *op;
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
            let next = next.ok_or_else(|| invalid(&op.clone().into(), "no meaning for this type"))?;
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
fn sort(a: &Array, axis: usize, descending: bool, places: bool, out: &Type) -> Array {
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
    Array::new(out, result.values)
}

/// The `k` first elements along the last axis of a descending sort, and their places.
fn top_k(a: &Array, k: u64, outs: &[Type]) -> Vec<Array> {
    let axis = a.ty.shape.len() - 1;
    let first = |(is_places, out): (bool, &Type)| {
        let sorted = sort(a, axis, true, is_places, &Type::new(out.dtype, &a.ty.shape));
        let rows = sorted.values.chunks(a.ty.shape[axis] as usize).flat_map(|row| &row[..k as usize]).copied();
        Array::new(out, rows.collect::<Vec<_>>())
    };
    [false, true].into_iter().zip(outs).map(first).collect()
}

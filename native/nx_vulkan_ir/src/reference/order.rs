//! Ops whose results depend on the order of the elements along one axis.

use std::cmp::Ordering;

use super::array::{Array, Given, Values, indices, invalid, position};
use super::{axes, elementwise};
use crate::Type;
use crate::program::ops::Visitor;
use crate::program::ops::order::*;
use crate::value::Value;

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

impl Visitor<Scan, Values> for Given<'_> {
    /// Every element is reduced with all before it, in the compute type, and rounded once.
    fn visit(self, op: &Scan) -> Values {
        let Scan { scan, axis, reverse } = *op;
        let (a, out) = (&self.operands[0], &self.outs[0]);
        let wide = out.dtype.ctype().dtype();
        let combine = |total: Value, value: Value| match scan {
            Cumulative::Sum => Some(add(total, value)),
            Cumulative::Product => Some(axes::multiply(total, value)),
            Cumulative::Max | Cumulative::Min => elementwise::extreme_of_all(total, value, scan == Cumulative::Min),
        };
        let mut result = a.clone();
        for mut line in lines(&a.ty.shape, axis) {
            if reverse {
                line.reverse();
            }
            let mut total: Option<Value> = None;
            for at in line {
                let value = a.values[at].cast(wide);
                let next = total.map_or(Some(value), |total| combine(total, value));
                let next = next.ok_or_else(|| invalid(&op.clone().into(), "no meaning for this type"))?;
                result.values[at] = next.cast(out.dtype);
                total = Some(next);
            }
        }
        result.ty = out.clone();
        Ok(vec![result])
    }
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

impl Visitor<Sort, Values> for Given<'_> {
    fn visit(self, op: &Sort) -> Values {
        Ok(vec![sort(&self.operands[0], op.axis, op.descending, false, &self.outs[0])])
    }
}

impl Visitor<Argsort, Values> for Given<'_> {
    fn visit(self, op: &Argsort) -> Values {
        Ok(vec![sort(&self.operands[0], op.axis, op.descending, true, &self.outs[0])])
    }
}

impl Visitor<TopK, Values> for Given<'_> {
    /// The `k` first elements along the last axis of a descending sort, and their places.
    fn visit(self, op: &TopK) -> Values {
        let a = &self.operands[0];
        let axis = a.ty.shape.len() - 1;
        let first = |(is_places, out): (bool, &Type)| {
            let sorted = sort(a, axis, true, is_places, &Type::new(out.dtype, &a.ty.shape));
            let rows = sorted.values.chunks(a.ty.shape[axis] as usize).flat_map(|row| &row[..op.k as usize]).copied();
            Array::new(out, rows.collect::<Vec<_>>())
        };
        Ok([false, true].into_iter().zip(self.outs).map(first).collect())
    }
}

impl Visitor<Searchsorted, Values> for Given<'_> {
    /// Counts the elements that come before.
    fn visit(self, op: &Searchsorted) -> Values {
        let (sorted, values) = (&self.operands[0], &self.operands[1].values);
        let elements = *sorted.ty.shape.last().ok_or_else(|| invalid(&op.clone().into(), "needs an axis"))? as usize;
        let per_row = values.len() * elements / sorted.values.len();
        let comes_before = |element: Value, value: Value| match compare(element, value) {
            Ordering::Less => true,
            Ordering::Equal => op.side == Side::Right,
            Ordering::Greater => false,
        };
        let places = values.iter().enumerate().map(|(i, &value)| {
            let row = &sorted.values[i / per_row * elements..][..elements];
            Value::Int(row.iter().filter(|&&element| comes_before(element, value)).count() as i128)
        });
        Ok(vec![Array::new(&self.outs[0], places)])
    }
}

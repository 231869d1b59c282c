//! Ops that combine elements along axes.

use super::array::{Array, indices, invalid};
use super::{complex, elementwise};
use crate::program::attribute::Axes;
use crate::program::{Op, Reduction};
use crate::shape::{Dims, elements};
use crate::value::Value;
use crate::{Result, Type};

/// A sum that keeps what each step rounds off (Neumaier).
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    total: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let total = self.total + x;
        self.lost += if self.total.abs() >= x.abs() { self.total - total + x } else { x - total + self.total };
        self.total = total;
    }

    fn value(self) -> f64 {
        if self.total.is_finite() { self.total + self.lost } else { self.total }
    }
}

/// A sum of values of any kind.
pub fn sum(values: impl Iterator<Item = Value>) -> Value {
    let (mut int, mut re, mut im) = (0i128, Sum::default(), Sum::default());
    let mut kind = Value::Int(0);
    for value in values {
        kind = value;
        match value {
            Value::Int(i) => int = int.wrapping_add(i),
            Value::Float(x) => re.add(x),
            Value::Complex(x, y) => {
                re.add(x);
                im.add(y);
            }
        }
    }
    match kind {
        Value::Int(_) => Value::Int(int),
        Value::Float(_) => Value::Float(re.value()),
        Value::Complex(..) => Value::Complex(re.value(), im.value()),
    }
}

pub fn multiply(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.wrapping_mul(b)),
        (Value::Float(a), Value::Float(b)) => Value::Float(a * b),
        (a, b) => {
            let (re, im) = complex::multiply((a.real(), a.imag()), (b.real(), b.imag()));
            Value::Complex(re, im)
        }
    }
}

/// The sizes of some axes.
pub fn pick(shape: &[u64], axes: &[usize]) -> Dims {
    axes.iter().map(|&axis| shape[axis]).collect()
}

/// The axes that `taken` leaves.
pub fn others(rank: usize, taken: &[&[usize]]) -> Axes {
    (0..rank).filter(|axis| !taken.iter().any(|t| t.contains(axis))).collect()
}

/// The positions of all elements along some axes, in the order of these, where the others are at their first element.
fn offsets(shape: &[u64], axes: &[usize]) -> Vec<usize> {
    let strides: Vec<usize> = axes.iter().map(|&axis| elements(&shape[axis + 1..]) as usize).collect();
    let sizes = pick(shape, axes);
    indices(&sizes).map(|index| index.iter().zip(&strides).map(|(&i, stride)| i as usize * stride).sum()).collect()
}

/// An index whose components along `axes` are those of `index`.
pub fn place(own: &mut [u64], axes: &[usize], index: &[u64]) {
    for (&axis, &i) in axes.iter().zip(index) {
        own[axis] = i;
    }
}

pub fn reduce(reduction: Reduction, a: &Array, axes: &Axes, tie_high: bool, out: &Type) -> Result<Array> {
    let rank = a.ty.shape.len();
    let kept = others(rank, &[axes]);
    let reduced = others(rank, &[&kept]);
    let (kept, reduced) = (offsets(&a.ty.shape, &kept), offsets(&a.ty.shape, &reduced));
    let wide = out.dtype.ctype().dtype();
    let mut values = Vec::new();
    for outer in &kept {
        let line = reduced.iter().map(|inner| a.values[outer + inner]);
        let op = || Op::Reduce { reduction, axes: axes.clone(), tie_high };
        let cast = |v: Value| v.cast(wide);
        let value = match reduction {
            Reduction::Sum => Some(sum(line.map(cast))),
            Reduction::Product => line.map(cast).reduce(multiply),
            Reduction::Max | Reduction::Min => line
                .map(Some)
                .reduce(|best, value| elementwise::extreme_of_all(best?, value?, reduction == Reduction::Min))
                .flatten(),
            Reduction::All => Some(Value::bool(line.into_iter().all(Value::truthy))),
            Reduction::Any => Some(Value::bool(line.into_iter().any(Value::truthy))),
            Reduction::ArgMax | Reduction::ArgMin => best(line, reduction == Reduction::ArgMin, tie_high),
        };
        values.push(value.ok_or_else(|| invalid(&op(), "no meaning for this type"))?.cast(out.dtype));
    }
    Ok(Array { ty: out.clone(), values })
}

/// The position of the extreme value; a NaN replaces whatever came before it.
fn best(line: impl Iterator<Item = Value>, least: bool, tie_high: bool) -> Option<Value> {
    let mut best: Option<(i128, Value)> = None;
    for (i, value) in (0..).zip(line) {
        let better = match best {
            None => true,
            Some((_, extreme)) => {
                let order = match (value, extreme) {
                    (Value::Int(a), Value::Int(b)) => Some(a.cmp(&b)),
                    (Value::Float(a), Value::Float(b)) => a.partial_cmp(&b),
                    _ => return None,
                };
                let order = if least { order.map(std::cmp::Ordering::reverse) } else { order };
                value.real().is_nan() || order.is_some_and(|o| o.is_gt() || (tie_high && o.is_eq()))
            }
        };
        if better {
            best = Some((i, value));
        }
    }
    best.map(|(i, _)| Value::Int(i))
}

/// Results in the order batch axes, free axes of `a`, free axes of `b`. Operands become elements of the compute type.
pub fn dot([a, b]: [&Array; 2], contract: [&Axes; 2], batch: [&Axes; 2], out: &Type) -> Array {
    let wide = out.dtype.ctype().dtype();
    let operand = |own: &Array, k: usize| {
        let shape = &own.ty.shape;
        let free = others(shape.len(), &[contract[k], batch[k]]);
        let values: Vec<Value> = own.values.iter().map(|value| value.cast(wide)).collect();
        (values, [batch[k], &free, contract[k]].map(|axes| offsets(shape, axes)))
    };
    let ((a, [batch_a, free_a, depth_a]), (b, [batch_b, free_b, depth_b])) = (operand(a, 0), operand(b, 1));
    let mut results = Vec::with_capacity(batch_a.len() * free_a.len() * free_b.len());
    for (shared_a, shared_b) in batch_a.iter().zip(&batch_b) {
        for left in &free_a {
            for right in &free_b {
                let (i, j) = (shared_a + left, shared_b + right);
                results.push(sum(depth_a.iter().zip(&depth_b).map(|(k, l)| multiply(a[i + k], b[j + l]))));
            }
        }
    }
    Array::new(out, results)
}

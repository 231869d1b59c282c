//! Ops that combine elements along axes.

use super::array::{Array, indices, invalid};
use super::{complex, elementwise};
use crate::program::attribute::Axes;
use crate::program::{Op, Reduction};
use crate::shape::Dims;
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
    let (kept_shape, reduced_shape) = (pick(&a.ty.shape, &kept), pick(&a.ty.shape, &reduced));
    let wide = out.dtype.ctype().dtype();
    let mut values = Vec::new();
    for outer in indices(&kept_shape) {
        let line = indices(&reduced_shape).map(|inner| {
            let mut own = a.ty.shape.clone();
            place(&mut own, &kept, &outer);
            place(&mut own, &reduced, &inner);
            a.at(&own)
        });
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
    let free = [others(a.ty.shape.len(), &[contract[0], batch[0]]), others(b.ty.shape.len(), &[contract[1], batch[1]])];
    let depth = pick(&a.ty.shape, contract[0]);
    let wide = out.dtype.ctype().dtype();
    let results = indices(&out.shape).map(|index| {
        let (shared, rest) = index.split_at(batch[0].len());
        let (left, right) = rest.split_at(free[0].len());
        sum(indices(&depth).map(|inner| {
            let (mut i, mut j) = (a.ty.shape.clone(), b.ty.shape.clone());
            for (own, k, free_index) in [(&mut i, 0, left), (&mut j, 1, right)] {
                place(own, batch[k], shared);
                place(own, &free[k], free_index);
                place(own, contract[k], &inner);
            }
            multiply(a.at(&i).cast(wide), b.at(&j).cast(wide))
        }))
    });
    Array::new(out, results)
}

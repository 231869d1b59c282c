//! Ops that move elements.

use super::array::{Array, Given, Values, indices, position};
use crate::Type;
use crate::program::attribute::Axes;
use crate::program::ops::Visitor;
use crate::program::ops::moved::{Pad, Reverse};
use crate::shape::Dims;
use crate::value::Value;

/// An array whose element at each index is what `f` gives.
fn build(out: &Type, f: impl Fn(&[u64]) -> Value) -> Array {
    Array::new(out, indices(&out.shape).map(|index| f(&index)))
}

pub fn broadcast(a: &Array, axes: &Axes, out: &Type) -> Array {
    build(out, |index| {
        let own: Dims =
            axes.iter().zip(&a.ty.shape).map(|(&axis, &size)| if size == 1 { 0 } else { index[axis] }).collect();
        a.at(&own)
    })
}

pub fn transpose(a: &Array, axes: &Axes, out: &Type) -> Array {
    build(out, |index| {
        let mut own = a.ty.shape.clone();
        for (&axis, &i) in axes.iter().zip(index) {
            own[axis] = i;
        }
        a.at(&own)
    })
}

impl Visitor<Reverse, Values> for Given<'_> {
    fn visit(self, op: &Reverse) -> Values {
        let a = &self.operands[0];
        let reversed = build(&self.outs[0], |index| {
            let own: Dims = (0..index.len())
                .map(|axis| if op.axes.contains(&axis) { a.ty.shape[axis] - 1 - index[axis] } else { index[axis] })
                .collect();
            a.at(&own)
        });
        Ok(vec![reversed])
    }
}

/// Start indices, clamped so that the window fits; `rest` gives those that the op leaves out.
pub fn starts(starts: &[Option<i64>], a: &Array, window: &[u64], rest: &[Array]) -> Dims {
    let mut rest = rest.iter().map(|start| match start.values.first() {
        Some(&Value::Int(i)) => i,
        _ => 0,
    });
    starts
        .iter()
        .zip(&a.ty.shape)
        .zip(window)
        .map(|((start, &size), &length)| {
            let start = start.map_or_else(|| rest.next().unwrap_or(0), i128::from);
            start.clamp(0, i128::from(size - length)) as u64
        })
        .collect()
}

pub fn slice(a: &Array, starts: &[u64], strides: &[u64], out: &Type) -> Array {
    build(out, |index| {
        let own: Dims = index.iter().zip(starts).zip(strides).map(|((i, start), stride)| start + i * stride).collect();
        a.at(&own)
    })
}

pub fn put_slice(a: &Array, update: &Array, starts: &[u64], out: &Type) -> Array {
    let mut result = Array::new(out, a.values.iter().copied());
    for (index, value) in indices(&update.ty.shape).zip(&update.values) {
        let own: Dims = index.iter().zip(starts).map(|(i, start)| start + i).collect();
        result.values[position(&out.shape, &own)] = value.cast(out.dtype);
    }
    result
}

impl Visitor<Pad, Values> for Given<'_> {
    fn visit(self, op: &Pad) -> Values {
        let (a, value, out) = (&self.operands[0], &self.operands[1], &self.outs[0]);
        let mut result = build(out, |_| value.at(&[]));
        for (index, value) in indices(&a.ty.shape).zip(&a.values) {
            let at = |(&i, &(low, _, interior)): (&u64, &(i64, i64, u64))| low + i as i64 * (interior as i64 + 1);
            let own: Vec<i64> = index.iter().zip(&op.config).map(at).collect();
            if own.iter().zip(&out.shape).all(|(&i, &size)| (0..size as i64).contains(&i)) {
                let own: Dims = own.iter().map(|&i| i as u64).collect();
                result.values[position(&out.shape, &own)] = value.cast(out.dtype);
            }
        }
        Ok(vec![result])
    }
}

pub fn concatenate(operands: &[Array], axis: usize, out: &Type) -> Array {
    build(out, |index| {
        let mut own = Dims::from_slice(index);
        for a in operands {
            if own[axis] < a.ty.shape[axis] {
                return a.at(&own);
            }
            own[axis] -= a.ty.shape[axis];
        }
        Value::Int(0)
    })
}

pub fn stack(operands: &[Array], axis: usize, out: &Type) -> Array {
    build(out, |index| {
        let mut own = Dims::from_slice(index);
        own.remove(axis);
        operands[index[axis] as usize].at(&own)
    })
}

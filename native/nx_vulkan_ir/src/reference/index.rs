//! Ops whose indices are operands.

use super::array::{Array, Given, Values, indices, position};
use super::axes::{others, pick, place, sum};
use crate::Type;
use crate::program::attribute::Axes;
use crate::program::ops::Visitor;
use crate::program::ops::index::{Gather, IndexedAdd, IndexedPut, Take, TakeAlongAxis};
use crate::shape::{Dims, elements};
use crate::value::Value;

impl Visitor<Gather, Values> for Given<'_> {
    fn visit(self, op: &Gather) -> Values {
        Ok(vec![gather(&self.operands[0], &self.operands[1], &op.axes, &self.outs[0])])
    }
}

impl Visitor<Take, Values> for Given<'_> {
    fn visit(self, op: &Take) -> Values {
        Ok(vec![take(&self.operands[0], &self.operands[1], op.axis, false, &self.outs[0])])
    }
}

impl Visitor<TakeAlongAxis, Values> for Given<'_> {
    fn visit(self, op: &TakeAlongAxis) -> Values {
        Ok(vec![take(&self.operands[0], &self.operands[1], op.axis, true, &self.outs[0])])
    }
}

impl Visitor<IndexedAdd, Values> for Given<'_> {
    fn visit(self, op: &IndexedAdd) -> Values {
        Ok(vec![indexed([0, 1, 2].map(|i| &self.operands[i]), &op.axes, true, &self.outs[0])])
    }
}

impl Visitor<IndexedPut, Values> for Given<'_> {
    fn visit(self, op: &IndexedPut) -> Values {
        Ok(vec![indexed([0, 1, 2].map(|i| &self.operands[i]), &op.axes, false, &self.outs[0])])
    }
}

/// The index vectors in the last axis of `indices`, in order.
fn vectors(indices: &Array) -> impl Iterator<Item = Vec<i128>> + '_ {
    let components = indices.ty.shape.last().map_or(1, |&n| n as usize);
    indices.values.chunks(components).map(|vector| {
        let int = |v: &Value| if let Value::Int(i) = v { *i } else { 0 };
        vector.iter().map(int).collect()
    })
}

/// Indices out of bounds are clamped.
fn gather(a: &Array, index: &Array, axes: &Axes, out: &Type) -> Array {
    let rest = others(a.ty.shape.len(), &[axes]);
    let rest_shape = pick(&a.ty.shape, &rest);
    let rows = vectors(index).flat_map(|vector| {
        let (rest, rest_shape) = (&rest, &rest_shape);
        indices(rest_shape)
            .map(move |inner| {
                let mut own = a.ty.shape.clone();
                for (&axis, &i) in axes.iter().zip(&vector) {
                    own[axis] = i.clamp(0, i128::from(a.ty.shape[axis]) - 1) as u64;
                }
                place(&mut own, rest, &inner);
                a.at(&own)
            })
            .collect::<Vec<_>>()
    });
    Array::new(out, rows)
}

/// Elements along one axis; indices out of bounds are clamped.
fn take(a: &Array, index: &Array, axis: usize, along: bool, out: &Type) -> Array {
    let width = if along { 1 } else { index.ty.shape.len() };
    let values = indices(&out.shape).map(|at| {
        let own = if along { &at[..] } else { &at[axis..axis + width] };
        let Value::Int(i) = index.at(own) else { return Value::Int(0) };
        let i = i.clamp(0, i128::from(a.ty.shape[axis]) - 1) as u64;
        let from: Dims = at[..axis].iter().copied().chain([i]).chain(at[axis + width..].iter().copied()).collect();
        a.at(&from)
    });
    Array::new(out, values.collect::<Vec<_>>())
}

/// Updates apply in their order. Those with an index out of bounds are dropped.
fn indexed([a, index, updates]: [&Array; 3], axes: &Axes, add: bool, out: &Type) -> Array {
    let mut result = Array::new(out, a.values.iter().copied());
    let rest = others(a.ty.shape.len(), &[axes]);
    let rest_shape = pick(&a.ty.shape, &rest);
    let width = elements(&rest_shape) as usize;
    for (vector, row) in vectors(index).zip(updates.values.chunks(width)) {
        if axes.iter().zip(&vector).any(|(&axis, &i)| i < 0 || i >= i128::from(a.ty.shape[axis])) {
            continue;
        }
        for (inner, update) in indices(&rest_shape).zip(row) {
            let mut own = a.ty.shape.clone();
            for (&axis, &i) in axes.iter().zip(&vector) {
                own[axis] = i as u64;
            }
            place(&mut own, &rest, &inner);
            let target = &mut result.values[position(&out.shape, &own)];
            let update = update.cast(out.dtype);
            *target = if add { sum([*target, update].into_iter()) } else { update }.cast(out.dtype);
        }
    }
    result
}

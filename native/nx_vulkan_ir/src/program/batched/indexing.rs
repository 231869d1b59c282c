//! Slices that begin somewhere else for each, and what indices read or write.

use super::{Batch, Value, before, behind, with_front};
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::index::{Gather, IndexedAdd, IndexedPut, Indexing, Take, TakeAlongAxis};
use crate::program::{Binary, Op, Operand};
use crate::{DType, Type};

impl Batch {
    /// A slice; along axes where each has a start of its own, elements are taken by their places.
    pub(super) fn slice(&self, starts: &[Option<i64>], [strides, lengths]: [&[u64]; 2], operands: &[Value]) -> Operand {
        let (a, given) = (self.wide(operands[0]), given(starts, &operands[1..]));
        let sizes = self.each(Value { at: a, own: true }).shape;
        let is_apart = |axis: usize| given[axis].is_some_and(|start| start.own);
        let pick = |apart: fn(u64) -> u64, of: &[u64]| -> Vec<u64> {
            (0..sizes.len()).map(|axis| if is_apart(axis) { apart(sizes[axis]) } else { of[axis] }).collect()
        };
        let (first_strides, first_lengths) = (pick(|_| 1, strides), pick(|size| size, lengths));
        let first_starts: Vec<Option<i64>> =
            starts.iter().enumerate().map(|(axis, &start)| if is_apart(axis) { Some(0) } else { start }).collect();
        let shared = given.iter().flatten().filter(|start| !start.own).map(|start| start.at);
        let kept = first_lengths.iter().zip(&first_strides).map(|(length, stride)| length.div_ceil(*stride));
        let shape: Vec<u64> = [self.count].into_iter().chain(kept).collect();
        let op = Op::Slice {
            starts: before(Some(0), &first_starts),
            strides: before(1, &first_strides),
            lengths: before(self.count, &first_lengths),
        };
        let operands: Vec<Operand> = [a].into_iter().chain(shared).collect();
        let mut result = self.b.push(op, &operands, &Type::new(self.b.ty(a).dtype, &shape));
        for axis in (0..sizes.len()).filter(|&axis| is_apart(axis)) {
            let Some(start) = given[axis] else { continue };
            let from = self.start(start, sizes[axis].saturating_sub(lengths[axis]), sizes.len());
            let count = lengths[axis].div_ceil(strides[axis]);
            let dtype = self.b.ty(from).dtype;
            let steps = self.b.multiply(self.along(axis, count, sizes.len(), dtype), strides[axis] as f64);
            result = self.taken_along(result, self.b.add(from, steps), axis, count);
        }
        result
    }

    /// Puts a slice where each says; what it covers is chosen from it.
    pub(super) fn put_slice(&self, starts: &[Option<i64>], operands: &[Value], out: &Type) -> Operand {
        let (all, given) = (self.lead(out), given(starts, &operands[2..]));
        let [a, slice] = [self.wide(operands[0]), self.wide(operands[1])];
        if given.iter().flatten().all(|start| !start.own) {
            let shared = given.iter().flatten().map(|start| start.at);
            let operands: Vec<Operand> = [a, slice].into_iter().chain(shared).collect();
            return self.b.push(Op::PutSlice { starts: before(Some(0), starts) }, &operands, &all);
        }
        let rank = out.shape.len();
        let lengths = self.each(Value { at: slice, own: true }).shape;
        let (mut value, mut covered) = (slice, None);
        for (axis, (&length, &size)) in lengths.iter().zip(&out.shape).enumerate().filter(|(_, (l, s))| l < s) {
            let from = match given[axis] {
                Some(start) => self.start(start, size - length, rank),
                None => {
                    self.b.number(place_type(size), starts[axis].unwrap_or(0).clamp(0, (size - length) as i64) as f64)
                }
            };
            let place = self.b.subtract(self.along(axis, size, rank, self.b.ty(from).dtype), from);
            let is_inside = self.b.logical_and(self.b.greater_equal(place, 0.0), self.b.less(place, length as f64));
            covered = Some(covered.map_or(is_inside, |before| self.b.logical_and(before, is_inside)));
            let within = self.b.min(self.b.max(place, 0.0), (length - 1) as f64);
            value = self.taken_along(value, within, axis, size);
        }
        match covered {
            Some(covered) => self.b.push(Op::Select, &[covered, value, a], &all),
            None => self.b.push(Op::AsType, &[value], &all),
        }
    }

    /// A start of each, or of all, between 0 and `most`, as an operand beside tensors of `rank` axes for each.
    fn start(&self, start: Value, most: u64, rank: usize) -> Operand {
        let place = self.b.as_type(self.signed(start.at), DType::S64);
        let place = self.b.min(self.b.max(place, 0.0), most as f64);
        let place = self.b.as_type(place, place_type(most));
        let mut shape = vec![1; rank + 1];
        if start.own {
            shape[0] = self.count;
        }
        self.b.reshape(place, &shape)
    }

    /// Whole numbers of which none is more than s64 holds: those of u64 that are stay beyond the end of any axis.
    fn signed(&self, numbers: Operand) -> Operand {
        if self.b.ty(numbers).dtype != DType::U64 {
            return numbers;
        }
        let most = self.b.constant(DType::U64, Scalar::Int(i64::MAX.into()));
        self.b.binary(Binary::Min, numbers, most)
    }

    /// Places along an axis, beside tensors of `rank` axes for each.
    fn along(&self, axis: usize, count: u64, rank: usize, dtype: DType) -> Operand {
        let mut shape = vec![1; rank + 1];
        shape[axis + 1] = count;
        self.b.iota(dtype, &shape, Some(axis + 1))
    }

    /// What lies at places along an axis.
    fn taken_along(&self, a: Operand, places: Operand, axis: usize, count: u64) -> Operand {
        let mut out = self.b.ty(a);
        out.shape[axis + 1] = count;
        let places = self.b.push(
            Op::Broadcast { axes: (0..out.shape.len()).collect() },
            &[places],
            &Type { dtype: self.b.ty(places).dtype, shape: out.shape.clone() },
        );
        self.b.push(TakeAlongAxis { axis: axis + 1 }.into(), &[a, places], &out)
    }

    pub(super) fn take_along_axis(&self, axis: usize, operands: &[Operand], out: &Type) -> Operand {
        self.b.push(TakeAlongAxis { axis: axis + 1 }.into(), operands, &self.lead(out))
    }

    pub(super) fn gather(&self, axes: &Axes, [a, indices]: [Value; 2], out: &Type) -> Operand {
        let all = self.lead(out);
        if !a.own {
            return self.b.push(Gather { axes: axes.clone() }.into(), &[a.at, indices.at], &all);
        }
        if indices.own {
            let op = Gather { axes: with_front(axes) };
            return self.b.push(op.into(), &[a.at, self.with_numbers(indices.at)], &all);
        }
        let vectors = vectors(&self.b.ty(indices.at));
        if axes[..] == [0] {
            let indices = self.b.reshape(indices.at, &vectors);
            return self.b.push(Take { axis: 1 }.into(), &[a.at, indices], &all);
        }
        self.moved_front(Gather { axes: behind(axes) }.into(), [a.at, indices.at], vectors.len(), &all)
    }

    /// What an op gives whose axis `from` comes first in `all`.
    fn moved_front(&self, op: Op, operands: [Operand; 2], from: usize, all: &Type) -> Operand {
        let mut shape = all.shape.clone();
        let count = shape.remove(0);
        shape.insert(from, count);
        let given = self.b.push(op, &operands, &Type { dtype: all.dtype, shape });
        let axes: Vec<usize> = [from].into_iter().chain(0..from).chain(from + 1..all.shape.len()).collect();
        self.b.transpose(given, &axes)
    }

    pub(super) fn take(&self, axis: usize, [a, indices]: [Value; 2], out: &Type) -> Operand {
        let all = self.lead(out);
        if !indices.own {
            return self.b.push(Take { axis: axis + 1 }.into(), &[a.at, indices.at], &all);
        }
        if !a.own {
            return self.moved_front(Take { axis }.into(), [a.at, indices.at], axis, &all);
        }
        let places = self.b.ty(indices.at).shape;
        let (inner, rank) = (out.shape.len() - axis - (places.len() - 1), places.len() - 1);
        let one: Vec<u64> = places.iter().copied().chain([1]).collect();
        let indices = self.with_numbers(self.b.reshape(indices.at, &one));
        let outer = &out.shape[..axis];
        let shape = places.iter().chain(outer).chain(&out.shape[axis + rank..]).copied().collect();
        let op = Gather { axes: [0, axis + 1].into_iter().collect() };
        let given = self.b.push(op.into(), &[a.at, indices], &Type { dtype: out.dtype, shape });
        let outer = 1 + rank..1 + rank + axis;
        let axes: Vec<usize> =
            [0].into_iter().chain(outer).chain(1..1 + rank).chain(1 + rank + axis..1 + rank + axis + inner).collect();
        self.b.transpose(given, &axes)
    }

    /// Index vectors with the number of each in front.
    fn with_numbers(&self, indices: Operand) -> Operand {
        let ty = self.b.ty(indices);
        let is_short = ty.dtype.bits() < 32 || ty.dtype == DType::S32;
        let dtype = if is_short { DType::S32 } else { DType::S64 };
        let mut shape = ty.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = 1;
        }
        let numbers = self.b.iota(dtype, &shape, Some(0));
        let axis = shape.len().saturating_sub(1);
        self.b.concatenate(&[numbers, self.b.as_type(self.signed(indices), dtype)], axis)
    }

    pub(super) fn update(&self, op: &Indexing, axes: &Axes, operands: &[Value], out: &Type) -> Operand {
        let (all, indices) = (self.lead(out), operands[1]);
        let vectors = vectors(&self.each(indices));
        let rest: Vec<u64> = (0..out.shape.len()).filter(|axis| !axes.contains(axis)).map(|i| out.shape[i]).collect();
        let shape: Vec<u64> = [self.count].into_iter().chain(vectors.iter().copied()).chain(rest).collect();
        let updates = self.b.reshape(self.wide(operands[2]), &shape);
        let (axes, indices, updates) = if indices.own {
            (with_front(axes), self.with_numbers(indices.at), updates)
        } else {
            let count = vectors.len();
            let turned: Vec<usize> = (1..=count).chain([0]).chain(count + 1..shape.len()).collect();
            (behind(axes), indices.at, self.b.transpose(updates, &turned))
        };
        let op: Op = match op {
            Indexing::IndexedPut(_) => IndexedPut { axes }.into(),
            Indexing::IndexedAdd(_) | Indexing::Gather(_) | Indexing::Take(_) | Indexing::TakeAlongAxis(_) => {
                IndexedAdd { axes }.into()
            }
        };
        self.b.push(op, &[self.wide(operands[0]), indices, updates], &all)
    }
}

/// The operand that gives the start along each axis, where there is one.
fn given(starts: &[Option<i64>], operands: &[Value]) -> Vec<Option<Value>> {
    let mut operands = operands.iter();
    starts.iter().map(|start| if start.is_none() { operands.next().copied() } else { None }).collect()
}

/// The type of places up to that number.
fn place_type(most: u64) -> DType {
    if most < 1 << 31 { DType::S32 } else { DType::S64 }
}

/// The axes of index vectors.
fn vectors(indices: &Type) -> Vec<u64> {
    indices.shape.iter().copied().take(indices.shape.len().saturating_sub(1)).collect()
}

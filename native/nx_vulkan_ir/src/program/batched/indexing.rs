//! Slices that begin somewhere else for each, and what indices read or write.

use smallvec::SmallVec;

use super::{Batch, Value, before, behind, with_front};
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::index::{Gather, IndexedAdd, IndexedPut, Indexing, Take, TakeAlongAxis};
use crate::program::{Binary, Op, Operand};
use crate::{DType, Type};

/// Elements of a whole for each of a slice, from which on it is put by indices, which are sorted, in place of choosing
/// among all elements.
const PUT_SHARE: u64 = 64;

/// An axis along which each has a start of its own.
struct Apart {
    axis: usize,
    start: Value,
    /// The last start that fits.
    most: u64,
    count: u64,
    stride: u64,
}

impl Batch {
    /// Starts along axes as all share them, and where each has its own.
    fn apart(
        &self,
        starts: &[Option<i64>],
        given: &[Value],
        sizes: &[u64],
        [strides, lengths]: [&[u64]; 2],
    ) -> (SmallVec<[Option<i64>; 6]>, Vec<Operand>, Vec<Apart>) {
        let mut given = given.iter().copied();
        let (mut shared, mut operands, mut apart) = (SmallVec::new(), vec![], vec![]);
        for (axis, &start) in starts.iter().enumerate() {
            let own = if start.is_none() { given.next() } else { None };
            shared.push(match own {
                Some(start) if start.own => Some(0),
                _ => start,
            });
            match own {
                Some(start) if !start.own => operands.push(start.at),
                // What covers the axis begins at its beginning.
                Some(start) if lengths[axis] < sizes[axis] => {
                    let (most, count) = (sizes[axis] - lengths[axis], lengths[axis].div_ceil(strides[axis]));
                    // No step is taken from the only element.
                    let stride = if count > 1 { strides[axis] } else { 1 };
                    apart.push(Apart { axis, start, most, count, stride });
                }
                _ => {}
            }
        }
        (shared, operands, apart)
    }

    /// A slice; along axes where each has a start of its own, elements are read by their places.
    pub(super) fn slice(&self, starts: &[Option<i64>], [strides, lengths]: [&[u64]; 2], operands: &[Value]) -> Operand {
        let a = operands[0];
        let sizes = self.each(a).shape;
        let rank = sizes.len();
        let (starts, shared, apart) = self.apart(starts, &operands[1..], &sizes, [strides, lengths]);
        // What all have in common is cut off first.
        let find = |axis: usize| apart.iter().find(|own| own.axis == axis);
        let mut first = Op::Slice {
            starts,
            strides: (0..rank).map(|axis| find(axis).map_or(strides[axis], |_| 1)).collect(),
            lengths: (0..rank).map(|axis| find(axis).map_or(lengths[axis], |_| sizes[axis])).collect(),
        };
        let kept = |axis: usize| find(axis).map_or(lengths[axis].div_ceil(strides[axis]), |own| own.count);
        let cut = (0..rank).map(|axis| find(axis).map_or_else(|| kept(axis), |_| sizes[axis]));
        let dtype = self.b.ty(a.at).dtype;
        let mut part = Type { dtype, shape: cut.collect() };
        if a.own {
            part = self.lead(&part);
            if let Op::Slice { starts, strides, lengths } = &mut first {
                starts.insert(0, Some(0));
                strides.insert(0, 1);
                lengths.insert(0, self.count);
            }
        }
        let operands: Vec<Operand> = [a.at].into_iter().chain(shared).collect();
        let part = self.b.push(first, &operands, &part);
        if apart.is_empty() {
            return self.wide(Value::new(part, a.own));
        }
        let axes: Axes = apart.iter().map(|own| own.axis).collect();
        let order: Vec<usize> = axes.iter().copied().chain((0..rank).filter(|axis| !axes.contains(axis))).collect();
        let out = Type { dtype, shape: order.iter().map(|&axis| kept(axis)).collect() };
        let vectors = self.vectors(&apart, a.own);
        let op = Gather { axes: if a.own { with_front(&axes) } else { axes } };
        let gathered = self.b.push(op.into(), &[part, vectors], &self.lead(&out));
        let back = (0..rank).filter_map(|axis| order.iter().position(|&other| other == axis).map(|place| place + 1));
        self.turned(gathered, [0].into_iter().chain(back).collect())
    }

    fn turned(&self, a: Operand, axes: Vec<usize>) -> Operand {
        if axes.is_sorted() { a } else { self.b.transpose(a, &axes) }
    }

    /// Puts a slice where each says.
    pub(super) fn put_slice(&self, starts: &[Option<i64>], operands: &[Value], out: &Type) -> Operand {
        let all = self.lead(out);
        let [a, slice] = [self.wide(operands[0]), self.wide(operands[1])];
        let lengths = self.each(operands[1]).shape;
        let ones: Vec<u64> = lengths.iter().map(|_| 1).collect();
        let (starts, shared, apart) = self.apart(starts, &operands[2..], &out.shape, [&ones, &lengths]);
        if apart.is_empty() {
            let operands: Vec<Operand> = [a, slice].into_iter().chain(shared).collect();
            return self.b.push(Op::PutSlice { starts: before(Some(0), &starts) }, &operands, &all);
        }
        let axes: Axes = apart.iter().map(|own| own.axis).collect();
        let rank = lengths.len();
        let is_whole = |axis: usize| axes.contains(&axis) || lengths[axis] == out.shape[axis];
        let elements: u64 = lengths.iter().product();
        if (0..rank).all(is_whole) && out.elements() / PUT_SHARE >= elements {
            let order = axes.iter().copied().chain((0..rank).filter(|axis| !axes.contains(axis)));
            let updates = self.turned(slice, [0].into_iter().chain(order.map(|axis| axis + 1)).collect());
            let op = IndexedPut { axes: with_front(&axes) };
            return self.b.push(op.into(), &[a, self.vectors(&apart, true), updates], &all);
        }
        self.chosen_slice(&starts, &shared, &apart, [a, slice], out)
    }

    /// Puts a slice where each says; what it covers is chosen from it.
    fn chosen_slice(
        &self,
        starts: &[Option<i64>],
        shared: &[Operand],
        apart: &[Apart],
        [a, slice]: [Operand; 2],
        out: &Type,
    ) -> Operand {
        let rank = out.shape.len();
        let lengths = self.each(Value::own(slice)).shape;
        let (mut value, mut covered, mut shared) = (slice, None, shared.iter());
        for (axis, (&length, &size)) in lengths.iter().zip(&out.shape).enumerate() {
            let given = if starts[axis].is_none() { shared.next() } else { None };
            if length == size {
                continue;
            }
            let (most, dtype) = (size - length, place_type(size));
            let from = match (apart.iter().find(|own| own.axis == axis), given) {
                (Some(own), _) => self.start(own.start, most, dtype, rank),
                (None, Some(&start)) => self.start(Value::new(start, false), most, dtype, rank),
                (None, None) => self.b.number(dtype, starts[axis].unwrap_or(0).clamp(0, most as i64) as f64),
            };
            let place = self.b.subtract(self.along(axis, size, rank, dtype), from);
            let is_inside = self.b.logical_and(self.b.greater_equal(place, 0.0), self.b.less(place, length as f64));
            covered = Some(covered.map_or(is_inside, |before| self.b.logical_and(before, is_inside)));
            let within = self.b.min(self.b.max(place, 0.0), (length - 1) as f64);
            value = self.taken_along(value, within, axis, size);
        }
        let all = self.lead(out);
        covered.map_or(value, |covered| self.b.push(Op::Select, &[covered, value, a], &all))
    }

    /// Index vectors of what begins at each one's own places along some axes: `[count, elements along them, places]`.
    /// They are `numbered` where the first place is each one's number.
    fn vectors(&self, apart: &[Apart], numbered: bool) -> Operand {
        let reach = apart.iter().map(|own| own.most + own.count * own.stride).max();
        let dtype = place_type(reach.unwrap_or(0).max(self.count));
        let rank = apart.len() + 1;
        let column: Vec<u64> = [self.count].into_iter().chain(apart.iter().map(|own| own.count)).chain([1]).collect();
        let mut columns: Vec<Operand> = numbered.then(|| self.b.iota(dtype, &column, Some(0))).into_iter().collect();
        for (k, own) in apart.iter().enumerate() {
            let start = self.start(own.start, own.most, dtype, rank);
            let steps = self.b.multiply(self.along(k, own.count, rank, dtype), own.stride as f64);
            columns.push(self.b.broadcast(self.b.add(start, steps), &column));
        }
        if let [one] = columns[..] { one } else { self.b.concatenate(&columns, rank) }
    }

    /// A start of each, or of all, between 0 and `most`, as an operand beside tensors of `rank` axes for each.
    fn start(&self, start: Value, most: u64, dtype: DType, rank: usize) -> Operand {
        let place = self.b.as_type(self.signed(start.at), DType::S64);
        let place = self.b.as_type(self.b.min(self.b.max(place, 0.0), most as f64), dtype);
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

/// The type of places up to that number.
fn place_type(most: u64) -> DType {
    if most < 1 << 31 { DType::S32 } else { DType::S64 }
}

/// The axes of index vectors.
fn vectors(indices: &Type) -> Vec<u64> {
    indices.shape.iter().copied().take(indices.shape.len().saturating_sub(1)).collect()
}

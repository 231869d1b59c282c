//! Ops for many rows at once.

use smallvec::{SmallVec, smallvec};

use super::batch::{Batch, First, Value, Values};
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::Visitor;
use crate::program::ops::index::{Gather, IndexedAdd, IndexedPut, Indexing, Take, TakeAlongAxis};
use crate::program::ops::moved::{Moved, Pad, Reverse};
use crate::program::ops::order::{Argsort, Order, Scan, Searchsorted, Sort, TopK};
use crate::program::{Binary, Instruction, Op, Operand};
use crate::shape::Dims;
use crate::{DType, Result, Type, value};

/// The type of indices that name rows.
const INDEX: DType = DType::S32;

/// Axes of a tensor that has a first one more.
fn behind(axes: &Axes) -> Axes {
    axes.iter().map(|axis| axis + 1).collect()
}

/// The first axis, and axes of a tensor that has it more.
fn with_first(axes: &Axes) -> Axes {
    std::iter::once(0).chain(behind(axes)).collect()
}

/// An op on values of which some differ from row to row.
struct Given<'a, 'b, 'c> {
    batch: &'a mut Batch<'b>,
    old: &'c Instruction,
    operands: &'c [Value],
    types: &'c [&'c Type],
}

type Made = Result<Option<Values>>;

impl Batch<'_> {
    /// An instruction of which some operand differs from row to row.
    pub fn op(&mut self, old: &Instruction, operands: &[Value], types: &[&Type]) -> Made {
        if let Some(row) = self.row(old, operands, types)? {
            return Ok(Some(smallvec![row]));
        }
        Given { batch: self, old, operands, types }.made()
    }

    /// The part of a tensor along one axis that has the row's number.
    fn row(&mut self, old: &Instruction, operands: &[Value], types: &[&Type]) -> Result<Option<Value>> {
        let ([whole, .., Value::Index(_)], [ty, ..], [out]) = (operands, types, old.outs.as_slice()) else {
            return Ok(None);
        };
        let axis = match &old.op {
            Op::Indexing(Indexing::Take(Take { axis })) if types[1].elements() == 1 => *axis,
            Op::Slice { starts, lengths, .. } if operands.len() == 2 => {
                let Some(axis) = starts.iter().position(Option::is_none) else { return Ok(None) };
                let is_whole = |other: usize| other == axis || lengths[other] == ty.shape[other];
                let is_row = lengths[axis] == 1 && (0..lengths.len()).all(is_whole);
                if !is_row || out.shape.iter().product::<u64>() * ty.shape[axis] != ty.elements() {
                    return Ok(None);
                }
                axis
            }
            _ => return Ok(None),
        };
        match *whole {
            Value::Same(whole) => {
                let rows = self.rows_along(whole, axis, ty)?;
                let front = std::iter::once(axis).chain((0..ty.shape.len()).filter(|&other| other != axis)).collect();
                let rows = self.transpose(rows, front)?;
                let shape = self.of_rows(out).shape;
                Ok(Some(Value::Rows(self.reshape(rows, &shape)?)))
            }
            Value::Rows(_) | Value::Index(_) => Ok(None),
        }
    }

    /// The parts of a tensor along an axis that have the rows' numbers.
    pub fn rows_along(&mut self, whole: Operand, axis: usize, ty: &Type) -> Result<Operand> {
        let is_whole = self.first == First::Number(0) && self.rows == ty.shape[axis];
        if is_whole {
            return Ok(whole);
        }
        let mut lengths = ty.shape.clone();
        lengths[axis] = self.rows;
        let start = |other: usize| match self.first {
            _ if other != axis => Some(0),
            First::Number(first) => Some(first),
            First::Operand(_) => None,
        };
        let op = Op::Slice {
            starts: (0..lengths.len()).map(start).collect(),
            strides: SmallVec::from_elem(1, lengths.len()),
            lengths: lengths.clone(),
        };
        let first = if let First::Operand(first) = self.first { Some(first) } else { None };
        let operands: SmallVec<[Operand; 3]> = std::iter::once(whole).chain(first).collect();
        Ok(self.new.push_one(op, &operands, &Type { dtype: ty.dtype, shape: lengths }))
    }

    /// Numbers that count the rows, in the first of axes of `shape`.
    fn counted(&mut self, shape: &[u64]) -> Operand {
        self.new.push_one(Op::Iota { axis: Some(0) }, &[], &Type::new(INDEX, shape))
    }

    fn number(&mut self, number: i128, dtype: DType) -> Operand {
        self.new.push_one(Op::Constant(Scalar::Int(number)), &[], &Type::new(dtype, &[]))
    }

    /// Whole numbers as indices, those below `low` and above `high` as these.
    fn clamped(&mut self, operand: Operand, low: i64, high: i64) -> Result<Operand> {
        let ty = self.new.ty(operand)?.clone();
        let (least, most) = value::range(ty.dtype);
        let mut operand = operand;
        for (op, bound) in [(Binary::Max, i128::from(low)), (Binary::Min, i128::from(high))] {
            if least < bound && op == Binary::Max || most > bound && op == Binary::Min {
                let bound = self.number(bound, ty.dtype);
                operand = self.new.push_one(Op::Binary(op), &[operand, bound], &ty);
            }
        }
        self.cast(operand, INDEX)
    }
}

impl Given<'_, '_, '_> {
    fn all(&mut self) -> Vec<Operand> {
        self.operands.iter().zip(self.types).map(|(&value, ty)| self.batch.spread(value, ty)).collect()
    }

    fn spread(&mut self, k: usize) -> Operand {
        self.batch.spread(self.operands[k], self.types[k])
    }

    fn push(&mut self, op: Op, operands: &[Operand]) -> Made {
        Ok(Some(self.batch.push_rows(op, operands, &self.old.outs)))
    }

    fn rows(&self, operand: Operand) -> Made {
        Ok(Some(smallvec![Value::Rows(operand)]))
    }

    fn out(&self) -> &Type {
        &self.old.outs[0]
    }

    fn made(mut self) -> Made {
        let Some(first) = self.types.first() else { return Ok(None) };
        let rank = first.shape.len();
        if self.old.op.elementwise().is_some() {
            return self.elementwise();
        }
        match &self.old.op {
            Op::Reshape | Op::Squeeze => {
                let shape = self.batch.of_rows(self.out()).shape;
                let (operand, out) = (self.operands[0].operand(), self.out().elements() == 1);
                let reshaped = self.batch.reshape(operand, &shape)?;
                let is_index = out && matches!(self.operands[0], Value::Index(_));
                Ok(Some(smallvec![if is_index { Value::Index(reshaped) } else { Value::Rows(reshaped) }]))
            }
            Op::Bitcast => {
                let all = self.all();
                self.push(Op::Bitcast, &all)
            }
            Op::Broadcast { axes } => {
                let all = self.all();
                self.push(Op::Broadcast { axes: with_first(axes) }, &all)
            }
            Op::Transpose { axes } => {
                let all = self.all();
                self.push(Op::Transpose { axes: with_first(axes) }, &all)
            }
            Op::Slice { starts, strides, lengths } => self.slice(starts, strides, lengths),
            Op::PutSlice { starts } => self.put_slice(starts),
            Op::Concatenate { axis } => {
                let all = self.all();
                self.push(Op::Concatenate { axis: axis + 1 }, &all)
            }
            Op::Stack { axis } => {
                let all = self.all();
                self.push(Op::Stack { axis: axis + 1 }, &all)
            }
            Op::Reduce { reduction, axes, tie_high } => {
                let op = Op::Reduce { reduction: *reduction, axes: behind(axes), tie_high: *tie_high };
                let all = self.all();
                self.push(op, &all)
            }
            Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
                self.dot([contract_a, contract_b], [batch_a, batch_b])
            }
            Op::Moved(Moved::Reverse(Reverse { axes })) => {
                let all = self.all();
                self.push(Reverse { axes: behind(axes) }.into(), &all)
            }
            Op::Moved(Moved::Pad(Pad { config })) if !self.operands[1].varies() => {
                let config = std::iter::once((0, 0, 0)).chain(config.iter().copied()).collect();
                let operands = [self.spread(0), self.operands[1].operand()];
                self.push(Pad { config }.into(), &operands)
            }
            Op::Order(order) => self.order(order, rank),
            Op::Indexing(op) => op.accept(self),
            _ => Ok(None),
        }
    }

    /// Operands of lower rank get axes of size 1 behind that of the rows.
    fn elementwise(mut self) -> Made {
        let rank = self.out().shape.len();
        let mut operands = Vec::with_capacity(self.operands.len());
        for (value, ty) in self.operands.iter().zip(self.types) {
            operands.push(match value.varies() {
                true => {
                    let ones = std::iter::repeat_n(1, rank.saturating_sub(ty.shape.len()));
                    let shape: Dims =
                        std::iter::once(self.batch.rows).chain(ones).chain(ty.shape.iter().copied()).collect();
                    self.batch.reshape(value.operand(), &shape)?
                }
                false => value.operand(),
            });
        }
        let holds = |from: &Type, to: &Type| from.dtype.is_integer() && to.dtype.is_integer() && to.dtype.bits() >= 32;
        let is_index = matches!((&self.old.op, self.operands), (Op::AsType, [Value::Index(_)]))
            && holds(self.types[0], self.out());
        let made = self.push(self.old.op.clone(), &operands)?;
        let index = |value: Value| if is_index { Value::Index(value.operand()) } else { value };
        Ok(made.map(|values| values.into_iter().map(index).collect()))
    }

    /// Axes of a window whose starts differ from row to row: which, and the starts, clamped so that it fits.
    fn own_starts(&mut self, starts: &[Option<i64>], lengths: &[u64], first: usize) -> Result<Vec<(usize, Operand)>> {
        let mut own = vec![];
        let mut next = first;
        let shape = self.types[0].shape.clone();
        for (axis, start) in starts.iter().enumerate() {
            if start.is_none() {
                if self.operands[next].varies() {
                    let numbers = self.batch.reshape(self.operands[next].operand(), &[self.batch.rows])?;
                    let room = shape[axis].saturating_sub(lengths[axis]) as i64;
                    own.push((axis, self.batch.clamped(numbers, 0, room)?));
                }
                next += 1;
            }
        }
        Ok(own)
    }

    /// Index vectors of windows that begin at their own places along some axes: `[rows, lengths of those, indices]`.
    fn vectors(
        &mut self,
        own: &[(usize, Operand)],
        lengths: &[u64],
        strides: &[u64],
        counted: bool,
    ) -> Result<Operand> {
        let mut shape: Dims = std::iter::once(self.batch.rows).collect();
        shape.extend(own.iter().map(|&(axis, _)| lengths[axis].div_ceil(strides[axis])));
        let mut column = shape.clone();
        column.push(1);
        let mut columns = vec![];
        if counted {
            columns.push(self.batch.counted(&column));
        }
        for (k, &(axis, start)) in own.iter().enumerate() {
            let ones: Dims = column.iter().enumerate().map(|(i, &size)| if i == 0 { size } else { 1 }).collect();
            let start = self.batch.reshape(start, &ones)?;
            let ty = Type::new(INDEX, &column);
            let start = match column == ones {
                true => start,
                false => self.batch.new.push_one(Op::Broadcast { axes: (0..ones.len()).collect() }, &[start], &ty),
            };
            columns.push(match shape[k + 1] {
                1 => start,
                _ => {
                    let mut steps = self.batch.new.push_one(Op::Iota { axis: Some(k + 1) }, &[], &ty);
                    if strides[axis] > 1 {
                        let step = self.batch.number(strides[axis].into(), INDEX);
                        steps = self.batch.new.push_one(Op::Binary(Binary::Multiply), &[steps, step], &ty);
                    }
                    self.batch.new.push_one(Op::Binary(Binary::Add), &[start, steps], &ty)
                }
            });
        }
        self.beside(&columns, &column)
    }

    /// Columns of index vectors as one tensor.
    fn beside(&mut self, columns: &[Operand], column: &[u64]) -> Result<Operand> {
        if let &[one] = columns {
            return Ok(one);
        }
        let mut shape = Dims::from_slice(column);
        let axis = shape.len() - 1;
        shape[axis] = columns.len() as u64;
        Ok(self.batch.new.push_one(Op::Concatenate { axis }, columns, &Type::new(INDEX, &shape)))
    }

    fn slice(mut self, starts: &[Option<i64>], strides: &[u64], lengths: &[u64]) -> Made {
        let own = self.own_starts(starts, lengths, 1)?;
        let is_own = |axis: usize| own.iter().any(|&(other, _)| other == axis);
        let rank = starts.len();
        let common = |axis: &usize| !is_own(*axis);
        // What is common to all rows is cut off first.
        let ty = self.types[0].clone();
        let cut: Dims = (0..rank).map(|axis| if is_own(axis) { ty.shape[axis] } else { lengths[axis] }).collect();
        let strided: SmallVec<[u64; 6]> = (0..rank).map(|axis| if is_own(axis) { 1 } else { strides[axis] }).collect();
        let cut_starts = (0..rank).map(|axis| if is_own(axis) { Some(0) } else { starts[axis] });
        let missing = self.operands[1..].iter().filter(|value| !value.varies()).map(|value| value.operand());
        let varies = self.operands[0].varies();
        let operands: SmallVec<[Operand; 3]> = std::iter::once(self.operands[0].operand()).chain(missing).collect();
        let kept: Dims = cut.iter().zip(&strided).map(|(length, stride)| length.div_ceil(*stride)).collect();
        let part = Type { dtype: ty.dtype, shape: kept };
        let cuts = Op::Slice {
            starts: varies.then_some(Some(0)).into_iter().chain(cut_starts).collect(),
            strides: varies.then_some(1).into_iter().chain(strided).collect(),
            lengths: varies.then_some(self.batch.rows).into_iter().chain(cut).collect(),
        };
        let out = if varies { self.batch.of_rows(&part) } else { part.clone() };
        let whole = part == ty && starts.iter().enumerate().all(|(axis, start)| is_own(axis) || *start == Some(0));
        let part = if whole { operands[0] } else { self.batch.new.push_one(cuts, &operands, &out) };
        if own.is_empty() {
            return self.rows(part);
        }
        let vectors = self.vectors(&own, lengths, strides, varies)?;
        let axes: Axes = match varies {
            true => std::iter::once(0).chain(own.iter().map(|&(axis, _)| axis + 1)).collect(),
            false => own.iter().map(|&(axis, _)| axis).collect(),
        };
        // The axes of the windows come first, then the others.
        let order: Axes = own.iter().map(|&(axis, _)| axis).chain((0..rank).filter(common)).collect();
        let shape = &self.old.outs[0].shape;
        let gathered = Type::new(ty.dtype, &order.iter().map(|&axis| shape[axis]).collect::<Dims>());
        let gathered = self.batch.of_rows(&gathered);
        let gathered = self.batch.new.push_one(Gather { axes }.into(), &[part, vectors], &gathered);
        let back = (0..rank).filter_map(|axis| order.iter().position(|&other| other == axis)).collect();
        let result = self.batch.transpose(gathered, with_first(&back))?;
        self.rows(result)
    }

    fn put_slice(mut self, starts: &[Option<i64>]) -> Made {
        let lengths = self.types[1].shape.clone();
        let own = self.own_starts(starts, &lengths, 2)?;
        let (a, part) = (self.spread(0), self.spread(1));
        if own.is_empty() {
            let starts = std::iter::once(Some(0)).chain(starts.iter().copied()).collect();
            let operands: Vec<Operand> =
                [a, part].into_iter().chain(self.operands[2..].iter().map(|value| value.operand())).collect();
            return self.push(Op::PutSlice { starts }, &operands);
        }
        let is_own = |axis: usize| own.iter().any(|&(other, _)| other == axis);
        let whole = &self.types[0].shape;
        if (0..starts.len()).any(|axis| !is_own(axis) && lengths[axis] != whole[axis]) {
            return Ok(None);
        }
        let vectors = self.vectors(&own, &lengths, &SmallVec::<[u64; 6]>::from_elem(1, lengths.len()), true)?;
        let rest = (0..starts.len()).filter(|&axis| !is_own(axis));
        let order: Axes = own.iter().map(|&(axis, _)| axis).chain(rest).collect();
        let part = self.batch.transpose(part, with_first(&order))?;
        let axes = std::iter::once(0).chain(own.iter().map(|&(axis, _)| axis + 1)).collect();
        self.push(IndexedPut { axes }.into(), &[a, vectors, part])
    }

    fn dot(mut self, contract: [&Axes; 2], batch: [&Axes; 2]) -> Made {
        let varies = [self.operands[0].varies(), self.operands[1].varies()];
        let has_batch = !batch[0].is_empty();
        if varies == [true, true] || has_batch {
            let [contract_a, contract_b] = contract.map(behind);
            let [batch_a, batch_b] = batch.map(with_first);
            let all = self.all();
            return self.push(Op::Dot { contract_a, batch_a, contract_b, batch_b }, &all);
        }
        let operands = [self.operands[0].operand(), self.operands[1].operand()];
        let axes = |k: usize| if varies[k] { behind(contract[k]) } else { contract[k].clone() };
        let op = Op::Dot { contract_a: axes(0), batch_a: smallvec![], contract_b: axes(1), batch_b: smallvec![] };
        if varies[0] {
            return self.push(op, &operands);
        }
        // The rows' axis is the first of those that the second operand keeps.
        let out = self.out().clone();
        let place = self.types[0].shape.len() - contract[0].len();
        let mut shape = out.shape.clone();
        shape.insert(place, self.batch.rows);
        let product = self.batch.new.push_one(op, &operands, &Type { dtype: out.dtype, shape });
        let front = std::iter::once(place).chain((0..=out.shape.len()).filter(|&axis| axis != place)).collect();
        let result = self.batch.transpose(product, front)?;
        self.rows(result)
    }

    fn order(mut self, order: &Order, rank: usize) -> Made {
        let op: Op = match *order {
            Order::Scan(Scan { scan, axis, reverse }) => Scan { scan, axis: axis + 1, reverse }.into(),
            Order::Sort(Sort { axis, descending }) => Sort { axis: axis + 1, descending }.into(),
            Order::Argsort(Argsort { axis, descending }) => Argsort { axis: axis + 1, descending }.into(),
            Order::TopK(TopK { k }) => TopK { k }.into(),
            Order::Searchsorted(ref op) => {
                let op: Op = Searchsorted::clone(op).into();
                let values = self.spread(1);
                if rank == 1 && !self.operands[0].varies() {
                    let sorted = self.operands[0].operand();
                    return self.push(op, &[sorted, values]);
                }
                if self.types[1].shape.len() != rank {
                    return Ok(None);
                }
                let sorted = self.spread(0);
                return self.push(op, &[sorted, values]);
            }
        };
        let all = self.all();
        self.push(op, &all)
    }

    /// Index vectors with the rows' numbers before them; those out of bounds stay so.
    fn counted_vectors(&mut self, k: usize, axes: &Axes) -> Result<Operand> {
        let indices = self.spread(k);
        let ty = self.batch.new.ty(indices)?.clone();
        let mut column = ty.shape.clone();
        let last = column.len() - 1;
        column[last] = 1;
        let mut columns = vec![self.batch.counted(&column)];
        for (component, &axis) in axes.iter().enumerate() {
            let mut starts: SmallVec<[Option<i64>; 6]> = SmallVec::from_elem(Some(0), column.len());
            starts[last] = Some(component as i64);
            let strides = SmallVec::from_elem(1, column.len());
            let of = match axes.len() {
                1 => indices,
                _ => {
                    let op = Op::Slice { starts, strides, lengths: column.clone() };
                    self.batch.new.push_one(op, &[indices], &Type { dtype: ty.dtype, shape: column.clone() })
                }
            };
            let size = self.types[0].shape[axis] as i64;
            columns.push(self.batch.clamped(of, -1, size)?);
        }
        self.beside(&columns, &column)
    }

    fn update(mut self, axes: &Axes, op: impl FnOnce(Axes) -> Op) -> Made {
        let a = self.spread(0);
        let vectors = self.counted_vectors(1, axes)?;
        let updates = self.spread(2);
        self.push(op(with_first(axes)), &[a, vectors, updates])
    }
}

impl Visitor<Take, Made> for Given<'_, '_, '_> {
    fn visit(mut self, &Take { axis }: &Take) -> Made {
        let (a, indices) = (self.operands[0], self.operands[1]);
        let (ty, by) = (self.types[0].clone(), self.types[1].clone());
        let rank = ty.shape.len();
        match (a.varies(), indices.varies()) {
            (true, false) => self.push(Take { axis: axis + 1 }.into(), &[a.operand(), indices.operand()]),
            (false, _) => {
                // The rows' axis is the first of the indices'.
                let mut shape = self.out().shape.clone();
                shape.insert(axis, self.batch.rows);
                let taken = Type { dtype: ty.dtype, shape };
                let operands = [a.operand(), indices.operand()];
                let taken = self.batch.new.push_one(Take { axis }.into(), &operands, &taken);
                let count = self.out().shape.len() + 1;
                let front = std::iter::once(axis).chain((0..count).filter(|&other| other != axis)).collect();
                let result = self.batch.transpose(taken, front)?;
                self.rows(result)
            }
            (true, true) => {
                let column: Dims =
                    std::iter::once(self.batch.rows).chain(by.shape.iter().copied()).chain([1]).collect();
                let own = self.batch.reshape(indices.operand(), &column)?;
                let own = self.batch.clamped(own, 0, ty.shape[axis] as i64 - 1)?;
                let counted = self.batch.counted(&column);
                let vectors = self.beside(&[counted, own], &column)?;
                let others = (0..rank).filter(|&other| other != axis).map(|other| ty.shape[other]);
                let gathered: Dims = by.shape.iter().copied().chain(others).collect();
                let gathered = self.batch.of_rows(&Type { dtype: ty.dtype, shape: gathered });
                let op = Gather { axes: smallvec![0, axis + 1] };
                let gathered = self.batch.new.push_one(op.into(), &[a.operand(), vectors], &gathered);
                // What comes before the axis comes before the indices' axes again.
                let width = by.shape.len();
                let back = (width..width + axis).chain(0..width).chain(width + axis..width + rank - 1).collect();
                let result = self.batch.transpose(gathered, with_first(&back))?;
                self.rows(result)
            }
        }
    }
}

impl Visitor<TakeAlongAxis, Made> for Given<'_, '_, '_> {
    fn visit(mut self, op: &TakeAlongAxis) -> Made {
        let all = self.all();
        self.push(TakeAlongAxis { axis: op.axis + 1 }.into(), &all)
    }
}

impl Visitor<Gather, Made> for Given<'_, '_, '_> {
    fn visit(mut self, op: &Gather) -> Made {
        if !self.operands[0].varies() {
            let operands = [self.operands[0].operand(), self.operands[1].operand()];
            return self.push(op.clone().into(), &operands);
        }
        let a = self.spread(0);
        let vectors = self.counted_vectors(1, &op.axes)?;
        self.push(Gather { axes: with_first(&op.axes) }.into(), &[a, vectors])
    }
}

impl Visitor<IndexedAdd, Made> for Given<'_, '_, '_> {
    fn visit(self, op: &IndexedAdd) -> Made {
        self.update(&op.axes, |axes| IndexedAdd { axes }.into())
    }
}

impl Visitor<IndexedPut, Made> for Given<'_, '_, '_> {
    fn visit(self, op: &IndexedPut) -> Made {
        self.update(&op.axes, |axes| IndexedPut { axes }.into())
    }
}

//! Ops on tensors of which no launch reaches all, as ops on halves.
//!
//! Kernels that walk over rows take parts of them where they are launched. Here is what holds for whole ops: axes whose
//! elements don't depend on each other, sources that indices choose from, targets of updates, updates, sums of
//! products, and in the folder orders, transforms, and windows.

mod order;
mod scatter;
mod transform;
mod window;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::call::Results;
use super::{copies, run, run_all};
use crate::kernels::Compile;
use crate::kernels::reach_of;
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::Class;
use crate::program::ops::index::{Gather, IndexedAdd, IndexedPut, Indexing, Take, TakeAlongAxis};
use crate::program::ops::matrix::Matrix;
use crate::program::ops::order::{Argsort, Order, Sort, TopK};
use crate::program::ops::transform::Spectral;
use crate::program::ops::window::{WindowScatter, Windowed};
use crate::program::{Binary, Linalg, Op, Reduction, Unary};
use crate::shape::{Dims, Type};
use crate::{DType, Engine, Result, Tensor, View};

/// An axis of the results, and the axis of each operand that its halves are of; operands without one are whole in both.
struct Axis {
    of_result: usize,
    of_operands: SmallVec<[Option<usize>; 3]>,
}

/// Whether no launch reaches all of a view, or counts its elements.
fn is_beyond(view: &View, most: u64) -> bool {
    reach_of(view) > most || view.elements() > most
}

/// Whether no launch reaches all of an operand or a result.
pub fn reaches_beyond(engine: &Engine, operands: &[Tensor], outs: &[Type]) -> bool {
    let most = engine.reach().far();
    outs.iter().any(|out| out.elements() > most) || operands.iter().any(|operand| is_beyond(&operand.view, most))
}

/// Runs the op by halves where launches don't reach its operands or results and it has halves.
pub fn halves(
    engine: &Arc<Engine>,
    op: &Op,
    operands: &[Tensor],
    outs: &[Type],
    compile: Compile,
) -> Result<Option<Results>> {
    if !reaches_beyond(engine, operands, outs) {
        return Ok(None);
    }
    let cut = Cut { engine, op, operands, compile };
    if let Some(axis) = cut.furthest_axis(outs) {
        return cut.along(&axis, outs).map(Some);
    }
    match (op, outs) {
        (Op::Order(Order::TopK(TopK { k })), [values, places]) => {
            Ok(Some(cut.top(*k, values, places)?.into_iter().collect()))
        }
        (Op::Matrix(Matrix::Linalg(Linalg::Solve)), [out, regular]) => cut.solutions(out, regular),
        (_, [out]) => Ok(cut.only_result(out)?.map(|result| smallvec![result])),
        _ => Ok(None),
    }
}

/// Runs an op whose working memory no launch reaches: of matrices and transforms by halves of their batches, where
/// there are several, one transform by its parts, and windows over less with its padding.
pub fn of_working_memory(
    engine: &Arc<Engine>,
    op: &Op,
    operands: &[Tensor],
    outs: &[Type],
    compile: Compile,
) -> Result<Option<Results>> {
    let cut = Cut { engine, op, operands, compile };
    if matches!(op.class(), Class::Matrix | Class::Transform) {
        let has_several = |axis: &Axis| outs.iter().all(|out| out.shape.get(axis.of_result).is_some_and(|&n| n > 1));
        if let Some(axis) = axes(op, operands, outs).into_iter().find(has_several) {
            return cut.along(&axis, outs).map(Some);
        }
    }
    if let (Op::Matrix(Matrix::Linalg(Linalg::Solve)), [out, regular]) = (op, outs) {
        return cut.solutions(out, regular);
    }
    let result = match (op, outs) {
        (Op::Spectral(Spectral::Fft(op)), [out]) => cut.transform(op, out)?,
        (Op::Windowed(Windowed::WindowScatter(op)), [out]) => cut.windows(op, out)?,
        _ => None,
    };
    Ok(result.map(|result| smallvec![result]))
}

/// Elements from the first along an axis to the last.
fn span(view: &View, axis: usize) -> u64 {
    view.strides[axis].unsigned_abs() * (view.shape[axis] - 1)
}

/// Of some axes of a view that along which its last element is furthest from the first: its place among them.
fn furthest(view: &View, axes: &Axes) -> Option<usize> {
    let places = (0..axes.len()).filter(|&k| view.shape[axes[k]] > 1);
    places.max_by_key(|&k| span(view, axes[k]))
}

/// The axes along which an op does the same for each element.
fn axes(op: &Op, operands: &[Tensor], outs: &[Type]) -> SmallVec<[Axis; 6]> {
    let shape = |k: usize| operands.get(k).map_or(&[][..], |operand| &operand.view.shape[..]);
    let axis = |of_result: usize, of_operands: &[Option<usize>]| Axis {
        of_result,
        of_operands: SmallVec::from_slice(of_operands),
    };
    let mut found = SmallVec::new();
    let (a, indices) = (shape(0), shape(1));
    match op {
        Op::Indexing(Indexing::Take(Take { axis: taken })) => {
            found.extend((0..*taken).map(|k| axis(k, &[Some(k), None])));
            found.extend((0..indices.len()).map(|k| axis(taken + k, &[None, Some(k)])));
            found.extend((taken + 1..a.len()).map(|k| axis(k + indices.len() - 1, &[Some(k), None])));
        }
        Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis: taken })) => {
            found.extend((0..a.len()).map(|k| axis(k, &[(k != *taken).then_some(k), Some(k)])));
        }
        Op::Indexing(
            op @ (Indexing::Gather(Gather { axes })
            | Indexing::IndexedAdd(IndexedAdd { axes })
            | Indexing::IndexedPut(IndexedPut { axes })),
        ) => {
            let lead = indices.len().saturating_sub(1);
            let rest = || (0..a.len()).filter(|k| !axes.contains(k)).enumerate();
            if matches!(op, Indexing::Gather(_)) {
                found.extend((0..lead).map(|k| axis(k, &[None, Some(k)])));
                found.extend(rest().map(|(place, k)| axis(lead + place, &[Some(k), None])));
            } else if shape(2).len() == lead + rest().count() {
                found.extend(rest().map(|(place, k)| axis(k, &[Some(k), None, Some(lead + place)])));
            }
        }
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            let free = |shape: &[u64], contract: &Axes, batch: &Axes| -> Axes {
                (0..shape.len()).filter(|k| !contract.contains(k) && !batch.contains(k)).collect()
            };
            let (left, right) = (free(a, contract_a, batch_a), free(indices, contract_b, batch_b));
            let batches = batch_a.len();
            found.extend(
                batch_a.iter().zip(batch_b).enumerate().map(|(k, (&of_a, &of_b))| axis(k, &[Some(of_a), Some(of_b)])),
            );
            found.extend(left.iter().enumerate().map(|(k, &of_a)| axis(batches + k, &[Some(of_a), None])));
            found
                .extend(right.iter().enumerate().map(|(k, &of_b)| axis(batches + left.len() + k, &[None, Some(of_b)])));
        }
        Op::Matrix(_) => {
            let has = |shape: &[u64], k: usize| shape.get(k) == a.get(k);
            let is_batch = |&k: &usize| {
                operands.iter().all(|operand| has(&operand.view.shape, k)) && outs.iter().all(|out| has(&out.shape, k))
            };
            let of_operands = |k| SmallVec::from_elem(Some(k), operands.len());
            let batches = (0..a.len().saturating_sub(2)).filter(is_batch);
            found.extend(batches.map(|k| Axis { of_result: k, of_operands: of_operands(k) }));
        }
        Op::Spectral(Spectral::Fft(op)) => {
            found.extend((0..a.len()).filter(|&k| k != op.axis).map(|k| axis(k, &[Some(k)])));
        }
        Op::Order(Order::TopK(_)) => found.extend((0..a.len().saturating_sub(1)).map(|k| axis(k, &[Some(k)]))),
        Op::Order(Order::Sort(Sort { axis: sorted, .. }) | Order::Argsort(Argsort { axis: sorted, .. })) => {
            found.extend((0..a.len()).filter(|k| k != sorted).map(|k| axis(k, &[Some(k)])));
        }
        Op::Windowed(Windowed::WindowScatter(WindowScatter { windows, .. })) => {
            let is_whole = |&k: &usize| {
                windows.sizes[k] == 1 && windows.strides[k] == 1 && windows.padding[k] == (0, 0) && a[k] == indices[k]
            };
            found.extend((0..a.len()).filter(is_whole).map(|k| axis(k, &[Some(k), Some(k), None])));
        }
        _ => {}
    }
    found
}

/// A part of a tensor along one axis.
fn section(tensor: &Tensor, axis: usize, start: u64, length: u64) -> Result<Tensor> {
    let rank = tensor.view.shape.len();
    let (mut starts, mut lengths) = (Dims::from_elem(0, rank), tensor.view.shape.clone());
    (starts[axis], lengths[axis]) = (start, length);
    Ok(tensor.with_view(tensor.view.slice(&starts, &lengths, &Dims::from_elem(1, rank))?))
}

/// The type of a part of that many elements along an axis.
fn shortened(ty: &Type, axis: usize, length: u64) -> Type {
    let mut shape = ty.shape.clone();
    shape[axis] = length;
    Type { shape, ..ty.clone() }
}

/// An op that is cut.
struct Cut<'a> {
    engine: &'a Arc<Engine>,
    op: &'a Op,
    operands: &'a [Tensor],
    compile: Compile,
}

impl Cut<'_> {
    fn run(&self, op: &Op, operands: &[Tensor], out: &Type) -> Result<Tensor> {
        run(self.engine, op, operands, out, self.compile)
    }

    fn number(&self, value: u64) -> Result<Tensor> {
        self.run(&Op::Constant(Scalar::Int(value.into())), &[], &Type::new(DType::S64, &[]))
    }

    fn most(&self) -> u64 {
        self.engine.reach().far()
    }

    fn is_beyond(&self, view: &View) -> bool {
        is_beyond(view, self.most())
    }

    /// The axis along which halves serve, and of these the one along which the furthest lies.
    fn furthest_axis(&self, outs: &[Type]) -> Option<Axis> {
        let is_large = |ty: &Type| ty.elements() > self.most();
        let serves = |axis: &Axis| {
            let size = outs.first().and_then(|out| out.shape.get(axis.of_result)).copied().unwrap_or(0);
            let mut operands = self.operands.iter().zip(&axis.of_operands);
            size > 1
                && outs.iter().all(|out| !is_large(out) || out.shape.get(axis.of_result) == Some(&size))
                && operands.all(|(operand, of)| of.is_some() || !self.is_beyond(&operand.view))
        };
        // Half of the axis along which the furthest lies.
        let shortened = |axis: &Axis| {
            let operands = self.operands.iter().zip(&axis.of_operands);
            let of_operands = operands.filter(|(operand, _)| self.is_beyond(&operand.view));
            let of_operands = of_operands.filter_map(|(operand, of)| of.map(|of| span(&operand.view, of))).max();
            let inner = |out: &Type| out.shape[axis.of_result..].iter().product::<u64>();
            of_operands.max(outs.iter().filter(|out| is_large(out)).map(inner).max())
        };
        axes(self.op, self.operands, outs).into_iter().filter(serves).max_by_key(shortened)
    }

    /// The only result of an op that no axis serves, from halves that depend on each other.
    fn only_result(&self, out: &Type) -> Result<Option<Tensor>> {
        let most = self.most();
        match (self.op, self.operands) {
            (Op::Indexing(Indexing::Take(Take { axis })), [a, indices]) if a.view.shape[*axis] > 1 => {
                self.source(*axis, indices, None, *axis, out).map(Some)
            }
            (Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })), [a, indices])
                if a.view.shape[*axis] > 1 =>
            {
                self.source(*axis, indices, None, 0, out).map(Some)
            }
            (Op::Indexing(Indexing::Gather(Gather { axes })), [a, indices]) => {
                let Some(k) = furthest(&a.view, axes) else { return Ok(None) };
                self.source(axes[k], indices, Some(k), 0, out).map(Some)
            }
            (Op::Indexing(Indexing::IndexedAdd(_) | Indexing::IndexedPut(_)), [_, indices, updates])
                if self.is_beyond(&indices.view) || self.is_beyond(&updates.view) =>
            {
                self.updates(out)
            }
            (
                Op::Indexing(Indexing::IndexedAdd(IndexedAdd { axes }) | Indexing::IndexedPut(IndexedPut { axes })),
                [a, indices, updates],
            ) => {
                let Some(k) = furthest(&a.view, axes) else { return Ok(None) };
                self.target((axes[k], k), indices, updates, out).map(Some)
            }
            (Op::Dot { contract_a, contract_b, .. }, [a, _]) => {
                let Some(k) = furthest(&a.view, contract_a) else { return Ok(None) };
                self.sums([contract_a[k], contract_b[k]], out).map(Some)
            }
            (Op::Slice { starts, strides, lengths }, [_, _, ..]) => self.slice(starts, strides, lengths).map(Some),
            (Op::PutSlice { starts }, [_, _, _, ..]) => self.put_slice(starts, out).map(Some),
            (Op::Windowed(Windowed::WindowScatter(op)), [_, _, _]) => self.windows(op, out),
            (Op::Spectral(Spectral::Fft(op)), [_]) => self.transform(op, out),
            (Op::Order(Order::Sort(Sort { axis, descending })), [a]) if a.view.shape[*axis] > most => {
                self.sorted(*axis, *descending, out).map(Some)
            }
            (Op::Order(Order::Argsort(Argsort { axis, descending })), [a]) if a.view.shape[*axis] > most => {
                self.places_sorted(*axis, *descending, out).map(Some)
            }
            (Op::Reduce { reduction, axes, tie_high }, [a]) if reduction.finds_place() => {
                let reduced: u64 = axes.iter().map(|&axis| a.view.shape[axis]).product();
                let mut axes = axes.clone();
                axes.sort_unstable();
                match axes.iter().find(|&&axis| a.view.shape[axis] > 1).filter(|_| reduced > most) {
                    Some(&axis) => self.place(*reduction, &axes, axis, *tie_high, out).map(Some),
                    None => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Halves along an axis of which no element depends on another.
    fn along(&self, axis: &Axis, outs: &[Type]) -> Result<Results> {
        let whole = outs.iter().map(|out| Tensor::uninitialized(self.engine, out)).collect::<Result<Results>>()?;
        let size = whole.first().map_or(0, |out| out.view.shape[axis.of_result]);
        for (start, length) in [(0, size / 2), (size / 2, size - size / 2)] {
            let part = |(operand, of): (&Tensor, &Option<usize>)| match of {
                Some(of) => section(operand, *of, start, length),
                None => Ok(operand.clone()),
            };
            let operands = self.operands.iter().zip(&axis.of_operands).map(part).collect::<Result<Vec<_>>>()?;
            let types: Vec<Type> = outs.iter().map(|out| shortened(out, axis.of_result, length)).collect();
            let results = run_all(self.engine, self.op, &operands, &types, self.compile)?;
            for (result, whole) in results.iter().zip(&whole) {
                let place = section(whole, axis.of_result, start, length)?;
                copies::copy(self.engine, result, &place, self.compile)?;
            }
        }
        Ok(whole)
    }

    /// Solutions of halves of the systems of a batch, and whether those of both are regular.
    fn solutions(&self, out: &Type, regular: &Type) -> Result<Option<Results>> {
        let batch = self.operands[0].view.shape.len() - 2;
        let Some(axis) = (0..batch).find(|&axis| out.shape[axis] > 1) else { return Ok(None) };
        let whole = Tensor::uninitialized(self.engine, out)?;
        let half = out.shape[axis] / 2;
        let part = |start: u64, length: u64| -> Result<Results> {
            let of = |operand: &Tensor| section(operand, axis, start, length);
            let operands = self.operands.iter().map(of).collect::<Result<Vec<_>>>()?;
            let types = [shortened(out, axis, length), regular.clone()];
            let mut results = run_all(self.engine, self.op, &operands, &types, self.compile)?;
            copies::copy(self.engine, &results[0], &section(&whole, axis, start, length)?, self.compile)?;
            results.remove(0);
            Ok(results)
        };
        let mut regulars = part(0, half)?;
        regulars.extend(part(half, out.shape[axis] - half)?);
        let regular = self.run(&Op::Binary(Binary::LogicalAnd), &regulars, regular)?;
        Ok(Some(smallvec![whole, regular]))
    }

    /// The indices, and the same seen from `cut` elements further on: of vectors, one component.
    fn moved(&self, indices: &Tensor, component: Option<usize>, cut: u64) -> Result<[Tensor; 2]> {
        let shape = &indices.view.shape;
        let wide = self.run(&Op::AsType, std::slice::from_ref(indices), &Type::new(DType::S64, shape))?;
        let cut = self.number(cut)?;
        let by = match component {
            None => cut,
            Some(k) => {
                let line = Type::new(DType::S64, &shape[shape.len() - 1..]);
                let own = self.number(k as u64)?;
                let places = self.run(&Op::Iota { axis: Some(0) }, &[], &line)?;
                let zero = self.number(0)?;
                let is_own = Type::new(DType::U8, &line.shape);
                let is_own = self.run(&Op::Binary(Binary::Equal), &[places, own], &is_own)?;
                self.run(&Op::Select, &[is_own, cut, zero], &line)?
            }
        };
        let moved = self.run(&Op::Binary(Binary::Subtract), &[wide.clone(), by], &Type::new(DType::S64, shape))?;
        Ok([wide, moved])
    }

    /// The sum of products of halves of what is contracted along these axes.
    fn sums(&self, contracted: [usize; 2], out: &Type) -> Result<Tensor> {
        let size = self.operands[0].view.shape[contracted[0]];
        let part = |start: u64, length: u64| -> Result<Tensor> {
            let halves =
                self.operands.iter().zip(contracted).map(|(operand, axis)| section(operand, axis, start, length));
            self.run(self.op, &halves.collect::<Result<Vec<_>>>()?, out)
        };
        let sums = [part(0, size / 2)?, part(size / 2, size - size / 2)?];
        self.run(&Op::Binary(Binary::Add), &sums, out)
    }

    /// What is chosen from either half of a source. Kernels clamp indices, so that both halves give something. The
    /// indices' axes lie `before` axes into the result.
    fn source(
        &self,
        axis: usize,
        indices: &Tensor,
        component: Option<usize>,
        before: usize,
        out: &Type,
    ) -> Result<Tensor> {
        let a = &self.operands[0];
        let size = a.view.shape[axis];
        let cut = size / 2;
        let [low, high] = self.moved(indices, component, cut)?;
        let first = self.run(self.op, &[section(a, axis, 0, cut)?, low], out)?;
        let second = self.run(self.op, &[section(a, axis, cut, size - cut)?, high.clone()], out)?;
        let mut chooses = high;
        if let Some(k) = component {
            let last = chooses.view.shape.len() - 1;
            chooses = section(&chooses, last, k as u64, 1)?;
            let shape: Dims = chooses.view.shape[..last].iter().copied().collect();
            let strides = chooses.view.strides[..last].iter().copied().collect();
            chooses = chooses.with_view(View { shape, strides, ..View::clone(&chooses.view) });
        }
        let ty = Type::new(DType::U8, &chooses.view.shape);
        let chooses = self.run(&Op::Binary(Binary::GreaterEqual), &[chooses, self.number(0)?], &ty)?;
        let along: Axes = (before..before + chooses.view.shape.len()).collect();
        let chooses = chooses.with_view(chooses.view.broadcast(&out.shape, &along)?);
        self.run(&Op::Select, &[chooses, second, first], out)
    }

    /// Updates of either half of a target. Those of the other half are out of its bounds and do nothing.
    fn target(
        &self,
        (axis, component): (usize, usize),
        indices: &Tensor,
        updates: &Tensor,
        out: &Type,
    ) -> Result<Tensor> {
        let a = &self.operands[0];
        let cut = a.view.shape[axis] / 2;
        let indices = self.moved(indices, Some(component), cut)?;
        let whole = Tensor::uninitialized(self.engine, out)?;
        for (indices, (start, length)) in indices.into_iter().zip([(0, cut), (cut, a.view.shape[axis] - cut)]) {
            let operands = [section(a, axis, start, length)?, indices, updates.clone()];
            let result = self.run(self.op, &operands, &shortened(out, axis, length))?;
            copies::copy(self.engine, &result, &section(&whole, axis, start, length)?, self.compile)?;
        }
        Ok(whole)
    }

    /// The place of an extreme of rows, from those of either half along a reduced axis.
    fn place(&self, reduction: Reduction, axes: &Axes, axis: usize, tie_high: bool, out: &Type) -> Result<Tensor> {
        let a = &self.operands[0];
        let (size, dtype) = (a.view.shape[axis], a.view.dtype);
        let cut = size / 2;
        let is_max = reduction == Reduction::ArgMax;
        let extreme = if is_max { Reduction::Max } else { Reduction::Min };
        let of_values = Type::new(dtype, &out.shape);
        let part = |start: u64, length: u64| -> Result<[Tensor; 2]> {
            let part = [section(a, axis, start, length)?];
            let value = Op::Reduce { reduction: extreme, axes: axes.clone(), tie_high };
            Ok([self.run(self.op, &part, out)?, self.run(&value, &part, &of_values)?])
        };
        let ([first, least], [second, most]) = (part(0, cut)?, part(cut, size - cut)?);
        let inner: u64 = axes.iter().filter(|&&other| other > axis).map(|&other| a.view.shape[other]).product();
        let before = self.run(&Op::AsType, &[self.number(cut * inner)?], &Type::new(out.dtype, &[]))?;
        let second = self.run(&Op::Binary(Binary::Add), &[second, before], out)?;
        let wins = match (is_max, tie_high) {
            (true, false) => Binary::Greater,
            (true, true) => Binary::GreaterEqual,
            (false, false) => Binary::Less,
            (false, true) => Binary::LessEqual,
        };
        let flag = Type::new(DType::U8, &out.shape);
        let mut later = self.run(&Op::Binary(wins), &[most.clone(), least.clone()], &flag)?;
        if !dtype.is_integer() {
            // A NaN is the extreme, the first one unless ties go high.
            let is_nan = |of: Tensor| self.run(&Op::Unary(Unary::IsNan), &[of], &flag);
            let (least, most) = (is_nan(least)?, is_nan(most)?);
            let nan_wins = if tie_high { Binary::GreaterEqual } else { Binary::Greater };
            let nan_wins = self.run(&Op::Binary(nan_wins), &[most.clone(), least], &flag)?;
            let nan_wins = self.run(&Op::Binary(Binary::LogicalAnd), &[nan_wins, most], &flag)?;
            later = self.run(&Op::Binary(Binary::LogicalOr), &[later, nan_wins], &flag)?;
        }
        self.run(&Op::Select, &[later, second, first], out)
    }
}

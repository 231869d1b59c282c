//! Sorts of an axis that no launch reaches: two halves that are in order become the elements that come first and those
//! that come last, each of which is sorted again.

use smallvec::smallvec;

use super::{Cut, section, shortened};
use crate::eager::{copies, run_all};
use crate::program::ops::index::{Take, TakeAlongAxis};
use crate::program::ops::moved::Reverse;
use crate::program::ops::order::{Argsort, Sort, TopK};
use crate::program::{Binary, Op, Reduction, Unary};
use crate::shape::Type;
use crate::{DType, Result, Tensor};

/// Which elements of two halves in order come first, as many as the first half has, and which last.
struct Split {
    axis: usize,
    /// Whether the element there is one of the first half, and else where in the second it is.
    first: [Tensor; 2],
    /// Whether the element there is one of the first half, and where in it.
    last: [Tensor; 2],
}

impl Cut<'_> {
    /// The elements in order along an axis, beside which no other has several.
    pub(super) fn sorted(&self, axis: usize, descending: bool, out: &Type) -> Result<Tensor> {
        let op = Op::from(Sort { axis, descending });
        let sort = |part: Tensor| self.run(&op, std::slice::from_ref(&part), &part.view.ty());
        let [a, b] = self.halves_of(axis)?;
        let halves = [sort(a)?, sort(b)?];
        let [first, last] = self.parts(&self.split(axis, descending, &halves)?, &halves)?;
        self.joined(axis, [sort(first)?, sort(last)?], out)
    }

    /// The places of the elements in that order.
    pub(super) fn places_sorted(&self, axis: usize, descending: bool, out: &Type) -> Result<Tensor> {
        let along = Op::from(TakeAlongAxis { axis });
        let order = |part: &Tensor| {
            let ty = Type { dtype: out.dtype, ..part.view.ty() };
            self.run(&Op::from(Argsort { axis, descending }), std::slice::from_ref(part), &ty)
        };
        let take = |part: &Tensor, places: &Tensor| {
            let ty = Type { dtype: part.view.dtype, ..places.view.ty() };
            self.run(&along, &[part.clone(), places.clone()], &ty)
        };
        let [a, b] = self.halves_of(axis)?;
        let (of_a, of_b) = (order(&a)?, order(&b)?);
        let halves = [take(&a, &of_a)?, take(&b, &of_b)?];
        let split = self.split(axis, descending, &halves)?;
        let places = self.parts(&split, &[of_a, self.behind(of_b, a.view.shape[axis])?])?;
        let [first, last] = self.parts(&split, &halves)?;
        let parts = [take(&places[0], &order(&first)?)?, take(&places[1], &order(&last)?)?];
        self.joined(axis, parts, out)
    }

    /// The `k` largest elements along the last axis and their places, from those of either half.
    pub(super) fn top(&self, k: u64, values: &Type, places: &Type) -> Result<[Tensor; 2]> {
        let axis = values.shape.len() - 1;
        let top = |part: &Tensor, k: u64| -> Result<[Tensor; 2]> {
            let types = [values, places].map(|ty| shortened(ty, axis, k));
            let found = run_all(self.engine, &Op::from(TopK { k }), std::slice::from_ref(part), &types, self.compile)?;
            Ok([found[0].clone(), found[1].clone()])
        };
        let [a, b] = self.halves_of(axis)?;
        let cut = a.view.shape[axis];
        let ([a, of_a], [b, of_b]) = (top(&a, k.min(cut))?, top(&b, k.min(b.view.shape[axis]))?);
        let count = a.view.shape[axis] + b.view.shape[axis];
        let join = |parts: [Tensor; 2], ty: &Type| self.joined(axis, parts, &shortened(ty, axis, count));
        let of_both = join([of_a, self.behind(of_b, cut)?], places)?;
        let [values, order] = top(&join([a, b], values)?, k)?;
        Ok([values, self.run(&Op::from(TakeAlongAxis { axis }), &[of_both, order], places)?])
    }

    fn halves_of(&self, axis: usize) -> Result<[Tensor; 2]> {
        let (a, size) = (&self.operands[0], self.operands[0].view.shape[axis]);
        Ok([section(a, axis, 0, size / 2)?, section(a, axis, size / 2, size - size / 2)?])
    }

    fn joined(&self, axis: usize, parts: [Tensor; 2], out: &Type) -> Result<Tensor> {
        let whole = Tensor::uninitialized(self.engine, out)?;
        let mut start = 0;
        for part in parts {
            let length = part.view.shape[axis];
            copies::copy(self.engine, &part, &section(&whole, axis, start, length)?, self.compile)?;
            start += length;
        }
        Ok(whole)
    }

    /// Places in what begins behind so many elements.
    fn behind(&self, places: Tensor, elements: u64) -> Result<Tensor> {
        let ty = places.view.ty();
        let elements = self.run(&Op::AsType, &[self.number(elements)?], &Type::new(ty.dtype, &[]))?;
        self.run(&Op::Binary(Binary::Add), &[places, elements], &ty)
    }

    /// Element i of the first half is among the first if that one of the second half which would else be the last of
    /// them does not come before it. That holds for its first elements, and for none behind these.
    fn split(&self, axis: usize, descending: bool, [a, b]: &[Tensor; 2]) -> Result<Split> {
        let [first, last] = [a, b].map(|half| half.view.shape[axis]);
        let flags = Type { dtype: DType::U8, ..a.view.ty() };
        let turned = section(b, axis, 0, first)?;
        let turned = self.run(&Op::from(Reverse { axes: smallvec![axis] }), &[turned], &a.view.ty())?;
        let (order, largest) = if descending { (Binary::GreaterEqual, a) } else { (Binary::LessEqual, &turned) };
        let mut stays = self.run(&Op::Binary(order), &[a.clone(), turned.clone()], &flags)?;
        if !a.view.dtype.is_integer() {
            // NaN is the largest.
            let largest = self.run(&Op::Unary(Unary::IsNan), std::slice::from_ref(largest), &flags)?;
            stays = self.run(&Op::Binary(Binary::LogicalOr), &[stays, largest], &flags)?;
        }
        let dtype = if u32::try_from(last).is_ok() { DType::U32 } else { DType::S64 };
        let scalar = Type::new(dtype, &[]);
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: (0..flags.shape.len()).collect(), tie_high: false };
        let count = self.run(&sum, &[stays], &scalar)?;
        let size = self.run(&Op::AsType, &[self.number(first)?], &scalar)?;
        let rest = self.run(&Op::Binary(Binary::Subtract), &[size, count.clone()], &scalar)?;
        // Where what does not matter overflows, kernels clamp it.
        let of_places = |size: u64, ends: &Tensor, moved: Binary| -> Result<[Tensor; 2]> {
            let ty = Type::new(dtype, &[size]);
            let places = self.run(&Op::Iota { axis: Some(0) }, &[], &ty)?;
            let is_before = Type::new(DType::U8, &[size]);
            let is_before = self.run(&Op::Binary(Binary::Less), &[places.clone(), ends.clone()], &is_before)?;
            Ok([is_before, self.run(&Op::Binary(moved), &[places, count.clone()], &ty)?])
        };
        Ok(Split {
            axis,
            first: of_places(first, &count, Binary::Subtract)?,
            last: of_places(last, &rest, Binary::Add)?,
        })
    }

    /// The elements of two halves that come first and those that come last, each of the first half before those of the
    /// second.
    fn parts(&self, split: &Split, [a, b]: &[Tensor; 2]) -> Result<[Tensor; 2]> {
        let take = Op::from(Take { axis: split.axis });
        let part = |[is_of_first, places]: &[Tensor; 2], source: &Tensor, like: &Tensor| {
            let ty = like.view.ty();
            let taken = self.run(&take, &[source.clone(), places.clone()], &ty)?;
            let is_of_first = is_of_first.with_view(is_of_first.view.broadcast(&ty.shape, &[split.axis])?);
            Ok::<_, crate::Error>((is_of_first, taken, ty))
        };
        let (is_of_first, taken, ty) = part(&split.first, b, a)?;
        let first = self.run(&Op::Select, &[is_of_first, a.clone(), taken], &ty)?;
        let (is_of_first, taken, ty) = part(&split.last, a, b)?;
        Ok([first, self.run(&Op::Select, &[is_of_first, taken, b.clone()], &ty)?])
    }
}

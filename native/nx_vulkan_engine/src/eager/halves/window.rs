//! Parts of an operand that no launch reaches, which begin where a tensor says: by indices, one axis after the other.

use super::{Cut, section};
use crate::eager::copies;
use crate::program::ops::index::Take;
use crate::program::{Binary, Op};
use crate::shape::{Dims, Type};
use crate::{DType, Result, Tensor, View};

impl Cut<'_> {
    /// Every `strides`-th of `lengths` elements.
    pub(super) fn slice(&self, starts: &[Option<i64>], strides: &[u64], lengths: &[u64]) -> Result<Tensor> {
        let a = &self.operands[0];
        let rank = a.view.shape.len();
        let last = |axis: usize| a.view.shape[axis].saturating_sub(lengths[axis]);
        let (mut from, mut sizes, mut steps) =
            (Dims::from_elem(0, rank), a.view.shape.clone(), Dims::from_elem(1, rank));
        for (axis, start) in starts.iter().enumerate() {
            if let Some(start) = start {
                from[axis] = start.max(&0).unsigned_abs().min(last(axis));
                (sizes[axis], steps[axis]) = (lengths[axis], strides[axis]);
            }
        }
        let mut part = a.with_view(a.view.slice(&from, &sizes, &steps)?);
        let given = (0..rank).filter(|&axis| starts[axis].is_none());
        for (axis, tensor) in given.zip(&self.operands[1..]) {
            let (length, step) = (lengths[axis], strides[axis]);
            let dtype = if u32::try_from(part.view.shape[axis]).is_ok() { DType::U32 } else { DType::S64 };
            let ty = Type::new(dtype, &[length.div_ceil(step)]);
            let places = self.run(&Op::Iota { axis: Some(0) }, &[], &ty)?;
            let places = self.run(&Op::Binary(Binary::Multiply), &[places, self.counted(step, dtype)?], &ty)?;
            let places = self.run(&Op::Binary(Binary::Add), &[places, self.start(tensor, last(axis), dtype)?], &ty)?;
            let mut out = part.view.ty();
            out.shape[axis] = ty.shape[0];
            part = self.run(&Op::from(Take { axis }), &[part, places], &out)?;
        }
        Ok(part)
    }

    /// The first operand with the second in it; none along axes whose places are no numbers of 32 bits, as those would
    /// take too much memory.
    pub(super) fn put_slice(&self, starts: &[Option<i64>], out: &Type) -> Result<Option<Tensor>> {
        let (a, slice) = (&self.operands[0], &self.operands[1]);
        let dtype = DType::U32;
        if starts.iter().zip(&a.view.shape).any(|(start, &size)| start.is_none() && u32::try_from(size).is_err()) {
            return Ok(None);
        }
        let whole = Tensor::uninitialized(self.engine, out)?;
        copies::copy(self.engine, a, &whole, self.compile)?;
        let (mut before, mut region) = (a.clone(), whole.clone());
        for (axis, start) in starts.iter().enumerate() {
            let Some(start) = start else { continue };
            let length = slice.view.shape[axis];
            let start = start.max(&0).unsigned_abs().min(a.view.shape[axis].saturating_sub(length));
            (before, region) = (section(&before, axis, start, length)?, section(&region, axis, start, length)?);
        }
        let flags = Type { dtype: DType::U8, ..region.view.ty() };
        let (mut part, mut inside): (Tensor, Option<Tensor>) = (slice.clone(), None);
        let given = (0..starts.len()).filter(|&axis| starts[axis].is_none());
        for (axis, tensor) in given.zip(&self.operands[2..]) {
            let (size, length) = (a.view.shape[axis], slice.view.shape[axis]);
            let ty = Type::new(dtype, &[size]);
            let places = self.run(&Op::Iota { axis: Some(0) }, &[], &ty)?;
            let start = self.start(tensor, size.saturating_sub(length), dtype)?;
            // What lies before the start becomes a large number.
            let places = self.run(&Op::Binary(Binary::Subtract), &[places, start], &ty)?;
            let is_inside = Type::new(DType::U8, &[size]);
            let operands = [places.clone(), self.counted(length, dtype)?];
            let is_inside = self.run(&Op::Binary(Binary::Less), &operands, &is_inside)?;
            let is_inside = is_inside.with_view(is_inside.view.broadcast(&flags.shape, &[axis])?);
            inside = Some(match inside {
                None => is_inside,
                Some(others) => self.run(&Op::Binary(Binary::LogicalAnd), &[others, is_inside], &flags)?,
            });
            let mut ty = part.view.ty();
            ty.shape[axis] = size;
            part = self.run(&Op::from(Take { axis }), &[part, places], &ty)?;
        }
        if let Some(inside) = inside {
            part = self.run(&Op::Select, &[inside, part, before], &region.view.ty())?;
        }
        copies::copy(self.engine, &part, &region, self.compile)?;
        Ok(Some(whole))
    }

    /// A start that a tensor says, so that what begins there fits.
    fn start(&self, tensor: &Tensor, last: u64, dtype: DType) -> Result<Tensor> {
        let scalar = Type::new(DType::S64, &[]);
        let view = View { offset: tensor.view.offset, ..View::contiguous(tensor.view.dtype, &[]) };
        let start = self.run(&Op::AsType, &[tensor.with_view(view)], &scalar)?;
        let start = self.run(&Op::Binary(Binary::Max), &[start, self.number(0)?], &scalar)?;
        let start = self.run(&Op::Binary(Binary::Min), &[start, self.number(last)?], &scalar)?;
        self.run(&Op::AsType, &[start], &Type::new(dtype, &[]))
    }

    fn counted(&self, number: u64, dtype: DType) -> Result<Tensor> {
        self.run(&Op::AsType, &[self.number(number)?], &Type::new(dtype, &[]))
    }
}

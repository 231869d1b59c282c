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

    /// The first operand with the second in it.
    pub(super) fn put_slice(&self, starts: &[Option<i64>], out: &Type) -> Result<Tensor> {
        let (a, slice) = (&self.operands[0], &self.operands[1]);
        let whole = Tensor::uninitialized(self.engine, out)?;
        copies::copy(self.engine, a, &whole, self.compile)?;
        let mut region = whole.clone();
        for (axis, start) in starts.iter().enumerate() {
            let Some(start) = start else { continue };
            let length = slice.view.shape[axis];
            let start = start.max(&0).unsigned_abs().min(a.view.shape[axis].saturating_sub(length));
            region = section(&region, axis, start, length)?;
        }
        let given = (0..starts.len()).filter(|&axis| starts[axis].is_none());
        let given = given.zip(&self.operands[2..]).map(|(axis, tensor)| {
            let last = a.view.shape[axis].saturating_sub(slice.view.shape[axis]);
            Ok((axis, self.start(tensor, last, DType::S64)?))
        });
        self.put_there(&region, slice, &given.collect::<Result<Vec<_>>>()?)?;
        Ok(whole)
    }

    /// Puts the part of a slice that lies in a region there; it begins where tensors say along some axes, and else with
    /// the region.
    fn put_there(&self, region: &Tensor, slice: &Tensor, starts: &[(usize, Tensor)]) -> Result<()> {
        let sizes = &region.view.shape;
        // Places are numbers of 64 bits, of which there are several for each.
        let most = self.engine.reach().far() / 4;
        let longest = starts.iter().max_by_key(|(axis, _)| sizes[*axis]);
        if let Some(&(axis, _)) = longest.filter(|(axis, _)| sizes[*axis] > most.max(1)) {
            let cut = sizes[axis] / 2;
            let behind = starts.iter().map(|(other, start)| {
                let moved =
                    || self.run(&Op::Binary(Binary::Subtract), &[start.clone(), self.number(cut)?], &start.view.ty());
                Ok((*other, if *other == axis { moved()? } else { start.clone() }))
            });
            let behind = behind.collect::<Result<Vec<_>>>()?;
            self.put_there(&section(region, axis, 0, cut)?, slice, starts)?;
            return self.put_there(&section(region, axis, cut, sizes[axis] - cut)?, slice, &behind);
        }
        let flags = Type { dtype: DType::U8, ..region.view.ty() };
        let (mut part, mut inside): (Tensor, Option<Tensor>) = (slice.clone(), None);
        for (axis, start) in starts {
            let (axis, ty) = (*axis, Type::new(DType::S64, &[sizes[*axis]]));
            let places = self.run(&Op::Iota { axis: Some(0) }, &[], &ty)?;
            let places = self.run(&Op::Binary(Binary::Subtract), &[places, start.clone()], &ty)?;
            let is = |op, number: u64| {
                let ty = Type { dtype: DType::U8, ..ty.clone() };
                self.run(&Op::Binary(op), &[places.clone(), self.number(number)?], &ty)
            };
            for condition in [is(Binary::GreaterEqual, 0)?, is(Binary::Less, slice.view.shape[axis])?] {
                let condition = condition.with_view(condition.view.broadcast(&flags.shape, &[axis])?);
                inside = Some(match inside {
                    None => condition,
                    Some(others) => self.run(&Op::Binary(Binary::LogicalAnd), &[others, condition], &flags)?,
                });
            }
            let mut ty = part.view.ty();
            ty.shape[axis] = sizes[axis];
            part = self.run(&Op::from(Take { axis }), &[part, places], &ty)?;
        }
        if let Some(inside) = inside {
            part = self.run(&Op::Select, &[inside, part, region.clone()], &region.view.ty())?;
        }
        copies::copy(self.engine, &part, region, self.compile)
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

//! Ops whose indices are operands.

use smallvec::smallvec;

use super::kind::{Check, Class, Facts, Names, OpKind, family, named};
use super::rules::{
    along, axes_attr, axis_attr, combine_work, distinct, f32, holds, one, require, s32, same_dtype, same_shape,
};
use crate::Type;
use crate::program::attribute::Axes;
use crate::program::wire::Attr;
use crate::shape::{Dims, elements};

family! {
    /// Ops whose indices are operands.
    Indexing { Gather, Take, TakeAlongAxis, IndexedAdd, IndexedPut }
}

/// Instructions of one workgroup for each update that an element looks at, besides combining it.
const UPDATE_COST: u64 = 4;

/// A matrix, rows of it, and what they become, as samples take them.
fn rows_of_updates() -> [Type; 3] {
    [f32(&[2, 3]), s32(&[4, 1]), f32(&[4, 3])]
}

fn are_indices(indices: &Type) -> Check {
    require(indices.dtype.is_integer(), || format!("indices of {}", indices.dtype))
}

/// The axes of `indices` but the last, which holds one component per addressed axis.
fn index_vectors(axes: &Axes, a: &Type, indices: &Type) -> std::result::Result<Dims, String> {
    distinct(axes, a.shape.len())?;
    match indices.shape.split_last() {
        Some((&last, vectors)) if last > 0 && last == axes.len() as u64 && indices.dtype.is_integer() => {
            Ok(vectors.into())
        }
        _ => Err(format!("indices {}{:?} for {} axes", indices.dtype, indices.shape, axes.len())),
    }
}

/// The sizes of the axes that indices don't address.
fn rest(axes: &Axes, a: &Type) -> Dims {
    (0..a.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis]).collect()
}

/// a, indices; the axes of the indices in the place of the axis
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Take {
    /// Along which.
    pub axis: usize,
}

impl Take {
    fn names<Of: From<Take> + 'static>() -> Names<Of> {
        vec![named(
            "take",
            |_, a| Ok(Take { axis: a.axis("axis")? }.into()),
            || (Take { axis: 1 }.into(), [f32(&[2, 3]), s32(&[4, 5])], [f32(&[2, 4, 5])]),
        )]
    }
}

impl OpKind for Take {
    fn facts(&self) -> Facts {
        Facts::anywhere("take", Class::Gather, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, indices, out) = (operands[0], operands[1], one(outs)?);
        same_dtype(a, out)?;
        are_indices(indices)?;
        along(self.axis, a.shape.len())?;
        let (outer, inner) = (&a.shape[..self.axis], &a.shape[self.axis + 1..]);
        same_shape(&outer.iter().chain(&indices.shape).chain(inner).copied().collect::<Dims>(), out)
    }
}

/// a, indices; shapes differ along the axis only
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TakeAlongAxis {
    /// Along which.
    pub axis: usize,
}

impl TakeAlongAxis {
    fn names<Of: From<TakeAlongAxis> + 'static>() -> Names<Of> {
        vec![named(
            "take_along_axis",
            |_, a| Ok(TakeAlongAxis { axis: a.axis("axis")? }.into()),
            || (TakeAlongAxis { axis: 1 }.into(), [f32(&[2, 3]), s32(&[2, 5])], [f32(&[2, 5])]),
        )]
    }
}

impl OpKind for TakeAlongAxis {
    fn facts(&self) -> Facts {
        Facts::anywhere("take_along_axis", Class::Gather, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axis_attr(self.axis)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, indices, out) = (operands[0], operands[1], one(outs)?);
        same_dtype(a, out)?;
        are_indices(indices)?;
        along(self.axis, a.shape.len())?;
        let same = |(i, n): (usize, &u64)| i == self.axis || a.shape.get(i) == Some(n);
        require(indices.shape.len() == a.shape.len() && indices.shape.iter().enumerate().all(same), || {
            format!("indices of {:?} for {:?}", indices.shape, a.shape)
        })?;
        same_shape(&indices.shape, out)
    }
}

/// a, indices
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Those that the indices address.
    pub axes: Axes,
}

impl Gather {
    fn names<Of: From<Gather> + 'static>() -> Names<Of> {
        vec![named(
            "gather",
            |_, a| Ok(Gather { axes: a.ints("axes")? }.into()),
            || (Gather { axes: smallvec![0] }.into(), [f32(&[2, 3]), s32(&[4, 1])], [f32(&[4, 3])]),
        )]
    }
}

impl OpKind for Gather {
    fn facts(&self) -> Facts {
        Facts::anywhere("gather", Class::Gather, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", &self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        let vectors = index_vectors(&self.axes, a, operands[1])?;
        same_shape(&vectors.into_iter().chain(rest(&self.axes, a)).collect::<Dims>(), out)
    }
}

/// The rules of both ops that update what indices address.
fn updates(axes: &Axes, operands: &[&Type], outs: &[Type]) -> Check {
    let (a, indices, updates, out) = (operands[0], operands[1], operands[2], one(outs)?);
    holds(&[a, updates], out)?;
    let (vectors, rest) = (index_vectors(axes, a, indices)?, rest(axes, a));
    let expected = elements(&vectors.iter().chain(&rest).copied().collect::<Dims>());
    require(updates.elements() == expected, || {
        format!("updates of {:?} for index vectors {vectors:?} and rows {rest:?}", updates.shape)
    })?;
    same_shape(&a.shape, out)
}

/// Index vectors of an op that takes indices.
pub fn update_count(indices: &Type) -> u64 {
    indices.elements() / indices.shape.last().copied().unwrap_or(1).max(1)
}

/// Every element looks at every update.
fn work_of_updates(operands: &[&Type], outs: &[Type]) -> u64 {
    let updates = operands.get(1).map_or(1, |indices| update_count(indices));
    outs.first().map_or(0, |out| out.elements() * updates * (combine_work(out) + UPDATE_COST))
}

/// a, indices, updates
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexedAdd {
    /// Those that the indices address.
    pub axes: Axes,
}

impl IndexedAdd {
    fn names<Of: From<IndexedAdd> + 'static>() -> Names<Of> {
        vec![named(
            "indexed_add",
            |_, a| Ok(IndexedAdd { axes: a.ints("axes")? }.into()),
            || (IndexedAdd { axes: smallvec![0] }.into(), rows_of_updates(), [f32(&[2, 3])]),
        )]
    }
}

impl OpKind for IndexedAdd {
    fn facts(&self) -> Facts {
        Facts::anywhere("indexed_add", Class::Scatter, 3)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", &self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        updates(&self.axes, operands, outs)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        Some(operands.get(2)?.elements())
    }

    fn runs_in_workgroup(&self, _: &[&Type], outs: &[Type]) -> bool {
        // Sums are rounded once there, not after each update as narrow floats would be.
        outs.iter().all(|out| out.dtype.is_integer() || out.dtype.is_canonical())
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        work_of_updates(operands, outs)
    }
}

/// a, indices, updates
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexedPut {
    /// Those that the indices address.
    pub axes: Axes,
}

impl IndexedPut {
    fn names<Of: From<IndexedPut> + 'static>() -> Names<Of> {
        vec![named(
            "indexed_put",
            |_, a| Ok(IndexedPut { axes: a.ints("axes")? }.into()),
            || (IndexedPut { axes: smallvec![0] }.into(), rows_of_updates(), [f32(&[2, 3])]),
        )]
    }
}

impl OpKind for IndexedPut {
    fn facts(&self) -> Facts {
        Facts::anywhere("indexed_put", Class::Scatter, 3)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", &self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        updates(&self.axes, operands, outs)
    }

    fn flops(&self, _: &[&Type], _: &[Type]) -> Option<u64> {
        Some(0)
    }

    fn keeps_digits(&self, _: &[&Type], _: &[Type]) -> bool {
        true
    }

    fn workgroup_work(&self, operands: &[&Type], outs: &[Type]) -> u64 {
        work_of_updates(operands, outs)
    }
}

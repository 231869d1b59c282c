//! Ops whose indices are operands.

use smallvec::smallvec;

use super::kind::{Check, Class, Facts, Names, OpKind, named};
use super::rules::{
    along, axes_attr, axis_attr, combine_work, distinct, f32, holds, one, require, s32, same_dtype, same_shape,
};
use crate::Type;
use crate::program::Op;
use crate::program::attribute::Axes;
use crate::program::wire::Attr;
use crate::program::workgroup::update_count;
use crate::shape::{Dims, elements};

/// Instructions of one workgroup for each update that an element looks at, besides combining it.
const UPDATE_COST: u64 = 4;

pub(super) fn names() -> Names {
    vec![
        named(
            "gather",
            |_, a| Ok(Op::Gather { axes: a.ints("axes")? }),
            || (Op::Gather { axes: smallvec![0] }, [f32(&[2, 3]), s32(&[4, 1])], [f32(&[4, 3])]),
        ),
        named(
            "take",
            |_, a| Ok(Op::Take { axis: a.axis("axis")? }),
            || (Op::Take { axis: 1 }, [f32(&[2, 3]), s32(&[4, 5])], [f32(&[2, 4, 5])]),
        ),
        named(
            "take_along_axis",
            |_, a| Ok(Op::TakeAlongAxis { axis: a.axis("axis")? }),
            || (Op::TakeAlongAxis { axis: 1 }, [f32(&[2, 3]), s32(&[2, 5])], [f32(&[2, 5])]),
        ),
        named(
            "indexed_add",
            |_, a| Ok(Op::IndexedAdd { axes: a.ints("axes")? }),
            || (Op::IndexedAdd { axes: smallvec![0] }, rows_of_updates(), [f32(&[2, 3])]),
        ),
        named(
            "indexed_put",
            |_, a| Ok(Op::IndexedPut { axes: a.ints("axes")? }),
            || (Op::IndexedPut { axes: smallvec![0] }, rows_of_updates(), [f32(&[2, 3])]),
        ),
    ]
}

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

pub(in crate::program) struct Take {
    pub axis: usize,
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

pub(in crate::program) struct TakeAlongAxis {
    pub axis: usize,
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

pub(in crate::program) struct Gather<'a> {
    pub axes: &'a Axes,
}

impl OpKind for Gather<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere("gather", Class::Gather, 2)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out) = (operands[0], one(outs)?);
        same_dtype(a, out)?;
        let vectors = index_vectors(self.axes, a, operands[1])?;
        same_shape(&vectors.into_iter().chain(rest(self.axes, a)).collect::<Dims>(), out)
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

/// Every element looks at every update.
fn work_of_updates(operands: &[&Type], outs: &[Type]) -> u64 {
    let updates = operands.get(1).map_or(1, |indices| update_count(indices));
    outs.first().map_or(0, |out| out.elements() * updates * (combine_work(out) + UPDATE_COST))
}

pub(in crate::program) struct IndexedAdd<'a> {
    pub axes: &'a Axes,
}

impl OpKind for IndexedAdd<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere("indexed_add", Class::Scatter, 3)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        updates(self.axes, operands, outs)
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

pub(in crate::program) struct IndexedPut<'a> {
    pub axes: &'a Axes,
}

impl OpKind for IndexedPut<'_> {
    fn facts(&self) -> Facts {
        Facts::anywhere("indexed_put", Class::Scatter, 3)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        vec![axes_attr("axes", self.axes)]
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        updates(self.axes, operands, outs)
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

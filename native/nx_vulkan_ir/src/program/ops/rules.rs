//! Rules that ops of several families keep, and attributes that they share.

use smallvec::SmallVec;

use super::kind::Check;
use crate::program::attribute::Axes;
use crate::program::index_map::Place;
use crate::program::wire::Attr;
use crate::shape::Dims;
use crate::{DType, Type};

/// Floats of a shape, for samples.
pub(super) fn f32(shape: &[u64]) -> Type {
    Type::new(DType::F32, shape)
}

/// Integers of a shape, for samples.
pub(super) fn s32(shape: &[u64]) -> Type {
    Type::new(DType::S32, shape)
}

/// The product of counts, if it is one.
pub fn multiplied(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |all, &factor| all.checked_mul(factor))
}

/// Work, about the instructions of all invocations, that every phase costs besides that of its elements: a barrier.
pub const PHASE_WORK: u64 = 1_500;

pub(super) fn require(condition: bool, reason: impl FnOnce() -> String) -> Check {
    if condition { Ok(()) } else { Err(reason()) }
}

/// The one result of an op that has one.
pub(super) fn one(outs: &[Type]) -> std::result::Result<&Type, String> {
    match outs {
        [out] => Ok(out),
        _ => Err(format!("has one result, got {}", outs.len())),
    }
}

/// Integers, floats, complex numbers: each holds what comes before it, roughly.
pub(super) fn class(dtype: DType) -> u8 {
    if dtype.is_complex() { 2 } else { u8::from(dtype.is_float()) }
}

pub(super) fn same_shape(expected: &[u64], out: &Type) -> Check {
    require(expected == &out.shape[..], || format!("the result has shape {expected:?}, not {:?}", out.shape))
}

pub(super) fn same_dtype(a: &Type, out: &Type) -> Check {
    require(a.dtype == out.dtype, || format!("the result has type {}, not {}", a.dtype, out.dtype))
}

/// Whether a result can hold elements of all operands.
pub(super) fn holds(operands: &[&Type], out: &Type) -> Check {
    require(operands.iter().all(|t| class(t.dtype) <= class(out.dtype)), || {
        format!("{} holds not all operands", out.dtype)
    })
}

pub(super) fn ordered(a: &Type) -> Check {
    require(!a.dtype.is_complex(), || format!("{} has no order", a.dtype))
}

/// Whether an axis is one of a tensor's.
pub(super) fn along(axis: usize, rank: usize) -> Check {
    require(axis < rank, || format!("axis {axis} of rank {rank}"))
}

pub(super) fn distinct(axes: &[usize], rank: usize) -> Check {
    let ok = axes.iter().enumerate().all(|(i, &axis)| axis < rank && !axes[..i].contains(&axis));
    require(ok, || format!("axes {axes:?} of rank {rank}"))
}

/// Whether the result has the axes that a reduction keeps. Reduced axes are gone, or stay with size 1.
pub(super) fn kept(axes: &[usize], a: &Type, out: &Type) -> Check {
    distinct(axes, a.shape.len())?;
    let kept: Dims = (0..a.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis]).collect();
    let ones: Dims = (0..a.shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { a.shape[axis] }).collect();
    if ones == out.shape { Ok(()) } else { same_shape(&kept, out) }
}

/// A window of `lengths` in `a`; `rest` are start indices.
pub(super) fn window_fits(a: &Type, starts: &[Option<i64>], lengths: &[u64], rest: &[&Type]) -> Check {
    let fits = lengths.len() == a.shape.len() && lengths.iter().zip(&a.shape).all(|(length, size)| length <= size);
    require(fits, || format!("a window of {lengths:?} in {:?}", a.shape))?;
    require(starts.len() == a.shape.len(), || format!("{} starts for rank {}", starts.len(), a.shape.len()))?;
    require(rest.iter().all(|t| t.dtype.is_integer() && t.elements() == 1), || {
        "start indices must be integer scalars".to_string()
    })
}

/// Where a window of `lengths` begins along axes of `sizes`, moved so that it fits; operands from `first` on give what
/// is missing.
pub(super) fn places(starts: &[Option<i64>], sizes: &[u64], lengths: &[u64], first: u32) -> SmallVec<[Place; 6]> {
    let mut next = first;
    let place = |((start, &size), &length): ((&Option<i64>, &u64), &u64)| {
        let room = size.saturating_sub(length);
        start.map_or_else(
            || {
                next += 1;
                Place::Read { operand: next - 1, room }
            },
            |start| Place::Number(start.clamp(0, room as i64)),
        )
    };
    starts.iter().zip(sizes).zip(lengths).map(place).collect()
}

/// Starts of a window that operands give.
pub(super) fn missing(starts: &[Option<i64>]) -> usize {
    starts.iter().filter(|start| start.is_none()).count()
}

/// Instructions that combine two elements of a result's type in one workgroup.
pub(super) fn combine_work(out: &Type) -> u64 {
    if out.dtype.is_float() || out.dtype.is_complex() { 8 } else { 2 }
}

pub(super) fn axes_attr(name: &str, axes: &Axes) -> (String, Attr) {
    (name.to_string(), Attr::List(axes.iter().map(|&i| Attr::Int(i as i64)).collect()))
}

pub(super) fn ints_attr(name: &str, items: impl IntoIterator<Item = i64>) -> (String, Attr) {
    (name.to_string(), Attr::List(items.into_iter().map(Attr::Int).collect()))
}

pub(super) fn axis_attr(axis: usize) -> (String, Attr) {
    ("axis".to_string(), Attr::Int(axis as i64))
}

pub(super) fn flag_attr(name: &str, flag: bool) -> (String, Attr) {
    (name.to_string(), Attr::Bool(flag))
}

pub(super) fn starts_attr(starts: &[Option<i64>]) -> (String, Attr) {
    let items = starts.iter().map(|s| s.map_or(Attr::None, Attr::Int));
    ("starts".to_string(), Attr::List(items.collect()))
}

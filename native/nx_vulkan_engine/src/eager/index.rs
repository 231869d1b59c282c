//! gather, take, and what they share with indexed_add and indexed_put.

use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::call::{Call, Results};
use super::indexed::indexed;
use super::{copies, movement};
use crate::kernels::index::{GatherSpec, TakeSpec, extra};
use crate::kernels::{Arguments, Place, launch};
use crate::program::attribute::Axes;
use crate::program::ops::Visitor;
use crate::program::ops::index::{Gather, IndexedAdd, IndexedPut, Take, TakeAlongAxis};
use crate::shape::{Dims, Space, Strides, elements};
use crate::{Result, Tensor, View};

/// A tensor's axes split into those that an index vector addresses and the rest.
pub(super) struct Split {
    pub components: SmallVec<[(u64, i64); 4]>,
    pub rest_sizes: Dims,
    pub rest_strides: Strides,
}

pub(super) fn split(call: &Call<'_>, view: &View, axes: &Axes) -> Result<Split> {
    let rank = view.shape.len();
    let mut seen: SmallVec<[bool; 8]> = SmallVec::from_elem(false, rank);
    for &axis in axes {
        match seen.get_mut(axis) {
            Some(slot) if !*slot && view.shape[axis] > 0 => *slot = true,
            _ => return Err(call.invalid(format!("axes {axes:?} of {:?}", view.shape))),
        }
    }
    let rest = (0..rank).filter(|&axis| !seen[axis]);
    Ok(Split {
        components: axes.iter().map(|&axis| (view.shape[axis], view.strides[axis])).collect(),
        rest_sizes: rest.clone().map(|axis| view.shape[axis]).collect(),
        rest_strides: rest.map(|axis| view.strides[axis]).collect(),
    })
}

/// Index vectors as rows: how many, and their strides (row, component).
pub(super) fn rows(call: &Call<'_>, indices: &Tensor, components: usize) -> Result<(u64, Tensor)> {
    let indices = &movement::ascending(call, indices)?;
    let last = indices.view.shape.last().copied().unwrap_or(0);
    if last == 0 || last != components as u64 || !indices.view.dtype.is_integer() {
        return Err(call.invalid(format!(
            "indices {}{:?} must be integers with {components} in the last axis",
            indices.view.dtype, indices.view.shape
        )));
    }
    let count = indices.view.elements() / last;
    let shape = [count, last];
    let view = match indices.view.reshape(&shape) {
        Some(view) => indices.with_view(view),
        None => {
            let copy = copies::contiguous(call.engine, indices, call.compile)?;
            copy.with_view(View::contiguous(indices.view.dtype, &shape))
        }
    };
    Ok((count, view))
}

impl Visitor<Gather, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Gather) -> Result<Results> {
        Ok(smallvec![gather(self, &op.axes)?])
    }
}

impl Visitor<Take, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Take) -> Result<Results> {
        Ok(smallvec![take(self, op.axis, false)?])
    }
}

impl Visitor<TakeAlongAxis, Result<Results>> for &Call<'_> {
    fn visit(self, op: &TakeAlongAxis) -> Result<Results> {
        Ok(smallvec![take(self, op.axis, true)?])
    }
}

impl Visitor<IndexedAdd, Result<Results>> for &Call<'_> {
    fn visit(self, op: &IndexedAdd) -> Result<Results> {
        Ok(smallvec![indexed(self, &op.axes, true)?])
    }
}

impl Visitor<IndexedPut, Result<Results>> for &Call<'_> {
    fn visit(self, op: &IndexedPut) -> Result<Results> {
        Ok(smallvec![indexed(self, &op.axes, false)?])
    }
}

fn gather(call: &Call<'_>, axes: &Axes) -> Result<Tensor> {
    let a = &movement::ascending(call, call.operand(0)?)?;
    let parts = split(call, &a.view, axes)?;
    let (count, indices) = rows(call, call.operand(1)?, axes.len())?;
    if count * elements(&parts.rest_sizes) != call.out.elements() {
        return Err(call.invalid(format!("{count} index vectors do not give a shape of {:?}", call.out.shape)));
    }
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let far = call.engine.reach().is_far(&[&a.view, &indices.view, &result.view])?;
    let element = Element::raw(a.view.dtype);
    let spec = GatherSpec {
        element,
        index: indices.view.dtype,
        components: axes.len() as u8,
        rest_rank: parts.rest_sizes.len() as u8,
    };
    let kernel = call.engine.kernel_reaching(&spec, far, call.compile)?;
    let sizes: Dims = std::iter::once(count).chain(parts.rest_sizes.iter().copied()).collect();
    let strides: Strides = std::iter::once(0).chain(parts.rest_strides.iter().copied()).collect();
    let places = [
        Place { buffer: &a.buffer, address: a.address(), strides: &strides, element_bytes: 0 },
        Place { buffer: &indices.buffer, address: indices.address(), strides: &indices.view.strides, element_bytes: 0 },
        Place { buffer: &result.buffer, address: result.address(), strides: &[], element_bytes: 0 },
    ];
    let out_count = call.out.elements();
    let extra = extra([0, 0], &parts.components);
    let arguments = Arguments { count: out_count as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(call.engine, &kernel, &arguments, 2, out_count.div_ceil(u64::from(kernel.elements_per_group)))?;
    Ok(result)
}

/// Elements of `a` along `axis` by a tensor of indices: each index takes the whole rest of the axes or, if `along`, the
/// one element at its own place in them.
pub fn take(call: &Call<'_>, axis: usize, along: bool) -> Result<Tensor> {
    let a = movement::ascending(call, call.operand(0)?)?;
    let indices = movement::ascending(call, call.operand(1)?)?;
    let (from, by) = (&a.view, &indices.view);
    if from.shape.get(axis).is_none_or(|&size| size == 0)
        || !by.dtype.is_integer()
        || (along && by.shape.len() != from.shape.len())
    {
        return Err(call.invalid(format!("{}{:?} along axis {axis} of {:?}", by.dtype, by.shape, from.shape)));
    }
    let (mut sizes, mut a_strides, mut index_strides) = (by.shape.clone(), from.strides.clone(), by.strides.clone());
    if along {
        a_strides[axis] = 0;
    } else {
        let (outer, inner) = (&from.shape[..axis], &from.shape[axis + 1..]);
        sizes = outer.iter().chain(&by.shape).chain(inner).copied().collect();
        let still = |n: usize| std::iter::repeat_n(0, n);
        a_strides = from.strides[..axis].iter().copied().chain(still(by.shape.len())).collect();
        a_strides.extend_from_slice(&from.strides[axis + 1..]);
        index_strides = still(outer.len()).chain(by.strides.iter().copied()).chain(still(inner.len())).collect();
    }
    if sizes != call.out.shape || from.dtype != call.out.dtype {
        return Err(call.invalid(format!("gives {}{sizes:?}, not {}{:?}", from.dtype, call.out.dtype, call.out.shape)));
    }
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let far = call.engine.reach().is_far(&[from, by, &result.view])?;
    let mut space = Space::new(&sizes, &[&a_strides, &index_strides]);
    let mut step = from.strides[axis];
    let group = widen(&mut space, &mut step, &a, &result);
    let spec = TakeSpec {
        element: Element::Raw((from.dtype.size_bytes() * group) as u8),
        index: by.dtype,
        rank: space.rank() as u8,
    };
    let kernel = call.engine.kernel_reaching(&spec, far, call.compile)?;
    let place = |tensor: &'_ Tensor| (tensor.buffer.clone(), tensor.address());
    let buffers = [place(&a), place(&indices), place(&result)];
    let strides = [&space.strides[0][..], &space.strides[1][..], &[]];
    let place =
        |k: usize| Place { buffer: &buffers[k].0, address: buffers[k].1, strides: strides[k], element_bytes: 0 };
    let count = space.elements();
    let extra = extra([0, 0], &[(from.shape[axis], step)]);
    let places = [place(0), place(1), place(2)];
    let arguments = Arguments { count: count as u32, sizes: &space.sizes, places: &places, extra: &extra };
    launch(call.engine, &kernel, &arguments, 2, count.div_ceil(u64::from(kernel.elements_per_group)))?;
    Ok(result)
}

/// Makes groups of up to 16 bytes the elements of a take, where neighbours stay neighbours. Answers how many are in
/// one.
fn widen(space: &mut Space, step: &mut i64, a: &Tensor, result: &Tensor) -> u64 {
    let size = a.view.dtype.size_bytes();
    let last = space.rank() - 1;
    let fits = |group: u64| {
        let whole = |stride: &i64| stride.unsigned_abs().is_multiple_of(group);
        let bytes = size * group;
        space.strides[0][last] == 1
            && space.strides[1][last] == 0
            && space.sizes[last].is_multiple_of(group)
            && space.strides[0][..last].iter().chain([&*step]).all(whole)
            && a.address().is_multiple_of(bytes)
            && result.address().is_multiple_of(bytes)
    };
    let Some(group) = [16, 8, 4, 2].into_iter().map(|bytes| bytes / size).find(|&group| group > 1 && fits(group))
    else {
        return 1;
    };
    space.sizes[last] /= group;
    for stride in &mut space.strides[0][..last] {
        *stride /= group as i64;
    }
    *step /= group as i64;
    group
}

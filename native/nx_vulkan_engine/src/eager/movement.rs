//! Ops that only move elements: their index maps as views, and as copies between views.

use nx_vulkan_ir::program::index_map::{self, IndexMap, Line, Part};
use nx_vulkan_ir::program::ops::moved::Pad;
use nx_vulkan_spirv::access::Element;
use smallvec::SmallVec;

use super::call::Call;
use super::copies::{contiguous, copy, copy_seen};
use crate::kernels::index::{ShiftSpec, extra};
use crate::kernels::{Arguments, Place, in_parts, launch};
use crate::program::Op;
use crate::program::ops::Class;
use crate::shape::{Space, Strides};
use crate::{Result, Tensor, Type, View};

/// The tensor itself if no stride is negative, else a copy: kernels that compute positions themselves need that.
pub fn ascending(call: &Call<'_>, tensor: &Tensor) -> Result<Tensor> {
    if tensor.view.strides.iter().all(|&stride| stride >= 0) {
        return Ok(tensor.clone());
    }
    contiguous(call.engine, tensor, call.compile)
}

/// Runs an op that has an index map: as a view where that is one, else by copies.
pub fn moved(call: &Call<'_>) -> Result<Tensor> {
    let shapes: SmallVec<[&[u64]; 8]> = call.operands.iter().map(|tensor| &tensor.view.shape[..]).collect();
    let map = call.op.index_map(&shapes, &call.out.shape).ok_or_else(|| call.invalid("has no kernel".into()))?;
    if let ([part], Class::View) = (&map.parts[..], call.op.class())
        && starts(part).next().is_none()
    {
        return call.view(|view| Ok(view.along(&part.lines, &call.out.shape)));
    }
    let result = Tensor::uninitialized(call.engine, call.out)?;
    place(call, &map, call.operands, &result)?;
    call.result(result)
}

/// `a` with `value` before, after and between its elements in `result`, which has the padded shape.
pub fn fill_around(
    call: &Call<'_>,
    a: &Tensor,
    value: &Tensor,
    config: &[(i64, i64, u64)],
    result: &Tensor,
) -> Result<()> {
    let pad = Op::from(Pad { config: config.into() });
    let map = pad.index_map(&[&a.view.shape, &[]], &result.view.shape);
    let map = map.ok_or_else(|| call.invalid("padding that is none".into()))?;
    place(call, &map, &[a.clone(), value.clone()], result)
}

/// Copies operands to where they lie in a result.
fn place(call: &Call<'_>, map: &IndexMap, operands: &[Tensor], result: &Tensor) -> Result<()> {
    let operand = |k: usize| operands.get(k).ok_or_else(|| call.invalid(format!("needs operand {k}")));
    let shape = &result.view.shape;
    if let Some(around) = map.around {
        let around = operand(around)?;
        let repeated = around.view.along(&[], shape);
        let seen = if around.view.shape == *shape { &*around.view } else { &repeated };
        copy_seen(call.engine, (&around.buffer, seen), (&result.buffer, &result.view), call.compile)?;
    }
    let copy_all = || map.parts.iter().try_for_each(|part| copy_part(call, part, operand(part.operand)?, result));
    let is_apart = |part: &Part| {
        let from = operands.get(part.operand).and_then(|operand| part.views(&operand.view, &result.view));
        starts(part).next().is_none() && from.is_none_or(|(_, to)| has_own_words(&to))
    };
    let are_apart = || result.view.dtype.size_bytes() >= 4 || map.parts.iter().all(is_apart);
    if map.parts.len() > 1 && are_apart() { in_parts(&result.buffer, copy_all) } else { copy_all() }
}

/// Whether no neighbour of what lies there shares a word with it.
pub fn has_own_words(to: &View) -> bool {
    let is_whole = |elements: u64| (elements * to.dtype.size_bytes()).is_multiple_of(4);
    let [rows @ .., last] = &to.strides[..] else { return false };
    let columns = to.shape.last().copied().unwrap_or(0);
    *last == 1 && rows.iter().all(|stride| is_whole(stride.unsigned_abs())) && is_whole(columns) && is_whole(to.offset)
}

/// The lines that begin where an operand says, and what it may say at most.
fn starts(part: &Part) -> impl Iterator<Item = (&Line, usize, u64)> {
    part.lines.iter().filter_map(|line| {
        [line.from, line.at].into_iter().find_map(|place| match place {
            index_map::Place::Read { operand, room: room @ 1.. } => Some((line, operand as usize, room)),
            _ => None,
        })
    })
}

fn copy_part(call: &Call<'_>, part: &Part, operand: &Tensor, result: &Tensor) -> Result<()> {
    if starts(part).next().is_some() {
        return shift(call, part, operand, result);
    }
    let Some((from, to)) = part.views(&operand.view, &result.view) else { return Ok(()) };
    copy_seen(call.engine, (&operand.buffer, &from), (&result.buffer, &to), call.compile)
}

/// Copies an operand where its place in the result, or the elements that show, are read by the kernel.
fn shift(call: &Call<'_>, part: &Part, operand: &Tensor, result: &Tensor) -> Result<()> {
    let operand = &if operand.view.dtype == result.view.dtype {
        ascending(call, operand)?
    } else {
        let plain = Tensor::uninitialized(call.engine, &Type::new(result.view.dtype, &operand.view.shape))?;
        copy(call.engine, operand, &plain, call.compile)?;
        plain
    };
    let far = call.engine.reach().is_far(&[&operand.view, &result.view])?;
    // As if the starts were 0; the kernel adds them.
    let Some((from, to)) = part.views(&operand.view, &result.view) else { return Ok(()) };
    let puts = starts(part).any(|(line, ..)| line.at.is_read());
    let mut read: SmallVec<[&Tensor; 4]> = SmallVec::new();
    let mut components: SmallVec<[(u64, i64); 4]> = SmallVec::new();
    for (line, number, room) in starts(part) {
        let strides = if puts { &result.view.strides } else { &operand.view.strides };
        let axis = if puts { Some(line.along) } else { line.of };
        read.push(call.operand(number)?);
        components.push((room + 1, axis.map_or(0, |axis| strides[axis])));
    }
    let space = Space::new(&to.shape, &[&from.strides, &to.strides]);
    let spec = ShiftSpec {
        element: Element::raw(to.dtype),
        starts: read.iter().map(|start| start.view.dtype).collect(),
        rank: space.rank() as u8,
        puts,
    };
    let kernel = call.engine.kernel_reaching(&spec, far, call.compile)?;
    let still: Strides = SmallVec::from_elem(0, space.rank());
    let starts = read.iter().map(|start| (&start.buffer, &*start.view, &still));
    let operands = std::iter::once((&operand.buffer, &from, &space.strides[0])).chain(starts);
    let places: SmallVec<[Place<'_>; 6]> = operands
        .chain([(&result.buffer, &to, &space.strides[1])])
        .map(|(buffer, view, strides)| Place {
            buffer,
            address: buffer.address() + view.offset_bytes(),
            strides,
            element_bytes: view.dtype.size_bytes(),
        })
        .collect();
    let (count, extra) = (space.elements(), extra([0, 0], &components));
    let arguments = Arguments { count: count as u32, sizes: &space.sizes, places: &places, extra: &extra };
    let groups = count.div_ceil(u64::from(kernel.elements_per_group));
    launch(call.engine, &kernel, &arguments, 1 + components.len(), groups)
}

//! Ops that only move elements: copies between views, slices, padding, concatenation.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Call, Compile};
use crate::codegen::access::Element;
use crate::codegen::elementwise::{Ref, Step};
use crate::kernel::launch::map::{Operand, map};
use crate::kernel::launch::transpose::transpose;
use crate::program::Elementwise;
use crate::shape::Dims;
use crate::{DType, Engine, Error, Result, Tensor, Type, View};

/// Copies `from` into the place `to`, which has the same shape. A different dtype is cast.
pub fn copy(engine: &Engine, from: &Tensor, to: &Tensor, compile: Compile) -> Result<()> {
    let same = from.view.dtype == to.view.dtype;
    let element = |dtype: DType| if same { Element::raw(dtype) } else { Element::Typed(dtype) };
    let input = Operand::new(&from.buffer, &from.view, element(from.view.dtype));
    let output = Operand::new(&to.buffer, &to.view, element(to.view.dtype));
    if same && transpose(engine, &to.view.shape, &input, &output, compile)? {
        return Ok(());
    }
    let (steps, source): (SmallVec<[Step; 1]>, Ref) = if same {
        (smallvec![], Ref::Input(0))
    } else {
        let cast = Step { op: Elementwise::AsType, args: smallvec![Ref::Input(0)], out: to.view.dtype };
        (smallvec![cast], Ref::Result(0))
    };
    map(engine, &to.view.shape, &[input], steps, &[(source, output)], compile)
}

/// The tensor itself if its elements lie in row-major order, else a copy in which they do.
pub fn contiguous(engine: &Engine, tensor: &Tensor, compile: Compile) -> Result<Tensor> {
    if tensor.view.is_contiguous() {
        return Ok(tensor.clone());
    }
    let result = Tensor::uninitialized(engine, &tensor.view.ty())?;
    copy(engine, tensor, &result, compile)?;
    Ok(result)
}

/// The tensor itself if no stride is negative, else a copy: kernels that compute positions themselves need that.
pub fn ascending(call: &Call<'_>, tensor: &Tensor) -> Result<Tensor> {
    if tensor.view.strides.iter().all(|&stride| stride >= 0) {
        return Ok(tensor.clone());
    }
    contiguous(call.engine, tensor, call.compile)
}

/// A part of `tensor` as a place to write to.
fn part(tensor: &Tensor, view: View) -> Tensor {
    Tensor { buffer: Arc::clone(&tensor.buffer), view }
}

fn ones(rank: usize) -> Dims {
    SmallVec::from_elem(1, rank)
}

/// Start indices clamped so that the window fits; the operands from `first` on give those that the op leaves out.
fn clamped_starts(
    call: &Call<'_>,
    starts: &[Option<i64>],
    first: usize,
    sizes: &[u64],
    lengths: &[u64],
) -> Result<Dims> {
    if starts.len() != sizes.len() || lengths.len() != sizes.len() {
        return Err(call.invalid(format!(
            "{} starts and {} lengths for rank {}",
            starts.len(),
            lengths.len(),
            sizes.len()
        )));
    }
    let mut next = first;
    let mut resolved = Dims::new();
    for ((start, &size), &length) in starts.iter().zip(sizes).zip(lengths) {
        let Some(room) = size.checked_sub(length) else {
            return Err(call.invalid(format!("a window of {length} in an axis of {size}")));
        };
        let start = match start {
            Some(start) => *start,
            None => {
                let start = read_index(call, call.operand(next)?)?;
                next += 1;
                start
            }
        };
        resolved.push(start.clamp(0, room as i64) as u64);
    }
    Ok(resolved)
}

/// The value of an integer scalar. Waits for the device.
fn read_index(call: &Call<'_>, tensor: &Tensor) -> Result<i64> {
    if tensor.view.elements() != 1 || !tensor.view.dtype.is_integer() {
        return Err(call.invalid(format!("a start index must be an integer scalar, got {}", tensor.view.dtype)));
    }
    if call.compile == Compile::Refused {
        // Waiting is for the scheduler that may also compile.
        return Err(Error::NeedsCompile);
    }
    let bytes = tensor.to_nx_bytes(call.engine, None)?;
    let mut wide = [0u8; 8];
    wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    let bits = tensor.view.dtype.bits();
    let value = u64::from_ne_bytes(wide) >> 8u32.saturating_sub(bits);
    Ok(match tensor.view.dtype {
        dtype if dtype.is_signed() => (value << (64 - bits)) as i64 >> (64 - bits),
        _ => i64::try_from(value).unwrap_or(i64::MAX),
    })
}

pub fn slice(call: &Call<'_>, starts: &[Option<i64>], lengths: &[u64], strides: &[u64]) -> Result<Tensor> {
    let a = call.operand(0)?;
    let starts = clamped_starts(call, starts, 1, &a.view.shape, lengths)?;
    call.view(|v| v.slice(&starts, lengths, strides))
}

pub fn put_slice(call: &Call<'_>, starts: &[Option<i64>]) -> Result<Tensor> {
    let (a, window) = (call.operand(0)?, call.operand(1)?);
    let starts = clamped_starts(call, starts, 2, &a.view.shape, &window.view.shape)?;
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let place = result.view.slice(&starts, &window.view.shape, &ones(starts.len()))?;
    copy(call.engine, a, &result, call.compile)?;
    copy(call.engine, window, &part(&result, place), call.compile)?;
    call.result(result)
}

pub fn pad(call: &Call<'_>, config: &[(i64, i64, u64)]) -> Result<Tensor> {
    let (a, value) = (call.operand(0)?, call.operand(1)?);
    let rank = a.view.shape.len();
    if config.len() != rank || call.out.shape.len() != rank || value.view.elements() != 1 {
        return Err(call.invalid(format!(
            "{} axes and a value of {:?} for rank {rank}",
            config.len(),
            value.view.shape
        )));
    }
    filled_around(call, a, value, config, call.out)
}

/// `a` with `value` before, after and between its elements, as a tensor of type `out`, which has the padded shape.
pub fn filled_around(
    call: &Call<'_>,
    a: &Tensor,
    value: &Tensor,
    config: &[(i64, i64, u64)],
    out: &Type,
) -> Result<Tensor> {
    let result = Tensor::uninitialized(call.engine, out)?;
    fill_around(call, a, value, config, &result)?;
    Ok(result)
}

/// The same into a given place.
pub fn fill_around(
    call: &Call<'_>,
    a: &Tensor,
    value: &Tensor,
    config: &[(i64, i64, u64)],
    result: &Tensor,
) -> Result<()> {
    let shape = &result.view.shape;
    let scalar = part(value, View { strides: SmallVec::new(), shape: SmallVec::new(), ..value.view.clone() });
    let filled = part(&scalar, scalar.view.broadcast_trailing(shape)?);
    copy(call.engine, &filled, result, call.compile)?;
    // Which elements of `a` survive negative padding, and where the first of them goes.
    let (mut from, mut to) = (a.view.clone(), result.view.clone());
    for (axis, &(low, _, interior)) in config.iter().enumerate() {
        let step = interior as i64 + 1;
        let out = shape[axis] as i64;
        let first = if low < 0 { (-low + step - 1) / step } else { 0 };
        let end = ((out - low + step - 1) / step).min(a.view.shape[axis] as i64);
        if end <= first {
            return Ok(());
        }
        from.offset = from.offset.wrapping_add_signed(first * from.strides[axis]);
        from.shape[axis] = (end - first) as u64;
        to.offset = to.offset.wrapping_add_signed((low + first * step) * to.strides[axis]);
        to.shape[axis] = (end - first) as u64;
        to.strides[axis] *= step;
    }
    copy(call.engine, &part(a, from), &part(result, to), call.compile)
}

pub fn concatenate(call: &Call<'_>, axis: usize) -> Result<Tensor> {
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let rank = call.out.shape.len();
    let mut starts: Dims = SmallVec::from_elem(0, rank);
    for tensor in call.operands {
        if tensor.view.shape.len() != rank || axis >= rank {
            return Err(call.invalid(format!("{:?} along axis {axis} of {:?}", tensor.view.shape, call.out.shape)));
        }
        let place = result.view.slice(&starts, &tensor.view.shape, &ones(rank))?;
        copy(call.engine, tensor, &part(&result, place), call.compile)?;
        starts[axis] += tensor.view.shape[axis];
    }
    if call.out.shape.get(axis) != starts.get(axis) {
        return Err(call.invalid(format!("{starts:?} elements along axis {axis} of {:?}", call.out.shape)));
    }
    Ok(result)
}

pub fn stack(call: &Call<'_>, axis: usize) -> Result<Tensor> {
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let rank = call.out.shape.len();
    if axis >= rank || call.out.shape[axis] != call.operands.len() as u64 {
        return Err(call.invalid(format!(
            "{} operands along axis {axis} of {:?}",
            call.operands.len(),
            call.out.shape
        )));
    }
    for (i, tensor) in call.operands.iter().enumerate() {
        let mut view = result.view.clone();
        view.offset = view.offset.wrapping_add_signed(i as i64 * view.strides[axis]);
        view.shape.remove(axis);
        view.strides.remove(axis);
        if view.shape != tensor.view.shape {
            return Err(call.invalid(format!("{:?} does not stack to {:?}", tensor.view.shape, call.out.shape)));
        }
        copy(call.engine, tensor, &part(&result, view), call.compile)?;
    }
    Ok(result)
}

//! Ops that only move elements: copies between views, slices, padding, concatenation.

use crate::kernels::index::{ShiftSpec, extra};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::index::check_size;
use super::{Call, Compile};
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::transpose::transpose;
use crate::kernels::{Arguments, KernelSpec, Place, in_parts, launch};
use crate::program::Elementwise;
use crate::shape::{Dims, Space, Strides};
use crate::{DType, Engine, Result, Tensor, Type, View};

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
    map(engine, &to.view.shape, &[input], steps, &[(source, output)], Shapes::Any, compile)
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
    tensor.with_view(view)
}

fn ones(rank: usize) -> Dims {
    SmallVec::from_elem(1, rank)
}

/// Where a window begins along each axis: a number that fits, or the operand that holds the number.
enum Start<'a> {
    At(u64),
    Read(&'a Tensor),
}

/// Starts clamped so that the window fits; the operands from `first` on give those that the op leaves out.
fn starts_of<'a>(
    call: &Call<'a>,
    starts: &[Option<i64>],
    first: usize,
    sizes: &[u64],
    lengths: &[u64],
) -> Result<SmallVec<[Start<'a>; 6]>> {
    if starts.len() != sizes.len() || lengths.len() != sizes.len() {
        return Err(call.invalid(format!(
            "{} starts and {} lengths for rank {}",
            starts.len(),
            lengths.len(),
            sizes.len()
        )));
    }
    let mut next = first;
    let mut found = SmallVec::new();
    for ((start, &size), &length) in starts.iter().zip(sizes).zip(lengths) {
        let Some(room) = size.checked_sub(length) else {
            return Err(call.invalid(format!("a window of {length} in an axis of {size}")));
        };
        if let Some(start) = start {
            found.push(Start::At((*start).clamp(0, room as i64) as u64));
            continue;
        }
        let start = call.operand(next)?;
        next += 1;
        if start.view.elements() != 1 || !start.view.dtype.is_integer() {
            let dtype = start.view.dtype;
            return Err(call.invalid(format!("a start index must be an integer scalar, got {dtype}")));
        }
        // A window as long as its axis begins at 0, whatever the operand says.
        found.push(if room == 0 { Start::At(0) } else { Start::Read(start) });
    }
    Ok(found)
}

/// The starts that are numbers; 0 for the others.
fn numbers(starts: &[Start<'_>]) -> Dims {
    let number = |start: &Start<'_>| match start {
        Start::At(at) => *at,
        Start::Read(_) => 0,
    };
    starts.iter().map(number).collect()
}

/// A window of a tensor, as if the starts that are read were 0, and what moves it.
struct Shift<'a> {
    window: Tensor,
    /// For each start that is read: the scalar, how many starts there are, and the tensor's stride.
    starts: SmallVec<[(&'a Tensor, (u64, i64)); 4]>,
}

impl<'a> Shift<'a> {
    /// A window of `lengths` elements in `tensor`.
    fn new(tensor: &Tensor, window: View, starts: &[Start<'a>], lengths: &[u64]) -> Shift<'a> {
        let View { shape, strides, .. } = &*tensor.view;
        let read = |(axis, start): (usize, &Start<'a>)| match *start {
            Start::Read(start) => Some((start, (shape[axis] - lengths[axis] + 1, strides[axis]))),
            Start::At(_) => None,
        };
        Shift { window: part(tensor, window), starts: starts.iter().enumerate().filter_map(read).collect() }
    }

    /// Copies the window to `other`, or `other` to the window if it `puts`.
    fn copy(&self, call: &Call<'_>, other: &Tensor, puts: bool) -> Result<()> {
        let (from, to) = if puts { (other, &self.window) } else { (&self.window, other) };
        let space = Space::new(&other.view.shape, &[&from.view.strides, &to.view.strides]);
        let spec = KernelSpec::Shift(ShiftSpec {
            element: Element::raw(other.view.dtype),
            starts: self.starts.iter().map(|(start, _)| start.view.dtype).collect(),
            rank: space.rank() as u8,
            puts,
        });
        let kernel = call.engine.kernel(&spec, call.compile)?;
        let still: Strides = SmallVec::from_elem(0, space.rank());
        let starts = self.starts.iter().map(|(start, _)| (*start, &still));
        let operands = std::iter::once((from, &space.strides[0])).chain(starts).chain([(to, &space.strides[1])]);
        let places: SmallVec<[Place<'_>; 6]> = operands
            .map(|(tensor, strides)| Place {
                buffer: &tensor.buffer,
                address: tensor.address(),
                strides,
                element_bytes: tensor.view.dtype.size_bytes(),
            })
            .collect();
        let count = space.elements();
        let components: SmallVec<[(u64, i64); 4]> = self.starts.iter().map(|(_, component)| *component).collect();
        let extra = extra([0, 0], &components);
        let arguments = Arguments { count: count as u32, sizes: &space.sizes, places: &places, extra: &extra };
        launch(
            call.engine,
            &kernel,
            &arguments,
            1 + components.len(),
            count.div_ceil(u64::from(kernel.elements_per_group)),
        )
    }
}

pub fn slice(call: &Call<'_>, starts: &[Option<i64>], lengths: &[u64], strides: &[u64]) -> Result<Tensor> {
    let a = call.operand(0)?;
    let starts = starts_of(call, starts, 1, &a.view.shape, lengths)?;
    if !starts.iter().any(|start| matches!(start, Start::Read(_))) {
        return call.view(|v| v.slice(&numbers(&starts), lengths, strides));
    }
    let a = ascending(call, a)?;
    let result = Tensor::uninitialized(call.engine, call.out)?;
    check_size(&[&a.view, &result.view])?;
    let window = a.view.slice(&numbers(&starts), lengths, strides)?;
    let shift = Shift::new(&a, window, &starts, lengths);
    // A result of another type than the window's is refused.
    call.result(part(&shift.window, View::clone(&shift.window.view)))?;
    shift.copy(call, &result, false)?;
    Ok(result)
}

pub fn put_slice(call: &Call<'_>, starts: &[Option<i64>]) -> Result<Tensor> {
    let (a, window) = (call.operand(0)?, call.operand(1)?);
    let lengths = &window.view.shape;
    let starts = starts_of(call, starts, 2, &a.view.shape, lengths)?;
    let result = Tensor::uninitialized(call.engine, call.out)?;
    let place = result.view.slice(&numbers(&starts), lengths, &ones(starts.len()))?;
    copy(call.engine, a, &result, call.compile)?;
    if starts.iter().any(|start| matches!(start, Start::Read(_))) {
        let window = if window.view.dtype == result.view.dtype {
            ascending(call, window)?
        } else {
            let plain = Tensor::uninitialized(call.engine, &Type::new(result.view.dtype, lengths))?;
            copy(call.engine, window, &plain, call.compile)?;
            plain
        };
        check_size(&[&result.view, &window.view])?;
        Shift::new(&result, place, &starts, lengths).copy(call, &window, true)?;
    } else {
        copy(call.engine, window, &part(&result, place), call.compile)?;
    }
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
    let scalar = part(value, View { strides: SmallVec::new(), shape: SmallVec::new(), ..View::clone(&value.view) });
    let filled = part(&scalar, scalar.view.broadcast_trailing(shape)?);
    copy(call.engine, &filled, result, call.compile)?;
    // Which elements of `a` survive negative padding, and where the first of them goes.
    let (mut from, mut to) = (View::clone(&a.view), View::clone(&result.view));
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
    let mut places = Vec::with_capacity(call.operands.len());
    for tensor in call.operands {
        if tensor.view.shape.len() != rank || axis >= rank {
            return Err(call.invalid(format!("{:?} along axis {axis} of {:?}", tensor.view.shape, call.out.shape)));
        }
        places.push(result.view.slice(&starts, &tensor.view.shape, &ones(rank))?);
        starts[axis] += tensor.view.shape[axis];
    }
    if call.out.shape.get(axis) != starts.get(axis) {
        return Err(call.invalid(format!("{starts:?} elements along axis {axis} of {:?}", call.out.shape)));
    }
    copy_parts(call, &result, places)?;
    Ok(result)
}

/// Copies the operands to places of the result that don't overlap.
fn copy_parts(call: &Call<'_>, result: &Tensor, places: Vec<View>) -> Result<()> {
    let copy_all = || {
        let mut parts = call.operands.iter().zip(places);
        parts.try_for_each(|(tensor, place)| copy(call.engine, tensor, &part(result, place), call.compile))
    };
    match result.view.dtype.size_bytes() {
        // Neighbours may share a word.
        ..4 => copy_all(),
        4.. => in_parts(copy_all),
    }
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
    let mut places = Vec::with_capacity(call.operands.len());
    for (i, tensor) in call.operands.iter().enumerate() {
        let mut view = View::clone(&result.view);
        view.offset = view.offset.wrapping_add_signed(i as i64 * view.strides[axis]);
        view.shape.remove(axis);
        view.strides.remove(axis);
        if view.shape != tensor.view.shape {
            return Err(call.invalid(format!("{:?} does not stack to {:?}", tensor.view.shape, call.out.shape)));
        }
        places.push(view);
    }
    copy_parts(call, &result, places)?;
    Ok(result)
}

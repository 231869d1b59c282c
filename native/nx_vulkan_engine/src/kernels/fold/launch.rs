//! Launches of folds with a function of the user's.

use nx_vulkan_spirv::generated::LOCAL_SIZE;
use smallvec::SmallVec;

use crate::kernels::fold::FoldSpec;
use crate::kernels::{Arguments, Compile, Place, launch, reach_of};
use crate::program::Function;
use crate::shape::{Dims, Space, Strides};
use crate::{Engine, Result, Tensor, Type, View};

/// What to fold: the axes of `input` from `kept` on, for each index of those before.
#[derive(Debug)]
pub struct Fold<'a> {
    pub input: &'a Tensor,
    pub kept: usize,
    pub initial: &'a Tensor,
    pub captured: &'a [Tensor],
    pub function: &'a Function,
    /// Contiguous.
    pub out: &'a Tensor,
}

pub fn fold(engine: &Engine, what: &Fold<'_>, compile: Compile) -> Result<()> {
    let view = &what.input.view;
    let (kept, folded) = (space(view, 0..what.kept), space(view, what.kept..view.shape.len()));
    let reach = engine.reach();
    let far = reach_of(view) > reach.near(view.dtype.size_bytes())
        || kept.elements() > reach.near(what.out.view.dtype.size_bytes())
        || folded.elements() > reach.far();
    if far && let Some(axis) = (0..what.kept).find(|&axis| view.shape[axis] > 1) {
        return halves(engine, what, axis, compile);
    }
    let is_beyond = folded.elements().max(reach_of(view)) > reach.far();
    if is_beyond && let Some(axis) = (what.kept..view.shape.len()).find(|&axis| view.shape[axis] > 1) {
        return one_after_the_other(engine, what, axis, compile);
    }
    let far = reach.is_far(&[view])?;
    let spec = FoldSpec {
        input: view.dtype,
        initial: what.initial.view.dtype,
        captured: what.captured.iter().map(|t| t.view.dtype).collect(),
        out: what.out.view.dtype,
        function: Box::new(what.function.clone()),
        kept_rank: kept.rank() as u8,
        folded_rank: folded.rank() as u8,
    };
    let kernel = engine.kernel_reaching(&spec, far, compile)?;
    let sizes: Dims = kept.sizes.iter().chain(&folded.sizes).copied().collect();
    let strides: Strides = kept.strides[0].iter().chain(&folded.strides[0]).copied().collect();
    let element_bytes = view.dtype.size_bytes();
    let input = Place { buffer: &what.input.buffer, address: what.input.address(), strides: &strides, element_bytes };
    let scalar = |t| -> Place<'_> {
        let t: &Tensor = t;
        Place { buffer: &t.buffer, address: t.address(), strides: &[], element_bytes: 0 }
    };
    let mut places: SmallVec<[Place<'_>; 4]> = SmallVec::from_slice(&[input, scalar(what.initial)]);
    places.extend(what.captured.iter().map(|t| Place {
        buffer: &t.buffer,
        address: t.address(),
        strides: &[],
        element_bytes: 0,
    }));
    let first_output = places.len();
    places.push(scalar(what.out));
    let outputs = kept.elements();
    let extra = [folded.elements() as u32];
    let arguments = Arguments { count: outputs as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, first_output, outputs.div_ceil(u64::from(LOCAL_SIZE)))
}

fn space(view: &View, axes: std::ops::Range<usize>) -> Space {
    Space::new(&view.shape[axes.clone()], &[&view.strides[axes]])
}

/// A fold of the first half of the outermost axis that is folded, and one of the second half that begins with its
/// result.
fn one_after_the_other(engine: &Engine, what: &Fold<'_>, axis: usize, compile: Compile) -> Result<()> {
    let view = &what.input.view;
    let half = view.shape[axis] / 2;
    let part = |start: u64, length: u64| {
        let mut part = View::clone(view);
        part.offset = part.offset.wrapping_add_signed(start as i64 * view.strides[axis]);
        part.shape[axis] = length;
        what.input.with_view(part)
    };
    let between = Tensor::uninitialized(engine, &Type::new(what.out.view.dtype, &[]))?;
    fold(engine, &Fold { input: &part(0, half), out: &between, ..*what }, compile)?;
    let rest = part(half, view.shape[axis] - half);
    fold(engine, &Fold { input: &rest, initial: &between, ..*what }, compile)
}

/// Two folds of half the results each.
fn halves(engine: &Engine, what: &Fold<'_>, axis: usize, compile: Compile) -> Result<()> {
    let view = &what.input.view;
    let half = view.shape[axis] / 2;
    let results: u64 = view.shape[axis + 1..what.kept].iter().product();
    for (start, length) in [(0, half), (half, view.shape[axis] - half)] {
        let mut part = View::clone(view);
        part.offset = part.offset.wrapping_add_signed(start as i64 * view.strides[axis]);
        part.shape[axis] = length;
        let mut out = View::clone(&what.out.view);
        out.offset += start * results;
        let (part, out) = (what.input.with_view(part), what.out.with_view(out));
        fold(engine, &Fold { input: &part, out: &out, ..*what }, compile)?;
    }
    Ok(())
}

//! Launches of window scatters.

use super::{Arguments, Compile, KernelSpec, MAX_POSITION, Place, launch};
use crate::codegen::elementwise::LOCAL_SIZE;
use crate::codegen::window_scatter::WindowScatterSpec;
use crate::program::Windows;
use crate::shape::{Dims, Strides, elements};
use crate::{Engine, Error, Result, Tensor};

/// What to scatter. `input` is the view of the windows of a padded tensor, in which no stride is negative.
#[derive(Debug)]
pub struct WindowScatter<'a> {
    pub max: bool,
    pub windows: &'a Windows,
    pub input: &'a Tensor,
    pub source: &'a Tensor,
    pub initial: &'a Tensor,
    /// Contiguous.
    pub out: &'a Tensor,
}

pub fn window_scatter(engine: &Engine, what: &WindowScatter<'_>, compile: Compile) -> Result<()> {
    let (input, source, out) = (&what.input.view, &what.source.view, &what.out.view);
    for view in [input, source, out] {
        let (low, high) = view.extent();
        if (high - low) as u64 > MAX_POSITION || view.shape.iter().any(|&n| n > MAX_POSITION) {
            let size = view.dtype.size_bytes();
            return Err(Error::TooLarge { size_bytes: view.elements() * size, limit_bytes: MAX_POSITION * size });
        }
    }
    // A scalar counts as one axis.
    let rank = out.shape.len().max(1);
    let pad = |items: &[u64]| -> Dims { if items.is_empty() { Dims::from_elem(1, 1) } else { items.into() } };
    let windows = what.windows;
    let covers: Dims = windows.sizes.iter().zip(&windows.strides).map(|(&n, &step)| n.div_ceil(step)).collect();
    let covering = elements(&covers);
    let spec = KernelSpec::WindowScatter(WindowScatterSpec {
        max: what.max,
        input: input.dtype,
        source: source.dtype,
        initial: what.initial.view.dtype,
        out: out.dtype,
        rank: rank as u8,
    });
    let kernel = engine.kernel(&spec, compile)?;
    let strides: Dims = windows.strides.iter().map(|&step| step.min(MAX_POSITION)).collect();
    let groups = [&out.shape[..], &source.shape, &windows.sizes, &covers, &strides];
    let sizes: Dims = groups.iter().flat_map(|group| pad(group)).collect();
    let lead = || std::iter::repeat_n(0, rank);
    let input_strides: Strides = lead().chain(input.strides.iter().copied()).collect();
    let source_strides: Strides = lead().chain(source.strides.iter().copied()).collect();
    let element_bytes = source.dtype.size_bytes();
    let place = |t: &'_ Tensor| t.address();
    let places = [
        Place { buffer: &what.input.buffer, address: place(what.input), strides: &input_strides, element_bytes: 0 },
        Place { buffer: &what.source.buffer, address: place(what.source), strides: &source_strides, element_bytes },
        Place { buffer: &what.initial.buffer, address: place(what.initial), strides: &[], element_bytes: 0 },
        Place { buffer: &what.out.buffer, address: place(what.out), strides: &[], element_bytes: 0 },
    ];
    let low = windows.padding.iter().map(|&(low, _)| low as u32);
    let extra: Vec<u32> = [covering as u32, elements(&windows.sizes) as u32].into_iter().chain(low).collect();
    let count = out.elements();
    let arguments = Arguments { count: count as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 3, count.div_ceil(u64::from(LOCAL_SIZE)))
}

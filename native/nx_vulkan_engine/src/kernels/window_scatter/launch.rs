//! Launches of window scatters.

use nx_vulkan_spirv::generated::LOCAL_SIZE;
use smallvec::SmallVec;

use crate::kernels::window_scatter::{WindowScatterSpec, WindowStage};
use crate::kernels::{Arguments, Compile, Place, launch};
use crate::program::Windows;
use crate::shape::{Dims, Strides};
use crate::{DType, Engine, Error, Result, Tensor, Type};

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

/// One axis of the iteration spaces.
#[derive(Debug, Clone, Copy)]
struct Axis {
    result: u64,
    windows: u64,
    size: u64,
    stride: u64,
    low: i64,
    /// Elements from one window to the next, and within one.
    input: [i64; 2],
    source: i64,
}

impl Axis {
    /// Whether every element is a window.
    fn is_whole(&self) -> bool {
        self.size == 1 && self.stride == 1 && self.low == 0 && self.windows == self.result
    }
}

/// The axes, those merged that no window spans. A scalar counts as one axis.
fn merged(what: &WindowScatter<'_>, most: u64) -> SmallVec<[Axis; 6]> {
    let (windows, input, source) = (what.windows, &what.input.view, &what.source.view);
    let rank = source.shape.len();
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
    for i in 0..rank {
        let axis = Axis {
            result: what.out.view.shape[i],
            windows: source.shape[i],
            size: windows.sizes[i],
            stride: windows.strides[i].min(most),
            low: windows.padding[i].0,
            input: [input.strides[i], input.strides[rank + i]],
            source: source.strides[i],
        };
        match axes.last_mut() {
            Some(outer)
                if outer.is_whole()
                    && axis.is_whole()
                    && outer.input[0] == axis.input[0] * axis.windows as i64
                    && outer.source == axis.source * axis.windows as i64 =>
            {
                let size = outer.result * axis.result;
                *outer = Axis { result: size, windows: size, ..axis };
            }
            _ => axes.push(axis),
        }
    }
    if axes.is_empty() {
        axes.push(Axis { result: 1, windows: 1, size: 1, stride: 1, low: 0, input: [0, 0], source: 0 });
    }
    axes
}

pub fn window_scatter(engine: &Engine, what: &WindowScatter<'_>, compile: Compile) -> Result<()> {
    let (input, source, out) = (&what.input.view, &what.source.view, &what.out.view);
    let reach = engine.reach();
    let far = reach.is_far(&[input, source, out])?;
    let most = reach.far();
    if let Some(&(low, _)) = what.windows.padding.iter().find(|(low, _)| low.unsigned_abs() > most) {
        return Err(Error::TooLarge { size_bytes: low.unsigned_abs(), limit_bytes: most });
    }
    let axes = merged(what, most);
    let rank = axes.len();
    let each = |pick: fn(&Axis) -> u64| axes.iter().map(pick);
    let sizes: Dims = each(|axis| axis.result)
        .chain(each(|axis| axis.windows))
        .chain(each(|axis| axis.size))
        .chain(each(|axis| axis.size.div_ceil(axis.stride)))
        .chain(each(|axis| axis.stride))
        .collect();
    let covering: u64 = sizes[3 * rank..4 * rank].iter().product();
    let kernel = |stage: WindowStage| {
        let spec = WindowScatterSpec { stage, rank: rank as u8 };
        // The chosen places take four bytes.
        engine.kernel_reaching(&spec, far || source.elements() > reach.near(4), compile)
    };
    let choose = kernel(WindowStage::Choose { max: what.max, input: input.dtype })?;
    let initial = what.initial.view.dtype;
    let gather = kernel(WindowStage::Gather { source: source.dtype, initial, out: out.dtype })?;
    let chosen = Tensor::uninitialized(engine, &Type::new(DType::U32, &source.shape))?;
    let lead = || std::iter::repeat_n(0, rank);
    let strides = |pick: fn(&Axis) -> i64| axes.iter().map(pick);
    let input_strides: Strides =
        lead().chain(strides(|axis| axis.input[0])).chain(strides(|axis| axis.input[1])).collect();
    let source_strides: Strides = lead().chain(strides(|axis| axis.source)).collect();
    let element_bytes = source.dtype.size_bytes();
    let place = |t: &'_ Tensor| t.address();
    let places = [
        Place { buffer: &what.input.buffer, address: place(what.input), strides: &input_strides, element_bytes: 0 },
        Place { buffer: &what.source.buffer, address: place(what.source), strides: &source_strides, element_bytes },
        Place { buffer: &what.initial.buffer, address: place(what.initial), strides: &[], element_bytes: 0 },
        Place { buffer: &chosen.buffer, address: place(&chosen), strides: &[], element_bytes: 0 },
        Place { buffer: &what.out.buffer, address: place(what.out), strides: &[], element_bytes: 0 },
    ];
    let elements: u64 = sizes[2 * rank..3 * rank].iter().product();
    let windows = source.elements();
    let arguments = Arguments { count: windows as u32, sizes: &sizes, places: &places[..4], extra: &[elements as u32] };
    launch(engine, &choose, &arguments, 3, windows.div_ceil(u64::from(LOCAL_SIZE)))?;
    let low = axes.iter().map(|axis| axis.low as u32);
    let extra: Vec<u32> = std::iter::once(covering as u32).chain(low).collect();
    let count = out.elements();
    let arguments = Arguments { count: count as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &gather, &arguments, 4, count.div_ceil(u64::from(LOCAL_SIZE)))
}

//! Convolutions of f16 and bf16 on matrix units that read the windows of a padded input where it lies: zeros around it
//! are nowhere in memory.

use smallvec::SmallVec;

use super::{Convolution, ImageRange, Loads, Order, SPACE, group, slice};
use crate::kernels::dot::{
    Border, BorderAxis, MAX_PLACES, MAX_POSITIONS, Matrix, MergedAxes, WindowAxis, product_with_border,
};
use crate::kernels::reach_of;
use crate::shape::{Dims, elements};
use crate::{Result, Tensor};

impl Convolution<'_> {
    /// Fills `output` as `run` does, where the input lies as units read it; answers whether it does.
    pub(super) fn run_with_border(&self, output: &Tensor) -> Result<bool> {
        let Some(input) = self.without_cut_off()? else { return Ok(false) };
        let channels = self.sizes.channels;
        let Some(border) = self.border(&input)? else { return Ok(false) };
        if self.positions_with_border(input.clone(), &border).loaded_along_k(8) != Some(true) {
            return Ok(false);
        }
        let step = self.images_at_once(None, channels, Loads::Own, output)?;
        // Places of windows reach as far as if their border lay in memory.
        let added = |(low, high): (i64, i64)| low.max(0).unsigned_abs().saturating_add(high.max(0).unsigned_abs());
        let along = |(axis, &padding): (&BorderAxis, &(i64, i64))| axis.stride.saturating_mul(added(padding));
        let beyond = border.axes.iter().zip(&self.op.padding).map(along).fold(0, u64::saturating_add);
        let limit = self.call.engine.reach().near(input.view.dtype.size_bytes());
        if reach_of(&slice(&input, 1, 0, step)?.view).saturating_add(beyond) > limit {
            return Ok(false);
        }
        let filters = self.filters(channels, Order::Channels, Loads::Own)?;
        for first in (0..self.sizes.images).step_by(step as usize) {
            let count = step.min(self.sizes.images - first);
            let positions = self.positions_with_border(slice(&input, 1, first, count)?, &border);
            let part = ImageRange { positions, filters: filters.clone(), order: Order::Channels, first, count };
            let mut is_done = false;
            self.multiply(part, output, |p, second| {
                is_done = product_with_border(self.call.engine, p, &border, second, self.call.compile)?;
                Ok(())
            })?;
            if !is_done {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The zeros around an input, if kernels can tell where its windows meet them.
    fn border(&self, input: &Tensor) -> Result<Option<Border>> {
        let windows = &self.sizes.windows;
        // Places along an axis are numbers of a launch, and products of steps and them.
        let far = self.call.engine.reach().far();
        if elements(&windows.sizes) > MAX_POSITIONS || self.padded_space()?.iter().any(|&size| size > far) {
            return Ok(None);
        }
        // Steps between no two are any.
        let step = |count: u64, step: u64| if count == 1 { 1 } else { step as u32 };
        let axis = |k: usize| BorderAxis {
            windows: WindowAxis {
                positions: windows.sizes[k] as u32,
                dilation: step(windows.sizes[k], windows.dilations[k]),
                stride: step(self.sizes.counts[k], windows.strides[k]),
            },
            size: input.view.shape[SPACE + k],
            before: self.op.padding[k].0.max(0).unsigned_abs(),
            stride: input.view.strides[SPACE + k].unsigned_abs(),
        };
        let border = Border { axes: (0..windows.sizes.len()).map(axis).collect() };
        // Where windows are found by even steps, the first one may still begin within a block of eight.
        let is_whole = border.lead().is_multiple_of(8);
        Ok(Some(border).filter(|border| is_whole && border.places(self.sizes.channels) < MAX_PLACES))
    }

    /// The windows of an input with a border, as of one that lies in memory with it.
    fn positions_with_border(&self, input: Tensor, border: &Border) -> Matrix {
        let (shape, strides) = (&input.view.shape, &input.view.strides);
        let along = |step: fn(&WindowAxis) -> u32| {
            border.axes.iter().map(move |axis| (axis.stride * u64::from(step(&axis.windows))) as i64)
        };
        let images: Dims = [shape[1]].into_iter().chain(self.sizes.counts.iter().copied()).collect();
        let free: SmallVec<[i64; 6]> = [strides[1]].into_iter().chain(along(|axis| axis.stride)).collect();
        let window: Dims = self.sizes.windows.sizes.iter().copied().chain([shape[3]]).collect();
        let depth: SmallVec<[i64; 6]> = along(|axis| axis.dilation).chain([strides[3]]).collect();
        Matrix {
            batch: group(&input.view, [0, 2]),
            free: MergedAxes::apart(&images, &free),
            depth: MergedAxes::apart(&window, &depth),
            tensor: input,
        }
    }
}

//! Convolutions of f32 on matrix units that read windows in place, by three planes of the image among its zeros.

use smallvec::SmallVec;

use super::{Convolution, ImageRange, Loads, MAX_COPY_BYTES, Order, SPACE, slice};
use crate::eager::movement;
use crate::kernels::dot::{Image, ImageAxis, Matrix, MergedAxes, Outline, in_place, pays_in_place, product_of_image};
use crate::program::step::stands_in_loop;
use crate::shape::{Dims, elements};
use crate::{CType, DType, Result, Tensor, Type};

/// Channels that lie together, of those that they divide: what a kernel loads of a pixel at once, and less.
const BLOCKS: [u64; 3] = [32, 16, 8];

impl Convolution<'_> {
    /// Whether the product takes least if matrix units read f32 numbers in place, with as many channels.
    pub(super) fn pays_in_place(&self, channels: u64) -> bool {
        let engine = self.call.engine;
        let looped = self.then.filter(|then| stands_in_loop(&then.steps));
        let outline = |channels: u64| Outline {
            batches: self.op.groups(),
            rows: self.sizes.images * elements(&self.sizes.counts),
            columns: self.sizes.filters,
            depth: self.depth(channels),
            operands: [DType::F32; 2],
            product: DType::F32,
            looped_steps: looped.map_or(0, |then| then.steps.len()),
            precision: engine.precision(),
            own: [false, true],
            repeats: true,
        };
        let in_place = outline(channels);
        let other = outline(self.sizes.channels.next_multiple_of(4));
        let elements = self.memory(channels, self.sizes.images);
        // Without windows that overlap, operands lie together in order.
        let is_expanded = elements < in_place.batches * in_place.rows * in_place.depth;
        is_expanded && pays_in_place(engine.model(), &in_place, CType::F32, elements, &other)
    }

    /// Elements of so many images, as far as windows reach, with as many channels, and of the kernel.
    fn memory(&self, channels: u64, images: u64) -> u64 {
        let image = channels * elements(&self.reached_space());
        self.op.groups() * (images * image + self.sizes.filters * self.depth(channels))
    }

    /// The padded space without what lies behind the last window.
    fn reached_space(&self) -> Dims {
        let windows = &self.sizes.windows;
        let reached = |axis: usize| {
            (self.sizes.counts[axis] - 1) * windows.strides[axis]
                + (windows.sizes[axis] - 1) * windows.dilations[axis]
                + 1
        };
        (0..self.sizes.counts.len()).map(reached).collect()
    }

    /// Fills `output` as `run` does.
    pub(super) fn run_in_place(&self, output: &Tensor) -> Result<()> {
        let (engine, sizes) = (self.call.engine, self.sizes);
        let source = &movement::ascending(self.call, &self.input)?;
        let channels = sizes.channels.next_multiple_of(8);
        // Channels of zeros are the end of one block.
        let block = BLOCKS.into_iter().find(|block| sizes.channels.is_multiple_of(*block)).unwrap_or(channels);
        let space = self.reached_space();
        let image = self.op.groups() * channels * elements(&space);
        let results = (output.view.elements() / sizes.images).max(output.view.strides[0].unsigned_abs());
        let step = (engine.reach().near(4) / results.max(image)).min(MAX_COPY_BYTES / (image * 4));
        let parts = sizes.images.div_ceil(step.clamp(1, sizes.images));
        let step = sizes.images.div_ceil(parts);
        let filters = self.filters(channels, Order::Channels, Loads::Planes)?;
        for first in (0..sizes.images).step_by(step as usize) {
            let count = step.min(sizes.images - first);
            let source = slice(source, 1, first, count)?;
            let image = self.image(&source, block, channels, &space);
            let shape: Dims = image.axes.iter().flatten().map(|axis| axis.size).collect();
            let memory = Tensor::uninitialized(engine, &Type::new(DType::F32, &shape))?;
            let part = ImageRange {
                positions: self.windows(memory),
                filters: filters.clone(),
                order: Order::Channels,
                first,
                count,
            };
            let elements = self.memory(channels, count);
            self.multiply(part, output, |p, second| {
                let outline = p.outline(engine.precision(), [false, true]);
                let choice = in_place(engine.model(), &outline, CType::F32, elements);
                let choice = choice.ok_or_else(|| self.call.invalid("no matrix units".to_string()))?;
                product_of_image(engine, p, choice, &image, second, self.call.compile)
            })?;
        }
        Ok(())
    }

    /// Batch groups, images, and of each feature group the blocks of channels, space, and the channels of a block.
    fn image<'t>(&self, source: &'t Tensor, block: u64, channels: u64, space: &[u64]) -> Image<'t> {
        let (shape, strides) = (&source.view.shape, &source.view.strides);
        let whole = |axis: usize| ImageAxis::whole(shape[axis], strides[axis]);
        let blocks = ImageAxis::whole(channels / block, strides[3].wrapping_mul(block as i64));
        let mut depth: SmallVec<[ImageAxis; 6]> = [whole(2), blocks].into_iter().collect();
        depth.extend(space.iter().enumerate().map(|(k, &size)| ImageAxis {
            size,
            of_source: shape[SPACE + k],
            begin: self.op.padding[k].0,
            step: self.op.input_dilation[k],
            stride: strides[SPACE + k],
        }));
        // What is left of a single block are zeros.
        depth.push(ImageAxis { of_source: block.min(shape[3]), ..ImageAxis::whole(block, strides[3]) });
        Image { source, axes: [[whole(0)].into_iter().collect(), [whole(1)].into_iter().collect(), depth] }
    }

    /// The windows of such an image as rows.
    fn windows(&self, memory: Tensor) -> Matrix {
        let rank = self.sizes.counts.len();
        let (shape, strides) = (memory.view.shape.clone(), memory.view.strides.clone());
        // Batch and images, feature groups and blocks, space, channels.
        let group = |axes: &[(u64, i64)]| {
            let (sizes, strides): (Dims, SmallVec<[i64; 6]>) = axes.iter().copied().unzip();
            MergedAxes::new(&sizes, &strides)
        };
        let own = |axis: usize| (shape[axis], strides[axis]);
        let windows = &self.sizes.windows;
        let along = |counts: &Dims, steps: &Dims| -> SmallVec<[(u64, i64); 6]> {
            (0..rank).map(|k| (counts[k], strides[4 + k].wrapping_mul(steps[k] as i64))).collect()
        };
        let places = along(&self.sizes.counts, &windows.strides);
        let window = along(&windows.sizes, &windows.dilations);
        let free: SmallVec<[(u64, i64); 6]> = [own(1)].into_iter().chain(places).collect();
        let depth: SmallVec<[(u64, i64); 6]> = window.into_iter().chain([own(3), own(4 + rank)]).collect();
        Matrix { batch: group(&[own(0), own(2)]), free: group(&free), depth: group(&depth), tensor: memory }
    }
}

//! Convolutions of a dilated input in phases: as several of the input as it is, whose results lie among each other.

use smallvec::smallvec;

use super::{Convolution, ImageRange, Order, Sizes};
use crate::eager::{constant, movement};
use crate::kernels::dot::{Matrix, MergedAxes, product};
use crate::kernels::in_parts;
use crate::program::attribute::Scalar;
use crate::program::conv::{Every, Phase};
use crate::program::window::Windows;
use crate::shape::{Dims, elements};
use crate::{Result, Tensor, Type, View};

/// Axes of the kernel and of the result before those of space.
const LEAD: usize = 3;

impl Convolution<'_> {
    /// The phases, where leaving out the zeros saves more than their launches cost.
    pub(super) fn phases(&self) -> Option<Vec<Phase>> {
        let phases = self.op.phases(self.sizes)?;
        let of = |phase: &Phase| {
            let met = phase.met.as_ref().map_or(0, |(kernel, _)| elements(&kernel.counts));
            elements(&phase.results.counts).saturating_mul(met)
        };
        let met: u64 = phases.iter().map(of).fold(0, u64::saturating_add);
        let all = elements(&self.sizes.counts).saturating_mul(elements(&self.sizes.windows.sizes));
        let Sizes { images, channels, filters, .. } = *self.sizes;
        let each = [images, channels, filters, self.op.groups()].into_iter().fold(1, u64::saturating_mul);
        let model = self.call.engine.model();
        let saved = all.saturating_sub(met).saturating_mul(each) as f64 / model.multiplications(self.call.out.dtype);
        (saved > model.products.dispatch * (phases.len() - 1) as f64).then_some(phases)
    }

    /// Fills `output` as `run` does.
    pub(super) fn run_phases(&self, phases: &[Phase], output: &Tensor) -> Result<()> {
        let all = || phases.iter().try_for_each(|phase| self.run_phase(phase, output));
        let has_own_words = |phase: &Phase| {
            let own = among(output, &phase.results);
            own.is_ok_and(|own| movement::has_own_words(&own.view))
        };
        let are_apart = output.view.dtype.size_bytes() >= 4 || phases.iter().all(has_own_words);
        if are_apart { in_parts(&output.buffer, all) } else { all() }
    }

    fn run_phase(&self, phase: &Phase, output: &Tensor) -> Result<()> {
        let output = &among(output, &phase.results)?;
        let inputs = self.inputs.iter().map(|input| among(input, &phase.results)).collect::<Result<_>>()?;
        let counts = phase.results.counts.clone();
        let Some((kernel, op)) = &phase.met else {
            let sizes = &Sizes { counts, ..self.sizes.clone() };
            return Convolution { sizes, inputs, prologues: [None, None], ..self.clone() }.run_of_zeros(output);
        };
        let windows = Windows {
            sizes: kernel.counts.clone(),
            padding: op.padding.clone(),
            strides: op.strides.clone(),
            dilations: op.kernel_dilation.clone(),
        };
        let sizes = &Sizes { windows, counts, ..self.sizes.clone() };
        let kernel = among(&self.kernel, kernel)?;
        Convolution { op, sizes, kernel, inputs, ..self.clone() }.run(output)
    }

    /// Fills `output` with what follows sums of nothing.
    fn run_of_zeros(&self, output: &Tensor) -> Result<()> {
        let images = self.sizes.images;
        let results = (output.view.elements() / images).max(output.view.strides[0].unsigned_abs());
        let step = (self.call.engine.reach().near(output.view.dtype.size_bytes()) / results).clamp(1, images);
        let places = |count: u64| [count].into_iter().chain(self.sizes.counts.iter().copied()).collect();
        for first in (0..images).step_by(step as usize) {
            let count = step.min(images - first);
            let positions = self.zeros(&self.input, places(count))?;
            let filters = self.zeros(&self.kernel, smallvec![self.sizes.filters])?;
            let part = ImageRange { positions, filters, order: Order::Channels, first, count };
            self.multiply(part, output, |p, _| product(self.call.engine, p, self.call.compile))?;
        }
        Ok(())
    }

    /// A matrix per group of one zero for each of so many places, of an operand's type.
    fn zeros(&self, operand: &Tensor, places: Dims) -> Result<Matrix> {
        let dtype = operand.view.dtype;
        let zero = constant::constant(self.call.engine, Scalar::Int(0), &Type::new(dtype, &[]))?;
        let repeated = |sizes: &Dims| MergedAxes::new(sizes, &vec![0i64; sizes.len()]);
        let (batch, depth) = (smallvec![self.op.groups()], smallvec![1]);
        let shape: Dims = [&batch[..], &places, &depth].concat().into();
        let view = View { dtype, strides: smallvec![0; shape.len()], shape, offset: zero.view.offset };
        Ok(Matrix {
            batch: repeated(&batch),
            free: repeated(&places),
            depth: repeated(&depth),
            tensor: zero.with_view(view),
        })
    }
}

/// Some elements of a kernel or a result along the axes of space.
fn among(tensor: &Tensor, every: &Every) -> Result<Tensor> {
    let starts: Dims = std::iter::repeat_n(0, LEAD).chain(every.first.iter().copied()).collect();
    let spans = every.counts.iter().zip(&every.steps).map(|(&count, &step)| (count - 1) * step + 1);
    let lengths: Dims = tensor.view.shape[..LEAD].iter().copied().chain(spans).collect();
    let steps: Dims = std::iter::repeat_n(1, LEAD).chain(every.steps.iter().copied()).collect();
    Ok(tensor.with_view(tensor.view.slice(&starts, &lengths, &steps)?))
}

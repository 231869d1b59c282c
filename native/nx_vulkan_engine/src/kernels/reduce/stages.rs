//! Reductions in one dispatch, or in two: of chunks of the elements, then of the chunks' accumulators.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use smallvec::SmallVec;

use super::launch::{Layout, run};
use super::{Direction, ReduceKernel, ReduceSpec, Stage};
use crate::kernels::{Compile, Kernel, Place};
use crate::shape::{Dims, Strides};
use crate::{Engine, Result};

/// Reductions of the same elements, laid out alike.
pub(super) struct Stages<'a> {
    /// As of one dispatch.
    pub spec: ReduceSpec,
    pub layout: &'a Layout,
    /// Axes in memory along which teams share elements, and chunks' accumulators.
    pub axes: [usize; 2],
    /// Of the axes that are kept, then of those that are reduced.
    pub sizes: [&'a [u64]; 2],
    /// With strides along these axes.
    pub operands: &'a [Place<'a>],
    /// The axes of the results as the epilogue sees them, and its operands with strides along those.
    pub results: &'a [u64],
    pub further: &'a [Place<'a>],
    pub targets: &'a [Place<'a>],
    /// Kernels reach far.
    pub far: bool,
}

impl Stages<'_> {
    pub fn run(&self, engine: &Engine, compile: Compile) -> Result<()> {
        let [kept, reduced] = self.sizes;
        let [outputs, elements]: [u64; 2] = [kept, reduced].map(|sizes| sizes.iter().product());
        let (layout, chunks) = (self.layout, self.layout.chunks);
        let sizes: Dims = kept.iter().chain(reduced).chain(self.results).copied().collect();
        let team = layout.team(engine.model(), self.axes[0], layout.chunk);
        if chunks == 1 {
            let spec = self.kernel(engine, ReduceKernel { spec: self.spec.clone(), team }, compile)?;
            let axes = kept.len() + reduced.len();
            return self.finish(engine, &spec, self.operands, axes, &sizes, [outputs, elements, elements, 1]);
        }
        let spec = ReduceSpec { stage: Stage::First, epilogue: None, ..self.spec.clone() };
        let first = self.kernel(engine, ReduceKernel { spec, team }, compile)?;
        let bytes = |k: usize| self.spec.reducers.get(k).map_or(1, |reducer| reducer.accumulator_bytes());
        let of_partials = layout.of_partials(engine.model(), outputs, chunks, bytes(0));
        let spec = ReduceSpec {
            stage: Stage::Last,
            producer: None,
            direction: of_partials.direction,
            kept_rank: 1,
            reduced_rank: self.axes[1] as u8,
            paired: false,
            ..self.spec.clone()
        };
        let team = of_partials.team(engine.model(), self.axes[1], chunks);
        // Both kernels must exist before anything is recorded.
        let last = self.kernel(engine, ReduceKernel { spec, team }, compile)?;
        let scratch = (0..self.spec.reducers.len())
            .map(|k| engine.alloc(outputs * chunks * bytes(k)))
            .collect::<Result<SmallVec<[Arc<Buffer>; 2]>>>()?;
        let places: SmallVec<[Place<'_>; 4]> = self.operands.iter().copied().chain(partials(&scratch, &[])).collect();
        run(engine, (&first.0, &first.1), &places, &sizes, [outputs, elements, layout.chunk, chunks])?;
        let (per_output, per_chunk) = match layout.direction {
            Direction::Rows { .. } => (chunks, 1),
            Direction::Columns { .. } => (1, outputs),
        };
        // The last axis is that of the chunks.
        let mut strides: Strides = SmallVec::from_elem(0, 1 + self.axes[1]);
        let mut sizes: Dims = SmallVec::from_elem(1, 1 + self.axes[1]);
        (strides[0], sizes[0]) = (per_output as i64, outputs);
        (strides[self.axes[1]], sizes[self.axes[1]]) = (per_chunk as i64, chunks);
        sizes.extend(self.results.iter().copied());
        self.finish(engine, &last, &partials(&scratch, &strides), strides.len(), &sizes, [outputs, chunks, chunks, 1])
    }

    fn kernel(&self, engine: &Engine, spec: ReduceKernel, compile: Compile) -> Result<(ReduceKernel, Arc<Kernel>)> {
        let kernel = engine.kernel_reaching(&spec, self.far, compile)?;
        Ok((spec, kernel))
    }

    /// The dispatch that stores results: operands with strides along so many axes, then those of the epilogue.
    fn finish(
        &self,
        engine: &Engine,
        (spec, kernel): &(ReduceKernel, Arc<Kernel>),
        operands: &[Place<'_>],
        axes: usize,
        sizes: &[u64],
        header: [u64; 4],
    ) -> Result<()> {
        let behind = |place: &Place<'_>| -> Strides {
            std::iter::repeat_n(0, axes).chain(place.strides.iter().copied()).collect()
        };
        let strides: SmallVec<[Strides; 4]> = self.further.iter().map(behind).collect();
        let further = self.further.iter().zip(&strides).map(|(place, strides)| Place { strides, ..*place });
        let places: SmallVec<[Place<'_>; 4]> =
            operands.iter().copied().chain(further).chain(self.targets.iter().copied()).collect();
        run(engine, (spec, kernel), &places, sizes, header)
    }
}

/// Accumulators of chunks.
fn partials<'a>(scratch: &'a [Arc<Buffer>], strides: &'a [i64]) -> SmallVec<[Place<'a>; 4]> {
    scratch.iter().map(|buffer| Place { buffer, address: buffer.address(), strides, element_bytes: 0 }).collect()
}

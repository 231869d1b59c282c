//! What a device can do, measured: copies of its memory, and a kernel of nothing but fma.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nx_vulkan_ir::program::step::Ref;
use nx_vulkan_spirv::access::Element;
use nx_vulkan_spirv::probe::RATE_FLOPS;
use smallvec::{SmallVec, smallvec};

use super::Limits;
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::{Arguments, Compile, Place, launch};
use crate::{DType, DeviceKind, Engine, Error, Result, Tensor, Type};

/// Sizes of what is copied, above the caches of GPUs, and elements of the fma kernel: some 0.1 ms of work each on an
/// H200.
const COPY_BYTES: u64 = 256 << 20;
const COPY_BYTES_CPU: u64 = 32 << 20;
const ELEMENTS: u64 = 16 << 20;
const ELEMENTS_CPU: u64 = 1 << 16;
/// Repetitions in one measurement, so that the wait at its end does not count, and measurements, the fastest of which
/// counts.
const REPETITIONS: u64 = 8;
const MEASUREMENTS: usize = 3;

impl Engine {
    /// Measures what the device can do, for the shares in profiles: copies of its memory and a kernel of fma in f32, in
    /// some milliseconds on a GPU. Answers what was measured or given before, if anything was, and `None` where half a
    /// gigabyte of memory is not to be had.
    ///
    /// # Errors
    /// The sticky error of a failed submission.
    pub fn measure_limits(self: &Arc<Engine>) -> Result<Option<Limits>> {
        if let Some(known) = self.stream().profiler().limits() {
            return Ok(Some(known));
        }
        // Its own commands are no part of profiles.
        let was_on = self.stream().set_profiling(false)?;
        let measured = self
            .bytes_per_second()
            .and_then(|bytes_per_second| Ok(Limits { bytes_per_second, flops_per_second: self.flops_per_second()? }));
        if was_on {
            self.stream().set_profiling(true)?;
        }
        match measured {
            Ok(limits) => {
                self.set_limits(limits);
                Ok(Some(limits))
            }
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The shortest time that `record` takes, without the first.
    pub(crate) fn shortest(&self, record: impl Fn() -> Result<()>) -> Result<f64> {
        let mut shortest = Duration::MAX;
        for measurement in 0..=MEASUREMENTS {
            self.wait()?;
            let start = Instant::now();
            record()?;
            self.wait()?;
            if measurement > 0 {
                shortest = shortest.min(start.elapsed());
            }
        }
        Ok(shortest.as_secs_f64().max(1e-9))
    }

    /// Of copies by a kernel or by commands, whichever are faster: drivers' commands are not where compute queues have
    /// no copy engine.
    pub(crate) fn bytes_per_second(&self) -> Result<f64> {
        let size_bytes = if self.caps().kind == DeviceKind::Cpu { COPY_BYTES_CPU } else { COPY_BYTES };
        let ty = Type::new(DType::U32, &[size_bytes / 4]);
        let [a, b] = &[Tensor::uninitialized(self, &ty)?, Tensor::uninitialized(self, &ty)?];
        for tensor in [a, b] {
            self.fill(&tensor.buffer, 0, size_bytes, 0x3f00_0000)?;
        }
        let twice = |copy: &dyn Fn(&Tensor, &Tensor) -> Result<()>| {
            self.shortest(|| (0..REPETITIONS / 2).try_for_each(|_| copy(a, b).and_then(|()| copy(b, a))))
        };
        let by_kernel = twice(&|from, to| {
            let [input, output] = [from, to].map(|t| Operand::new(&t.buffer, &t.view, Element::raw(DType::U32)));
            map(self, &ty.shape, &[input], smallvec![], &[(Ref::Input(0), output)], Shapes::Any, Compile::Allowed)
        })?;
        let by_command = twice(&|from, to| self.copy(&from.buffer, 0, &to.buffer, 0, size_bytes))?;
        Ok((2 * REPETITIONS * size_bytes) as f64 / by_kernel.min(by_command))
    }

    pub(crate) fn flops_per_second(self: &Arc<Engine>) -> Result<f64> {
        let elements = if self.caps().kind == DeviceKind::Cpu { ELEMENTS_CPU } else { ELEMENTS };
        let kernel = self.fma_rate_kernel()?;
        let ty = Type::new(DType::F32, &[elements]);
        let tensors = [Tensor::uninitialized(self, &ty)?, Tensor::uninitialized(self, &ty)?];
        self.fill(&tensors[0].buffer, 0, ty.size_bytes(), 0x3f00_0000)?;
        let seconds = self.shortest(|| {
            (0..REPETITIONS).try_for_each(|_| {
                let places: SmallVec<[Place<'_>; 2]> = tensors
                    .iter()
                    .map(|t| Place { buffer: &t.buffer, address: t.address(), strides: &[], element_bytes: 4 })
                    .collect();
                let sizes = [elements];
                let arguments = Arguments { count: elements as u32, sizes: &sizes, places: &places, extra: &[] };
                launch(self, &kernel, &arguments, 1, elements.div_ceil(u64::from(kernel.elements_per_group)))
            })
        })?;
        Ok((REPETITIONS * elements * RATE_FLOPS) as f64 / seconds)
    }
}

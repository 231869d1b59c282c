//! Discrete Fourier transforms along rows.

mod generate;
mod launch;
mod plan;
mod tables;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::Arguments;
use super::family::{Constants, KernelSpec};
use crate::Result;
use crate::program::ops::{flops_of_transform, multiplied};

pub use generate::FftSpec;
pub use launch::{Fft, fft};
#[cfg(test)]
pub(crate) use launch::{capacity, rows_per_group};

/// A pass of a transform, elements that a workgroup has room for, and whether their number is odd.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FftKernel {
    pub spec: FftSpec,
    pub capacity: u32,
    pub odd: bool,
}

impl KernelSpec for FftKernel {
    fn name(&self) -> String {
        format!("fft.{}", self.spec.compute.name())
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        self.spec.generate(library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        SmallVec::from_slice(&[(0, self.capacity), (1, u32::from(self.odd))])
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.number(0)?, flops_of_transform(arguments.number(1)?)])
    }
}

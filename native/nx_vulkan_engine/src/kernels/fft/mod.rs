//! Discrete Fourier transforms along rows.

mod generate;
mod launch;
mod plan;
mod rows;
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
pub(crate) use launch::{capacity, is_fixed, rows_per_group};

/// What a kernel of transforms knows when it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FftForm {
    /// Whether there are other radices than powers of two.
    Any { odd: bool },
    /// The radices of a length, the rows of a workgroup, and what is done to elements besides.
    Fixed { radices: [u32; 4], rows: u32, flags: u32 },
}

/// A pass of a transform, and elements that a workgroup has room for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FftKernel {
    pub spec: FftSpec,
    pub capacity: u32,
    pub form: FftForm,
}

impl KernelSpec for FftKernel {
    fn name(&self) -> String {
        let compute = self.spec.compute.name();
        match self.form {
            FftForm::Any { .. } => format!("fft.{compute}"),
            FftForm::Fixed { radices, .. } => format!("fft.{}.{compute}", radices.iter().product::<u32>()),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        self.spec.generate(library, modes, self.form)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        match self.form {
            FftForm::Any { odd } => SmallVec::from_slice(&[(0, self.capacity), (1, u32::from(odd))]),
            FftForm::Fixed { radices: [first, second, third, last], rows, flags } => {
                let known = [self.capacity, first, second, third, last, rows, flags];
                (0..).zip(known).collect()
            }
        }
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.number(0)?, flops_of_transform(arguments.number(1)?)])
    }
}

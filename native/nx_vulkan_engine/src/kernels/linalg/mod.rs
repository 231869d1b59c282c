//! Factorizations and solvers: templates that compute on matrices in memory, with strides among their parameters.

mod generate;
mod launch;
pub mod qr;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::family::{Constants, KernelSpec, operand_bytes};
use super::{Arguments, Place};
use crate::Result;

pub use generate::LinalgSpec;
pub use launch::{kernel, run, specialized, strides, wide};

impl KernelSpec for LinalgSpec {
    fn name(&self) -> String {
        format!("{}.{}", self.template, self.compute.name())
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        LinalgSpec::generate(self, library, modes)
    }

    fn constants(&self, modes: FloatModes) -> Constants {
        let own = (1..).zip(self.constants.iter().copied());
        std::iter::once((0, u32::from(modes.fused))).chain(own).collect()
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        None
    }

    /// For a matrix of n^2 elements some n^3, of which sweeps are several.
    fn longest(&self, _: u64, arguments: &Arguments<'_>, groups: u64) -> u64 {
        const PER_PRODUCT: f64 = 32.0;
        let elements = |(k, place): (usize, &Place<'_>)| {
            let size_bytes = self.operands.get(k).map_or(1, |dtype| dtype.size_bytes());
            operand_bytes(self, k, place, arguments) / size_bytes
        };
        let elements = arguments.places.iter().enumerate().map(elements).max().unwrap_or(0);
        (PER_PRODUCT * (elements as f64 / groups.max(1) as f64).powf(1.5)) as u64
    }
}

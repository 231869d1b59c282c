//! Reductions by a function of the caller's.

mod generate;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::Arguments;
use super::family::KernelSpec;
use crate::Result;
use crate::program::ops::multiplied;

pub use generate::{FoldSpec, apply};
pub use launch::{Fold, fold};

impl KernelSpec for FoldSpec {
    fn name(&self) -> String {
        format!("fold.{}", self.out)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        FoldSpec::generate(self, library, modes)
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.count.into(), arguments.number(0)?, self.function.steps.len() as u64])
    }
}

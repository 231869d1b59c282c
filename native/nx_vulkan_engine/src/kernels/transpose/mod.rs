//! Copies between layouts through tiles in shared memory.

mod generate;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::Arguments;
use super::family::{KernelFamily, name_of_element};
use crate::Result;

pub use generate::TransposeSpec;
pub use launch::{padded_transpose, transpose};

impl KernelFamily for TransposeSpec {
    fn name(&self) -> String {
        format!("transpose.{}", name_of_element(self.element))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        TransposeSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

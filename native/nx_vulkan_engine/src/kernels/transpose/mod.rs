//! Copies between layouts through tiles in shared memory or blocks in registers, and of padded lines.

mod generate;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::Arguments;
use super::family::{Constants, KernelSpec, name_of_element};
use crate::Result;

pub use generate::{Route, TransposeSpec};
pub use launch::{padded_copy, transpose};

impl KernelSpec for TransposeSpec {
    fn name(&self) -> String {
        let form = match self.form {
            Route::Tiles => "",
            Route::Blocks { .. } => "blocks.",
            Route::Lines => "lines.",
        };
        format!("transpose.{form}{}", name_of_element(self.element))
    }

    fn constants(&self, _: FloatModes) -> Constants {
        match self.form {
            Route::Blocks { beside } => Constants::from_slice(&[(0, beside.into())]),
            Route::Tiles | Route::Lines => Constants::new(),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        TransposeSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

//! Each window's source added to its extreme element.

mod generate;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;

use super::Arguments;
use super::family::KernelSpec;
use crate::Result;
use crate::program::ops::multiplied;

pub use generate::{WindowScatterSpec, WindowStage};
pub use launch::{WindowScatter, window_scatter};

impl KernelSpec for WindowScatterSpec {
    fn name(&self) -> String {
        match self.stage {
            WindowStage::Choose { max: true, input } => format!("window_scatter_max.choose.{input}"),
            WindowStage::Choose { max: false, input } => format!("window_scatter_min.choose.{input}"),
            WindowStage::Gather { out, .. } => format!("window_scatter.gather.{out}"),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        WindowScatterSpec::generate(self, library, modes)
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.count.into(), arguments.number(0)?])
    }
}

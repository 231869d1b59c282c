//! Running reductions along rows.

mod generate;
mod launch;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::Arguments;
use super::family::{Constants, KernelSpec};
use crate::Result;
use crate::program::ops::multiplied;

pub use generate::{ScanSpec, ScanStage};
#[cfg(test)]
pub(crate) use launch::chunks;
pub use launch::{Scan, scan};

/// A scan, and how many invocations share a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScanKernel {
    pub spec: ScanSpec,
    pub team: u32,
}

impl KernelSpec for ScanKernel {
    fn name(&self) -> String {
        let stage = match self.spec.stage {
            ScanStage::Whole => "whole",
            ScanStage::Totals => "totals",
            ScanStage::Prefixes => "prefixes",
            ScanStage::Apply => "apply",
        };
        format!("scan.{}.{stage}.{}", self.spec.reduction.name(), self.spec.dtype)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        self.spec.generate(library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        let is = |stage| u32::from(self.spec.stage == stage);
        SmallVec::from_slice(&[(0, self.team), (1, is(ScanStage::Totals)), (2, is(ScanStage::Apply))])
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.number(0)?, arguments.number(1)?])
    }
}

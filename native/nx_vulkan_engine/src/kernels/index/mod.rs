//! Elements read or written where indices say, and the sums of those that are written to one place.

mod choice;
mod generate;
mod segment;

use nx_vulkan_spirv::generated::Generated;
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::Arguments;
use super::family::{Constants, KernelSpec, name_of_element};
use crate::Result;
use crate::program::ops::multiplied;

pub(crate) use choice::{Applied, Way, owners};
pub use generate::{GatherSpec, ScatterSpec, ShiftSpec, TakeSpec, TargetOrderSpec, TargetSpec, extra};
pub use segment::{SegmentAddSpec, SegmentPutSpec, SegmentStepsSpec};

impl KernelSpec for GatherSpec {
    fn name(&self) -> String {
        format!("gather.{}", name_of_element(self.element))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        GatherSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }

    fn reads_by_indices(&self) -> bool {
        true
    }
}

impl KernelSpec for TakeSpec {
    fn name(&self) -> String {
        format!("take.{}", name_of_element(self.element))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        TakeSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }

    fn reads_by_indices(&self) -> bool {
        true
    }
}

impl KernelSpec for ShiftSpec {
    fn name(&self) -> String {
        format!("{}.{}", if self.puts { "put_slice" } else { "slice" }, name_of_element(self.element))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        ShiftSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

impl KernelSpec for ScatterSpec {
    fn name(&self) -> String {
        let op = if self.add.is_some() { "indexed_add" } else { "indexed_put" };
        format!("{op}.{}", name_of_element(self.element))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        ScatterSpec::generate(self, library, modes)
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.count.into(), arguments.number(0)?, self.add.is_some().into()])
    }
}

impl KernelSpec for TargetSpec {
    fn name(&self) -> String {
        format!("targets.{}", self.index)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        TargetSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

impl KernelSpec for TargetOrderSpec {
    fn name(&self) -> String {
        format!("targets.order.{}", self.index)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        TargetOrderSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

impl KernelSpec for SegmentPutSpec {
    fn name(&self) -> String {
        format!("segment_put.{}", name_of_element(self.element))
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        SegmentPutSpec::generate(self, library, modes)
    }

    fn flops(&self, _: &Arguments<'_>, _: u64) -> Option<u64> {
        Some(0)
    }
}

impl KernelSpec for SegmentAddSpec {
    fn name(&self) -> String {
        format!("segment_add.{}", self.out)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        SegmentAddSpec::generate(self, library, modes)
    }

    fn constants(&self, _: FloatModes) -> Constants {
        SmallVec::from_slice(&[(0, u32::from(self.last)), (1, u32::from(self.carried))])
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.count.into(), arguments.number(0)?])
    }
}

impl KernelSpec for SegmentStepsSpec {
    fn name(&self) -> String {
        format!("segment_steps.{}", self.out)
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        SegmentStepsSpec::generate(self, library, modes)
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        multiplied(&[arguments.count.into(), arguments.number(0)?])
    }
}

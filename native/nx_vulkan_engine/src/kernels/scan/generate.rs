//! Kernels that run a reduction along rows: what accumulators mean is as in reductions.

use nx_vulkan_ir::program::Reduction;
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::{DType, Result};

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::Linker;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::reducer::ReducerCode;

/// Long rows take three dispatches: the totals of chunks, the prefixes of those, and the elements of each chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanStage {
    Whole,
    Totals,
    Prefixes,
    Apply,
}

/// The key under which a scan kernel is compiled once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScanSpec {
    pub reduction: Reduction,
    pub dtype: DType,
    pub stage: ScanStage,
}

impl ScanSpec {
    /// Invocations per workgroup.
    pub const LOCAL_SIZE: u32 = 256;

    fn reducer(&self) -> Reducer {
        Reducer { reduction: self.reduction, tie_high: false, input: self.dtype, out: self.dtype }
    }

    /// Bytes of one accumulator.
    pub fn accumulator_bytes(&self) -> u64 {
        self.reducer().accumulator_bytes()
    }

    /// Neighbours that one invocation takes in each step.
    pub fn items(&self) -> u64 {
        if self.accumulator_bytes() <= 8 { 8 } else { 4 }
    }

    /// Operands: input, carries, output.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let reduce = self.reducer();
        let accumulator = Element::Raw(self.accumulator_bytes() as u8);
        let name = format!("scan_{}", self.accumulator_bytes() / 4);
        let mut linker = Linker::new(library, &name, false, modes)?;
        let mut params = ParamLayout::new(&[0, 1, 2, 3, 4].map(Param::Extra));
        linker.define("slot_combine", |code, args| {
            let (a, b) = (arg(args, 0)?, arg(args, 1)?);
            reduce.combine(code, a, b).map(Some)
        })?;
        linker.define("slot_load", |code, args| {
            let at = arg(args, 0)?;
            let address = params.address(0);
            if self.stage == ScanStage::Prefixes {
                return access::load(code, address, accumulator, at).map(Some);
            }
            let id = access::load(code, address, Element::Typed(self.dtype), at)?;
            reduce.lift(code, id, at).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            let (at, value) = (arg(args, 0)?, arg(args, 1)?);
            let address = params.address(2);
            if matches!(self.stage, ScanStage::Totals | ScanStage::Prefixes) {
                access::store(code, address, accumulator, at, value)?;
            } else {
                let value = reduce.lower(code, value)?;
                access::store(code, address, Element::Typed(self.dtype), at, value)?;
            }
            Ok(None)
        })?;
        if self.stage == ScanStage::Apply {
            linker.define("slot_carry", |code, args| {
                let address = params.address(1);
                access::load(code, address, accumulator, arg(args, 0)?).map(Some)
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: 0 })
    }
}

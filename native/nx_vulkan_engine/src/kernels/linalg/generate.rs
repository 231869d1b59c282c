//! Matrix kernels: whole templates compiled per type. Generated code fills only how they load and store their operands
//! and the scalar functions that GLSL does not have exactly.

use nx_vulkan_ir::{CType, DType, Result};
use rspirv::spirv::Word;
use smallvec::SmallVec;

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::Linker;
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};

/// The key under which a matrix kernel is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinalgSpec {
    /// Name of the template without its type.
    pub template: &'static str,
    /// The type of T: f32, f64, c64 or c128.
    pub compute: CType,
    /// How operand k lies in memory: floats are cast to and from T, integers are `uint`.
    pub operands: SmallVec<[DType; 4]>,
    /// What the template is specialized with: constants 1 and following.
    pub constants: SmallVec<[u32; 2]>,
}

impl LinalgSpec {
    /// Numbers that a launch hands to the kernel: `nx_param(0)` and following.
    pub const HEADER: u8 = 16;

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let name = format!("{}_{}", self.template, self.compute.name());
        let mut linker = Linker::new(library, &name, false, modes)?;
        let header: SmallVec<[Param; 16]> = (0..Self::HEADER).map(Param::Extra).collect();
        let mut params = ParamLayout::new(&header);
        let compute = self.compute.dtype();
        for (k, &dtype) in (0u8..).zip(&self.operands) {
            let element = Element::Typed(dtype);
            let value = if dtype.is_integer() { DType::U32 } else { compute };
            let (load, store) = (format!("slot_load{k}"), format!("slot_store{k}"));
            if linker.has_slot(&load) {
                linker.define(&load, |code, args| {
                    let address = params.address(k);
                    let id = access::load(code, address, element, arg(args, 0)?)?;
                    scalar::cast(code, Value { id, dtype }, value).map(Some)
                })?;
            }
            if linker.has_slot(&store) {
                linker.define(&store, |code, args| {
                    let id = scalar::cast(code, Value { id: arg(args, 1)?, dtype: value }, dtype)?;
                    let address = params.address(k);
                    access::store(code, address, element, arg(args, 0)?, id)?;
                    Ok(None)
                })?;
            }
        }
        self.define_scalars(&mut linker)?;
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: 0 })
    }

    /// Rows and columns of a block that one workgroup holds in shared memory (BLOCK of the templates).
    pub fn block(compute: CType) -> u64 {
        if compute == CType::C128 { 16 } else { 32 }
    }

    /// Columns beside a block that one workgroup takes (COLUMNS of the templates).
    pub fn columns(compute: CType) -> u64 {
        if compute == CType::F32 { 32 } else { 16 }
    }

    /// Rows and columns that one workgroup of rank_update takes (TILE).
    pub fn tile(compute: CType) -> u64 {
        if compute == CType::C128 { 32 } else { 64 }
    }

    /// The functions that linalg.glsl leaves open.
    fn define_scalars(&self, linker: &mut Linker<'_>) -> Result<()> {
        let (ctype, real) = (self.compute.name(), self.real().name());
        let functions = [
            ("slot_divide", format!("nx_divide_{ctype}")),
            ("slot_divide_real", format!("nx_divide_{real}")),
            ("slot_sqrt", format!("nx_sqrt_{real}")),
            ("slot_root", format!("nx_sqrt_{ctype}")),
            ("slot_abs", format!("nx_abs_{ctype}")),
        ];
        for (slot, function) in functions {
            if linker.has_slot(slot) {
                linker.define(slot, |code, args: &[Word]| code.call(&function, args).map(Some))?;
            }
        }
        if linker.has_slot("slot_round")
            && let Some(&stored) = self.operands.first()
        {
            let compute = self.compute.dtype();
            linker.define("slot_round", |code, args| {
                let id = scalar::cast(code, Value { id: arg(args, 0)?, dtype: compute }, stored)?;
                scalar::cast(code, Value { id, dtype: stored }, compute).map(Some)
            })?;
        }
        Ok(())
    }

    /// The type of R, the parts of T.
    fn real(&self) -> CType {
        match self.compute {
            CType::C64 => CType::F32,
            CType::C128 => CType::F64,
            other => other,
        }
    }
}

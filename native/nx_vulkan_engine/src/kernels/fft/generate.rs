//! Fourier transforms: loads from and stores to any view and type, around the butterflies of the template.

use nx_vulkan_ir::{CType, DType, Result};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use nx_vulkan_spirv::access::{self, Element, value_type};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};

use super::FftForm;
use super::launch::OF_PAIRS;

/// Words of the template's own parameters.
pub const HEADER: u8 = 16;

/// Operand numbers: the result comes last.
const INPUT: u8 = 0;
const ROOTS: u8 = 1;
const ORDER: u8 = 2;
const LOAD_FACTOR: u8 = 3;
const STORE_FACTOR: u8 = 4;
const OUT: u8 = 5;

/// The key under which a transform kernel is compiled once. The iteration space is the batch axes of the input, those
/// of the result, and the axis of the transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FftSpec {
    pub input: DType,
    pub output: DType,
    /// C64 or C128.
    pub compute: CType,
    pub in_rank: u8,
    pub out_rank: u8,
    pub load_factor: bool,
    /// Factors of the result, or roots between the launches of a long transform.
    pub store_factor: bool,
    /// Divides by a number that is no power of two.
    pub divide: bool,
}

impl FftSpec {
    /// Invocations per workgroup.
    pub const LOCAL_SIZE: u64 = 256;

    /// The kernel of any length, or one whose length is fixed.
    pub fn generate(&self, library: &Library, modes: FloatModes, form: FftForm) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, form, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, form: FftForm, table: bool) -> Result<Generated> {
        let fixed = matches!(form, FftForm::Fixed { .. });
        let of = match form {
            FftForm::Any { .. } => "",
            // Other rows do without the code of pairs, which slows some of them on NVIDIA (docs/design/transforms.md).
            FftForm::Fixed { flags, .. } if flags & OF_PAIRS != 0 => "fixed_pairs_",
            FftForm::Fixed { .. } => "fixed_",
        };
        let name = format!("fft_{of}{}", self.compute.name());
        let mut linker = Linker::new(library, &name, table, modes)?;
        let header: SmallVec<[Param; 16]> = (0..HEADER).map(Param::Extra).collect();
        let mut params = ParamLayout::new(&header);
        linker.define("slot_load", |code, args| {
            let at = self.position(code, &mut params, INPUT, args)?;
            let address = params.address(INPUT);
            let id = access::load(code, address, Element::Typed(self.input), at)?;
            scalar::cast(code, Value { id, dtype: self.input }, self.compute.dtype()).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            let at = self.position(code, &mut params, OUT, args)?;
            let value = Value { id: arg(args, 2)?, dtype: self.compute.dtype() };
            let value = scalar::cast(code, value, self.output)?;
            let address = params.address(OUT);
            access::store(code, address, Element::Typed(self.output), at, value)?;
            Ok(None)
        })?;
        let tables = [
            ("slot_root", ROOTS, self.compute.dtype(), true),
            ("slot_order", ORDER, DType::U32, !fixed),
            ("slot_load_factor", LOAD_FACTOR, self.compute.dtype(), self.load_factor),
            ("slot_store_factor", STORE_FACTOR, self.compute.dtype(), self.store_factor),
        ];
        for (slot, operand, dtype, _) in tables.into_iter().filter(|t| t.3) {
            linker.define(slot, |code, args| {
                let address = params.address(operand);
                access::load(code, address, Element::Typed(dtype), arg(args, 0)?).map(Some)
            })?;
        }
        if self.divide {
            linker.define("slot_divide", |code, args| self.divided(code, arg(args, 0)?, arg(args, 1)?).map(Some))?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// Where the element of a batch (the first argument) at a place (the second) lies.
    fn position(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, operand: u8, args: &[Word]) -> Result<Word> {
        let (first, rank) = if operand == INPUT { (0, self.in_rank) } else { (self.in_rank, self.out_rank) };
        let coordinates = access::coordinates(code, params, arg(args, 0)?, first, rank)?;
        let batch = access::position(code, params, operand, first, &coordinates)?;
        let place = access::position(code, params, operand, self.in_rank + self.out_rank, &[arg(args, 1)?])?;
        let sum = code.u32_op(SpirvOp::IAdd, batch, place);
        access::biased(code, params, operand, sum)
    }

    /// Both parts over the real number in both parts of `by`, rounded once.
    fn divided(&self, code: &mut Code<'_, '_>, value: Word, by: Word) -> Result<Word> {
        let real = if self.compute == CType::C128 { CType::F64 } else { CType::F32 };
        let part = value_type(code, real);
        let name = format!("nx_divide_{}", real.name());
        let mut quotients = [value; 2];
        for (i, quotient) in (0..).zip(&mut quotients) {
            let (a, b) = (code.extract(part, value, i), code.extract(part, by, i));
            *quotient = code.call(&name, &[a, b])?;
        }
        let ty = value_type(code, self.compute);
        Ok(code.ids(SpirvOp::CompositeConstruct, ty, &quotients))
    }
}

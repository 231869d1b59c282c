//! What kernels of attention make of products: scores.

use nx_vulkan_ir::program::Elementwise;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::link::Code;
use nx_vulkan_spirv::params::ParamLayout;
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::{find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

/// Queries, keys and values, before the operands of steps.
pub(super) const FACTORS: u8 = 3;

/// Scores of f16 below this one are those of masks.
const LOW_F16: f32 = -16384.0;

/// How steps on scores read an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Read {
    pub dtype: DType,
    /// Whether it differs between batches, rows, and keys.
    pub along: [bool; 3],
}

/// What makes scores of products.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScoreSpec {
    pub reads: SmallVec<[Read; 2]>,
    /// Input 0 is the product of a query and a key, those after it are `reads`. Coordinates are those of `coordinates`.
    pub steps: SmallVec<[Step; 1]>,
    pub score: Ref,
    /// The type of scores.
    pub dtype: DType,
    /// The coordinates of steps that are the row of a query and the key.
    pub coordinates: [u8; 2],
    /// Which weights are kept, where some are dropped.
    pub kept: Option<KeptSpec>,
}

/// What says which weights are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeptSpec {
    /// As those of scores.
    pub steps: SmallVec<[Step; 1]>,
    pub value: Ref,
    /// The bits of what weights that are kept are multiplied with.
    pub scale: u32,
}

/// Says where an operand has a batch; `None` where there is one alone.
pub(super) type InBatch<'a, 'l> = dyn Fn(&mut Code<'_, 'l>, &mut ParamLayout, u8) -> Result<Option<Word>> + 'a;

impl ScoreSpec {
    /// The score of a product, for a row and a key. The axis of rows is `of_rows`, that of keys comes next.
    pub(super) fn emit<'l>(
        &self,
        code: &mut Code<'_, 'l>,
        params: &mut ParamLayout,
        of_rows: u8,
        [row, key]: [Word; 2],
        product: Word,
        in_batch: &InBatch<'_, 'l>,
    ) -> Result<Word> {
        let score = self.value(code, params, of_rows, [row, key, product], in_batch, (&self.steps, self.score))?;
        let score = Value { dtype: DType::F32, ..score };
        let zero = code.linker.const_u32(0);
        if !self.rounds_low() {
            return Ok(score.id);
        }
        let rounded = scalar::emit(code, Elementwise::AsType, &[score], DType::F16)?;
        let limit = access::constant(code, CType::F32, LOW_F16.to_bits().into());
        let (limit, flag, float) = (limit.unwrap_or(zero), code.linker.type_bool(), code.linker.type_float(32));
        let is_low = code.ids(SpirvOp::FOrdLessThan, flag, &[score.id, limit]);
        Ok(code.ids(SpirvOp::Select, float, &[is_low, rounded, score.id]))
    }

    /// Whether a weight is kept, as a word that is not 0 then.
    pub(super) fn emit_kept<'l>(
        &self,
        code: &mut Code<'_, 'l>,
        params: &mut ParamLayout,
        of_rows: u8,
        [row, key]: [Word; 2],
        in_batch: &InBatch<'_, 'l>,
    ) -> Result<Word> {
        let Some(kept) = &self.kept else { return Ok(code.linker.const_u32(1)) };
        let zero = code.linker.const_u32(0);
        let product = access::constant(code, CType::F32, 0).unwrap_or(zero);
        let value = self.value(code, params, of_rows, [row, key, product], in_batch, (&kept.steps, kept.value))?;
        scalar::truthy(code, value)
    }

    /// What steps make of a product and the operands, for a row and a key, which stand before the product.
    fn value<'l>(
        &self,
        code: &mut Code<'_, 'l>,
        params: &mut ParamLayout,
        of_rows: u8,
        [row, key, product]: [Word; 3],
        in_batch: &InBatch<'_, 'l>,
        (steps, value): (&[Step], Ref),
    ) -> Result<Value> {
        let mut inputs: SmallVec<[Value; 4]> = SmallVec::from_slice(&[Value { id: product, dtype: DType::F32 }]);
        let zero = code.linker.const_u32(0);
        for (k, (operand, read)) in (FACTORS..).zip(&self.reads).enumerate() {
            // What others read.
            if !is_read(steps, value, k as u8 + 1) {
                inputs.push(Value { id: zero, dtype: read.dtype });
                continue;
            }
            let [by_batch, by_row, by_key] = read.along;
            let mut at = if by_batch { in_batch(code, params, operand)? } else { None };
            for (is_read, axis, index) in [(by_row, of_rows, row), (by_key, of_rows + 1, key)] {
                if is_read {
                    let term = access::position(code, params, operand, axis, &[index])?;
                    at = Some(at.map_or(term, |at| code.u32_op(SpirvOp::IAdd, at, term)));
                }
            }
            let id = access::load(code, params.address(operand), Element::Typed(read.dtype), at.unwrap_or(zero))?;
            inputs.push(Value { id, dtype: read.dtype });
        }
        let [of_row, of_key] = self.coordinates;
        let mut coordinates: SmallVec<[Word; 6]> = SmallVec::from_elem(zero, usize::from(of_row.max(of_key)) + 1);
        (coordinates[usize::from(of_row)], coordinates[usize::from(of_key)]) = (row, key);
        let results = run_steps(code, steps, &inputs, zero, &coordinates)?;
        find(code, value, &inputs, &results, zero, &coordinates)
    }

    /// Whether some weights are dropped, and the bits of what others are multiplied with.
    pub(super) fn dropping(&self) -> [u32; 2] {
        [self.kept.is_some().into(), self.kept.as_ref().map_or(1.0_f32.to_bits(), |kept| kept.scale)]
    }

    /// Whether scores may be so low that they are to be rounded: the least number of f16 takes in what is added to it
    /// then, so that all scores of a row that is masked are the same.
    fn rounds_low(&self) -> bool {
        let is_low = |r: &Ref| match *r {
            Ref::Constant(dtype, bits) => dtype.ctype() == CType::F32 && f32::from_bits(bits as u32) < LOW_F16,
            _ => false,
        };
        self.dtype == DType::F16
            && (!self.reads.is_empty() || self.steps.iter().flat_map(|step| &step.args).any(is_low))
    }
}

/// Whether steps or what they lead to read an input.
fn is_read(steps: &[Step], value: Ref, input: u8) -> bool {
    value == Ref::Input(input) || steps.iter().any(|step| step.args.contains(&Ref::Input(input)))
}

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
        let mut inputs: SmallVec<[Value; 4]> = SmallVec::from_slice(&[Value { id: product, dtype: DType::F32 }]);
        for (operand, read) in (FACTORS..).zip(&self.reads) {
            let [by_batch, by_row, by_key] = read.along;
            let mut at = if by_batch { in_batch(code, params, operand)? } else { None };
            for (is_read, axis, index) in [(by_row, of_rows, row), (by_key, of_rows + 1, key)] {
                if is_read {
                    let term = access::position(code, params, operand, axis, &[index])?;
                    at = Some(at.map_or(term, |at| code.u32_op(SpirvOp::IAdd, at, term)));
                }
            }
            let at = match at {
                Some(at) => at,
                None => code.linker.const_u32(0),
            };
            let id = access::load(code, params.address(operand), Element::Typed(read.dtype), at)?;
            inputs.push(Value { id, dtype: read.dtype });
        }
        let zero = code.linker.const_u32(0);
        let [of_row, of_key] = self.coordinates;
        let mut coordinates: SmallVec<[Word; 6]> = SmallVec::from_elem(zero, usize::from(of_row.max(of_key)) + 1);
        (coordinates[usize::from(of_row)], coordinates[usize::from(of_key)]) = (row, key);
        let results = run_steps(code, &self.steps, &inputs, zero, &coordinates)?;
        let score = find(code, self.score, &inputs, &results, zero, &coordinates)?;
        let score = Value { dtype: DType::F32, ..score };
        if !self.rounds_low() {
            return Ok(score.id);
        }
        let rounded = scalar::emit(code, Elementwise::AsType, &[score], DType::F16)?;
        let limit = access::constant(code, CType::F32, LOW_F16.to_bits().into());
        let (limit, flag, float) = (limit.unwrap_or(zero), code.linker.type_bool(), code.linker.type_float(32));
        let is_low = code.ids(SpirvOp::FOrdLessThan, flag, &[score.id, limit]);
        Ok(code.ids(SpirvOp::Select, float, &[is_low, rounded, score.id]))
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

//! Attention kernels on matrix units, whose loads, steps on scores and stores are generated.

use nx_vulkan_ir::program::Elementwise;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::{self, Element, Param, ParamLayout};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::{find, run_steps};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

/// Queries, keys and values, before the operands of steps.
const FACTORS: u8 = 3;

/// Scores of f16 below this one are those of masks.
const LOW_F16: f32 = -16384.0;

/// Numbers of a launch before all other parameters.
const NUMBERS: u8 = 9;

/// What one subgroup holds of 32 queries and of their results: slices of 32 elements of each query, and groups of 64
/// elements of each result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionTile {
    slices: u32,
    groups: u32,
}

impl AttentionTile {
    /// Those with a template, the smallest first.
    const ALL: [AttentionTile; 3] = [
        AttentionTile { slices: 2, groups: 1 },
        AttentionTile { slices: 3, groups: 2 },
        AttentionTile { slices: 4, groups: 2 },
    ];

    /// Queries of one subgroup.
    const OWN_ROWS: u64 = 32;

    /// Subgroups of a workgroup.
    pub(super) const SUBGROUPS: u64 = 4;

    /// Queries of one workgroup, whose subgroups may share out the keys.
    pub(super) const fn rows(shares_keys: bool) -> u64 {
        if shares_keys { AttentionTile::OWN_ROWS } else { AttentionTile::OWN_ROWS * AttentionTile::SUBGROUPS }
    }

    /// Keys of two steps, or of one where a subgroup holds little.
    pub(super) const KEYS: u64 = 32;

    /// The smallest that holds queries and values of so many elements.
    pub fn of(depth: u64, width: u64) -> Option<AttentionTile> {
        AttentionTile::ALL.into_iter().find(|tile| depth <= tile.depth() && width <= tile.width())
    }

    /// The most memory that a workgroup shares: what two subgroups hold.
    pub(super) fn shared_bytes() -> u32 {
        let held = |tile: &AttentionTile| 2 * 4 * 8 * tile.groups + 2 * 4;
        AttentionTile::ALL.iter().map(held).max().unwrap_or(0) * 2 * 32 * 4
    }

    /// The most elements of queries and of values that any holds.
    pub(super) fn most() -> u64 {
        AttentionTile::ALL.iter().map(|tile| tile.depth().min(tile.width())).max().unwrap_or(0)
    }

    /// Elements of a query.
    pub fn depth(self) -> u64 {
        u64::from(self.slices) * 32
    }

    /// Elements of a value.
    pub fn width(self) -> u64 {
        u64::from(self.groups) * 64
    }

    fn template(self) -> String {
        format!("attention_own_{}x{}", self.slices, self.groups)
    }
}

/// How steps on scores read an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Read {
    pub dtype: DType,
    /// Whether it differs between batches, rows, and keys.
    pub along: [bool; 3],
}

/// The key under which attention is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionSpec {
    /// The type of queries, keys, values and results.
    pub dtype: DType,
    pub tile: AttentionTile,
    /// Axes of the space that are batches; those of rows and keys come after them.
    pub batch_rank: u8,
    pub reads: SmallVec<[Read; 2]>,
    /// Input 0 is the product of a query and a key, those after it are `reads`. Coordinates are those of `coordinates`.
    pub steps: SmallVec<[Step; 1]>,
    pub score: Ref,
    /// The type of scores.
    pub scores: DType,
    /// The coordinates of steps that are the row of a query and the key.
    pub coordinates: [u8; 2],
    pub whole_keys: bool,
    pub whole_depth: bool,
    pub whole_width: bool,
    pub causal: bool,
    /// The number that a product is multiplied with to be a score, where that is all; then `steps` are not run.
    pub factor: Option<u32>,
    /// Whether the subgroups of a workgroup share out the keys of the same rows, and not rows.
    pub shares_keys: bool,
    /// Whether parameters may fill `ParamLayout::WIDE_PUSH_WORDS` of push constants.
    pub wide: bool,
}

impl AttentionSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let push_words = if self.wide { ParamLayout::WIDE_PUSH_WORDS } else { ParamLayout::PUSH_WORDS };
        Generated::push_or_table_of(push_words, |table| self.module(library, modes, table))
    }

    fn module(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let header: SmallVec<[Param; 8]> = (0..NUMBERS).map(Param::Extra).collect();
        let mut params = ParamLayout::new(&header);
        let mut linker = Linker::new(library, &self.tile.template(), table, modes)?;
        linker.bfloat16 = self.dtype == DType::Bf16;
        access::declare_blocks_read_only(&mut linker);
        let out = FACTORS + self.reads.len() as u8;
        for (operand, name) in [(0, "q"), (1, "k"), (2, "v"), (out, "out")] {
            if operand < FACTORS {
                linker.define(&format!("slot_{name}"), |code, args| {
                    access::load(code, params.address(operand), Element::Raw(16), arg(args, 0)?).map(Some)
                })?;
            }
            linker.define(&format!("slot_{name}_batch"), |code, args| {
                let at = self.in_batch(code, &mut params, operand, arg(args, 0)?)?;
                let Some(at) = at else { return Ok(Some(code.linker.const_u32(0))) };
                let three = code.linker.const_u32(3);
                Ok(Some(code.u32_op(SpirvOp::ShiftRightLogical, at, three)))
            })?;
        }
        linker.define("slot_score", |code, args| {
            let (place, product) = ([arg(args, 0)?, arg(args, 1)?, arg(args, 2)?], arg(args, 3)?);
            self.score(code, &mut params, place, product).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            access::store_block(code, params.address(out), arg(args, 0)?, arg(args, 1)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// Where an operand has a batch; `None` where there is one alone.
    fn in_batch(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        batch: Word,
    ) -> Result<Option<Word>> {
        if self.batch_rank == 0 {
            return Ok(None);
        }
        let coordinates = access::coordinates(code, params, batch, 0, self.batch_rank)?;
        access::position(code, params, operand, 0, &coordinates).map(Some)
    }

    /// The score of a product, for a batch, a row and a key.
    fn score(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        [batch, row, key]: [Word; 3],
        product: Word,
    ) -> Result<Word> {
        let mut inputs: SmallVec<[Value; 4]> = SmallVec::from_slice(&[Value { id: product, dtype: DType::F32 }]);
        for (operand, read) in (FACTORS..).zip(&self.reads) {
            let [by_batch, by_row, by_key] = read.along;
            let mut at = if by_batch { self.in_batch(code, params, operand, batch)? } else { None };
            for (is_read, axis, index) in [(by_row, self.batch_rank, row), (by_key, self.batch_rank + 1, key)] {
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
        self.scores == DType::F16
            && (!self.reads.is_empty() || self.steps.iter().flat_map(|step| &step.args).any(is_low))
    }
}

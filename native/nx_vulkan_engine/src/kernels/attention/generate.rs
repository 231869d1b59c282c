//! Attention kernels on matrix units, whose loads, steps on scores and stores are generated.

use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::scores::{FACTORS, ScoreSpec};

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

    /// Rows of one workgroup that computes gradients: what a subgroup holds of rows of more elements is half as many.
    pub(super) const fn gradient_rows(self) -> u64 {
        AttentionTile::SUBGROUPS * if self.groups == 1 { AttentionTile::OWN_ROWS } else { AttentionTile::OWN_ROWS / 2 }
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

    /// The template of this name for it.
    pub(super) fn template(self, name: &str) -> String {
        format!("{name}_{}x{}", self.slices, self.groups)
    }
}

/// The key under which attention is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionSpec {
    /// The type of queries, keys, values and results.
    pub dtype: DType,
    pub tile: AttentionTile,
    /// Axes of the space that are batches; those of rows and keys come after them.
    pub batch_rank: u8,
    pub scores: ScoreSpec,
    pub whole_keys: bool,
    pub whole_depth: bool,
    pub whole_width: bool,
    pub causal: bool,
    /// The number that a product is multiplied with to be a score, where that is all; then steps are not run.
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
        let mut linker = Linker::new(library, &self.tile.template("attention_own"), table, modes)?;
        linker.bfloat16 = self.dtype == DType::Bf16;
        access::declare_blocks_read_only(&mut linker);
        let out = FACTORS + self.scores.reads.len() as u8;
        for (operand, name) in [(0, "q"), (1, "k"), (2, "v"), (out, "out")] {
            if operand < FACTORS {
                linker.define(&format!("slot_{name}"), |code, args| {
                    access::load(code, params.address(operand), Element::Raw(16), arg(args, 0)?).map(Some)
                })?;
            }
            linker.define(&format!("slot_{name}_batch"), |code, args| {
                block_of_batch(code, &mut params, self.batch_rank, operand, arg(args, 0)?).map(Some)
            })?;
        }
        linker.define("slot_score", |code, args| {
            let (batch, place, product) = (arg(args, 0)?, [arg(args, 1)?, arg(args, 2)?], arg(args, 3)?);
            let in_batch = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand| {
                in_batch(code, params, self.batch_rank, operand, batch)
            };
            self.scores.emit(code, &mut params, self.batch_rank, place, product, &in_batch).map(Some)
        })?;
        linker.define("slot_kept", |code, args| {
            let (batch, place) = (arg(args, 0)?, [arg(args, 1)?, arg(args, 2)?]);
            let in_batch = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand| {
                in_batch(code, params, self.batch_rank, operand, batch)
            };
            self.scores.emit_kept(code, &mut params, self.batch_rank, place, &in_batch).map(Some)
        })?;
        linker.define("slot_store", |code, args| {
            access::store_block(code, params.address(out), arg(args, 0)?, arg(args, 1)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

/// Where an operand has a batch; `None` where there is one alone.
pub(super) fn in_batch(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    rank: u8,
    operand: u8,
    batch: Word,
) -> Result<Option<Word>> {
    if rank == 0 {
        return Ok(None);
    }
    let coordinates = access::coordinates(code, params, batch, 0, rank)?;
    access::position(code, params, operand, 0, &coordinates).map(Some)
}

/// Where a batch of an operand begins, in blocks of eight elements of 16 bits.
pub(super) fn block_of_batch(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    rank: u8,
    operand: u8,
    batch: Word,
) -> Result<Word> {
    let Some(at) = in_batch(code, params, rank, operand, batch)? else { return Ok(code.linker.const_u32(0)) };
    let three = code.linker.const_u32(3);
    Ok(code.u32_op(SpirvOp::ShiftRightLogical, at, three))
}

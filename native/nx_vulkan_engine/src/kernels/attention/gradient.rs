//! Kernels of gradients of attention on matrix units, whose loads, steps on scores and stores are generated.

use nx_vulkan_ir::program::attention_gradient::By;
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use smallvec::SmallVec;

use super::generate::{AttentionTile, block_of_batch, in_batch};
use super::scores::{FACTORS, ScoreSpec};

/// Numbers of a launch before all other parameters.
const NUMBERS: u8 = 10;

/// The key under which a kernel of gradients is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GradientSpec {
    pub by: By,
    /// The type of queries, keys, values and gradients.
    pub dtype: DType,
    pub tile: AttentionTile,
    /// Axes of the space that are batches; those of rows and keys come after them.
    pub batch_rank: u8,
    pub scores: ScoreSpec,
    pub whole_others: bool,
    pub whole_depth: bool,
    pub whole_width: bool,
    pub causal: bool,
    /// The number that a product is multiplied with to be a score, where that is all; then steps are not run.
    pub factor: Option<u32>,
    /// The bits of what results are multiplied with.
    pub scale: u32,
    /// Whether parameters may fill `ParamLayout::WIDE_PUSH_WORDS` of push constants.
    pub wide: bool,
}

impl GradientSpec {
    /// Keys, or queries, of one step.
    pub const OTHERS: u64 = 16;

    /// Which operands rows and others are of products that give scores, and of those that give gradients of weights.
    /// Queries, keys and values come first, what steps read, then the gradient of results, numbers of rows and results.
    pub fn operands(by: By, reads: u8) -> [u8; 4] {
        let (query, key, value, given) = (0, 1, 2, FACTORS + reads);
        match by {
            By::Query => [query, key, given, value],
            By::Key => [key, query, value, given],
            // Weights have no gradient there.
            By::Value => [key, query, value, given],
        }
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let push_words = if self.wide { ParamLayout::WIDE_PUSH_WORDS } else { ParamLayout::PUSH_WORDS };
        Generated::push_or_table_of(push_words, |table| self.module(library, modes, table))
    }

    fn module(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let header: SmallVec<[Param; 10]> = (0..NUMBERS).map(Param::Extra).collect();
        let mut params = ParamLayout::new(&header);
        let template = self.tile.template("attention_gradient");
        let mut linker = Linker::new(library, &template, table, modes)?;
        linker.bfloat16 = self.dtype == DType::Bf16;
        access::declare_blocks_read_only(&mut linker);
        let reads = self.scores.reads.len() as u8;
        let (rank, numbers, out) = (self.batch_rank, FACTORS + reads + 1, FACTORS + reads + 2);
        for (name, operand) in ["x", "y", "u", "w"].into_iter().zip(GradientSpec::operands(self.by, reads)) {
            linker.define(&format!("slot_{name}"), |code, args| {
                access::load(code, params.address(operand), Element::Raw(16), arg(args, 0)?).map(Some)
            })?;
            linker.define(&format!("slot_{name}_batch"), |code, args| {
                block_of_batch(code, &mut params, rank, operand, arg(args, 0)?).map(Some)
            })?;
        }
        linker.define("slot_out_batch", |code, args| {
            block_of_batch(code, &mut params, rank, out, arg(args, 0)?).map(Some)
        })?;
        linker.define("slot_score", |code, args| {
            let (batch, place, product) = (arg(args, 0)?, [arg(args, 1)?, arg(args, 2)?], arg(args, 3)?);
            let in_batch = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand| {
                in_batch(code, params, rank, operand, batch)
            };
            self.scores.emit(code, &mut params, rank, place, product, &in_batch).map(Some)
        })?;
        linker.define("slot_kept", |code, args| {
            let (batch, place) = (arg(args, 0)?, [arg(args, 1)?, arg(args, 2)?]);
            let in_batch = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand| {
                in_batch(code, params, rank, operand, batch)
            };
            self.scores.emit_kept(code, &mut params, rank, place, &in_batch).map(Some)
        })?;
        linker.define("slot_numbers", |code, args| {
            access::load(code, params.address(numbers), Element::Raw(16), arg(args, 0)?).map(Some)
        })?;
        for (name, operand) in [("store_numbers", numbers), ("store", out)] {
            linker.define(&format!("slot_{name}"), |code, args| {
                access::store_block(code, params.address(operand), arg(args, 0)?, arg(args, 1)?)?;
                Ok(None)
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

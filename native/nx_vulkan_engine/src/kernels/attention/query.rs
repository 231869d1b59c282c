//! Attention kernels for few queries, and those that put together what shares of keys give.

use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::scores::{FACTORS, ScoreSpec};

/// Numbers of a launch before all other parameters.
const QUERY_NUMBERS: u8 = 9;
const MERGE_NUMBERS: u8 = 4;

/// Bytes that are loaded at once.
pub(super) const UNIT_BYTES: u64 = 16;

/// Numbers of a share beside its result: the largest score, and the sum of weights.
pub(super) const PART_NUMBERS: u64 = 2;

/// Attention of up to so many queries that read the same keys, by one workgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueryTile {
    pub count: u32,
}

impl QueryTile {
    /// Rows of queries in each batch, at most.
    pub const MAX_ROWS: u64 = 8;

    /// Elements of a query and of a value, at most.
    pub const MAX_DEPTH: u64 = 256;

    /// The most queries of a workgroup.
    const MOST: u64 = 8;

    /// Scores that a workgroup has room for.
    const SCORES: u64 = 1536;

    /// Invocations of a workgroup.
    pub const LOCAL_SIZE: u32 = 256;

    /// Shared memory of a workgroup, at most.
    pub const SHARED_BYTES: u32 = 4 * (QueryTile::SCORES as u32 + 9 * QueryTile::LOCAL_SIZE);

    /// The smallest for so many queries, which more than one workgroup may share out.
    pub fn of(queries: u64) -> QueryTile {
        let each = queries.div_ceil(queries.div_ceil(QueryTile::MOST).max(1));
        QueryTile { count: each.max(1).next_power_of_two() as u32 }
    }

    /// Keys of a share, at most.
    pub(super) fn most_keys(self) -> u64 {
        QueryTile::SCORES / u64::from(self.count)
    }
}

/// The key under which attention of few queries is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuerySpec {
    /// The type of queries, keys, values and results.
    pub dtype: DType,
    pub tile: QueryTile,
    /// Axes of the space of batches, and of heads that read the same keys. Those of rows and keys come after them.
    pub ranks: [u8; 2],
    /// Whether there are several rows.
    pub has_rows: bool,
    pub scores: ScoreSpec,
    /// Units of a query and of a value.
    pub units: [u32; 2],
    /// Whether units of queries, keys and values are whole and aligned.
    pub by_units: [bool; 3],
    /// Whether there are several shares of keys, the results of which are stored apart.
    pub splits: bool,
    /// Whether parameters may fill `ParamLayout::WIDE_PUSH_WORDS` of push constants.
    pub wide: bool,
}

/// The key under which the kernel that puts shares together is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MergeSpec {
    /// The type of results.
    pub dtype: DType,
    /// As in [`QuerySpec`].
    pub ranks: [u8; 2],
    pub has_rows: bool,
    /// Invocations that have an element each of the same shares: a power of two.
    pub team: u32,
    pub wide: bool,
}

/// Which of the queries of all batches one is.
struct Queries {
    ranks: [u8; 2],
    has_rows: bool,
}

impl Queries {
    fn axis_of_rows(&self) -> u8 {
        self.ranks[0] + self.ranks[1]
    }

    /// Where an operand has a batch.
    fn in_batch(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, operand: u8, batch: Word) -> Result<Word> {
        let coordinates = access::coordinates(code, params, batch, 0, self.ranks[0])?;
        access::position(code, params, operand, 0, &coordinates)
    }

    /// The head and the row of one of the queries of a batch.
    fn head_and_row(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, query: Word) -> Result<[Word; 2]> {
        if !self.has_rows {
            return Ok([query, code.linker.const_u32(0)]);
        }
        let (head, row) = access::divide(code, params, query, self.axis_of_rows())?;
        Ok([head, row])
    }

    /// Where an operand has a batch and a head.
    fn in_head(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        [batch, head]: [Word; 2],
    ) -> Result<Word> {
        let in_batch = self.in_batch(code, params, operand, batch)?;
        let [first, rank] = self.ranks;
        let coordinates = access::coordinates(code, params, head, first, rank)?;
        let in_group = access::position(code, params, operand, first, &coordinates)?;
        Ok(code.u32_op(SpirvOp::IAdd, in_batch, in_group))
    }

    /// Where an operand has one of the queries of a batch.
    fn position(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        [batch, query]: [Word; 2],
    ) -> Result<Word> {
        let [head, row] = self.head_and_row(code, params, query)?;
        let at = self.in_head(code, params, operand, [batch, head])?;
        if !self.has_rows {
            return Ok(at);
        }
        let in_rows = access::position(code, params, operand, self.axis_of_rows(), &[row])?;
        Ok(code.u32_op(SpirvOp::IAdd, at, in_rows))
    }
}

/// A template, and parameters that begin with so many numbers of the launch.
fn start<'l>(
    library: &'l Library,
    name: &str,
    modes: FloatModes,
    table: bool,
    numbers: u8,
) -> Result<(Linker<'l>, ParamLayout)> {
    let header: SmallVec<[Param; 9]> = (0..numbers).map(Param::Extra).collect();
    Ok((Linker::new(library, name, table, modes)?, ParamLayout::new(&header)))
}

/// The exponential and the quotient as ops compute them.
fn define_softmax(linker: &mut Linker<'_>) -> Result<()> {
    let float = |id: Word| Value { id, dtype: DType::F32 };
    linker.define("slot_exp", |code, args| {
        scalar::emit(code, Elementwise::Unary(Unary::Exp), &[float(arg(args, 0)?)], DType::F32).map(Some)
    })?;
    linker.define("slot_quotient", |code, args| {
        let args = [float(arg(args, 0)?), float(arg(args, 1)?)];
        scalar::emit(code, Elementwise::Binary(Binary::Divide), &args, DType::F32).map(Some)
    })
}

fn push_words(wide: bool) -> usize {
    if wide { ParamLayout::WIDE_PUSH_WORDS } else { ParamLayout::PUSH_WORDS }
}

impl QuerySpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table_of(push_words(self.wide), |table| self.module(library, modes, table))
    }

    fn module(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = format!("attention_query_{}x{}", self.tile.count, UNIT_BYTES / self.dtype.size_bytes());
        let (mut linker, mut params) = start(library, &name, modes, table, QUERY_NUMBERS)?;
        access::declare_blocks_read_only(&mut linker);
        let queries = Queries { ranks: self.ranks, has_rows: self.has_rows };
        let (out, element) = (FACTORS + self.scores.reads.len() as u8, Element::Typed(self.dtype));
        for ((operand, name), by_units) in (0..).zip(["q", "k", "v"]).zip(self.by_units) {
            let (slot, loaded) = match by_units {
                true => (format!("slot_{name}"), Element::Raw(UNIT_BYTES as u8)),
                false => (format!("slot_{name}_one"), element),
            };
            linker.define(&slot, |code, args| {
                access::load(code, params.address(operand), loaded, arg(args, 0)?).map(Some)
            })?;
        }
        for (operand, name) in [(0, "q"), (out, "out")].into_iter().filter(|(k, _)| *k == 0 || !self.splits) {
            linker.define(&format!("slot_{name}_begin"), |code, args| {
                queries.position(code, &mut params, operand, [arg(args, 0)?, arg(args, 1)?]).map(Some)
            })?;
        }
        for (operand, name) in [(1, "k"), (2, "v")] {
            linker.define(&format!("slot_{name}_begin"), |code, args| {
                queries.in_batch(code, &mut params, operand, arg(args, 0)?).map(Some)
            })?;
        }
        if self.dtype != DType::F32 {
            linker.define("slot_pair", |code, args| {
                let both = access::parts_of(code, element, 2, &[arg(args, 0)?])?;
                let float = code.linker.type_float(32);
                let pair = code.linker.type_vector(float, 2);
                Ok(Some(code.ids(SpirvOp::CompositeConstruct, pair, &both)))
            })?;
        }
        linker.define("slot_score", |code, args| {
            let (batch, query) = (arg(args, 0)?, arg(args, 1)?);
            let (key, product) = (arg(args, 2)?, arg(args, 3)?);
            let [head, row] = queries.head_and_row(code, &mut params, query)?;
            let in_head = |code: &mut Code<'_, '_>, params: &mut ParamLayout, operand| {
                queries.in_head(code, params, operand, [batch, head]).map(Some)
            };
            let axis = queries.axis_of_rows();
            self.scores.emit(code, &mut params, axis, [row, key], product, &in_head).map(Some)
        })?;
        define_softmax(&mut linker)?;
        let (store, stored) = match self.splits {
            true => ("slot_store_part", Element::Typed(DType::F32)),
            false => ("slot_store", element),
        };
        linker.define(store, |code, args| {
            access::store(code, params.address(out), stored, arg(args, 0)?, arg(args, 1)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

impl MergeSpec {
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table_of(push_words(self.wide), |table| self.module(library, modes, table))
    }

    fn module(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, "attention_merge", modes, table, MERGE_NUMBERS)?;
        let queries = Queries { ranks: self.ranks, has_rows: self.has_rows };
        linker.define("slot_out_begin", |code, args| {
            queries.position(code, &mut params, 1, [arg(args, 0)?, arg(args, 1)?]).map(Some)
        })?;
        linker.define("slot_part", |code, args| {
            access::load(code, params.address(0), Element::Typed(DType::F32), arg(args, 0)?).map(Some)
        })?;
        define_softmax(&mut linker)?;
        linker.define("slot_store", |code, args| {
            access::store(code, params.address(1), Element::Typed(self.dtype), arg(args, 0)?, arg(args, 1)?)?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

//! Matrix product kernels for every type: tiled templates whose loads, products and stores are generated.

use nx_vulkan_ir::program::epilogue::DERIVED_TOGETHER;
use nx_vulkan_ir::program::step::{Prologue, Ref, Step};
use nx_vulkan_ir::{CType, DType, Error, Result};
use nx_vulkan_spirv::access::{self, Element, value_type};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};
use nx_vulkan_spirv::steps::emit_steps;
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::border::BorderSpec;
use super::derived::DerivedSpec;
use super::generate_matrix::{Feed, MatrixTile};
use super::generate_residues::{ResidueTile, SIDE};
use super::generate_vectors::VectorTile;
use super::linear::LinearSpec;
use super::loads::{any_nan, following, grouped_position, groups, load_factor, load_four, neighbours, vector_of};

/// How results lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Store {
    /// Axes of the space in which results and operands of the epilogue have strides; 0 where none is needed.
    pub rank: u8,
    /// Without gaps, in the order in which they are computed.
    pub contiguous: bool,
    /// Whether four neighbouring columns are neighbours in memory and aligned, and differ in the space's last
    /// coordinate alone.
    pub by_four: bool,
    /// Whether kernels of `Planes::is_own` store eight neighbours of their own type, as they are, without gaps.
    pub by_eight: bool,
}

/// How an epilogue reads an operand of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// One element for all results.
    Uniform,
    /// One element for four neighbours.
    Repeated,
    /// Four neighbours at once.
    Neighbours,
    /// An element for each result, wherever it lies.
    Strided,
}

/// Elementwise steps on a result before it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EpilogueSpec {
    pub inputs: SmallVec<[(DType, Access); 2]>,
    /// Input 0 is the product, or inputs 0 and 1 are both, those after it are `inputs`. Positions are not known.
    pub steps: SmallVec<[Step; 1]>,
    pub result: Ref,
}

/// How an operand is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Load {
    /// Whether neighbouring invocations load neighbours along the contracted axis.
    pub along_k: bool,
    /// Whether each loads four neighbours at once.
    pub by_four: bool,
}

/// A tile of results that one workgroup computes, a block of which each invocation does. `slices` teams of invocations
/// share out the contracted elements, each of which takes `depth` of them per step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    pub rows: u32,
    pub columns: u32,
    pub own_rows: u32,
    pub own_columns: u32,
    pub slices: u32,
    pub depth: u32,
}

impl Tile {
    const fn new(tile: [u32; 2], own: [u32; 2], slices: u32, depth: u32) -> Tile {
        Tile { rows: tile[0], columns: tile[1], own_rows: own[0], own_columns: own[1], slices, depth }
    }

    /// Those with a template, by the type of sums.
    pub fn all(sum: CType) -> &'static [Tile] {
        match sum {
            CType::F32 => TILES_F32,
            CType::F64 => TILES_F64,
            _ => &[],
        }
    }

    /// Contracted elements of one step.
    pub fn block(&self) -> u64 {
        u64::from(self.slices * self.depth)
    }

    pub fn invocations(&self) -> u32 {
        self.rows / self.own_rows * (self.columns / self.own_columns) * self.slices
    }

    /// Shared memory of a workgroup.
    pub fn shared_bytes(&self, sum: CType) -> u32 {
        let stages = 2 * self.slices * self.depth * (self.rows + self.columns);
        let sums = if self.slices > 1 { self.slices * self.rows * self.columns } else { 0 };
        stages.max(sums) * sum.dtype().size_bytes() as u32
    }

    fn template(&self, sum: CType, has_steps: bool) -> String {
        let Tile { rows, columns, own_rows, own_columns, slices, depth } = self;
        let kind = if sum == CType::F64 { "_f64" } else { "" };
        let steps = if has_steps { "_steps" } else { "" };
        format!("dot_tiled_{rows}x{columns}_{own_rows}x{own_columns}_{slices}x{depth}{kind}{steps}")
    }
}

const TILES_F32: &[Tile] = &[
    Tile::new([128, 128], [8, 8], 1, 16),
    Tile::new([128, 128], [8, 8], 1, 8),
    Tile::new([64, 256], [8, 8], 1, 8),
    Tile::new([256, 64], [8, 8], 1, 8),
    Tile::new([128, 64], [8, 8], 1, 16),
    Tile::new([64, 128], [8, 8], 1, 16),
    Tile::new([256, 128], [16, 8], 1, 8),
    Tile::new([64, 64], [8, 8], 2, 16),
    Tile::new([64, 64], [4, 4], 1, 16),
    Tile::new([64, 64], [8, 4], 2, 16),
    Tile::new([32, 64], [4, 4], 2, 16),
    Tile::new([64, 32], [4, 4], 2, 16),
    Tile::new([32, 64], [8, 4], 4, 8),
    Tile::new([64, 32], [8, 4], 4, 8),
    Tile::new([32, 32], [4, 4], 4, 16),
    Tile::new([32, 32], [4, 4], 4, 8),
    Tile::new([16, 64], [4, 4], 4, 8),
    Tile::new([64, 16], [4, 4], 4, 8),
    Tile::new([16, 32], [4, 4], 8, 8),
    Tile::new([32, 16], [4, 4], 8, 8),
    Tile::new([16, 16], [4, 4], 16, 4),
    Tile::new([64, 64], [8, 4], 1, 16),
    Tile::new([64, 64], [8, 8], 1, 16),
    Tile::new([32, 64], [8, 4], 2, 16),
    Tile::new([64, 32], [8, 4], 2, 16),
    Tile::new([32, 64], [8, 4], 1, 16),
    Tile::new([64, 32], [8, 4], 1, 16),
    Tile::new([32, 64], [4, 4], 1, 16),
    Tile::new([64, 32], [4, 4], 1, 16),
];

const TILES_F64: &[Tile] = &[
    Tile::new([128, 128], [8, 8], 1, 8),
    Tile::new([128, 64], [8, 4], 1, 8),
    Tile::new([64, 64], [4, 4], 1, 16),
    Tile::new([64, 64], [4, 4], 1, 8),
    Tile::new([64, 64], [8, 4], 1, 8),
    Tile::new([32, 32], [4, 4], 4, 8),
];

/// A tile of results that the lanes of one subgroup hold in registers, `LANES` columns in each vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneTile {
    pub rows: u32,
    pub vectors: u32,
}

/// Invocations of a workgroup of [`LaneTile`], all of one subgroup.
pub const LANES: u32 = 8;

impl LaneTile {
    const fn new(rows: u32, vectors: u32) -> LaneTile {
        LaneTile { rows, vectors }
    }

    /// Those with a template, by the type of sums, the largest first.
    pub fn all(sum: CType) -> &'static [LaneTile] {
        const ALL: [LaneTile; 4] =
            [LaneTile::new(32, 4), LaneTile::new(16, 2), LaneTile::new(8, 2), LaneTile::new(8, 1)];
        match sum {
            CType::F32 => &ALL,
            CType::F64 => &ALL[1..],
            _ => &ALL[2..],
        }
    }

    pub fn columns(&self) -> u32 {
        self.vectors * LANES
    }

    /// Whether it can take operands by pairs of neighbours.
    pub fn takes_pairs(&self, sum: CType) -> bool {
        sum == CType::F32 && self.vectors > 1
    }

    fn template(&self, sum: CType, words: u32, paired: bool) -> String {
        let LaneTile { rows, vectors } = self;
        match sum {
            _ if paired => format!("dot_lanes_{rows}x{vectors}_{}_paired", sum.name()),
            CType::F32 | CType::F64 => format!("dot_lanes_{rows}x{vectors}_{}", sum.name()),
            _ => format!("dot_lanes_{rows}x{vectors}_{words}"),
        }
    }
}

/// How results are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tiling {
    /// Square tiles of any type.
    Square,
    /// An invocation per result, where results are too narrow to fill tiles.
    Narrow,
    /// Tiles of f32 or f64 sums.
    Tiled(Tile),
    /// Tiles of any type for the lanes of CPU devices.
    Lanes(LaneTile),
    /// A matrix by few vectors, of f32 sums.
    Vectors(VectorTile),
    /// Tiles of f32 sums on matrix units, of operands that `SplitSpec` wrote, or that lie as it would write them.
    Matrix(MatrixTile),
    /// Sums of f64 from residues of whole numbers, which matrix units multiply.
    Residues(ResidueTile),
}

/// The key under which a product kernel is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DotSpec {
    pub a: DType,
    pub b: DType,
    /// The type of the product itself, to which sums are rounded.
    pub product: DType,
    /// The type that is stored.
    pub out: DType,
    /// The type in which products are summed: that of `product`, or a wider one.
    pub sum: CType,
    /// Axes that make up the batches, rows and contracted elements of `a`, and the batches, contracted elements and
    /// columns of `b`. Zeros where matrix units find an operand by steps.
    pub a_ranks: [u8; 3],
    pub b_ranks: [u8; 3],
    pub a_load: Load,
    pub b_load: Load,
    /// Steps on the elements of either operand before they are multiplied, which tiles take in f32 alone; none on
    /// matrix units.
    pub prologues: [Option<Prologue>; 2],
    /// How the elements of the matrix are computed that vectors multiply, where it lies nowhere.
    pub derived: Option<Box<DerivedSpec>>,
    /// Of `Feed::Linear`: what its elements are made of.
    pub linear: Option<Box<LinearSpec>>,
    pub store: Store,
    pub tiling: Tiling,
    /// On matrix units: whether nothing is done where they can't take the operands. Else: whether that is the only case
    /// in which something is done.
    pub guarded: bool,
    /// On matrix units: whether low parts of `b` come before those of `a`.
    pub low_b_first: bool,
    /// On matrix units: whether contracted elements end within a step. By vectors: within eight of them.
    pub ends_early: bool,
    /// On matrix units: the operand that is windows of an image with zeros around it, found by its axes.
    pub border: Option<BorderSpec>,
    /// By vectors: whether an invocation may take eight neighbours of a matrix.
    pub by_eights: bool,
    /// Whether parameters may fill `ParamLayout::WIDE_PUSH_WORDS` of push constants.
    pub wide: bool,
    pub epilogue: Option<EpilogueSpec>,
}

/// The operands that are multiplied.
pub(super) const FACTORS: u8 = 2;

impl DotSpec {
    fn words(&self) -> u32 {
        self.sum.dtype().size_bytes() as u32 / 4
    }

    /// On matrix units: which operands are found by their axes.
    pub(super) fn by_axes(&self) -> [bool; 2] {
        [self.a_ranks, self.b_ranks].map(|ranks| ranks != [0; 3])
    }

    /// Rows and columns of results that one workgroup computes.
    pub fn tile(&self) -> (u64, u64) {
        match (self.tiling, self.words()) {
            (Tiling::Tiled(tile), _) => (tile.rows.into(), tile.columns.into()),
            (Tiling::Lanes(tile), _) => (tile.rows.into(), tile.columns().into()),
            (Tiling::Vectors(tile), _) => tile.results(),
            (Tiling::Matrix(tile), _) => (tile.rows.into(), tile.columns.into()),
            (Tiling::Residues(_), _) => (SIDE, SIDE),
            (Tiling::Narrow, _) => (1, 64),
            (Tiling::Square, 1) => (64, 64),
            (Tiling::Square, 2) => (32, 32),
            (Tiling::Square, _) => (16, 16),
        }
    }

    /// Workgroups for so many batches of rows and columns.
    pub fn tiles(&self, batches: u64, rows: u64, columns: u64) -> u64 {
        let (m, n) = self.tile();
        match self.tiling {
            Tiling::Narrow => (batches * rows * columns).div_ceil(n),
            Tiling::Square
            | Tiling::Tiled(_)
            | Tiling::Lanes(_)
            | Tiling::Vectors(_)
            | Tiling::Matrix(_)
            | Tiling::Residues(_) => batches * rows.div_ceil(m) * columns.div_ceil(n),
        }
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let push_words = if self.wide { ParamLayout::WIDE_PUSH_WORDS } else { ParamLayout::PUSH_WORDS };
        Generated::push_or_table_of(push_words, |table| match self.tiling {
            Tiling::Square => self.generate_scalar(library, &format!("dot_{}", self.words()), modes, table),
            Tiling::Narrow => self.generate_narrow(library, modes, table),
            Tiling::Tiled(tile) => {
                let has_steps = self.prologues.iter().any(Option::is_some);
                self.generate_tiled(library, &tile.template(self.sum, has_steps), modes, table)
            }
            Tiling::Lanes(tile) => {
                let name = tile.template(self.sum, self.words(), self.a_load.by_four);
                self.generate_lanes(library, &name, modes, table)
            }
            Tiling::Vectors(tile) => self.generate_vectors(library, tile, modes, table),
            Tiling::Matrix(tile) if matches!(tile.feed, Feed::Linear { .. }) => {
                self.generate_linear(library, tile, modes, table)
            }
            Tiling::Matrix(tile) => self.generate_matrix(library, tile, modes, table),
            Tiling::Residues(tile) => self.generate_restored(library, tile, modes, table),
        })
    }

    /// Whether an invocation takes eight neighbours of a matrix by few vectors: 16 bytes of one of them or the other at
    /// once.
    pub(super) fn takes_eights(&self) -> bool {
        let Tiling::Vectors(_) = self.tiling else { return false };
        let type_of = |k: usize, own: DType| self.prologues[k].as_ref().and_then(Prologue::dtype).unwrap_or(own);
        let is_narrow = |dtype: DType| dtype.size_bytes() <= DType::F16.size_bytes();
        self.by_eights && (is_narrow(type_of(0, self.a)) || is_narrow(type_of(1, self.b)))
    }

    /// The most neighbours of a matrix of so many contracted elements that an invocation computes at once.
    pub(super) fn most_together(&self, depth: u64) -> u64 {
        match self.tiling {
            Tiling::Vectors(tile) if self.takes_eights() => tile.most_together(depth),
            _ => DERIVED_TOGETHER,
        }
    }

    /// The factor that is computed, if one is.
    pub(super) fn derived_place(&self) -> Option<usize> {
        let vectors_first = match self.tiling {
            Tiling::Vectors(tile) => tile.first,
            Tiling::Matrix(tile) => tile.is_vectors_first(),
            Tiling::Square | Tiling::Narrow | Tiling::Tiled(_) | Tiling::Lanes(_) | Tiling::Residues(_) => return None,
        };
        self.derived.as_ref().map(|_| usize::from(vectors_first))
    }

    /// Operands before those of the epilogue: both factors, another matrix beside one, what a matrix is computed from,
    /// what tells whether matrix units can take them, and on those the scales; of residues these, the exponents of both
    /// operands, and what tells.
    pub fn first_input(&self) -> u8 {
        match (self.tiling, self.guarded) {
            (Tiling::Vectors(VectorTile { pair: true, .. }), _) => 3,
            (_, false) => FACTORS + self.derived.as_ref().map_or(0, |derived| derived.inputs.len() as u8),
            (Tiling::Matrix(tile), true) if !tile.planes.is_in_order() => 6,
            (_, true) => 4,
        }
    }

    /// Position of operand `k` at indices into some of its groups of axes, of which `first` is the first.
    fn position(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        k: u8,
        first: usize,
        args: &[Word],
    ) -> Result<Word> {
        match k {
            0 => grouped_position(code, params, (k, 0), &self.a_ranks, first, args),
            _ => grouped_position(code, params, (k, self.a_ranks.iter().sum()), &self.b_ranks, first, args),
        }
    }

    fn generate_scalar(&self, library: &Library, name: &str, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, name, modes, table, 6)?;
        for (slot, operand, dtype) in [("slot_a", 0, self.a), ("slot_b", 1, self.b)] {
            linker.define(slot, |code, args| {
                let at = self.position(code, &mut params, operand, 0, args)?;
                let id = self.loaded(code, &mut params, operand, dtype, at)?;
                Ok(Some(self.to_words(code, id)))
            })?;
        }
        self.define_sums(&mut linker)?;
        self.define_store_of_words(&mut linker, &mut params)?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    fn generate_narrow(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, &format!("dot_narrow_{}", self.words()), modes, table, 6)?;
        for (name, operand, dtype) in [("a", 0, self.a), ("b", 1, self.b)] {
            // Elements that are wider than sums are converted as they are loaded.
            let fits = dtype.ctype().dtype().size_bytes() <= self.sum.dtype().size_bytes();
            linker.define(&format!("slot_{name}"), |code, args| {
                let at = self.position(code, &mut params, operand, 0, args)?;
                if !fits {
                    let id = self.loaded(code, &mut params, operand, dtype, at)?;
                    return Ok(Some(self.to_words(code, id)));
                }
                let id = load_factor(code, params.address(operand), dtype, at)?;
                Ok(Some(access::padded_words(code, dtype.ctype(), id, self.words())))
            })?;
            linker.define(&format!("slot_{name}_factor"), |code, args| {
                let words = arg(args, 0)?;
                if !fits {
                    return Ok(Some(words));
                }
                let element = Value { id: access::value_of_padded(code, dtype.ctype(), words, self.words()), dtype };
                let id = match self.prologues.get(usize::from(operand)).and_then(Option::as_ref) {
                    Some(prologue) => self.factor(code, prologue, element)?,
                    None => scalar::cast(code, element, self.sum.dtype())?,
                };
                Ok(Some(self.to_words(code, id)))
            })?;
        }
        self.define_sums(&mut linker)?;
        self.define_store_of_words(&mut linker, &mut params)?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// Arithmetic on words, as far as the template has it.
    fn define_sums(&self, linker: &mut Linker<'_>) -> Result<()> {
        for (slot, name) in [("slot_multiply_add", "multiply_add"), ("slot_add", "add")] {
            if !linker.has_slot(slot) {
                continue;
            }
            linker.define(slot, |code, args| {
                let ty = value_type(code, self.sum);
                let mut operands: SmallVec<[Word; 3]> = SmallVec::from_slice(args);
                if self.sum != CType::U32 {
                    operands.iter_mut().for_each(|words| *words = code.ids(SpirvOp::Bitcast, ty, &[*words]));
                }
                let id = code.call(&format!("nx_{name}_{}", self.sum.name()), &operands)?;
                Ok(Some(self.to_words(code, id)))
            })?;
        }
        Ok(())
    }

    fn define_store_of_words(&self, linker: &mut Linker<'_>, params: &mut ParamLayout) -> Result<()> {
        linker.define("slot_store", |code, args| {
            let (at, words) = (arg(args, 0)?, arg(args, 1)?);
            let ty = value_type(code, self.sum);
            let id = if self.sum == CType::U32 { words } else { code.bitcast(ty, words) };
            self.finish(code, params, at, &[&[id]])?;
            Ok(None)
        })
    }

    fn generate_tiled(&self, library: &Library, name: &str, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, name, modes, table, 6)?;

        for (name, operand, load, dtype) in [("a", 0, self.a_load, self.a), ("b", 1, self.b_load, self.b)] {
            self.define_positions(&mut linker, &mut params, name, operand)?;
            if load.by_four {
                linker.define(&format!("slot_{name}_four"), |code, args| {
                    load_four(code, &mut params, operand, dtype, self.sum, arg(args, 0)?).map(Some)
                })?;
            } else {
                linker.define(&format!("slot_{name}"), |code, args| {
                    self.load(code, &mut params, operand, dtype, arg(args, 0)?).map(Some)
                })?;
            }
            let Some(prologue) = self.prologues.get(usize::from(operand)).and_then(Option::as_ref) else { continue };
            if dtype.ctype() != CType::F32 || self.sum != CType::F32 {
                let reason = format!("steps on {dtype} for sums of {}", self.sum.name());
                return Err(Error::InvalidProgram { op: "dot".to_string(), reason });
            }
            linker.define(&format!("slot_{name}_steps"), |code, args| {
                let (part, fetched) = (value_type(code, self.sum), arg(args, 0)?);
                let mut lanes: SmallVec<[Word; 4]> = SmallVec::new();
                for lane in 0..4 {
                    let id = code.extract(part, fetched, lane);
                    lanes.push(self.factor(code, prologue, Value { id, dtype })?);
                }
                Ok(Some(vector_of(code, self.sum, &lanes)))
            })?;
        }
        self.define_guard(&mut linker, &mut params)?;
        self.define_stores(&mut linker, &mut params)?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    fn generate_lanes(&self, library: &Library, name: &str, modes: FloatModes, table: bool) -> Result<Generated> {
        let (mut linker, mut params) = start(library, name, modes, table, 6)?;
        linker.pairs = self.a_load.by_four;
        let in_words = !matches!(self.sum, CType::F32 | CType::F64);
        for (name, operand, dtype) in [("a", 0, self.a), ("b", 1, self.b)] {
            self.define_positions(&mut linker, &mut params, name, operand)?;
            if self.a_load.by_four {
                linker.define(&format!("slot_{name}_pair"), |code, args| {
                    self.loaded_near(code, &mut params, operand, dtype, arg(args, 0)?, 2).map(Some)
                })?;
                continue;
            }
            linker.define(&format!("slot_{name}"), |code, args| {
                let id = self.loaded(code, &mut params, operand, dtype, arg(args, 0)?)?;
                Ok(Some(if in_words { self.to_words(code, id) } else { id }))
            })?;
        }
        if in_words {
            self.define_sums(&mut linker)?;
            self.define_store_of_words(&mut linker, &mut params)?;
        } else {
            self.define_stores_of_lanes(&mut linker, &mut params)?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// Positions of a batch with a row or column, and of a contracted element, which add up to that of an element.
    pub(super) fn define_positions(
        &self,
        linker: &mut Linker<'_>,
        params: &mut ParamLayout,
        name: &str,
        operand: u8,
    ) -> Result<()> {
        linker.define(&format!("slot_{name}_free"), |code, args| {
            if operand == 0 {
                return self.position(code, params, operand, 0, args).map(Some);
            }
            let batch = self.position(code, params, operand, 0, &[arg(args, 0)?])?;
            let free = self.position(code, params, operand, 2, &[arg(args, 1)?])?;
            Ok(Some(code.u32_op(SpirvOp::IAdd, batch, free)))
        })?;
        linker.define(&format!("slot_{name}_depth"), |code, args| {
            let first = if operand == 0 { 2 } else { 1 };
            let at = match args {
                [k, behind] => code.u32_op(SpirvOp::IAdd, *k, *behind),
                _ => arg(args, 0)?,
            };
            self.position(code, params, operand, first, &[at]).map(Some)
        })
    }

    /// Slots of single results and, where they are aligned for it, of two neighbours.
    fn define_stores_of_lanes(&self, linker: &mut Linker<'_>, params: &mut ParamLayout) -> Result<()> {
        linker.define("slot_store", |code, args| {
            self.finish(code, params, arg(args, 0)?, &[&[arg(args, 1)?]])?;
            Ok(None)
        })?;
        if !self.store.by_four {
            return Ok(());
        }
        linker.define("slot_store_pair", |code, args| {
            let (at, pair) = (arg(args, 0)?, arg(args, 1)?);
            let part = value_type(code, self.sum);
            let lanes = [0, 1].map(|lane| code.extract(part, pair, lane));
            self.finish(code, params, at, &lanes.each_ref().map(std::slice::from_ref))?;
            Ok(None)
        })
    }

    pub(super) fn define_stores(&self, linker: &mut Linker<'_>, params: &mut ParamLayout) -> Result<()> {
        if !self.store.by_four {
            return linker.define("slot_store", |code, args| {
                self.finish(code, params, arg(args, 0)?, &[&[arg(args, 1)?]])?;
                Ok(None)
            });
        }
        linker.define("slot_store_four", |code, args| {
            let (group, vector) = (arg(args, 0)?, arg(args, 1)?);
            let part = value_type(code, self.sum);
            let lanes = [0, 1, 2, 3].map(|lane| code.extract(part, vector, lane));
            let two = code.linker.const_u32(2);
            let at = code.u32_op(SpirvOp::ShiftLeftLogical, group, two);
            self.finish(code, params, at, &lanes.each_ref().map(std::slice::from_ref))?;
            Ok(None)
        })
    }

    /// An element as a value of the sum's type.
    fn load(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        dtype: DType,
        at: Word,
    ) -> Result<Word> {
        let address = params.address(operand);
        let id = load_factor(code, address, dtype, at)?;
        scalar::cast(code, Value { id, dtype }, self.sum.dtype())
    }

    /// An element as it is multiplied: after its steps, as a value of the sum's type.
    pub(super) fn loaded(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        dtype: DType,
        at: Word,
    ) -> Result<Word> {
        let Some(prologue) = self.prologues.get(usize::from(operand)).and_then(Option::as_ref) else {
            return self.load(code, params, operand, dtype, at);
        };
        let id = load_factor(code, params.address(operand), dtype, at)?;
        self.factor(code, prologue, Value { id, dtype })
    }

    /// Two or four neighbours from a place on that is aligned for them, as they are multiplied.
    pub(super) fn loaded_near(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        dtype: DType,
        at: Word,
        count: u32,
    ) -> Result<Word> {
        let mut lanes = any_nan(code, |code| neighbours(code, params, operand, dtype, at, count))?;
        for id in &mut lanes {
            let element = Value { id: *id, dtype };
            *id = match self.prologues.get(usize::from(operand)).and_then(Option::as_ref) {
                Some(prologue) => self.factor(code, prologue, element)?,
                None => scalar::cast(code, element, self.sum.dtype())?,
            };
        }
        Ok(vector_of(code, self.sum, &lanes))
    }

    /// An element after its steps, of the sum's type.
    fn factor(&self, code: &mut Code<'_, '_>, prologue: &Prologue, element: Value) -> Result<Word> {
        let value = emit_steps(code, &prologue.steps, prologue.result, &[element])?;
        scalar::cast(code, value, self.sum.dtype())
    }

    /// Rounds the sums of result `at` and its neighbours, one, two or four in all, takes them through the epilogue and
    /// stores them. Each has the sums of as many products as the kernel computes.
    pub(super) fn finish(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        at: Word,
        sums: &[&[Word]],
    ) -> Result<()> {
        let dtype = self.product;
        let mut lanes: SmallVec<[SmallVec<[Value; 4]>; 4]> = SmallVec::new();
        for sums in sums {
            let mut lane = SmallVec::new();
            for &id in *sums {
                let id = scalar::cast(code, Value { id, dtype: self.sum.dtype() }, dtype)?;
                lane.push(Value { id, dtype });
            }
            lanes.push(lane);
        }
        let axis = self.a_ranks.iter().chain(&self.b_ranks).sum();
        let coordinates = access::coordinates(code, params, at, axis, self.store.rank)?;
        let (inputs, steps, result) = match &self.epilogue {
            Some(epilogue) => (&epilogue.inputs[..], &epilogue.steps[..], epilogue.result),
            None => (&[][..], &[][..], Ref::Input(0)),
        };
        for (operand, &(dtype, how)) in (self.first_input()..).zip(inputs) {
            let ids = self.neighbours(code, params, operand, (dtype, how), &coordinates, lanes.len())?;
            lanes.iter_mut().zip(ids).for_each(|(lane, id)| lane.push(Value { id, dtype }));
        }
        let at = match self.store.contiguous {
            true => at,
            false => access::position(code, params, self.first_input() + inputs.len() as u8, axis, &coordinates)?,
        };
        let address = params.address(self.first_input() + inputs.len() as u8);
        let compute = |code: &mut Code<'_, '_>| -> Result<SmallVec<[Word; 4]>> {
            lanes.iter().map(|lane| Ok(emit_steps(code, steps, result, lane)?.id)).collect()
        };
        let (results, rare) = code.hot(compute)?;
        self.put(code, address, at, &results)?;
        let Some(rare) = rare else { return Ok(()) };
        let ty = code.linker.type_bool();
        let fine = code.ids(SpirvOp::LogicalNot, ty, &[rare]);
        code.unless(fine, |code| {
            let results = compute(code)?;
            self.put(code, address, at, &results)
        })
    }

    /// Stores neighbours from position `at` on.
    fn put(&self, code: &mut Code<'_, '_>, address: u32, at: Word, results: &[Word]) -> Result<()> {
        let element = Element::Typed(self.out);
        if let [id] = *results {
            return access::store(code, address, element, at, id);
        }
        let width = element.max_width().min(results.len() as u32);
        let first = groups(code, at, width);
        for (k, lanes) in (0..).zip(results.chunks(width as usize)) {
            let group = following(code, first, k);
            match *lanes {
                [id] => access::store(code, address, element, group, id)?,
                _ => access::store_vector(code, address, element, group, lanes)?,
            }
        }
        Ok(())
    }

    /// What an operand of the epilogue has at a place of the results' space and at the neighbours to its right.
    fn neighbours(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        operand: u8,
        (dtype, how): (DType, Access),
        coordinates: &[Word],
        count: usize,
    ) -> Result<SmallVec<[Word; 4]>> {
        let (axis, element) = (self.a_ranks.iter().chain(&self.b_ranks).sum::<u8>(), Element::Typed(dtype));
        let address = params.address(operand);
        if how == Access::Uniform {
            let zero = code.linker.const_u32(0);
            return Ok(SmallVec::from_elem(access::load(code, address, element, zero)?, count));
        }
        let at = access::position(code, params, operand, axis, coordinates)?;
        match how {
            Access::Neighbours if count > 1 => return neighbours(code, params, operand, dtype, at, count as u32),
            Access::Repeated => return Ok(SmallVec::from_elem(access::load(code, address, element, at)?, count)),
            Access::Neighbours | Access::Uniform | Access::Strided => {}
        }
        let mut at = access::biased(code, params, operand, at)?;
        let mut ids = SmallVec::new();
        for lane in 0..count {
            if lane > 0 {
                let step = code.param(params.word(Param::Stride(operand, axis + self.store.rank - 1)))?;
                at = code.u32_op(SpirvOp::IAdd, at, step);
            }
            ids.push(access::load(code, address, element, at)?);
        }
        Ok(ids)
    }

    fn to_words(&self, code: &mut Code<'_, '_>, id: Word) -> Word {
        if self.sum == CType::U32 {
            return id;
        }
        let uint = code.linker.type_uint(32);
        let ty = match self.words() {
            1 => uint,
            words => code.linker.type_vector(uint, words),
        };
        code.bitcast(ty, id)
    }
}

/// A template, and parameters that begin with so many numbers of the launch.
pub(super) fn start<'l>(
    library: &'l Library,
    name: &str,
    modes: FloatModes,
    table: bool,
    numbers: u8,
) -> Result<(Linker<'l>, ParamLayout)> {
    let header: SmallVec<[Param; 10]> = (0..numbers).map(Param::Extra).collect();
    Ok((Linker::new(library, name, table, modes)?, ParamLayout::new(&header)))
}

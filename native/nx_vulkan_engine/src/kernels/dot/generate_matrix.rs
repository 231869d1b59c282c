//! Products on matrix units, and their operands: f32 numbers as three of bf16 or pairs of f16, f16 as they are.

use nx_vulkan_ir::{CType, DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};
use nx_vulkan_spirv::scalar::{self, Value};
use rspirv::spirv::{Op as SpirvOp, Word};

use super::border::BorderSpec;
use super::generate::{DotSpec, Load, start};
use super::loads::{grouped_position, load_four};

/// The numbers that make up an element of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Planes {
    /// The operand's own, of f16, as invocations of NVIDIA's units hold them.
    OwnF16,
    /// The operand's own, of bf16, as invocations of NVIDIA's units hold them.
    OwnBf16,
    /// Three of bf16 for f32 in planes of their own, held likewise, where they lie as the operand's elements do.
    OwnThreeBf16,
    /// One of f16, for f16 and what f16 holds.
    OneF16,
    /// Two of f16 for f32, which hold 22 bits.
    TwoF16,
    /// Three of bf16 for f32, which hold all 24 bits.
    ThreeBf16,
}

impl Planes {
    #[cfg(feature = "testing")]
    pub const ALL: [Planes; 6] =
        [Planes::OwnF16, Planes::OwnBf16, Planes::OwnThreeBf16, Planes::OneF16, Planes::TwoF16, Planes::ThreeBf16];

    pub fn count(self) -> u32 {
        match self {
            Planes::OwnF16 | Planes::OwnBf16 | Planes::OneF16 => 1,
            Planes::TwoF16 => 2,
            Planes::ThreeBf16 | Planes::OwnThreeBf16 => 3,
        }
    }

    /// Whether the product finds them as dot_own.comp does: in place, where they lie so.
    pub fn is_own(self) -> bool {
        self == Planes::OwnThreeBf16 || self.own_type().is_some()
    }

    /// The type of operands whose own numbers they are.
    pub fn own_type(self) -> Option<DType> {
        match self {
            Planes::OwnF16 => Some(DType::F16),
            Planes::OwnBf16 => Some(DType::Bf16),
            Planes::OneF16 | Planes::TwoF16 | Planes::ThreeBf16 | Planes::OwnThreeBf16 => None,
        }
    }

    /// Whether they are bf16, not f16.
    pub fn is_bf16(self) -> bool {
        match self {
            Planes::OwnF16 | Planes::OneF16 | Planes::TwoF16 => false,
            Planes::OwnBf16 | Planes::ThreeBf16 | Planes::OwnThreeBf16 => true,
        }
    }

    /// Whether they lie in the order in which the invocations of a subgroup hold 16 x 16 elements, and not by rows.
    pub fn is_in_order(self) -> bool {
        match self {
            Planes::OneF16 | Planes::TwoF16 => false,
            Planes::OwnF16 | Planes::OwnBf16 | Planes::ThreeBf16 | Planes::OwnThreeBf16 => true,
        }
    }

    /// Rows that lie together.
    pub fn rows_together(self) -> u64 {
        if self.is_in_order() { 16 } else { 1 }
    }

    /// Contracted elements of one step of a product, to which operands are padded.
    pub fn block(self) -> u64 {
        match self {
            Planes::OwnF16 | Planes::OwnBf16 | Planes::OneF16 => 64,
            Planes::TwoF16 | Planes::OwnThreeBf16 => 32,
            Planes::ThreeBf16 => 16,
        }
    }
}

/// How the workgroups of a tile get at operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feed {
    /// As they lie, or in the order of their planes.
    Planes,
    /// Both written first, so that what an invocation holds of a matrix is one load.
    Fragments,
    /// Few vectors on the side that has fewer than 64: subgroups share out the contracted elements.
    Few,
    /// A matrix that lies nowhere, of scaled numbers, by few vectors, which are the `first` operand or the second: so
    /// many subgroups share out the contracted elements.
    Linear { teams: u32, first: bool },
}

/// A tile of results that one workgroup computes on matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixTile {
    pub rows: u32,
    pub columns: u32,
    pub planes: Planes,
    pub feed: Feed,
}

/// Rows of a matrix that a tile of few vectors takes, and subgroups among which it shares out what is contracted.
const ROWS_BY_FEW: u32 = 64;
const TEAMS_BY_FEW: u32 = 8;

/// Rows of a matrix of scaled numbers that a tile takes, and contracted elements that a subgroup takes at once.
pub(super) const ROWS_OF_LINEAR: u32 = 16;
pub(super) const STEP_OF_LINEAR: u64 = 128;

impl MatrixTile {
    /// Those with a template for products of matrices, the largest first.
    pub fn all(planes: Planes) -> impl Iterator<Item = MatrixTile> + Clone {
        let sides: &[(u32, u32)] = match planes {
            Planes::OwnF16 | Planes::OwnBf16 => &[(64, 128), (64, 64)],
            Planes::OneF16 | Planes::TwoF16 => &[(128, 128), (64, 64)],
            Planes::ThreeBf16 | Planes::OwnThreeBf16 => &[(64, 64)],
        };
        let by_fragments = [(128, 128), (128, 64)].into_iter().filter(move |_| planes.own_type().is_some());
        let tile = move |feed| move |(rows, columns)| MatrixTile { rows, columns, planes, feed };
        by_fragments.map(tile(Feed::Fragments)).chain(sides.iter().copied().map(tile(Feed::Planes)))
    }

    /// The one with a template for a matrix by `vectors`, which are the `first` operand or the second; none by more than
    /// one tile takes.
    pub fn of_few(planes: Planes, vectors: u64, first: bool) -> Option<MatrixTile> {
        let side = match vectors {
            ..=8 => Some(8),
            9..=16 => Some(16),
            _ => None,
        };
        let side = side.filter(|_| planes.own_type().is_some())?;
        let (rows, columns) = if first { (side, ROWS_BY_FEW) } else { (ROWS_BY_FEW, side) };
        Some(MatrixTile { rows, columns, planes, feed: Feed::Few })
    }

    /// Those with a template for a matrix of scaled numbers by few `vectors`, the one with fewer teams first.
    pub fn of_linear(planes: Planes, vectors: u64, first: bool) -> impl Iterator<Item = MatrixTile> {
        let of_few = MatrixTile::of_few(planes, vectors, first);
        [8, 16].into_iter().filter_map(move |teams| {
            let side = of_few?.vectors();
            let (rows, columns) = if first { (side, ROWS_OF_LINEAR) } else { (ROWS_OF_LINEAR, side) };
            Some(MatrixTile { rows, columns, planes, feed: Feed::Linear { teams, first } })
        })
    }

    /// Whether it multiplies a matrix, the second operand, by few vectors.
    pub fn is_vectors_first(&self) -> bool {
        match self.feed {
            Feed::Few => self.rows < self.columns,
            Feed::Linear { first, .. } => first,
            Feed::Planes | Feed::Fragments => false,
        }
    }

    /// Vectors that a tile of few of them has room for.
    pub(super) fn vectors(&self) -> u32 {
        self.rows.min(self.columns)
    }

    /// Whether it is the largest one of its kind.
    pub fn is_large(&self) -> bool {
        self.columns == 128
    }

    /// Contracted elements of one step.
    pub fn block(&self) -> u64 {
        self.planes.block()
    }

    pub fn invocations(&self) -> u32 {
        match self.feed {
            Feed::Few => 32 * TEAMS_BY_FEW,
            Feed::Linear { teams, .. } => 32 * teams,
            Feed::Planes if self.rows == 128 => 256,
            Feed::Planes | Feed::Fragments => 128,
        }
    }

    /// Whether kernels fetch a step while they multiply the one before.
    pub fn fetches_ahead(&self) -> bool {
        match self.feed {
            Feed::Fragments => true,
            Feed::Few | Feed::Linear { .. } => false,
            Feed::Planes => !(self.planes.is_own() && (self.is_large() || self.planes.count() > 1)),
        }
    }

    /// Shared memory of a workgroup: a step of both operands, or 16 rows of each subgroup's results, whichever is more;
    /// of few vectors 32 rows of 16 sums of each subgroup, and four between rows.
    pub fn shared_bytes(&self) -> u32 {
        match self.feed {
            Feed::Few => TEAMS_BY_FEW * 32 * 20 * 4,
            Feed::Linear { teams, .. } => teams * 16 * 16 * 4,
            Feed::Fragments => self.invocations() / 32 * 16 * 9 * 16,
            Feed::Planes => (self.rows + self.columns) * 9 * 16,
        }
    }

    pub(super) fn template(&self, bordered: bool) -> String {
        let MatrixTile { rows, columns, planes, feed } = self;
        match (feed, planes.is_own(), planes.count()) {
            (Feed::Few, ..) => "dot_few".to_string(),
            (Feed::Linear { teams, .. }, ..) => format!("dot_linear_{teams}"),
            (Feed::Fragments, ..) => format!("dot_fragments_{rows}x{columns}"),
            (Feed::Planes, true, 1) if bordered => format!("dot_own_{rows}x{columns}_bordered"),
            (Feed::Planes, true, 1) => format!("dot_own_{rows}x{columns}"),
            (Feed::Planes, true, count) => format!("dot_own_{rows}x{columns}_{count}"),
            (Feed::Planes, false, count) => format!("dot_matrix_{rows}x{columns}_{count}"),
        }
    }
}

impl DotSpec {
    pub(super) fn generate_matrix(
        &self,
        library: &Library,
        tile: MatrixTile,
        modes: FloatModes,
        table: bool,
    ) -> Result<Generated> {
        let name = &tile.template(self.border.is_some());
        let numbers = match (tile.feed, tile.planes.is_own(), tile.planes.count()) {
            (Feed::Few | Feed::Linear { .. }, ..) => 6,
            (Feed::Fragments, ..) | (Feed::Planes, false, _) => 10,
            (Feed::Planes, true, 1) => 20 + self.border.as_ref().map_or(0, BorderSpec::numbers),
            (Feed::Planes, true, _) => 22,
        };
        let (mut linker, mut params) = start(library, name, modes, table, numbers)?;
        linker.bfloat16 = tile.planes.is_bf16();
        if tile.planes.is_in_order() {
            access::declare_blocks_read_only(&mut linker);
        }
        let names = match (tile.feed, tile.is_vectors_first()) {
            (Feed::Planes | Feed::Fragments, _) => ["a", "b"],
            (Feed::Few | Feed::Linear { .. }, false) => ["matrix", "vectors"],
            (Feed::Few | Feed::Linear { .. }, true) => ["vectors", "matrix"],
        };
        for (name, operand) in names.into_iter().zip(0..) {
            linker.define(&format!("slot_{name}_block"), |code, args| {
                let address = params.address(operand);
                access::load(code, address, Element::Raw(16), arg(args, 0)?).map(Some)
            })?;
        }
        for ((name, operand), by_axes) in names.into_iter().zip(0..).zip(self.by_axes()) {
            if by_axes || tile.feed == Feed::Few {
                self.define_positions(&mut linker, &mut params, name, operand)?;
            }
        }
        if let Some(border) = &self.border {
            border.define([self.a_ranks, self.b_ranks], &mut linker, &mut params)?;
        }
        if tile.planes.own_type().is_none() {
            self.define_guard(&mut linker, &mut params)?;
        }
        if self.guarded && !tile.planes.is_in_order() {
            for (slot, operand) in [("slot_a_scale", 4), ("slot_b_scale", 5)] {
                linker.define(slot, |code, args| {
                    let address = params.address(operand);
                    access::load(code, address, Element::Typed(DType::F32), arg(args, 0)?).map(Some)
                })?;
            }
        }
        if self.store.by_eight {
            let out = self.first_input();
            linker.define("slot_store_eight", |code, args| {
                access::store_block(code, params.address(out), arg(args, 0)?, arg(args, 1)?)?;
                Ok(None)
            })?;
        }
        self.define_stores(&mut linker, &mut params)?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// What decides whether matrix units take a product: words of operands 2 and 3.
    pub(super) fn define_guard(&self, linker: &mut Linker<'_>, params: &mut ParamLayout) -> Result<()> {
        if !self.guarded {
            return linker.define("is_for_units", |code, _| Ok(Some(code.linker.const_false())));
        }
        for (slot, operand) in [("slot_a_largest", 2), ("slot_b_largest", 3)] {
            linker.define(slot, |code, _| {
                let (address, zero) = (params.address(operand), code.linker.const_u32(0));
                access::load(code, address, Element::Raw(4), zero).map(Some)
            })?;
        }
        Ok(())
    }
}

/// What a kernel does to an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SplitStage {
    /// Finds the largest absolute values.
    Largest,
    /// Writes it as f16 or bf16.
    Split,
    /// Writes f16 or bf16 in another order.
    Copy,
    /// Writes f32 elements as they are for the kernel that takes over where units can't take them.
    Restore,
}

/// Axes, as bits, along which elements are those of a source that begins elsewhere or has another size, with zeros
/// around it, and those along which zeros stand between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounds {
    pub padded: u32,
    pub dilated: u32,
}

/// The bits of an infinite f32, which tell that digits were lost.
pub(super) const INFINITY: u32 = 0x7f80_0000;

/// The key under which kernels are compiled once that prepare an operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SplitSpec {
    pub stage: SplitStage,
    pub dtype: DType,
    /// Axes that make up batches, rows and contracted elements.
    pub ranks: [u8; 3],
    pub load: Load,
    pub planes: Planes,
    /// Whether rows are scaled, and lost elements noted.
    pub scaled: bool,
    /// Of `Planes::OwnThreeBf16`: that they keep the order of elements, not that of matrices, and where these have no
    /// source.
    pub bounds: Option<Bounds>,
    /// Whether it is the second operand, whose rows are the product's columns; it makes a difference where numbers lie
    /// in order.
    pub second: bool,
    /// Whether a copy is for `Feed::Fragments`.
    pub fragments: bool,
}

impl SplitSpec {
    /// Contracted elements of which one workgroup finds the largest: all, where they are the contiguous axis.
    pub fn part(&self, depth: u64) -> u64 {
        if self.load.along_k { depth } else { depth.div_ceil(32).next_multiple_of(64) }
    }

    /// Parts of the contracted axis of which the largest values are found.
    pub fn parts(&self, depth: u64) -> u64 {
        depth.div_ceil(self.part(depth))
    }

    /// Workgroups for so many batches and rows.
    pub fn groups(&self, batches: u64, rows: u64, depth: u64) -> u64 {
        let padded = depth.next_multiple_of(self.planes.block());
        match (self.stage, self.planes == Planes::ThreeBf16, self.load.along_k) {
            (SplitStage::Largest, _, true) => (batches * rows).div_ceil(2),
            (SplitStage::Largest, _, false) => batches * rows.div_ceil(128) * self.parts(depth),
            // A workgroup for eight times 16 rows x 16.
            (SplitStage::Split, true, true) => batches * rows.div_ceil(16) * (padded / 16).div_ceil(8),
            (SplitStage::Split, true, false) => batches * rows.div_ceil(16).div_ceil(8) * (padded / 16),
            (SplitStage::Split, false, true) => (batches * rows * padded / 8).div_ceil(256),
            (SplitStage::Split, false, false) => batches * rows.div_ceil(64) * padded.div_ceil(64),
            (SplitStage::Copy, _, true) if self.fragments => (batches * rows.div_ceil(16) * padded / 32).div_ceil(8),
            (SplitStage::Copy, _, false) if self.fragments => (batches * rows.div_ceil(64) * padded / 64).div_ceil(8),
            (SplitStage::Copy, _, true) => (batches * rows * padded / 8).div_ceil(256),
            // Such kernels have other launches: `Image`.
            (SplitStage::Restore, ..) => 0,
            (SplitStage::Copy, _, false) => (batches * rows.div_ceil(64) * padded / 32).div_ceil(8),
        }
    }

    /// Operands are the matrix, where rows are scaled the largest values of its parts, and what is written: the largest
    /// values and the word of `dot_guard.glsl`, or the numbers of 16 bits with, where rows are scaled, scales, and that
    /// word.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| {
            let name = match self.stage {
                SplitStage::Largest => "split_largest".to_string(),
                _ if self.planes == Planes::OwnThreeBf16 => "split_planes".to_string(),
                SplitStage::Split => format!("split_{}", self.planes.count()),
                SplitStage::Copy | SplitStage::Restore => "split_copy".to_string(),
            };
            let numbers = if self.planes == Planes::OwnThreeBf16 { 7 } else { 6 };
            let (mut linker, mut params) = start(library, &name, modes, table, numbers)?;
            linker.bfloat16 = self.planes == Planes::ThreeBf16;
            linker.define("slot_free", |code, args| self.position(code, &mut params, 0, args).map(Some))?;
            linker.define("slot_depth", |code, args| self.position(code, &mut params, 2, args).map(Some))?;
            if self.stage == SplitStage::Copy {
                linker.define("slot_load_eight", |code, args| {
                    let (at, three) = (arg(args, 0)?, code.linker.const_u32(3));
                    let word = code.linker.type_uint(32);
                    let eighth = code.ids(SpirvOp::ShiftRightLogical, word, &[at, three]);
                    access::load(code, params.address(0), Element::Raw(16), eighth).map(Some)
                })?;
            } else if self.load.by_four {
                linker.define("slot_load_four", |code, args| {
                    load_four(code, &mut params, 0, self.dtype, CType::F32, arg(args, 0)?).map(Some)
                })?;
            } else {
                linker.define("slot_load", |code, args| {
                    let address = params.address(0);
                    let id = access::load(code, address, Element::Typed(self.dtype), arg(args, 0)?)?;
                    scalar::cast(code, Value { id, dtype: self.dtype }, DType::F32).map(Some)
                })?;
            }
            let float = Element::Typed(DType::F32);
            match self.stage {
                SplitStage::Largest => {
                    linker.define("slot_store", |code, args| put(code, &mut params, 1, float, args))?;
                    linker.define("slot_begin", |code, _| {
                        let zero = code.linker.const_u32(0);
                        put(code, &mut params, 2, Element::Raw(4), &[zero, zero])
                    })?;
                }
                SplitStage::Split if self.scaled => {
                    linker.define("slot_store", |code, args| put(code, &mut params, 2, Element::Raw(16), args))?;
                    linker.define("slot_store_scale", |code, args| put(code, &mut params, 3, float, args))?;
                    linker.define("slot_largest", |code, args| {
                        let address = params.address(1);
                        access::load(code, address, float, arg(args, 0)?).map(Some)
                    })?;
                    linker.define("slot_lose", |code, _| {
                        let (address, infinity) = (params.address(4), code.linker.const_u32(INFINITY));
                        code.atomic_max(address, infinity).map(|()| None)
                    })?;
                }
                SplitStage::Restore => {
                    linker.define("slot_store", |code, args| put(code, &mut params, 3, Element::Raw(16), args))?;
                    for (slot, operand) in [("slot_a_largest", 1), ("slot_b_largest", 2)] {
                        linker.define(slot, |code, _| {
                            let (address, zero) = (params.address(operand), code.linker.const_u32(0));
                            access::load(code, address, Element::Raw(4), zero).map(Some)
                        })?;
                    }
                }
                SplitStage::Split | SplitStage::Copy => {
                    linker.define("slot_store", |code, args| put(code, &mut params, 1, Element::Raw(16), args))?;
                    if self.planes.count() == 3 {
                        linker.define("slot_raise", |code, args| {
                            code.atomic_max(params.address(2), arg(args, 0)?).map(|()| None)
                        })?;
                    }
                }
            }
            Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
        })
    }
}

impl SplitSpec {
    /// Where indices into some groups of axes lie, of which `first` is the first; where there is no element, the
    /// highest bit is set.
    fn position(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, first: usize, args: &[Word]) -> Result<Word> {
        let Some(bounds) = self.bounds else {
            return grouped_position(code, params, (0, 0), &self.ranks, first, args);
        };
        let (uint, bool_type) = (code.linker.type_uint(32), code.linker.type_bool());
        let mut axis = self.ranks.iter().take(first).sum::<u8>();
        let (mut at, mut inside) = (code.linker.const_u32(0), code.linker.const_true());
        for (&arg, &rank) in args.iter().zip(self.ranks.iter().skip(first)) {
            let mut coordinates = access::coordinates(code, params, arg, axis, rank)?;
            for (axis, coordinate) in (axis..).zip(&mut coordinates) {
                let is_in = |axes: u32| axes >> axis & 1 == 1;
                if !is_in(bounds.padded) && !is_in(bounds.dilated) {
                    continue;
                }
                // Three numbers for each such axis.
                let before = ((bounds.padded | bounds.dilated) & ((1 << axis) - 1)).count_ones() as u8;
                let mut number = |k: u8| code.param(params.word(Param::Extra(7 + 3 * before + k)));
                let [begin, size, step] = [number(0)?, number(1)?, number(2)?];
                *coordinate = code.u32_op(SpirvOp::ISub, *coordinate, begin);
                if is_in(bounds.dilated) {
                    let own = code.u32_op(SpirvOp::UDiv, *coordinate, step);
                    let back = code.u32_op(SpirvOp::IMul, own, step);
                    let is_own = code.ids(SpirvOp::IEqual, bool_type, &[back, *coordinate]);
                    inside = code.ids(SpirvOp::LogicalAnd, bool_type, &[inside, is_own]);
                    *coordinate = own;
                }
                let here = code.ids(SpirvOp::ULessThan, bool_type, &[*coordinate, size]);
                inside = code.ids(SpirvOp::LogicalAnd, bool_type, &[inside, here]);
            }
            if rank > 0 {
                let term = access::position(code, params, 0, axis, &coordinates)?;
                at = code.u32_op(SpirvOp::IAdd, at, term);
            }
            axis += rank;
        }
        let outside = code.linker.const_u32(1 << 31);
        Ok(code.ids(SpirvOp::Select, uint, &[inside, at, outside]))
    }
}

/// Stores the second argument as the element of an operand that the first one names.
fn put(
    code: &mut Code<'_, '_>,
    params: &mut ParamLayout,
    operand: u8,
    element: Element,
    args: &[Word],
) -> Result<Option<Word>> {
    let address = params.address(operand);
    access::store(code, address, element, arg(args, 0)?, arg(args, 1)?).map(|()| None)
}

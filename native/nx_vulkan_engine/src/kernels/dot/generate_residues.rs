//! Kernels of products of f64 by residues: operands as bytes, their products on matrix units, and the check of these.

use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::ParamLayout;
use nx_vulkan_spirv::scalar::{self, Value};
use rspirv::spirv::{Op as SpirvOp, Word};

use super::generate::{DotSpec, start};
use super::generate_matrix::INFINITY;
use super::loads::grouped_position;
use crate::kernels::family::{Constants, KernelSpec};
use crate::kernels::{Arguments, Place};
use crate::program::ops::multiplied;

/// A tile of results of which a workgroup computes the residues by one modulus, and how many moduli there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResidueTile {
    pub side: u32,
    pub moduli: u8,
}

impl ResidueTile {
    /// Sides of those on matrix units, the largest first.
    pub const SIDES: [u32; 2] = [128, 64];

    /// The side of those that need no units, which nothing chooses.
    pub const PLAIN: u32 = 16;

    /// Operations that make a result of its residues: each adds to the words of a number, and to how often the moduli's
    /// product is in it.
    pub(super) fn flops(self) -> u64 {
        2 * 9 * u64::from(self.moduli)
    }
}

/// Contracted elements and rows of a matrix of the units.
pub(super) const BLOCK: u64 = 32;
pub(super) const SIDE: u64 = 16;

/// Words of a matrix of results with a byte each.
pub(super) const WORDS: u64 = SIDE * SIDE / 4;

/// Invocations of a workgroup, but of the products themselves.
const INVOCATIONS: u64 = 256;

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResidueStage {
    /// Finds the largest exponents of an operand's rows.
    Rows,
    /// Writes an operand's residues by so many moduli, and coarse values.
    Split { second: bool, moduli: u8 },
    /// Multiplies residues, or coarse values, by tiles of so many rows and columns.
    Product { side: u32, coarse: bool },
    /// Finds out whether results will be exact enough.
    Check,
}

/// The key under which kernels are compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResidueSpec {
    pub stage: ResidueStage,
    /// Of the operand, if there is one.
    pub dtype: DType,
    pub ranks: [u8; 3],
    /// Whether neighbouring invocations load neighbours along the contracted axis.
    pub along_k: bool,
}

impl ResidueSpec {
    /// A kernel that reads what others wrote.
    pub fn of(stage: ResidueStage) -> ResidueSpec {
        ResidueSpec { stage, dtype: DType::F64, ranks: [0; 3], along_k: true }
    }

    /// Workgroups for so many batches and rows in parts of the contracted axis, each for the largest exponents.
    pub fn groups_of_rows(&self, batches: u64, rows: u64, parts: u64) -> u64 {
        batches * rows.div_ceil(if self.along_k { 2 } else { 64 }) * parts
    }

    /// Workgroups that write so many times 16 rows of all batches, each with so many shares of the contracted axis.
    pub fn groups_of_split(&self, batches: u64, sixteens: u64, shares: u64) -> u64 {
        let (along, across) = if self.along_k { (shares, sixteens) } else { (sixteens, shares) };
        batches * along.div_ceil(8) * across
    }

    fn position(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, first: usize, args: &[Word]) -> Result<Word> {
        grouped_position(code, params, (0, 0), &self.ranks, first, args)
    }

    /// The words of an element as f64.
    fn load(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, at: Word) -> Result<Word> {
        let address = params.address(0);
        if self.dtype == DType::F64 {
            return access::load(code, address, Element::Raw(8), at);
        }
        let id = access::load(code, address, Element::Typed(self.dtype), at)?;
        let id = scalar::cast(code, Value { id, dtype: self.dtype }, DType::F64)?;
        let word = code.linker.type_uint(32);
        let pair = code.linker.type_vector(word, 2);
        Ok(code.bitcast(pair, id))
    }

    fn define_operand(&self, linker: &mut Linker<'_>, params: &mut ParamLayout) -> Result<()> {
        linker.define("slot_free", |code, args| self.position(code, params, 0, args).map(Some))?;
        linker.define("slot_depth", |code, args| self.position(code, params, 2, args).map(Some))?;
        linker.define("slot_load", |code, args| self.load(code, params, arg(args, 0)?).map(Some))
    }

    fn generate(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let (name, numbers) = match self.stage {
            ResidueStage::Rows => ("residues_rows".to_string(), 5),
            ResidueStage::Split { .. } => ("residues_split".to_string(), 7),
            ResidueStage::Product { side, .. } => (format!("dot_residues_{side}x{side}"), 8),
            ResidueStage::Check => ("residues_check".to_string(), 9),
        };
        let (mut linker, mut params) = start(library, &name, modes, table, numbers)?;
        match self.stage {
            ResidueStage::Rows => {
                self.define_operand(&mut linker, &mut params)?;
                change(&mut linker, &mut params, "slot_raise", 1, SpirvOp::AtomicUMax)?;
            }
            ResidueStage::Split { .. } => {
                self.define_operand(&mut linker, &mut params)?;
                load_word(&mut linker, &mut params, "slot_exponent", 1)?;
                linker.define("slot_store", |code, args| {
                    access::store_block(code, params.address(2), arg(args, 0)?, arg(args, 1)?).map(|()| None)
                })?;
                change(&mut linker, &mut params, "slot_add", 3, SpirvOp::AtomicIAdd)?;
                linker.define("slot_mark", |code, args| {
                    let rounded = code.linker.const_u32(ROUNDED);
                    code.atomic(SpirvOp::AtomicOr, params.address(3), arg(args, 0)?, rounded).map(|()| None)
                })?;
            }
            ResidueStage::Product { .. } => {
                access::declare_blocks_read_only(&mut linker);
                for (slot, operand) in [("slot_a_block", 0), ("slot_b_block", 1)] {
                    linker.define(slot, |code, args| {
                        access::load(code, params.address(operand), Element::Raw(16), arg(args, 0)?).map(Some)
                    })?;
                }
                define_raised(&mut linker, &mut params, 2)?;
                linker.define("slot_store", |code, args| {
                    let address = params.address(3);
                    access::store(code, address, Element::Raw(8), arg(args, 0)?, arg(args, 1)?).map(|()| None)
                })?;
                linker.define("slot_store_sums", |code, args| {
                    access::store_block(code, params.address(3), arg(args, 0)?, arg(args, 1)?).map(|()| None)
                })?;
            }
            ResidueStage::Check => {
                linker.define("slot_sums", |code, args| {
                    access::load(code, params.address(0), Element::Raw(16), arg(args, 0)?).map(Some)
                })?;
                let words = ["slot_a_exponent", "slot_b_exponent", "slot_a_total", "slot_b_total"];
                for (slot, operand) in words.into_iter().zip(1..) {
                    load_word(&mut linker, &mut params, slot, operand)?;
                }
                linker.define("slot_raise", |code, _| {
                    let infinity = code.linker.const_u32(INFINITY);
                    code.atomic_max(params.address(5), infinity).map(|()| None)
                })?;
            }
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

/// The bit of a row's sum of coarse values that tells that an element was rounded.
const ROUNDED: u32 = 1 << 31;

/// A word of an operand.
fn load_word(linker: &mut Linker<'_>, params: &mut ParamLayout, slot: &str, operand: u8) -> Result<()> {
    linker.define(slot, |code, args| {
        access::load(code, params.address(operand), Element::Raw(4), arg(args, 0)?).map(Some)
    })
}

/// A word of an operand that an atomic operation changes.
fn change(linker: &mut Linker<'_>, params: &mut ParamLayout, slot: &str, operand: u8, op: SpirvOp) -> Result<()> {
    linker.define(slot, |code, args| {
        code.atomic(op, params.address(operand), arg(args, 0)?, arg(args, 1)?).map(|()| None)
    })
}

/// The word that tells that others do the product.
fn define_raised(linker: &mut Linker<'_>, params: &mut ParamLayout, operand: u8) -> Result<()> {
    linker.define("slot_raised", |code, _| {
        let (address, zero) = (params.address(operand), code.linker.const_u32(0));
        access::load(code, address, Element::Raw(4), zero).map(Some)
    })
}

impl DotSpec {
    /// The kernel that makes results of residues.
    pub(super) fn generate_restored(
        &self,
        library: &Library,
        tile: ResidueTile,
        modes: FloatModes,
        table: bool,
    ) -> Result<Generated> {
        let (mut linker, mut params) = start(library, &format!("dot_restored_{}", tile.moduli), modes, table, 8)?;
        for (slot, operand) in [("slot_residues", 0), ("slot_a_exponent", 1), ("slot_b_exponent", 2)] {
            load_word(&mut linker, &mut params, slot, operand)?;
        }
        define_raised(&mut linker, &mut params, 3)?;
        self.define_stores(&mut linker, &mut params)?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

/// Workgroups of tiles of a side for so many rows and columns of products.
pub(super) fn groups_of_products(side: u32, [rows, columns]: [u64; 2], products: u64) -> u64 {
    let tiles = rows.div_ceil(side.into()) * columns.div_ceil(side.into()) * products;
    if side == ResidueTile::PLAIN { (tiles * 32).div_ceil(INVOCATIONS) } else { tiles }
}

/// Workgroups that read a word of so many matrices of results by each invocation.
pub(super) fn groups_of_words(matrices: u64) -> u64 {
    (matrices * WORDS).div_ceil(INVOCATIONS)
}

impl KernelSpec for ResidueSpec {
    fn name(&self) -> String {
        match self.stage {
            ResidueStage::Rows => format!("residues.rows.{}", self.dtype),
            ResidueStage::Split { moduli, .. } => format!("residues.split_{moduli}.{}", self.dtype),
            ResidueStage::Product { side, coarse: true } => format!("residues.coarse_{side}x{side}.s8"),
            ResidueStage::Product { side, coarse: false } => format!("residues.dot_{side}x{side}.s8"),
            ResidueStage::Check => "residues.check.s32".to_string(),
        }
    }

    fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| ResidueSpec::generate(self, library, modes, table))
    }

    fn constants(&self, _: FloatModes) -> Constants {
        let along_k = (0, u32::from(self.along_k));
        match self.stage {
            ResidueStage::Rows => Constants::from_slice(&[along_k]),
            ResidueStage::Split { second, moduli } => {
                Constants::from_slice(&[along_k, (1, second.into()), (2, moduli.into())])
            }
            ResidueStage::Product { coarse, .. } => Constants::from_slice(&[(0, coarse.into())]),
            ResidueStage::Check => Constants::new(),
        }
    }

    fn flops(&self, arguments: &Arguments<'_>, _: u64) -> Option<u64> {
        let ResidueStage::Product { .. } = self.stage else { return Some(0) };
        let number = |k| arguments.number(k);
        multiplied(&[2, number(0)?, number(1)?, number(2)?, number(3)?, number(6)?])
    }

    fn element_bytes(&self, k: usize, place: &Place<'_>) -> u64 {
        match self.stage {
            ResidueStage::Rows | ResidueStage::Split { .. } if k == 0 => self.dtype.size_bytes(),
            _ => place.element_bytes,
        }
    }
}

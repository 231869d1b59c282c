//! Operands of matrix units: f32 numbers as three of bf16 or pairs of f16, f16 as they are.

use rspirv::spirv::Word;

use super::access::{self, Element, ParamLayout};
use super::dot::{Load, grouped_position, load_four, start};
use super::elementwise::{Generated, arg};
use super::library::Library;
use super::link::{Code, FloatModes};
use super::scalar::{self, Value};
use crate::{CType, DType, Result};

/// A square tile of results that one workgroup computes on matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixTile {
    pub side: u32,
    /// Numbers that make up an element: three of bf16 or two of f16 for f32, one of f16 for f16 and what f16 holds.
    pub planes: u32,
}

impl MatrixTile {
    /// Those with a template, the largest first.
    pub fn all(planes: u32) -> impl Iterator<Item = MatrixTile> + Clone {
        let sides: &[u32] = if planes == 3 { &[64] } else { &[128, 64] };
        sides.iter().map(move |&side| MatrixTile { side, planes })
    }

    /// Contracted elements of one step.
    pub fn block(&self) -> u64 {
        block(self.planes)
    }

    pub fn invocations(&self) -> u32 {
        if self.side == 128 { 256 } else { 128 }
    }

    /// Shared memory of a workgroup: a step of both operands, or 16 rows of each subgroup's results, whichever is more.
    pub fn shared_bytes(&self) -> u32 {
        2 * self.side * 9 * 16
    }

    /// Whether operands lie as the units hold them.
    pub fn is_in_order(&self) -> bool {
        self.planes == 3
    }

    pub(super) fn template(&self) -> String {
        format!("dot_matrix_{0}x{0}_{1}", self.side, self.planes)
    }
}

/// Contracted elements of one step.
pub fn block(planes: u32) -> u64 {
    match planes {
        3 => 16,
        2 => 32,
        _ => 64,
    }
}

/// What a kernel does to an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SplitStage {
    /// Finds the largest absolute values.
    Largest,
    /// Writes it as f16 or bf16.
    Split,
}

/// The key under which kernels are compiled once that prepare an operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SplitSpec {
    pub stage: SplitStage,
    pub dtype: DType,
    /// Axes that make up batches, rows and contracted elements.
    pub ranks: [u8; 3],
    pub load: Load,
    pub planes: u32,
    /// Whether rows are scaled, and lost elements noted.
    pub scaled: bool,
    /// Whether it is the second operand, whose rows are the product's columns; only three planes make a difference of that.
    pub second: bool,
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
        let padded = depth.next_multiple_of(block(self.planes));
        match (self.stage, self.load.along_k) {
            (SplitStage::Largest, true) => (batches * rows).div_ceil(2),
            (SplitStage::Largest, false) => batches * rows.div_ceil(128) * self.parts(depth),
            // A workgroup for eight times 16 rows x 16.
            (SplitStage::Split, true) if self.planes == 3 => batches * rows.div_ceil(16) * (padded / 16).div_ceil(8),
            (SplitStage::Split, false) if self.planes == 3 => batches * rows.div_ceil(16).div_ceil(8) * (padded / 16),
            (SplitStage::Split, true) => (batches * rows * padded / 8).div_ceil(256),
            (SplitStage::Split, false) => batches * rows.div_ceil(64) * padded.div_ceil(64),
        }
    }

    /// Specialization constants: id and value.
    pub fn constants(&self) -> [(u32, u32); 4] {
        let values = [self.load.along_k, self.load.by_four, self.scaled, self.second];
        std::array::from_fn(|id| (id as u32, u32::from(values[id])))
    }

    /// Operands are the matrix, where rows are scaled the largest values of its parts, and what is written: the largest values and
    /// the number of lost elements, or the f16 numbers and, where rows are scaled, scales and the number of lost elements.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| {
            let name = match self.stage {
                SplitStage::Largest => "split_largest".to_string(),
                SplitStage::Split => format!("split_{}", self.planes),
            };
            let (mut linker, mut params) = start(library, &name, modes, table, 5)?;
            linker.bfloat16 = self.planes == 3;
            linker.define("slot_free", |code, args| {
                grouped_position(code, &mut params, (0, 0), &self.ranks, 0, args).map(Some)
            })?;
            linker.define("slot_depth", |code, args| {
                grouped_position(code, &mut params, (0, 0), &self.ranks, 2, args).map(Some)
            })?;
            if self.load.by_four {
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
                        let (address, one) = (params.address(4), code.linker.const_u32(1));
                        code.atomic_or(address, one).map(|()| None)
                    })?;
                }
                SplitStage::Split => {
                    linker.define("slot_store", |code, args| put(code, &mut params, 1, Element::Raw(16), args))?
                }
            }
            Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
        })
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

//! Copies between layouts, through shared memory or registers where their fastest axes differ, with zeros around what
//! is copied if wanted.

use nx_vulkan_ir::Result;
use rspirv::spirv::{Op, Word};

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};

/// How elements get from one layout to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// Through tiles of 32 x 32 in shared memory.
    Tiles,
    /// In blocks of 8 x 8 elements of 16 bits, in registers; so many blocks along the columns have neighbouring
    /// invocations.
    Blocks { beside: u8 },
    /// As they are: the fastest axis is the same, and elements are groups of 16 bytes. All axes are those of the batch.
    Lines,
}

/// The key under which a tiled copy is compiled once. The iteration space is that of what is written: `batch_rank`
/// axes, then `row_rank` axes along which reads are neighbours, then the one along which writes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransposeSpec {
    pub element: Element,
    pub batch_rank: u8,
    pub row_rank: u8,
    /// Axes, as bits, along which the source begins at another coordinate or has another size; zeros lie beyond it. In
    /// tiles, elements are of 32 bits at most where there are such axes.
    pub padded: u32,
    pub form: Route,
}

impl TransposeSpec {
    /// Rows and columns of a tile.
    pub const TILE: u64 = 32;
    /// Rows and columns of a block, whose elements have so many bytes.
    pub const BLOCK: u64 = 8;
    pub const BLOCK_ELEMENT_BYTES: u64 = 2;
    /// Bytes of a group of neighbours.
    pub const GROUP_BYTES: u64 = 16;
    /// Blocks, and groups of a line, that a workgroup takes.
    pub const BLOCKS: u64 = 256;
    pub const GROUPS: u64 = 1024;

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = match self.form {
            Route::Tiles => format!("transpose_{}", self.element.size_bytes().div_ceil(4)),
            Route::Blocks { .. } => "transpose_blocks".to_string(),
            Route::Lines => "transpose_lines".to_string(),
        };
        let mut linker = Linker::new(library, &name, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Extra(0), Param::Extra(1), Param::Extra(2)]);
        for (slot, operand) in [("slot_load", 0), ("slot_store", 1)] {
            linker.define(slot, |code, args| {
                let mut coordinates = access::coordinates(code, &mut params, arg(args, 0)?, 0, self.batch_rank)?;
                if self.form != Route::Lines {
                    let row = access::coordinates(code, &mut params, arg(args, 1)?, self.batch_rank, self.row_rank)?;
                    coordinates.extend(row);
                    coordinates.push(arg(args, 2)?);
                }
                let inside = match operand {
                    0 => self.move_into_source(code, &mut params, &mut coordinates)?,
                    _ => None,
                };
                let sum = access::position(code, &mut params, operand, 0, &coordinates)?;
                let at = access::biased(code, &mut params, operand, sum)?;
                let (element, at) = self.accessed(code, at);
                let address = params.address(operand);
                if operand == 1 {
                    let value = *args.last().ok_or_else(|| code.linker.bad("a store of nothing"))?;
                    access::store(code, address, element, at, value)?;
                    return Ok(None);
                }
                let Some(inside) = inside else { return access::load(code, address, element, at).map(Some) };
                // Beyond the source its lowest element is loaded and dropped.
                let (uint, zero) = (code.linker.type_uint(32), code.linker.const_u32(0));
                let at = code.ids(Op::Select, uint, &[inside, at, zero]);
                let loaded = access::load(code, address, element, at)?;
                if element.size_bytes() <= 4 {
                    return Ok(Some(code.ids(Op::Select, uint, &[inside, loaded, zero])));
                }
                let words = element.size_bytes() / 4;
                let kept: Vec<Word> = (0..words)
                    .map(|k| {
                        let word = code.extract(uint, loaded, k);
                        code.ids(Op::Select, uint, &[inside, word, zero])
                    })
                    .collect();
                let vector = code.linker.type_vector(uint, words);
                Ok(Some(code.ids(Op::CompositeConstruct, vector, &kept)))
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// What is loaded and stored at once, and its number, of an element's.
    fn accessed(&self, code: &mut Code<'_, '_>, at: Word) -> (Element, Word) {
        match self.form {
            Route::Tiles | Route::Lines => (self.element, at),
            Route::Blocks { .. } => {
                let eight = code.linker.const_u32(Self::BLOCK as u32);
                (Element::Raw(Self::GROUP_BYTES as u8), code.u32_op(Op::UDiv, at, eight))
            }
        }
    }

    /// Makes coordinates those of the source, and answers whether it has them. Behind the launch's numbers lie, for
    /// each padded axis, where the source begins and its size.
    fn move_into_source(
        &self,
        code: &mut Code<'_, '_>,
        params: &mut ParamLayout,
        coordinates: &mut [Word],
    ) -> Result<Option<Word>> {
        let bool_type = code.linker.type_bool();
        let mut inside = None;
        let padded = (0u8..).zip(coordinates).filter(|(axis, _)| self.padded >> axis & 1 == 1);
        for (k, (_, coordinate)) in (0u8..).zip(padded) {
            let begin = code.param(params.word(Param::Extra(3 + 2 * k)))?;
            let size = code.param(params.word(Param::Extra(4 + 2 * k)))?;
            *coordinate = code.u32_op(Op::ISub, *coordinate, begin);
            let here = code.ids(Op::ULessThan, bool_type, &[*coordinate, size]);
            inside = Some(inside.map_or(here, |others| code.ids(Op::LogicalAnd, bool_type, &[others, here])));
        }
        Ok(inside)
    }
}

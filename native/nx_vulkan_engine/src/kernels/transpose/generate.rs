//! Copies through tiles in shared memory, for layouts whose fastest axes differ, with zeros around what is copied if wanted.

use nx_vulkan_ir::Result;
use rspirv::spirv::{Op, Word};

use nx_vulkan_spirv::access::{self, Element, Param, ParamLayout};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;

/// The key under which a tiled copy is compiled once. The iteration space is that of what is written: `batch_rank` axes, then `row_rank`
/// axes along which reads are neighbours, then the one along which writes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransposeSpec {
    pub element: Element,
    pub batch_rank: u8,
    pub row_rank: u8,
    /// Axes, as bits, along which the source begins at another coordinate or has another size; zeros lie beyond it. Elements are of 32 bits
    /// at most where there are such axes.
    pub padded: u32,
}

impl TransposeSpec {
    /// Rows and columns of a tile.
    pub const TILE: u64 = 32;

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = format!("transpose_{}", self.element.size_bytes().div_ceil(4));
        let mut linker = Linker::new(library, &name, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Extra(0), Param::Extra(1), Param::Extra(2)]);
        for (slot, operand) in [("slot_load", 0), ("slot_store", 1)] {
            linker.define(slot, |code, args| {
                let mut coordinates = access::coordinates(code, &mut params, arg(args, 0)?, 0, self.batch_rank)?;
                coordinates.extend(access::coordinates(
                    code,
                    &mut params,
                    arg(args, 1)?,
                    self.batch_rank,
                    self.row_rank,
                )?);
                coordinates.push(arg(args, 2)?);
                let inside = match operand {
                    0 => self.move_into_source(code, &mut params, &mut coordinates)?,
                    _ => None,
                };
                let sum = access::position(code, &mut params, operand, 0, &coordinates)?;
                let at = access::biased(code, &mut params, operand, sum)?;
                let address = params.address(operand);
                if operand == 1 {
                    access::store(code, address, self.element, at, arg(args, 3)?)?;
                    return Ok(None);
                }
                let Some(inside) = inside else { return access::load(code, address, self.element, at).map(Some) };
                // Beyond the source its lowest element is loaded and dropped.
                let (uint, zero) = (code.linker.type_uint(32), code.linker.const_u32(0));
                let at = code.ids(Op::Select, uint, &[inside, at, zero]);
                let word = access::load(code, address, self.element, at)?;
                Ok(Some(code.ids(Op::Select, uint, &[inside, word, zero])))
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }

    /// Makes coordinates those of the source, and answers whether it has them. Behind the launch's numbers lie, for each padded axis, where the
    /// source begins and its size.
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

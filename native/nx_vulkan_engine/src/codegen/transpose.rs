//! Copies through tiles in shared memory, for layouts whose fastest axes differ.

use super::access::{self, Element, Param, ParamLayout};
use super::elementwise::{Generated, arg};
use super::library::Library;
use super::link::{FloatModes, Linker};
use super::templates;
use crate::Result;

/// The key under which a tiled copy is compiled once. The iteration space is `batch_rank` axes, then the axis along
/// which reads are neighbours, then the one along which writes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransposeSpec {
    pub element: Element,
    pub batch_rank: u8,
}

impl TransposeSpec {
    /// Rows and columns of a tile.
    pub const TILE: u64 = 32;

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let name = format!("transpose_{}", self.element.size_bytes().div_ceil(4));
        let template = templates::template(&name)?;
        let mut linker = Linker::new(library, &name, &template, table, modes)?;
        let mut params = ParamLayout::new(&[Param::Extra(0), Param::Extra(1), Param::Extra(2)]);
        for (slot, operand) in [("slot_load", 0), ("slot_store", 1)] {
            linker.define(slot, |code, args| {
                let mut coordinates = access::coordinates(code, &mut params, arg(args, 0)?, 0, self.batch_rank)?;
                coordinates.extend([arg(args, 1)?, arg(args, 2)?]);
                let sum = access::position(code, &mut params, operand, 0, &coordinates)?;
                let at = access::biased(code, &mut params, operand, sum)?;
                let address = params.address(operand);
                if operand == 0 {
                    return access::load(code, address, self.element, at).map(Some);
                }
                access::store(code, address, self.element, at, arg(args, 3)?)?;
                Ok(None)
            })?;
        }
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

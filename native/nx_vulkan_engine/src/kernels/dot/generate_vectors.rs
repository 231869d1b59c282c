//! Products of a matrix and few vectors, which take as long as it takes to read the matrix.

use nx_vulkan_device::Caps;
use nx_vulkan_ir::program::epilogue::{DERIVED_TOGETHER, MOST_VECTORS};
use nx_vulkan_ir::{Error, Result};
use nx_vulkan_spirv::access::value_type;
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::modes::FloatModes;
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

use super::generate::{DotSpec, FACTORS, start};
use super::loads::vector_of;

/// A tile of results: those of some rows of the matrix with all vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VectorTile {
    /// Vectors that it has room for.
    pub count: u32,
    /// Invocations that share out the rows of the matrix, four each.
    pub lanes: u32,
    /// Teams of as many invocations that share out the contracted elements.
    pub teams: u32,
    /// Whether the vectors are the rows of the product, and not its columns.
    pub first: bool,
    /// Whether two matrices are multiplied, and the results of both stored together.
    pub pair: bool,
}

impl VectorTile {
    /// The most vectors.
    pub const MOST: u64 = MOST_VECTORS;

    /// The most vectors by which two matrices are multiplied at once.
    pub const MOST_OF_PAIR: u64 = 4;

    /// Those with a template that have room for so many vectors, the one with fewer teams first.
    pub fn all(vectors: u64, first: bool) -> impl Iterator<Item = VectorTile> {
        let count = if vectors <= VectorTile::MOST { vectors.next_power_of_two() as u32 } else { 0 };
        let shapes: &[(u32, u32)] = match count {
            1..=4 => &[(8, 32), (8, 128), (4, 256)],
            8 => &[(8, 32)],
            _ => &[],
        };
        shapes.iter().map(move |&(lanes, teams)| VectorTile { count, lanes, teams, first, pair: false })
    }

    /// The tile that multiplies the vectors with two matrices, if there is a template.
    pub fn of_pair(self) -> Option<VectorTile> {
        (u64::from(self.count) <= VectorTile::MOST_OF_PAIR).then_some(VectorTile { pair: true, ..self })
    }

    /// Rows of the matrix that one workgroup multiplies.
    pub fn rows(&self) -> u32 {
        4 * self.lanes
    }

    /// Whether workgroups are within a device's limits.
    pub fn fits(&self, caps: &Caps) -> bool {
        self.shared_bytes() <= caps.max_shared_memory_bytes && self.invocations() <= caps.max_invocations
    }

    pub fn invocations(&self) -> u32 {
        self.lanes * self.teams
    }

    /// The most neighbours of a matrix of so many contracted elements that an invocation computes at once, where one of
    /// the factors is narrow: what an address and a scale take is shared by them, and all teams have something to do.
    pub fn most_together(&self, depth: u64) -> u64 {
        if depth >= u64::from(self.teams) * 4 * DERIVED_TOGETHER { 4 * DERIVED_TOGETHER } else { 2 * DERIVED_TOGETHER }
    }

    /// Contracted elements of one step.
    pub fn block(&self) -> u64 {
        u64::from(4 * self.teams)
    }

    /// Shared memory of a workgroup: the sums of all teams for the vectors, or matrices, that are added up at once.
    pub fn shared_bytes(&self) -> u32 {
        4 * self.rows() * self.teams * if self.pair { 2 } else { self.count.min(2) }
    }

    /// Rows and columns of the product that one workgroup computes.
    pub(super) fn results(&self) -> (u64, u64) {
        let (rows, vectors) = (self.rows().into(), self.count.into());
        if self.first { (vectors, rows) } else { (rows, vectors) }
    }
}

/// The operand that is the other matrix.
const OTHER: u8 = 2;

impl DotSpec {
    pub(super) fn generate_vectors(
        &self,
        library: &Library,
        tile: VectorTile,
        modes: FloatModes,
        table: bool,
    ) -> Result<Generated> {
        let of = if tile.pair { "_pair" } else { "" };
        let name = format!("dot_vectors_{}_{}x{}{of}", tile.count, tile.lanes, tile.teams);
        let (mut linker, mut params) = start(library, &name, modes, table, 6)?;
        let operands = [(0, self.a_load, self.a), (1, self.b_load, self.b)];
        for (operand, load, dtype) in operands {
            let is_matrix = (operand == 0) != tile.first;
            let name = if is_matrix { "matrix" } else { "vectors" };
            if let Some(derived) = self.derived.as_ref().filter(|_| is_matrix) {
                // Rows and contracted elements are known by their numbers.
                linker.define("slot_matrix_free", |_, args| arg(args, 1).map(Some))?;
                linker.define("slot_matrix_depth", |_, args| arg(args, 0).map(Some))?;
                let slot = match derived.together() {
                    16 => "slot_matrix_sixteen",
                    8 => "slot_matrix_eight",
                    _ => "slot_matrix_four",
                };
                linker.define(slot, |code, args| {
                    let depth = match args {
                        [_, depth, behind] => code.u32_op(SpirvOp::IAdd, *depth, *behind),
                        _ => arg(args, 1)?,
                    };
                    let elements = derived.neighbours(code, &mut params, FACTORS, [arg(args, 0)?, depth])?;
                    let fours: SmallVec<[Word; 4]> = elements
                        .chunks(DERIVED_TOGETHER as usize)
                        .map(|four| vector_of(code, self.sum, four))
                        .collect();
                    if let [four] = fours.as_slice() {
                        return Ok(Some(*four));
                    }
                    let part = value_type(code, self.sum);
                    let four = code.linker.type_vector(part, DERIVED_TOGETHER as u32);
                    let matrix = code.linker.type_matrix(four, fours.len() as u32);
                    Ok(Some(code.ids(SpirvOp::CompositeConstruct, matrix, &fours)))
                })?;
                continue;
            }
            self.define_positions(&mut linker, &mut params, name, operand)?;
            // The other matrix lies as this one does, elsewhere.
            let other = (is_matrix && tile.pair).then_some(("other", OTHER));
            for (name, operand) in [(name, operand)].into_iter().chain(other) {
                let slot = format!("slot_{name}{}", if load.by_four { "_four" } else { "" });
                linker.define(&slot, |code, args| {
                    let at = match args {
                        [free, depth, ..] => code.u32_op(SpirvOp::IAdd, *free, *depth),
                        _ => arg(args, 0)?,
                    };
                    let loaded = match load.by_four {
                        true => self.loaded_near(code, &mut params, operand, dtype, at, 4),
                        false => self.loaded(code, &mut params, operand, dtype, at),
                    };
                    loaded.map(Some)
                })?;
            }
        }
        let store = if tile.pair { "slot_store_pair" } else { "slot_store" };
        linker.define(store, |code, args| {
            let Some((&at, sums)) = args.split_first() else {
                return Err(Error::InvalidProgram {
                    op: "dot".to_string(),
                    reason: "no place for results".to_string(),
                });
            };
            self.finish(code, &mut params, at, &[sums])?;
            Ok(None)
        })?;
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: 0 })
    }
}

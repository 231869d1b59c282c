//! Kernels that reduce over axes, perhaps several reductions of the same elements at once: what they depend on, and
//! which template they fill.

use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::{DType, Result};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::Linker;
use nx_vulkan_spirv::modes::FloatModes;
use smallvec::SmallVec;

use super::common::Parts;
use super::slots::Slots;
use crate::kernels::rows::RowPort;

/// Large reductions take two dispatches: chunks first, then the chunks' accumulators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Whole,
    First,
    Last,
}

/// Which template: neighbouring invocations walk along the reduced axis, or along the kept one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Rows {
        width: u8,
    },
    /// Of each output by one invocation, or by a team.
    Columns {
        in_teams: bool,
    },
}

/// Elementwise steps between memory and reductions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    pub inputs: Vec<RowPort>,
    pub steps: Vec<Step>,
    /// What each of the reductions takes.
    pub values: SmallVec<[Ref; 1]>,
}

/// Elementwise steps on what was reduced, before it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceEpilogue {
    /// Further operands, after those that are reduced.
    pub inputs: SmallVec<[DType; 2]>,
    /// The first inputs are what was reduced, those after them are `inputs`. Positions are not known.
    pub steps: SmallVec<[Step; 1]>,
    pub results: SmallVec<[(Ref, DType); 1]>,
    /// Axes of the results, behind those that are kept and reduced.
    pub rank: u8,
}

/// The key under which a reduction kernel is compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceSpec {
    /// One or several, for each element.
    pub reducers: SmallVec<[Reducer; 1]>,
    /// Another input, at whose elements those of the only reducer are multiplied.
    pub times: Option<DType>,
    /// What computes the elements from operands; without it they are those of one operand.
    pub producer: Option<Box<Producer>>,
    /// Not of a first stage.
    pub epilogue: Option<Box<ReduceEpilogue>>,
    pub stage: Stage,
    pub direction: Direction,
    /// Axes of the iteration space that are kept, then those that are reduced.
    pub kept_rank: u8,
    pub reduced_rank: u8,
    /// Vectors are accessed 8 bytes at a time.
    pub paired: bool,
}

impl ReduceSpec {
    /// Invocations per workgroup of the reduction templates.
    pub const LOCAL_SIZE: u32 = 256;

    /// Generates the kernel's SPIR-V.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        Generated::push_or_table(|table| self.generate_with(library, modes, table))
    }

    fn generate_with(&self, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let mut linker = Linker::new(library, &self.template(), table, modes)?;
        linker.pairs = self.paired;
        let parts = self.producer.as_deref().filter(|_| self.stage != Stage::Last).map(Parts::of).unwrap_or_default();
        let mut slots = Slots::new(self, &mut linker, &parts)?;
        if !parts.kept.is_empty() {
            linker.define("slot_begin", |code, args| slots.begin(code, arg(args, 0)?))?;
        }
        linker.define("slot_identity", |code, _| slots.identity(code))?;
        linker.define("slot_combine", |code, args| slots.combine(code, arg(args, 0)?, arg(args, 1)?))?;
        linker.define("slot_load", |code, args| slots.load(code, (arg(args, 0)?, arg(args, 1)?)))?;
        if let Direction::Rows { width } = self.direction
            && width > 1
        {
            linker.define("slot_load_vector", |code, args| {
                slots.load_vector(code, (arg(args, 0)?, arg(args, 1)?), width.into())
            })?;
        }
        linker.define("slot_store", |code, args| slots.store(code, arg(args, 0)?, arg(args, 1)?))?;
        Ok(Generated { words: linker.finish()?, params: slots.params, table, elements_per_group: Self::LOCAL_SIZE })
    }

    /// The name of the template.
    fn template(&self) -> String {
        let words = match *self.reducers {
            [only] => only.words().to_string(),
            _ => "several".to_string(),
        };
        match self.direction {
            Direction::Rows { width: 1 } => format!("reduce_rows_{words}"),
            Direction::Rows { width } => format!("reduce_rows_{words}_v{width}"),
            Direction::Columns { in_teams: false } => format!("reduce_columns_{words}"),
            Direction::Columns { in_teams: true } => format!("reduce_column_teams_{words}"),
        }
    }

    /// How many operands are written.
    pub fn results(&self) -> usize {
        match &self.epilogue {
            Some(epilogue) if self.stage != Stage::First => epilogue.results.len(),
            _ => self.reducers.len(),
        }
    }
}

//! Kernels that sort contiguous rows, by whole rows in shared memory or by digits of their keys.

use nx_vulkan_ir::{DType, Result};
use rspirv::spirv::Word;

use nx_vulkan_spirv::access::{self, Element};
use nx_vulkan_spirv::generated::{Generated, arg};
use nx_vulkan_spirv::library::Library;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::modes::FloatModes;
use nx_vulkan_spirv::params::{Param, ParamLayout};

/// Operand numbers of the elements and their places. Results come after all other operands.
const INPUT: u8 = 0;
const PLACES: u8 = 1;

/// What a sort is by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    pub dtype: DType,
    pub descending: bool,
}

impl SortKey {
    /// Sign bit, largest magnitude that is a number, mask, and direction: the first parameters of the templates.
    pub fn params(self) -> [u32; 4] {
        let bits = self.dtype.bits().min(32);
        let sign = if self.dtype.is_unsigned() { 0 } else { 1 << (bits - 1) };
        let format = self.dtype.format().filter(|_| self.dtype.is_float());
        // Of f64 the upper half.
        let largest = format.map_or(0, |format| format.largest_bits() >> (self.dtype.bits() - bits)) as u32;
        [sign, largest, u32::MAX >> (32 - bits), u32::from(self.descending)]
    }
}

/// What a sorting kernel reads and writes besides keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Payload {
    /// The places of elements come from a tensor; otherwise they count from the row's first element.
    pub places: bool,
    /// Stores the elements.
    pub values: bool,
    /// Stores their places.
    pub ranks: bool,
}

/// The keys under which sorting kernels are compiled once. Elements of `bytes` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortSpec {
    /// Whole rows of at most [`SortSpec::ROW`] elements. Operands: elements, places, values, ranks.
    Rows { bytes: u8, payload: Payload },
    /// The first elements of each chunk of a row. Operands as those of rows.
    Select { bytes: u8, payload: Payload },
    /// First dispatch of a radix pass. Operands: elements, counts.
    Count { bytes: u8 },
    /// Counts, totals.
    Offsets { last: bool },
    /// Elements, places, counts of tiles, bases of spans, values, ranks.
    Scatter { bytes: u8, payload: Payload },
    /// The same where subgroups are whole.
    ScatterRanked { bytes: u8, payload: Payload, team: Team },
    /// Whole rows of at most [`Team::elements`]. Operands: elements, places, and after two that are not used, values
    /// and ranks.
    RowsRanked { bytes: u8, payload: Payload, team: Team },
}

/// The invocations of a workgroup whose subgroups are whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Team {
    pub invocations: u32,
    pub subgroup: u32,
}

impl Team {
    /// Subgroups and invocations of a workgroup at most.
    const SUBGROUPS: u32 = 16;
    const INVOCATIONS: u32 = 512;
    /// Words of keys of an invocation; fixed in the templates.
    const WORDS: u64 = 8;

    /// The largest workgroup of subgroups of so many invocations, where a workgroup may have `most`.
    pub fn largest(subgroup: u32, most: u32) -> Team {
        let subgroups = (most.min(Team::INVOCATIONS) / subgroup).clamp(1, Team::SUBGROUPS);
        Team { invocations: subgroup << subgroups.ilog2(), subgroup }
    }

    /// The smallest workgroup with 1, 2, 4, .. subgroups that holds so many elements of `bytes` bytes; none if this is
    /// too small.
    pub fn holding(self, elements: u64, bytes: u8) -> Option<Team> {
        let sizes = std::iter::successors(Some(self.subgroup), |size| Some(size * 2));
        let mut teams = sizes.take_while(|&size| size <= self.invocations);
        teams.find_map(|invocations| Some(Team { invocations, ..self }).filter(|t| t.elements(bytes) >= elements))
    }

    /// Elements of `bytes` bytes that its registers hold.
    pub fn elements(self, bytes: u8) -> u64 {
        u64::from(self.invocations) * Team::WORDS / u64::from(words(bytes))
    }
}

impl SortSpec {
    /// Longest row that one workgroup sorts in shared memory.
    pub const ROW: u64 = 2048;
    /// Most elements that a chunk keeps.
    pub const KEPT: u64 = 512;
    /// Elements that one workgroup of `Scatter` takes.
    const TILE: u64 = 4096;
    /// Values of a digit.
    pub const DIGITS: u64 = 256;
    /// Bits of a digit.
    pub const DIGIT_BITS: u32 = 8;

    /// Elements that one workgroup of a radix pass takes.
    pub fn tile(&self) -> u64 {
        match *self {
            SortSpec::ScatterRanked { bytes, team, .. } => team.elements(bytes),
            _ => SortSpec::TILE,
        }
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let (name, header) = match self {
            SortSpec::Rows { bytes, .. } => (format!("sort_rows_{}", words(*bytes)), 8),
            SortSpec::Select { bytes, .. } => (format!("sort_select_{}", words(*bytes)), 8),
            SortSpec::Count { bytes } => (format!("sort_count_{}", words(*bytes)), 9),
            SortSpec::Offsets { .. } => ("sort_offsets".to_string(), 4),
            SortSpec::Scatter { bytes, .. } => (format!("sort_scatter_{}", words(*bytes)), 10),
            SortSpec::ScatterRanked { bytes, .. } => (format!("sort_scatter_ranked_{}", words(*bytes)), 10),
            SortSpec::RowsRanked { bytes, .. } => (format!("sort_rows_ranked_{}", words(*bytes)), 8),
        };
        let mut linker = Linker::new(library, &name, false, modes)?;
        let mut params = ParamLayout { words: (0..header).map(Param::Extra).collect(), fixed: None };
        let count = Element::Raw(4);
        match *self {
            SortSpec::Rows { bytes, payload } | SortSpec::Select { bytes, payload } => {
                define_load(&mut linker, &mut params, "slot_load", INPUT, Element::Raw(bytes))?;
                define_store(&mut linker, &mut params, Element::Raw(bytes), payload, [2, 3])?;
            }
            SortSpec::Count { bytes } => {
                define_load(&mut linker, &mut params, "slot_load", INPUT, Element::Raw(bytes))?;
                define_put(&mut linker, &mut params, "slot_store", 1, count)?;
            }
            SortSpec::Offsets { last } => {
                define_load(&mut linker, &mut params, "slot_load", 0, count)?;
                define_put(&mut linker, &mut params, "slot_store", 0, count)?;
                if !last {
                    define_put(&mut linker, &mut params, "slot_total", 1, count)?;
                }
            }
            SortSpec::Scatter { bytes, payload } => {
                define_load(&mut linker, &mut params, "slot_load", INPUT, Element::Raw(bytes))?;
                define_load(&mut linker, &mut params, "slot_before", 2, count)?;
                define_load(&mut linker, &mut params, "slot_base", 3, count)?;
                define_store(&mut linker, &mut params, Element::Raw(bytes), payload, [4, 5])?;
            }
            SortSpec::ScatterRanked { bytes, payload, .. } | SortSpec::RowsRanked { bytes, payload, .. } => {
                let element = Element::Raw(bytes);
                define_load(&mut linker, &mut params, "slot_load", INPUT, element)?;
                if matches!(self, SortSpec::ScatterRanked { .. }) {
                    define_load(&mut linker, &mut params, "slot_before", 2, count)?;
                    define_load(&mut linker, &mut params, "slot_base", 3, count)?;
                }
                if payload.values {
                    define_put(&mut linker, &mut params, "slot_store_value", 4, element)?;
                }
                if payload.ranks {
                    define_put(&mut linker, &mut params, "slot_store_rank", 5, count)?;
                    if payload.places {
                        define_load(&mut linker, &mut params, "slot_place", PLACES, count)?;
                    } else {
                        linker.define("slot_place", |_, args| arg(args, 1).map(Some))?;
                    }
                }
            }
        }
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: 0 })
    }
}

/// Words of an element of so many bytes.
fn words(bytes: u8) -> u8 {
    bytes.div_ceil(4)
}

/// A slot that loads an element by its position.
fn define_load(
    linker: &mut Linker<'_>,
    params: &mut ParamLayout,
    slot: &str,
    operand: u8,
    element: Element,
) -> Result<()> {
    linker.define(slot, |code, args| {
        let address = params.address(operand);
        access::load(code, address, element, arg(args, 0)?).map(Some)
    })
}

/// A slot that stores an element at a position.
fn define_put(
    linker: &mut Linker<'_>,
    params: &mut ParamLayout,
    slot: &str,
    operand: u8,
    element: Element,
) -> Result<()> {
    linker.define(slot, |code, args| {
        let address = params.address(operand);
        access::store(code, address, element, arg(args, 0)?, arg(args, 1)?)?;
        Ok(None)
    })
}

/// The slot that moves element `from` and its place to `to`.
fn define_store(
    linker: &mut Linker<'_>,
    params: &mut ParamLayout,
    element: Element,
    payload: Payload,
    [values, ranks]: [u8; 2],
) -> Result<()> {
    linker.define("slot_store", |code, args| {
        let (to, from, place) = (arg(args, 0)?, arg(args, 1)?, arg(args, 2)?);
        let mut copy = |code: &mut Code<'_, '_>, element, source, target| -> Result<()> {
            let address = params.address(source);
            let value = access::load(code, address, element, from)?;
            let address = params.address(target);
            access::store(code, address, element, to, value)
        };
        if payload.values {
            copy(code, element, INPUT, values)?;
        }
        if payload.ranks && payload.places {
            copy(code, Element::Raw(4), PLACES, ranks)?;
        } else if payload.ranks {
            let address = params.address(ranks);
            access::store(code, address, Element::Raw(4), to, place)?;
        }
        Ok(None::<Word>)
    })
}

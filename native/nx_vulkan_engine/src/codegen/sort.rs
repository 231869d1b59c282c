//! Kernels that sort contiguous rows, by whole rows in shared memory or by digits of their keys.

use rspirv::spirv::Word;

use super::access::{self, Element, Param, ParamLayout};
use super::elementwise::{Generated, arg};
use super::library::Library;
use super::link::{Code, FloatModes, Linker};
use super::templates;
use crate::{DType, Result};

/// Operand numbers of the elements and their places. Results come after all other operands.
const INPUT: u8 = 0;
const PLACES: u8 = 1;

/// What a sort is by: constants of the templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SortKey {
    pub dtype: DType,
    pub descending: bool,
}

impl SortKey {
    /// Sign bit, largest magnitude that is a number, mask, and direction: the last word of elements of two.
    pub fn constants(self) -> [(u32, u32); 4] {
        let bits = self.dtype.bits().min(32);
        let sign = if self.dtype.is_unsigned() { 0 } else { 1 << (bits - 1) };
        let largest = match self.dtype {
            DType::F8E5M2 => 0x7c,
            DType::F8E4M3Fn => 0x7e,
            DType::Bf16 => 0x7f80,
            DType::F16 => 0x7c00,
            DType::F32 => 0x7f80_0000,
            DType::F64 => 0x7ff0_0000,
            _ => 0,
        };
        [(0, sign), (1, largest), (2, u32::MAX >> (32 - bits)), (3, u32::from(self.descending))]
    }

    fn element(self) -> Element {
        Element::raw(self.dtype)
    }

    fn words(self) -> u32 {
        self.element().size_bytes().div_ceil(4)
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

/// The keys under which sorting kernels are compiled once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortSpec {
    /// Whole rows of at most [`SortSpec::ROW`] elements. Operands: elements, places, values, ranks.
    Rows { key: SortKey, payload: Payload },
    /// First dispatch of a radix pass. Operands: elements, counts.
    Count { key: SortKey },
    /// Counts, totals.
    Offsets { last: bool },
    /// Elements, places, counts of tiles, bases of spans, values, ranks.
    Scatter { key: SortKey, payload: Payload },
}

impl SortSpec {
    /// Longest row that one workgroup sorts in shared memory.
    pub const ROW: u64 = 2048;
    /// Elements that one workgroup of a radix pass takes.
    pub const TILE: u64 = 4096;
    /// Values of a digit.
    pub const DIGITS: u64 = 256;
    /// Bits of a digit.
    pub const DIGIT_BITS: u32 = 8;

    /// Specialization constants.
    pub fn constants(&self) -> Vec<(u32, u32)> {
        match self {
            SortSpec::Rows { key, .. } | SortSpec::Count { key } | SortSpec::Scatter { key, .. } => {
                key.constants().to_vec()
            }
            SortSpec::Offsets { last } => vec![(0, u32::from(*last))],
        }
    }

    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let (name, header) = match self {
            SortSpec::Rows { key, .. } => (format!("sort_rows_{}", key.words()), 4),
            SortSpec::Count { key } => (format!("sort_count_{}", key.words()), 4),
            SortSpec::Offsets { .. } => ("sort_offsets".to_string(), 4),
            SortSpec::Scatter { key, .. } => (format!("sort_scatter_{}", key.words()), 6),
        };
        let template = templates::template(&name)?;
        let mut linker = Linker::new(library, &name, &template, false, modes)?;
        let mut params = ParamLayout { words: (0..header).map(Param::Extra).collect() };
        let count = Element::Raw(4);
        match *self {
            SortSpec::Rows { key, payload } => {
                define_load(&mut linker, &mut params, "slot_load", INPUT, key.element())?;
                define_store(&mut linker, &mut params, key.element(), payload, [2, 3])?;
            }
            SortSpec::Count { key } => {
                define_load(&mut linker, &mut params, "slot_load", INPUT, key.element())?;
                define_put(&mut linker, &mut params, "slot_store", 1)?;
            }
            SortSpec::Offsets { last } => {
                define_load(&mut linker, &mut params, "slot_load", 0, count)?;
                define_put(&mut linker, &mut params, "slot_store", 0)?;
                if !last {
                    define_put(&mut linker, &mut params, "slot_total", 1)?;
                }
            }
            SortSpec::Scatter { key, payload } => {
                define_load(&mut linker, &mut params, "slot_load", INPUT, key.element())?;
                define_load(&mut linker, &mut params, "slot_before", 2, count)?;
                define_load(&mut linker, &mut params, "slot_base", 3, count)?;
                define_store(&mut linker, &mut params, key.element(), payload, [4, 5])?;
            }
        }
        Ok(Generated { words: linker.finish()?, params, table: false, elements_per_group: 0 })
    }
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

/// A slot that stores a count at a position.
fn define_put(linker: &mut Linker<'_>, params: &mut ParamLayout, slot: &str, operand: u8) -> Result<()> {
    linker.define(slot, |code, args| {
        let address = params.address(operand);
        access::store(code, address, Element::Raw(4), arg(args, 0)?, arg(args, 1)?)?;
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

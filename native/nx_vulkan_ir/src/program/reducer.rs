//! Reductions of elements of one type to another, and their accumulators.

use super::Reduction;
use crate::{CType, DType};

/// A reduction of elements of one type to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reducer {
    /// What it makes of them.
    pub reduction: Reduction,
    /// Of equal extremes argmax and argmin take the last.
    pub tie_high: bool,
    /// The type of the elements.
    pub input: DType,
    /// The type of the result.
    pub out: DType,
}

/// What an accumulator's words mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulator {
    /// One value.
    Value(CType),
    /// A compensated sum or product: the value of the type, then its error.
    Compensated(CType),
    /// An ordered key of one or two words and an index.
    Arg {
        /// 32-bit words of the key.
        key_words: u32,
    },
}

impl Accumulator {
    /// 32-bit words: 1, 2 or 4.
    pub fn words(self) -> u32 {
        match self {
            Accumulator::Value(ctype) => ctype.dtype().size_bytes() as u32 / 4,
            Accumulator::Compensated(ctype) => ctype.dtype().size_bytes() as u32 / 2,
            Accumulator::Arg { key_words: 1 } => 2,
            Accumulator::Arg { .. } => 4,
        }
    }
}

impl Reducer {
    /// What is combined.
    pub fn accumulator(&self) -> Accumulator {
        match self.reduction {
            Reduction::ArgMax | Reduction::ArgMin => {
                Accumulator::Arg { key_words: self.input.ctype().dtype().size_bytes() as u32 / 4 }
            }
            Reduction::All | Reduction::Any => Accumulator::Value(CType::U32),
            Reduction::Product if self.out.ctype() == CType::F32 => Accumulator::Compensated(CType::F32),
            Reduction::Sum => match self.out.ctype() {
                ctype @ (CType::F32 | CType::F64 | CType::C64) => Accumulator::Compensated(ctype),
                ctype @ (CType::I32 | CType::U32 | CType::I64 | CType::U64 | CType::C128) => Accumulator::Value(ctype),
            },
            Reduction::Product | Reduction::Max | Reduction::Min => Accumulator::Value(self.out.ctype()),
        }
    }

    /// Whether results tell in which order elements were combined: sums are compensated, as are products of f32.
    pub(crate) fn depends_on_order(&self) -> bool {
        let rounds = |ctype: CType| !ctype.dtype().is_integer();
        self.reduction == Reduction::Product && matches!(self.accumulator(), Accumulator::Value(ctype) if rounds(ctype))
    }

    /// 32-bit words of one accumulator: 1, 2 or 4.
    pub fn words(&self) -> u32 {
        self.accumulator().words()
    }

    /// Bytes of one accumulator in memory.
    pub fn accumulator_bytes(&self) -> u64 {
        u64::from(self.words()) * 4
    }

    /// Whether combining rounds, and so gives another result than a lone element.
    pub fn accumulates_floats(&self) -> bool {
        match self.accumulator() {
            Accumulator::Value(ctype) => !ctype.dtype().is_integer(),
            Accumulator::Compensated(_) => true,
            Accumulator::Arg { .. } => false,
        }
    }

    /// Whether the result is the largest or the least of f32.
    pub fn extreme_of_f32(&self) -> Option<&'static str> {
        match (self.accumulator(), self.reduction) {
            (Accumulator::Value(CType::F32), Reduction::Max) => Some("largest"),
            (Accumulator::Value(CType::F32), Reduction::Min) => Some("least"),
            _ => None,
        }
    }

    /// Whether it sums what are f32 by then.
    pub fn is_sum_of_f32(&self) -> bool {
        self.reduction == Reduction::Sum && self.accumulator() == Accumulator::Compensated(CType::F32)
    }
}

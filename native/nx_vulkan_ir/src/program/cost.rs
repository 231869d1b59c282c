//! What ops cost, in instructions: for passes that choose between kernels, and for how long a launch may take.

use super::{Binary, Elementwise, Unary};
use crate::{CType, DType};

/// Whether the op costs so few instructions that unrolling it over the lanes of a vector pays.
pub fn is_cheap(op: Elementwise, operands: &[DType], out: DType) -> bool {
    let wide =
        |t: &DType| t.is_canonical() || matches!(t, DType::U8 | DType::U16 | DType::S8 | DType::S16 | DType::Bf16);
    if !operands.iter().all(wide) || !wide(&out) || out.is_complex() {
        return false;
    }
    match op {
        Elementwise::Unary(op) => matches!(
            op,
            Unary::Abs
                | Unary::Negate
                | Unary::Sign
                | Unary::BitwiseNot
                | Unary::Ceil
                | Unary::Floor
                | Unary::IsNan
                | Unary::IsInfinity
        ),
        Elementwise::Binary(op) => {
            !matches!(op, Binary::Pow | Binary::Remainder | Binary::Divide | Binary::Atan2 | Binary::Quotient)
        }
        Elementwise::Select | Elementwise::Clip | Elementwise::AsType => true,
    }
}

/// About how many instructions an elementwise op takes.
pub fn elementwise_cost(op: Elementwise, out: CType) -> u64 {
    let wide = if matches!(out, CType::F64 | CType::C128) { 2 } else { 1 };
    wide * match op {
        Elementwise::Unary(op) => match op {
            Unary::Abs
            | Unary::Negate
            | Unary::Sign
            | Unary::BitwiseNot
            | Unary::Ceil
            | Unary::Floor
            | Unary::Round
            | Unary::IsNan
            | Unary::IsInfinity
            | Unary::Conjugate
            | Unary::Real
            | Unary::Imag
            | Unary::CountLeadingZeros
            | Unary::PopulationCount => 1,
            Unary::Sqrt | Unary::Rsqrt => 8,
            _ => 24,
        },
        Elementwise::Binary(op) => match op {
            Binary::Pow | Binary::Atan2 => 40,
            Binary::Divide | Binary::Remainder | Binary::Quotient => 8,
            _ => 1,
        },
        Elementwise::Select | Elementwise::Clip | Elementwise::AsType => 1,
    }
}

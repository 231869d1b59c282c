//! Computes large results again for what reads them late, as the backward pass does, where what they are computed of is
//! there then anyway: elementwise steps take less time than such a result takes memory, and so do products of few
//! elements, such as scores of attention.

mod launches;
mod lives;
mod readers;

use super::Target;
use crate::Result;
use crate::program::Program;

/// Bytes from which a result is worth a launch more: a GPU takes about as long to read them as to begin one.
const MIN_BYTES: u64 = 4 << 20;

/// How much of what programs do may be done again. Without shares nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recompute {
    /// Operations on numbers that take as long as reading a byte.
    pub flops_per_byte: u64,
    /// Sixteenths of what the program costs that it may cost in addition.
    pub shares: u64,
    /// What a byte that is not kept may cost, in bytes that are read in the same time.
    pub most_per_byte: u64,
}

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    if target.recompute.shares == 0 {
        return Ok(program.clone());
    }
    launches::run(&readers::run(program, target)?, target)
}

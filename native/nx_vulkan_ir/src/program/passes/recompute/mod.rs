//! Computes large results again for what reads them late, as the backward pass does, where all that they are computed of is
//! there then anyway: elementwise steps of few operands take less time than such a result takes memory.

mod launches;
mod lives;
mod readers;

use super::Target;
use crate::Result;
use crate::program::Program;

/// Bytes from which a result is worth a launch more: a GPU takes about as long to read them as to begin one.
const MIN_BYTES: u64 = 4 << 20;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    launches::run(&readers::run(program, target)?)
}

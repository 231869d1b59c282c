//! Computes large results again for what reads them late, as the backward pass does, where what they are computed of is
//! there then anyway: elementwise steps take less time than such a result takes memory, and so do products of few
//! elements, such as scores of attention.

mod launches;
mod lives;
mod order;
mod readers;

/// Puts instructions in an order in which large results are there as long as it takes to read them.
pub use order::run as in_order;

use super::dce;
use super::target::Target;
use crate::Result;
use crate::program::Program;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    if target.recompute.shares == 0 {
        return Ok(program.clone());
    }
    // What is read late alone is stored by what makes it again.
    dce::run_within(&launches::run(&readers::run(program, target)?, target)?)
}

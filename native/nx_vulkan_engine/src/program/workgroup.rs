//! The op that runs a whole program in one workgroup.

use super::{Program, verify};
use crate::Type;
use crate::codegen::workgroup::unsupported;

/// Checks that the program takes the operands, gives the results, and has only ops that a workgroup can run.
pub(super) fn check(program: &Program, operands: &[&Type], outs: &[Type]) -> Result<(), String> {
    verify::program(program).map_err(|e| e.to_string())?;
    if !program.inputs.iter().eq(operands.iter().copied()) {
        return Err(format!("takes {:?}, not {operands:?}", program.inputs));
    }
    let found = program.output_types();
    if !found.iter().copied().eq(outs) {
        return Err(format!("gives {found:?}, not {outs:?}"));
    }
    match unsupported(program) {
        None => Ok(()),
        Some(what) => Err(format!("has {what}, which one workgroup can't run")),
    }
}

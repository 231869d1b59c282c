//! A whole program in one dispatch of one workgroup.

use std::sync::Arc;

use nx_vulkan_ir::program::workgroup::unsupported;

use super::call::Results;
use super::halves;
use super::program::run_instructions;
use crate::kernels::Compile;
use crate::kernels::workgroup;
use crate::program::Program;
use crate::{Engine, Error, Result, Tensor, Type};

pub fn run(
    engine: &Arc<Engine>,
    program: &Program,
    operands: &[Tensor],
    outs: &[Type],
    compile: Compile,
) -> Result<Results> {
    if let Some(what) = unsupported(program) {
        return Err(Error::Unsupported {
            op: "workgroup".to_string(),
            dtype: None,
            needs: format!("ops that one workgroup can run, not {what}"),
        });
    }
    if halves::reaches_beyond(engine, operands, outs) {
        return Ok(run_instructions(engine, program, operands, compile)?.into_iter().collect());
    }
    let spec = workgroup::spec(engine.model(), &Arc::new(program.clone()), operands);
    // The kernel must exist before memory is taken.
    engine.kernel(&spec, compile)?;
    let outputs = workgroup::outputs(engine, outs)?;
    workgroup::run(engine, &spec, operands, &outputs, compile)?;
    Ok(outputs.into_iter().collect())
}

//! A compiled program: checked once, run any number of times, by any number of threads at once.

use std::sync::Arc;

use crate::eager::{Compile, run_program};
use crate::program::{Program, verify};
use crate::{Engine, Error, Result, Tensor};

/// A program that is ready to run on one device.
#[derive(Debug)]
pub struct Executable {
    program: Program,
}

impl Executable {
    /// Checks a program and prepares its kernels.
    ///
    /// # Errors
    /// `InvalidProgram` for a program that breaks a rule; `Unsupported` for what the device can't do.
    pub fn compile(_engine: &Arc<Engine>, program: Program) -> Result<Executable> {
        verify::program(&program)?;
        Ok(Executable { program })
    }

    /// Runs the program and returns its outputs at once; the device fills them.
    ///
    /// # Errors
    /// `NeedsCompile` where the run has to wait for the device or for a kernel and `compile` refuses that. `InvalidProgram` for
    /// inputs of other types; else what the ops answer.
    pub fn run(&self, engine: &Arc<Engine>, inputs: &[Tensor], compile: Compile) -> Result<Vec<Tensor>> {
        match compile {
            Compile::Allowed => run_program(engine, &self.program, inputs),
            Compile::Refused => Err(Error::NeedsCompile),
        }
    }
}

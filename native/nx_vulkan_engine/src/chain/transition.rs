//! Markov chains on the device: a program that takes a chain from one draw to the next runs as many times as one likes,
//! in one dispatch with one workgroup for each chain, or with the whole device.

use std::sync::Arc;

use super::Run;
use super::form::{self, Form, Stepping, Steps};
use crate::kernels::Compile;
use crate::program::{Program, verify};
use crate::{DType, Engine, Error, Result, Tensor, Type};

/// Draws of one call.
pub const MAX_DRAWS: u32 = 1 << 16;

/// Chains of one call: workgroups that every device takes.
pub const MAX_CHAINS: u64 = u16::MAX as u64;

/// A compiled transition.
#[derive(Debug)]
pub struct Transition {
    steps: Arc<Steps>,
    inputs: Vec<Type>,
    own: Vec<bool>,
}

fn invalid(reason: String) -> Error {
    Error::InvalidProgram { op: "transition".to_string(), reason }
}

fn argument(what: &'static str, expected: String, got: String) -> Error {
    Error::InvalidArgument { what, expected, got }
}

impl Transition {
    /// Compiles `program`, whose inputs are the number of the draw within a call (a u32 scalar), `states` values, and
    /// what does not change. Its first outputs are the next states. `own` says of every input after the number whether
    /// each chain has one of its own; states always are. Without a `form`, each chain has a workgroup where that can
    /// run a draw and does not take long for its steps, and else the whole device, for whose loops the host may have to
    /// wait.
    ///
    /// # Errors
    /// `InvalidProgram` for a program of another form; `Unsupported` where one workgroup is asked for and can't run it:
    /// an op that it lacks, or too many elements or instructions; else what compilation answers.
    pub fn compile(
        engine: &Arc<Engine>,
        program: Program,
        states: usize,
        own: &[bool],
        form: Option<Form>,
    ) -> Result<Transition> {
        verify::program(&program)?;
        let outputs: Vec<Type> = program.output_types().into_iter().cloned().collect();
        let Some((counter, inputs)) = program.inputs.split_first() else {
            return Err(invalid("no number of the draw".to_string()));
        };
        let same =
            states >= 1 && inputs.len() >= states && outputs.len() >= states && inputs[..states] == outputs[..states];
        if *counter != Type::new(DType::U32, &[])
            || !same
            || own.len() != inputs.len()
            || own[..states].contains(&false)
        {
            return Err(invalid(format!("{states} states of {:?} to {outputs:?}", program.inputs)));
        }
        let inputs = inputs.to_vec();
        let steps = Arc::new(Steps::compile(engine, program, Stepping { states, begins: false }, own, form)?);
        Ok(Transition { steps, inputs, own: own.to_vec() })
    }

    /// In what form chains of a program would run if none is asked for.
    pub fn form_of(engine: &Engine, program: &Program) -> Form {
        form::chosen(engine, program)
    }

    /// In what form the chains run.
    pub fn form(&self) -> Form {
        self.steps.form()
    }

    /// Runs `chains` chains from `inputs`: what is each chain's own has the number of chains as its first axis. Returns
    /// the outputs of every draw, `[chains, draws, ..]`, when the last part of them is recorded ([`Run::advance`]). The
    /// same chain leaves the same bits, alone or among others. Of loops of which nobody knows how often they run, one
    /// iteration counts for how much one part is: who has such asks for few draws at once.
    ///
    /// # Errors
    /// As [`Transition::begin`] and [`Run::advance`].
    pub fn run(
        &self,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        chains: u64,
        draws: u32,
        compile: Compile,
    ) -> Result<Vec<Tensor>> {
        self.begin(engine, inputs, chains, draws, compile)?.finish()
    }

    /// Begins such a run. Returns at once.
    ///
    /// # Errors
    /// `InvalidArgument` for tensors of other types or shapes, and for numbers out of range; `TooLarge`, `OutOfMemory`
    /// for more than fits; `NeedsCompile` where a tensor must be copied by a kernel that is missing, the chains have
    /// the whole device, or they may take more than one part, and `compile` refuses to wait for that.
    pub fn begin(
        &self,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        chains: u64,
        draws: u32,
        compile: Compile,
    ) -> Result<Run> {
        if !(1..=MAX_CHAINS).contains(&chains) {
            return Err(argument("chains", format!("1 to {MAX_CHAINS}"), chains.to_string()));
        }
        if !(1..=MAX_DRAWS).contains(&draws) {
            return Err(argument("draws", format!("1 to {MAX_DRAWS}"), draws.to_string()));
        }
        if inputs.len() != self.inputs.len() {
            return Err(argument("inputs", format!("{} tensors", self.inputs.len()), inputs.len().to_string()));
        }
        let of_all = |lead: &[u64], ty: &Type| Type::new(ty.dtype, &[lead, &ty.shape].concat());
        for (tensor, (ty, &own)) in inputs.iter().zip(self.inputs.iter().zip(&self.own)) {
            let expected = if own { of_all(&[chains], ty) } else { ty.clone() };
            let got = tensor.view.ty();
            if got != expected {
                return Err(argument("input", format!("{expected:?}"), format!("{got:?}")));
            }
        }
        self.steps.begin(engine, inputs, [chains, draws.into()], compile)
    }
}

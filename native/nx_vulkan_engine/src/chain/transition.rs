//! Markov chains on the device: a program that takes a chain from one draw to the next runs as many times as one likes in one
//! dispatch, in one workgroup for each chain.

use std::sync::Arc;

use crate::codegen::workgroup::{Mode, Port, WorkgroupSpec, supports};
use crate::kernel::launch::{Compile, Kernel, KernelSpec, workgroup};
use crate::program::{Op, Program, verify};
use crate::{DType, Engine, Error, Result, Tensor, Type};

/// Instructions of a transition, with those of its loops and branches, that one kernel takes.
const MAX_INSTRUCTIONS: usize = 8192;

/// Elements of the largest value: one workgroup takes a millisecond for some functions of so many.
const MAX_ELEMENTS: u64 = 1 << 18;

/// Draws of one call.
pub const MAX_DRAWS: u32 = 1 << 16;

/// Chains of one call: workgroups that every device takes.
pub const MAX_CHAINS: u64 = u16::MAX as u64;

/// A compiled transition.
#[derive(Debug)]
pub struct Transition {
    kernel: Arc<Kernel>,
    spec: WorkgroupSpec,
    inputs: Vec<Type>,
    outputs: Vec<Type>,
}

fn unsupported(needs: String) -> Error {
    Error::Unsupported { op: "transition".to_string(), dtype: None, needs }
}

fn invalid(reason: String) -> Error {
    Error::InvalidProgram { op: "transition".to_string(), reason }
}

fn argument(what: &'static str, expected: String, got: String) -> Error {
    Error::InvalidArgument { what, expected, got }
}

impl Transition {
    /// Compiles `program`, whose inputs are the number of the draw within a call (a u32 scalar), `states` values, and what does not
    /// change. Its first outputs are the next states. `own` says of every input after the number whether each chain has one of its own;
    /// states always are.
    ///
    /// # Errors
    /// `InvalidProgram` for a program of another form; `Unsupported` for one that a workgroup can't run: an op that it lacks, or
    /// too many elements or instructions; else what compilation answers.
    pub fn compile(engine: &Engine, program: Program, states: usize, own: &[bool]) -> Result<Transition> {
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
        let largest = inputs.iter().chain(program.results()).map(Type::elements).max().unwrap_or(0);
        if instructions(&program) > MAX_INSTRUCTIONS || largest > MAX_ELEMENTS {
            return Err(unsupported(format!(
                "at most {MAX_INSTRUCTIONS} instructions and values of {MAX_ELEMENTS} elements"
            )));
        }
        if !supports(&program) {
            return Err(unsupported("a log-density of ops that one workgroup can run".to_string()));
        }
        let ports = inputs.iter().zip(own).map(|(ty, &own)| Port::contiguous(&ty.shape, own)).collect();
        let inputs = inputs.to_vec();
        let mode = Mode::Steps { states, begins: false };
        let spec = workgroup::spec_with(engine.caps(), &Arc::new(program), ports, mode);
        let kernel = engine.kernel(&KernelSpec::Workgroup(Box::new(spec.clone())), Compile::Allowed)?;
        Ok(Transition { kernel, spec, inputs, outputs })
    }

    /// Starts `chains` chains from `inputs`: what is each chain's own has the number of chains as its first axis. Returns at once the
    /// outputs of every draw, `[chains, draws, ..]`. The same chain leaves the same bits, alone or among others.
    ///
    /// # Errors
    /// `InvalidArgument` for tensors of other types or shapes, and for numbers out of range; `TooLarge`, `OutOfMemory` for more
    /// than fits; `NeedsCompile` where a tensor must be copied by a kernel that is missing, and `compile` refuses to wait for it.
    pub fn run(
        &self,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        chains: u64,
        draws: u32,
        compile: Compile,
    ) -> Result<Vec<Tensor>> {
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
        for (tensor, (ty, port)) in inputs.iter().zip(self.inputs.iter().zip(&self.spec.ports)) {
            let expected = if port.per_group { of_all(&[chains], ty) } else { ty.clone() };
            let got = tensor.view.ty();
            if got != expected {
                return Err(argument("input", format!("{expected:?}"), format!("{got:?}")));
            }
        }
        let contiguous = |tensor: &Tensor| crate::eager::contiguous(engine, tensor, compile);
        let inputs: Vec<Tensor> = inputs.iter().map(contiguous).collect::<Result<_>>()?;
        let types: Vec<Type> = self.outputs.iter().map(|ty| of_all(&[chains, draws.into()], ty)).collect();
        let outputs = workgroup::outputs(engine, &types)?;
        workgroup::run_kernel(engine, &self.kernel, &self.spec.ports, &inputs, &outputs, [chains as u32, draws])?;
        Ok(outputs)
    }
}

/// Instructions of a program and of those inside it.
fn instructions(program: &Program) -> usize {
    let inside = |op: &Op| match op {
        Op::While(op) => instructions(&op.condition) + instructions(&op.body),
        Op::Cond(op) => instructions(&op.on_true) + instructions(&op.on_false),
        _ => 0,
    };
    program.instructions.iter().map(|instruction| 1 + inside(&instruction.op)).sum()
}

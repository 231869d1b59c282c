//! In what form a chain's steps run, and how that is chosen.

use std::sync::Arc;

use super::device::Stepped;
use crate::codegen::workgroup::{Mode, Port, WorkgroupSpec, supports, work};
use crate::kernel::launch::{Compile, Kernel, KernelSpec, workgroup};
use crate::program::{Operand, Program};
use crate::{Engine, Error, Result, Tensor, Type};

/// In what form steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// All steps of all chains are one dispatch, each chain one workgroup.
    Workgroup,
    /// Each step is a run of a compiled program with the whole device for each of its kernels; chains lie side by side.
    Device,
}

/// Instructions of a step, with those of its loops and branches, that one kernel takes.
const MAX_INSTRUCTIONS: usize = 8192;

/// Elements of the largest value: one workgroup takes a millisecond for some functions of so many.
const MAX_ELEMENTS: u64 = 1 << 18;

/// Work, about the instructions of all invocations, from which on a step is given to the whole device. On an H200 a workgroup does a seventh of it,
/// a logistic regression of 500 x 21, in 12 us, and the dispatches of a step take 70 to 95 us.
const MAX_WORK: u64 = 2_400_000;

/// How a program repeats over its own results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stepping {
    pub states: usize,
    /// Whether it runs once before the first step that is kept.
    pub begins: bool,
}

/// A compiled step, in either form.
#[derive(Debug)]
pub(super) enum Steps {
    Workgroup { kernel: Arc<Kernel>, ports: Vec<Port>, outputs: Vec<Type> },
    Device(Stepped),
}

impl Steps {
    /// Compiles a step: its inputs are a counter (u32), `states` values and what stays the same, of which each chain has its `own` or not. Without
    /// a form, it takes one workgroup where that can run it and has not too much to do.
    ///
    /// # Errors
    /// `Unsupported` where one workgroup is asked for and can't run it; else what compilation answers.
    pub fn compile(
        engine: &Arc<Engine>,
        program: Program,
        stepping: Stepping,
        own: &[bool],
        form: Option<Form>,
    ) -> Result<Steps> {
        let form = match form {
            Some(Form::Workgroup) => fits(&program).map(|_| Form::Workgroup)?,
            Some(Form::Device) => Form::Device,
            None => match fits(&program) {
                Ok(work) if work <= MAX_WORK => Form::Workgroup,
                _ => Form::Device,
            },
        };
        if form == Form::Device {
            return Ok(Steps::Device(Stepped::compile(engine, program, stepping, own)?));
        }
        let types = program.inputs.iter().skip(1);
        let ports = types.zip(own).map(|(ty, &own)| Port::contiguous(&ty.shape, own)).collect();
        let outputs = program.output_types().into_iter().cloned().collect();
        let mode = Mode::Steps { states: stepping.states, begins: stepping.begins };
        let spec: WorkgroupSpec = workgroup::spec_with(engine.caps(), &Arc::new(program), ports, mode);
        let ports = spec.ports.clone();
        let kernel = engine.kernel(&KernelSpec::Workgroup(Box::new(spec)), Compile::Allowed)?;
        Ok(Steps::Workgroup { kernel, ports, outputs })
    }

    pub fn form(&self) -> Form {
        match self {
            Steps::Workgroup { .. } => Form::Workgroup,
            Steps::Device(_) => Form::Device,
        }
    }

    /// Runs `steps` steps of `chains` chains. Answers the outputs of each step, `[chains, steps, ..]`.
    pub fn run(
        &self,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        [chains, steps]: [u64; 2],
        compile: Compile,
    ) -> Result<Vec<Tensor>> {
        let contiguous = |tensor: &Tensor| crate::eager::contiguous(engine, tensor, compile);
        let inputs: Vec<Tensor> = inputs.iter().map(contiguous).collect::<Result<_>>()?;
        match self {
            Steps::Device(stepped) => stepped.run(engine, &inputs, [chains, steps], compile),
            Steps::Workgroup { kernel, ports, outputs } => {
                let of_all = |ty: &Type| Type::new(ty.dtype, &[&[chains, steps], &ty.shape[..]].concat());
                let types: Vec<Type> = outputs.iter().map(of_all).collect();
                let outputs = workgroup::outputs(engine, &types)?;
                workgroup::run_kernel(engine, kernel, ports, &inputs, &outputs, [chains as u32, steps as u32])?;
                Ok(outputs)
            }
        }
    }
}

/// Whether one workgroup can run a step, and the work that it then does.
fn fits(program: &Program) -> Result<u64> {
    let needs = |needs: String| Err(Error::Unsupported { op: "chain".to_string(), dtype: None, needs });
    let largest = program.inputs.iter().chain(program.results()).map(Type::elements).max().unwrap_or(0);
    if program.size() > MAX_INSTRUCTIONS || largest > MAX_ELEMENTS {
        return needs(format!("at most {MAX_INSTRUCTIONS} instructions and values of {MAX_ELEMENTS} elements"));
    }
    if !supports(program) {
        return needs("a log-density of ops that one workgroup can run".to_string());
    }
    Ok(program_work(program))
}

/// Work of a program and of those inside it, each once.
fn program_work(program: &Program) -> u64 {
    let type_of = program.types();
    let each = program.instructions.iter().map(|instruction| {
        let operands: Vec<&Type> = instruction.operands.iter().filter_map(|&o: &Operand| type_of(o)).collect();
        let inside = instruction.op.inside().map(program_work).sum::<u64>();
        inside + work(&instruction.op, &operands, &instruction.outs)
    });
    each.sum()
}

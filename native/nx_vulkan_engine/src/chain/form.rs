//! In what form a chain's steps run, and how that is chosen.

use std::sync::Arc;

use super::device::{Stepped, element};
use super::run::{Parts, Place, Run, later};
use crate::codegen::workgroup::{Mode, Port, WorkgroupSpec, supports, work_once, work_repeated};
use crate::kernel::launch::workgroup::Repeat;
use crate::kernel::launch::{Compile, Kernel, KernelSpec, workgroup};
use crate::program::passes::PHASE_WORK;
use crate::program::{Program, counted};
use crate::stream::MAX_HELD_NS;
use crate::{DeviceKind, Engine, Error, Result, Tensor, Type, eager};

/// In what form steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// The steps of all chains are one dispatch, each chain one workgroup; steps that may take long are several, one after the other.
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

/// Workgroups that a GPU runs side by side as fast as one alone, about. Of those of a CPU device each takes a core.
const GPU_GROUPS: u64 = 128;

/// Work that a step takes beside that of its elements: some barriers, 2.5 us of a GPU and 20 of a CPU device.
const STEP_WORK: u64 = 13 * PHASE_WORK;

/// How a program repeats over its own results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stepping {
    pub states: usize,
    /// Whether it runs once before the first step that is kept.
    pub begins: bool,
}

/// The kernel of a step.
#[derive(Debug)]
pub(super) struct Grouped {
    kernel: Arc<Kernel>,
    ports: Vec<Port>,
    stepping: Stepping,
    outputs: Vec<Type>,
    /// Work of a step, about the instructions of all invocations.
    work: u64,
}

/// A compiled step, in either form.
#[derive(Debug)]
pub(super) enum Steps {
    Workgroup(Grouped),
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
        mut program: Program,
        stepping: Stepping,
        own: &[bool],
        form: Option<Form>,
    ) -> Result<Steps> {
        counted::note(&mut program);
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
        let work = work_repeated(&program, PHASE_WORK).saturating_add(STEP_WORK);
        let spec: WorkgroupSpec = workgroup::spec_with(engine.caps(), &Arc::new(program), ports, mode);
        let ports = spec.ports.clone();
        let kernel = engine.kernel(&KernelSpec::Workgroup(Box::new(spec)), Compile::Allowed)?;
        Ok(Steps::Workgroup(Grouped { kernel, ports, stepping, outputs, work }))
    }

    pub fn form(&self) -> Form {
        match self {
            Steps::Workgroup(_) => Form::Workgroup,
            Steps::Device(_) => Form::Device,
        }
    }

    /// Begins `steps` steps of `chains` chains. `inputs` are all but the counter; what is a chain's own has the chains as its first axis.
    ///
    /// # Errors
    /// `NeedsCompile` where `compile` refuses to wait and the run may be several parts, or a tensor must be copied by a kernel that is missing.
    pub fn begin(
        self: &Arc<Steps>,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        [chains, steps]: [u64; 2],
        compile: Compile,
    ) -> Result<Run> {
        let (place, parts, outputs) = match &**self {
            Steps::Device(stepped) => {
                Run::refuse(compile, false)?;
                let (progress, parts) = stepped.begin(engine, [chains, steps])?;
                (Place::Device(Box::new(progress)), parts, stepped.outputs())
            }
            Steps::Workgroup(grouped) => {
                let parts = grouped.parts(engine, chains);
                Run::refuse(compile, parts.first >= steps + u64::from(grouped.stepping.begins))?;
                (Place::Workgroup(0), parts, &grouped.outputs[..])
            }
        };
        let contiguous = |tensor: &Tensor| eager::contiguous(engine, tensor, compile);
        let inputs: Vec<Tensor> = inputs.iter().map(contiguous).collect::<Result<_>>()?;
        let of_all = |ty: &Type| Type::new(ty.dtype, &[&[chains, steps], &ty.shape[..]].concat());
        let results = workgroup::outputs(engine, &outputs.iter().map(of_all).collect::<Vec<Type>>())?;
        Ok(Run::new(engine, self, (inputs, results), [chains, steps], (place, parts)))
    }

    /// Records a part of a run, of about the size. Answers its size and whether it was the last one.
    pub fn advance(&self, run: &mut Run, size: u64) -> Result<(u64, bool)> {
        match self {
            Steps::Device(stepped) => stepped.advance(run, size),
            Steps::Workgroup(grouped) => grouped.advance(run, size),
        }
    }
}

impl Grouped {
    /// Steps of one dispatch.
    fn parts(&self, engine: &Engine, chains: u64) -> Parts {
        let side_by_side = match engine.caps().kind {
            DeviceKind::Cpu => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            DeviceKind::Discrete | DeviceKind::Integrated | DeviceKind::Virtual | DeviceKind::Other => GPU_GROUPS,
        };
        let ns = engine.stream().rates().longest_ns(self.work).saturating_mul(chains.div_ceil(side_by_side));
        let first = (MAX_HELD_NS / ns.max(1)).max(1);
        Parts { first, next: later(first), most: u64::MAX }
    }

    /// Records a dispatch of `size` steps, or as many as are left.
    fn advance(&self, run: &mut Run, size: u64) -> Result<(u64, bool)> {
        let (engine, begins) = (&run.engine, u64::from(self.stepping.begins));
        let (Place::Workgroup(next), all) = (&mut run.place, run.count + begins) else { return Ok((0, true)) };
        // The first dispatch leaves a step that the second one goes on from.
        let (from, to) = (*next, next.saturating_add(size.max(1 + begins)).min(all));
        if from > 0 {
            for (state, results) in run.inputs.iter_mut().take(self.stepping.states).zip(&run.results) {
                *state = eager::contiguous(engine, &element(results, 1, from - 1 - begins), Compile::Allowed)?;
            }
        }
        let repeat = Repeat { kept: run.count as u32, from: from as u32, to: to as u32 };
        let groups = run.chains as u32;
        workgroup::run_kernel(engine, &self.kernel, &self.ports, (&run.inputs, &run.results), groups, repeat)?;
        *next = to;
        Ok((to - from, to == all))
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
    Ok(work_once(program))
}

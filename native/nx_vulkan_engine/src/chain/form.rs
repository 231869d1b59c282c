//! In what form a chain's steps run, and how that is chosen.

use std::sync::Arc;
use std::time::Duration;

use nx_vulkan_ir::program::workgroup::{unsupported, work_once};

use super::device::Stepped;
use super::grouped::Grouped;
use super::run::{Position, Run};
use crate::kernels::{Compile, workgroup};
use crate::program::{Program, counted, passes};
use crate::{Engine, Error, GoesOn, Result, Tensor, Type, eager};

/// In what form steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// The steps of all chains are one dispatch, each chain one workgroup; those that may take long are several, one
    /// after the other.
    Workgroup,
    /// Each step is a run of a compiled program with the whole device for each of its kernels; chains lie side by side.
    Device,
}

/// Instructions of a step, with those of its loops and branches, that one kernel takes.
const MAX_INSTRUCTIONS: usize = 8192;

/// Elements of the largest value, of any device, so that all take and refuse the same: one workgroup takes long for
/// some functions of more.
const MAX_ELEMENTS: u64 = 1 << 18;

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
    Workgroup(Grouped),
    Device(Stepped),
}

impl Steps {
    /// Compiles a step: its inputs are a counter (u32), `states` values and what stays the same, of which each chain
    /// has its `own` or not. Without a form, it takes one workgroup where that can run it and has not too much to do.
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
        let small = match form {
            Some(Form::Workgroup) => Some(fitting(&program)?),
            Some(Form::Device) => None,
            None => small(engine, &program),
        };
        match small {
            Some(small) => Ok(Steps::Workgroup(Grouped::compile(engine, small, stepping, own)?)),
            None => {
                counted::note(&mut program);
                Ok(Steps::Device(Stepped::compile(engine, program, stepping, own)?))
            }
        }
    }

    pub fn form(&self) -> Form {
        match self {
            Steps::Workgroup(_) => Form::Workgroup,
            Steps::Device(_) => Form::Device,
        }
    }

    /// Begins `steps` steps of `chains` chains. `inputs` are all but the counter; what is a chain's own has the chains
    /// as its first axis.
    ///
    /// # Errors
    /// `NeedsCompile` where `compile` refuses to wait and the run may be several parts, or a tensor must be copied by a
    /// kernel that is missing.
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
                (Position::Device(Box::new(progress)), parts, stepped.outputs())
            }
            Steps::Workgroup(grouped) => {
                let (groups, parts) = grouped.begin(engine, [chains, steps], compile)?;
                (Position::Workgroup(Box::new(groups)), parts, grouped.outputs())
            }
        };
        let contiguous = |tensor: &Tensor| eager::contiguous(engine, tensor, compile);
        let inputs: Vec<Tensor> = inputs.iter().map(contiguous).collect::<Result<_>>()?;
        let of_all = |ty: &Type| Type::new(ty.dtype, &[&[chains, steps], &ty.shape[..]].concat());
        let results = workgroup::outputs(engine, &outputs.iter().map(of_all).collect::<Vec<Type>>())?;
        Ok(Run::new(engine, self, (inputs, results), [chains, steps], (place, parts)))
    }

    /// Whether only the end of a part tells what is left of a run.
    pub fn pauses(&self) -> bool {
        matches!(self, Steps::Workgroup(grouped) if grouped.pauses())
    }

    /// Reads how far the last part took a run that pauses, and answers how much it did.
    pub fn look(&self, run: &mut Run) -> Result<Option<u64>> {
        match self {
            Steps::Device(_) => Ok(None),
            Steps::Workgroup(grouped) => grouped.look(run),
        }
    }

    /// Notes what a part of that size took.
    pub fn note(&self, took: Duration, size: u64) {
        if let Steps::Workgroup(grouped) = self {
            grouped.note(took, size);
        }
    }

    /// Records a part of a run, of about the size. Answers its size and whether it was the last one.
    pub fn advance(&self, run: &mut Run, size: u64, goes_on: GoesOn<'_>) -> Result<(u64, bool)> {
        match self {
            Steps::Device(stepped) => stepped.advance(run, size, goes_on),
            Steps::Workgroup(grouped) => grouped.advance(run, size),
        }
    }
}

/// The form that a step takes if none is asked for.
pub(super) fn chosen(engine: &Engine, program: &Program) -> Form {
    if small(engine, program).is_some() { Form::Workgroup } else { Form::Device }
}

/// The step as a program of one workgroup, where that can run it and has not too much to do.
fn small(engine: &Engine, program: &Program) -> Option<Program> {
    if work_once(program) <= engine.model().chains.most_work { fitting(program).ok() } else { None }
}

/// The step as a program that one workgroup can run.
fn fitting(program: &Program) -> Result<Program> {
    let needs = |needs: String| Err(Error::Unsupported { op: "chain".to_string(), dtype: None, needs });
    let mut program = passes::expanded(program.clone())?;
    let largest = program.inputs.iter().chain(program.results()).map(Type::elements).max().unwrap_or(0);
    if program.size() > MAX_INSTRUCTIONS || largest > MAX_ELEMENTS {
        return needs(format!(
            "a log-density of at most {MAX_INSTRUCTIONS} instructions and values of {MAX_ELEMENTS} elements in one \
             workgroup, not {} instructions and values of {largest} (which the form :device takes)",
            program.size()
        ));
    }
    if let Some(what) = unsupported(&program) {
        return needs(format!(
            "a log-density of ops that one workgroup can run, not {what} (which the form :device takes)"
        ));
    }
    counted::note(&mut program);
    Ok(program)
}

//! Ops that run programs: loops and branches.

use super::counted::Trips;
use super::wire::{Attr, Attrs};
use super::{Op, Program, verify};
use crate::{Result, Type};

/// The attributes of `while`. Its operands are the state, then what both programs read besides; each takes all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Loop {
    /// Gives one scalar: whether to go on.
    pub condition: Program,
    /// Gives the next state.
    pub body: Program,
    /// What a pass found out of how often it runs.
    pub trips: Option<Trips>,
}

/// The attributes of `cond`. Its first operand is a scalar, which chooses the program that takes the others; the other
/// program does not run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Branches {
    /// Runs where the predicate is not 0.
    pub on_true: Program,
    /// Runs where it is 0.
    pub on_false: Program,
}

type Check = std::result::Result<(), String>;

impl Op {
    /// The programs of a loop or of branches.
    pub fn inside(&self) -> impl Iterator<Item = &Program> {
        let programs = match self {
            Op::While(op) => [Some(&op.condition), Some(&op.body)],
            Op::Cond(op) => [Some(&op.on_true), Some(&op.on_false)],
            _ => [None, None],
        };
        programs.into_iter().flatten()
    }
}

impl Program {
    /// Instructions of the program and of the loops and branches in it.
    pub fn size(&self) -> usize {
        self.instructions.iter().map(|instruction| 1 + instruction.op.inside().map(Program::size).sum::<usize>()).sum()
    }
}

/// Checks a program that takes `inputs` and gives `outs`.
fn check_program(what: &str, program: &Program, inputs: &[&Type], outs: &[Type]) -> Check {
    verify::program(program).map_err(|e| format!("{what}: {e}"))?;
    if !program.inputs.iter().eq(inputs.iter().copied()) {
        return Err(format!("{what}: takes {:?}, not {inputs:?}", program.inputs));
    }
    let found = program.output_types();
    if !found.iter().copied().eq(outs) {
        return Err(format!("{what}: gives {found:?}, not {outs:?}"));
    }
    Ok(())
}

impl Loop {
    /// A loop of a condition and a body.
    pub fn new(condition: Program, body: Program) -> Loop {
        Loop { condition, body, trips: None }
    }

    /// How often it runs, if that is known before.
    pub fn known_trips(&self) -> Option<u64> {
        match self.trips {
            Some(Trips::Known(trips)) => Some(trips),
            Some(Trips::Counted(_) | Trips::Guarded) | None => None,
        }
    }

    pub(super) fn check_types(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let state = operands.get(..outs.len()).filter(|state| !state.is_empty());
        if !state.is_some_and(|state| state.iter().copied().eq(outs)) {
            return Err(format!("the state of {outs:?} does not begin with operands {operands:?}"));
        }
        let going_on = self.condition.output_types();
        match going_on.as_slice() {
            [one] if one.elements() == 1 && !one.dtype.is_complex() => {}
            _ => return Err(format!("condition: gives {going_on:?}, not one scalar")),
        }
        let going_on: Vec<Type> = going_on.into_iter().cloned().collect();
        check_program("condition", &self.condition, operands, &going_on)?;
        check_program("body", &self.body, operands, outs)
    }

    pub(super) fn from_wire(a: &Attrs<'_>) -> Result<Loop> {
        Ok(Loop::new(a.program("condition")?, a.program("body")?))
    }

    pub(super) fn wire_attrs(&self) -> Vec<(String, Attr)> {
        vec![("condition".to_string(), self.condition.to_attr()), ("body".to_string(), self.body.to_attr())]
    }
}

impl Branches {
    pub(super) fn check_types(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let Some((predicate, captured)) = operands.split_first() else {
            return Err("needs a predicate".to_string());
        };
        if predicate.elements() != 1 || predicate.dtype.is_complex() {
            return Err(format!("a predicate of {predicate:?}"));
        }
        if outs.is_empty() {
            return Err("gives nothing".to_string());
        }
        check_program("on_true", &self.on_true, captured, outs)?;
        check_program("on_false", &self.on_false, captured, outs)
    }

    pub(super) fn from_wire(a: &Attrs<'_>) -> Result<Branches> {
        Ok(Branches { on_true: a.program("on_true")?, on_false: a.program("on_false")? })
    }

    pub(super) fn wire_attrs(&self) -> Vec<(String, Attr)> {
        vec![("on_true".to_string(), self.on_true.to_attr()), ("on_false".to_string(), self.on_false.to_attr())]
    }
}

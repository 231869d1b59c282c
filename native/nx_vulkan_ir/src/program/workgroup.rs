//! The op that runs a whole program in one workgroup.

use super::{Loop, Op, Operand, Program, verify};
use crate::Type;

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

/// Elements of a value, at most: one workgroup takes a second for some functions of so many.
const MAX_ELEMENTS: u64 = 1 << 24;

/// Whether a workgroup can run the op on operands of these types.
pub fn supports_op(op: &Op, operands: &[&Type], outs: &[Type]) -> bool {
    let elements = |ty: &Type| (1..=MAX_ELEMENTS).contains(&ty.elements());
    operands.iter().copied().chain(outs).all(elements) && has(op, operands, outs)
}

/// Whether a workgroup gives the digits of an op that [`supports_op`] run alone.
pub(crate) fn keeps_digits(op: &Op, operands: &[&Type], outs: &[Type]) -> bool {
    op.kind(|kind| kind.keeps_digits(operands, outs))
}

/// Elements that the longest loop of an op goes through in a workgroup, if more than those of its results.
pub fn longest_loop(op: &Op, operands: &[&Type], outs: &[Type]) -> u64 {
    op.kind(|kind| kind.longest_loop(operands, outs))
}

/// About how many instructions all invocations together take for an op that [`supports_op`], or that is written as
/// others.
pub fn work(op: &Op, operands: &[&Type], outs: &[Type]) -> u64 {
    op.kind(|kind| kind.workgroup_work(operands, outs))
}

/// Work of a program and of those inside it, each once. Of branches the one that has more to do.
pub fn work_once(program: &Program) -> u64 {
    program_work(program, &|_, iteration| iteration)
}

/// Work of a program whose loops run as often as is known, or else once, with `between` iterations.
pub fn work_repeated(program: &Program, between: u64) -> u64 {
    program_work(program, &|op, iteration| {
        iteration.saturating_add(between).saturating_mul(op.known_trips().unwrap_or(1))
    })
}

/// `repeat` makes the work of a loop of that of an iteration.
fn program_work(program: &Program, repeat: &impl Fn(&Loop, u64) -> u64) -> u64 {
    let type_of = program.types();
    let inside = |program: &Program| program_work(program, repeat);
    let of = |instruction: &crate::program::Instruction| match &instruction.op {
        Op::While(op) => repeat(op, inside(&op.condition).saturating_add(inside(&op.body))),
        Op::Cond(op) => inside(&op.on_true).max(inside(&op.on_false)),
        op => {
            let operands: Vec<&Type> = instruction.operands.iter().filter_map(|&o: &Operand| type_of(o)).collect();
            work(op, &operands, &instruction.outs)
        }
    };
    program.instructions.iter().map(of).fold(0, u64::saturating_add)
}

/// Whether a program has loops of which nobody knows how often they run.
pub fn is_open(program: &Program) -> bool {
    let is_open_loop = |op: &Op| matches!(op, Op::While(op) if op.known_trips().is_none());
    program.instructions.iter().any(|i| is_open_loop(&i.op) || i.op.inside().any(is_open))
}

/// Whether a program has one loop of which nobody knows how often it runs, and that in no other loop or branch.
pub fn has_one_open_loop(program: &Program) -> bool {
    let open = |op: &Op| matches!(op, Op::While(op) if op.known_trips().is_none());
    let (loops, others): (Vec<_>, Vec<_>) = program.instructions.iter().partition(|i| open(&i.op));
    loops.len() == 1 && !others.iter().any(|i| i.op.inside().any(is_open))
}

/// Whether a kernel for the program can be generated.
pub fn supports(program: &Program) -> bool {
    unsupported(program).is_none()
}

/// What keeps the program from being a kernel, in words: the first op that no workgroup can run, or a value that is too
/// large for one.
pub fn unsupported(program: &Program) -> Option<String> {
    let type_of = program.types();
    if let Some(ty) =
        program.inputs.iter().chain(program.results()).find(|ty| !(1..=MAX_ELEMENTS).contains(&ty.elements()))
    {
        return Some(format!("a value of {ty}"));
    }
    program.instructions.iter().find_map(|instruction| {
        let operands: Vec<&Type> = instruction.operands.iter().filter_map(|&o: &Operand| type_of(o)).collect();
        if operands.len() == instruction.operands.len() && has(&instruction.op, &operands, &instruction.outs) {
            return None;
        }
        let inside = instruction.op.inside().find_map(unsupported);
        let operands: Vec<String> = operands.iter().map(|ty| ty.to_string()).collect();
        inside.or_else(|| Some(format!("{} of {}", instruction.op.name(), operands.join(", "))))
    })
}

fn has(op: &Op, operands: &[&Type], outs: &[Type]) -> bool {
    !outs.is_empty() && op.kind(|kind| kind.runs_in_workgroup(operands, outs))
}

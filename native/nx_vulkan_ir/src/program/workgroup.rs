//! The op that runs a whole program in one workgroup.

use super::cost::elementwise_cost;
use super::{Linalg, Loop, Op, Operand, Program, Reduction, verify};
use crate::{DType, Type};

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

/// Work, about the instructions of all invocations, that one workgroup of a GPU does in the time of a dependent dispatch (2.1 us on an
/// H200): 128 lanes, of whose time loads and barriers take nine tenths.
pub const DISPATCH_WORK: u64 = 24_000;

/// Work that every phase costs besides that of its elements: a barrier.
pub const PHASE_WORK: u64 = DISPATCH_WORK / 16;

/// Elements of a value, at most: one workgroup takes a second for some functions of so many.
const MAX_ELEMENTS: u64 = 1 << 24;

/// Elements that are combined for each of a scan, about.
const SCAN_COST: u64 = 32;

/// Instructions for each pair of elements that a sort compares.
const SORT_COST: u64 = 16;

/// Index vectors of an op that takes indices.
pub fn update_count(indices: &Type) -> u64 {
    indices.elements() / indices.shape.last().copied().unwrap_or(1).max(1)
}

/// Instructions that one step of an elimination takes for each element.
const ELIMINATION_COST: u64 = 6;

/// Whether a workgroup can run the op on operands of these types.
pub fn supports_op(op: &Op, operands: &[&Type], outs: &[Type]) -> bool {
    let elements = |ty: &Type| (1..=MAX_ELEMENTS).contains(&ty.elements());
    operands.iter().copied().chain(outs).all(elements) && has(op, operands, outs)
}

/// About how many instructions all invocations together take for an op that [`supports_op`].
pub fn work(op: &Op, operands: &[&Type], outs: &[Type]) -> u64 {
    let Some(out) = outs.first() else { return 0 };
    let of = |k: usize| operands.get(k).map_or(1, |ty| ty.elements());
    if let Some(elementwise) = op.elementwise() {
        return out.elements() * elementwise_cost(elementwise, out.dtype.ctype());
    }
    let combine = if out.dtype.is_float() || out.dtype.is_complex() { 8 } else { 2 };
    match op {
        Op::Reduce { .. } => of(0) * combine,
        Op::Dot { contract_a, .. } => {
            let depth: u64 = contract_a
                .iter()
                .map(|&axis| operands.first().and_then(|a| a.shape.get(axis)).copied().unwrap_or(1))
                .product();
            out.elements() * depth * (combine + 8)
        }
        Op::IndexedAdd { .. } | Op::IndexedPut { .. } => {
            out.elements() * operands.get(1).map_or(1, |ty| update_count(ty)) * (combine + 4)
        }
        Op::Concatenate { .. } | Op::Stack { .. } => out.elements() * operands.len() as u64 * 2,
        // As passes::spelled writes them.
        Op::Scan { .. } => out.elements() * SCAN_COST * combine,
        Op::Sort { axis, .. } | Op::Argsort { axis, .. } => {
            out.elements() * out.shape.get(*axis).copied().unwrap_or(1) * SORT_COST
        }
        Op::Linalg(op) => {
            let n = operands.first().and_then(|a| a.shape.last()).copied().unwrap_or(1);
            let step = match op {
                // All rows are eliminated from the matrix and the right sides, one at a time, and each waits for its pivot.
                Linalg::Solve | Linalg::Determinant => {
                    of(0).saturating_add(out.elements()).saturating_mul(2 * ELIMINATION_COST) + 6 * PHASE_WORK
                }
                _ => out.elements().saturating_mul(ELIMINATION_COST) + PHASE_WORK / 2,
            };
            step.saturating_mul(n)
        }
        _ => out.elements(),
    }
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

/// What keeps the program from being a kernel, in words: the first op that no workgroup can run, or a value that is too large for one.
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
    let [out, ..] = outs else { return false };
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => op.elementwise().is_some(),
        // c128 is no constant of SPIR-V by 64 bits.
        Op::Constant(_) => out.dtype != DType::C128,
        Op::Iota { .. }
        | Op::Eye
        | Op::Reshape
        | Op::Squeeze
        | Op::Broadcast { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::PutSlice { .. }
        | Op::Pad { .. }
        | Op::Reverse { .. }
        | Op::Bitcast
        | Op::Take { .. }
        | Op::TakeAlongAxis { .. }
        | Op::Gather { .. } => true,
        Op::Concatenate { .. } | Op::Stack { .. } => operands.len() <= MAX_PARTS,
        Op::Reduce { reduction, .. } => {
            let ordered = !operands.iter().any(|t| t.dtype.is_complex()) && !out.dtype.is_complex();
            match reduction {
                Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin => ordered,
                Reduction::Sum | Reduction::Product | Reduction::All | Reduction::Any => true,
            }
        }
        Op::Dot { .. } => true,
        // Sums are rounded once, not after each update as narrow floats would be.
        Op::IndexedAdd { .. } => out.dtype.is_integer() || out.dtype.is_canonical(),
        Op::IndexedPut { .. } => true,
        Op::While(_) | Op::Cond(_) => op.inside().all(supports),
        Op::Workgroup(_)
        | Op::Fused(_)
        | Op::Window { .. }
        | Op::Sort { .. }
        | Op::Argsort { .. }
        | Op::TopK { .. }
        | Op::Scan { .. }
        | Op::Conv(_)
        | Op::Fold { .. }
        | Op::WindowFold { .. }
        | Op::WindowScatter { .. }
        | Op::Fft { .. }
        | Op::Qr { .. }
        | Op::Linalg(_)
        | Op::Eigh
        | Op::Svd { .. } => false,
    }
}

/// Operands of concatenate and stack, among which each element is selected.
const MAX_PARTS: usize = 64;

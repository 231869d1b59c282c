//! Values of a program as code sees them: where they are, or from what each element is computed.

use std::rc::Rc;

use rspirv::spirv::Word;
use smallvec::{SmallVec, smallvec};

use super::memory::Region;
use super::{Emitter, Port};
use crate::codegen::reducer::Reducer;
use crate::program::op::Axes;
use crate::program::passes::{MAX_ROWS, PHASE_WORK};
use crate::program::{Binary, Elementwise, Linalg, Loop, Op, Operand, Program, Reduction, Unary};
use crate::shape::Dims;
use crate::{CType, DType, Result, Type};

/// The place of a value among all of a kernel.
pub(super) type Id = usize;

#[derive(Debug, Clone)]
pub(super) enum Source {
    /// An operand of the kernel.
    Port {
        k: u8,
        port: Port,
    },
    /// Computed wherever it is read.
    Lazy,
    Region(Region),
    /// One element, in a register of every invocation.
    Uniform(Word),
    /// One element, in a variable of every invocation.
    Variable(Word),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub ty: Type,
    pub source: Source,
    pub node: Option<Rc<Node>>,
}

impl Entry {
    pub fn new(ty: Type, source: Source) -> Entry {
        Entry { ty, source, node: None }
    }
}

/// How a value is computed.
#[derive(Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub operands: SmallVec<[Id; 3]>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Op(Op),
    Fold(Fold),
    /// a, number of the last update of each element or 0, updates
    Put {
        axes: Axes,
    },
    /// One result of a loop or of branches; `first` is the entry of the first.
    Control {
        op: Rc<Op>,
        first: Id,
    },
}

/// A reduction: for each element of the result, accumulators of other elements are combined.
#[derive(Debug)]
pub(super) struct Fold {
    pub reducer: Reducer,
    pub reduced: Dims,
    pub what: Folded,
}

#[derive(Debug)]
pub(super) enum Folded {
    /// a; axes in ascending order
    Axes(Axes),
    /// Operands whose elements at the same position are combined.
    Parts,
    /// a, b
    Products { contract_a: Axes, batch_a: Axes, contract_b: Axes, batch_b: Axes },
    /// indices, updates; sums of the updates of an element
    Updates { axes: Axes },
    /// indices; one more than the number of the last update of an element
    LastUpdate { axes: Axes },
}

fn reducer(reduction: Reduction, tie_high: bool, input: DType, out: DType) -> Reducer {
    Reducer { reduction, tie_high, input, out }
}

impl Emitter<'_, '_, '_> {
    fn node(&mut self, ty: Type, kind: Kind, operands: &[Id]) -> Id {
        let node = Some(Rc::new(Node { kind, operands: operands.into() }));
        self.add(Entry { ty, source: Source::Lazy, node })
    }

    /// What is combined where a stack of a few tensors is reduced along its axis.
    fn parts(&self, stack: Id, axes: &Axes, ty: &Type) -> Option<SmallVec<[Id; 3]>> {
        let node = self.node_of(stack)?;
        let Kind::Op(Op::Stack { axis }) = &node.kind else { return None };
        let same = node.operands.iter().all(|&part| self.entries[part].ty.dtype == ty.dtype);
        (axes[..] == [*axis] && same && node.operands.len() <= MAX_ROWS).then(|| node.operands.clone())
    }

    /// Entries for all results of a program. Answers those of its results, and how many entries there are now.
    pub(super) fn build(&mut self, program: &Program, inputs: &[Id]) -> Result<Vec<Id>> {
        let mut results: Vec<Id> = vec![];
        for instruction in &program.instructions {
            let operands: SmallVec<[Id; 3]> =
                instruction.operands.iter().map(|&o| Self::find(o, inputs, &results)).collect::<Result<_>>()?;
            let Some(out) = instruction.outs.first().cloned() else { continue };
            let types: SmallVec<[Type; 3]> = operands.iter().map(|&o| self.entries[o].ty.clone()).collect();
            match (&instruction.op, &types[..]) {
                (op @ (Op::While(_) | Op::Cond(_)), _) => {
                    let (op, first) = (Rc::new(op.clone()), self.entries.len());
                    for out in &instruction.outs {
                        let kind = Kind::Control { op: Rc::clone(&op), first };
                        results.push(self.node(out.clone(), kind, &operands));
                    }
                }
                (Op::Reduce { reduction, axes, tie_high }, [a, ..]) if self.parts(operands[0], axes, a).is_some() => {
                    let parts = self.parts(operands[0], axes, a).unwrap_or_default();
                    let reducer = reducer(*reduction, *tie_high, a.dtype, out.dtype);
                    let fold = Fold { reducer, reduced: smallvec![parts.len() as u64], what: Folded::Parts };
                    results.push(self.node(out, Kind::Fold(fold), &parts));
                }
                (Op::Reduce { reduction, axes, tie_high }, [a, ..]) => {
                    let mut axes = axes.clone();
                    axes.sort_unstable();
                    let reduced = axes.iter().map(|&axis| a.shape[axis]).collect();
                    let reducer = reducer(*reduction, *tie_high, a.dtype, out.dtype);
                    let fold = Fold { reducer, reduced, what: Folded::Axes(axes) };
                    results.push(self.node(out, Kind::Fold(fold), &operands));
                }
                (Op::Dot { contract_a, batch_a, contract_b, batch_b }, [a, _]) => {
                    let reduced = contract_a.iter().map(|&axis| a.shape[axis]).collect();
                    let reducer = reducer(Reduction::Sum, false, a.dtype, out.dtype);
                    let what = Folded::Products {
                        contract_a: contract_a.clone(),
                        batch_a: batch_a.clone(),
                        contract_b: contract_b.clone(),
                        batch_b: batch_b.clone(),
                    };
                    results.push(self.node(out, Kind::Fold(Fold { reducer, reduced, what }), &operands));
                }
                (Op::IndexedAdd { axes }, [_, indices, updates]) => {
                    let reducer = reducer(Reduction::Sum, false, updates.dtype, out.dtype);
                    let what = Folded::Updates { axes: axes.clone() };
                    let fold = Fold { reducer, reduced: smallvec![update_count(indices)], what };
                    let sums = self.node(out.clone(), Kind::Fold(fold), &operands[1..]);
                    let add = Kind::Op(Op::Binary(Binary::Add));
                    results.push(self.node(out, add, &[operands[0], sums]));
                }
                (Op::IndexedPut { axes }, [_, indices, _]) => {
                    let reducer = reducer(Reduction::Max, false, DType::U32, DType::U32);
                    let what = Folded::LastUpdate { axes: axes.clone() };
                    let fold = Fold { reducer, reduced: smallvec![update_count(indices)], what };
                    let last = self.node(Type::new(DType::U32, &out.shape), Kind::Fold(fold), &operands[1..2]);
                    let put = Kind::Put { axes: axes.clone() };
                    results.push(self.node(out, put, &[operands[0], last, operands[2]]));
                }
                (op, _) => results.push(self.node(out, Kind::Op(op.clone()), &operands)),
            }
        }
        Ok(results)
    }
}

fn update_count(indices: &Type) -> u64 {
    indices.elements() / indices.shape.last().copied().unwrap_or(1).max(1)
}

/// Elements of the longest loop that a program needs.
pub(super) fn longest(program: &Program) -> u64 {
    let type_of = program.types();
    let find = |operand: &Operand| type_of(*operand);
    let of_op = |op: &Op| op.inside().map(longest).max().unwrap_or(1);
    let of_fold = |instruction: &crate::program::Instruction| match &instruction.op {
        Op::Reduce { .. } => instruction.operands.iter().filter_map(find).map(Type::elements).max().unwrap_or(1),
        Op::Dot { contract_a, .. } => {
            let a = instruction.operands.first().and_then(find);
            let depth: u64 =
                contract_a.iter().map(|&axis| a.and_then(|a| a.shape.get(axis)).copied().unwrap_or(1)).product();
            depth * instruction.outs.first().map_or(1, Type::elements)
        }
        _ => 1,
    };
    let instructions = program.instructions.iter().map(|i| of_op(&i.op).max(of_fold(i))).max().unwrap_or(1);
    let outputs = program.outputs.iter().filter_map(find).map(Type::elements).max().unwrap_or(1);
    program.results().map(Type::elements).max().unwrap_or(1).max(instructions).max(outputs)
}

/// Elements of a value, at most: one workgroup takes a second for some functions of so many.
const MAX_ELEMENTS: u64 = 1 << 24;

/// Elements that are combined for each of a scan, about.
const SCAN_COST: u64 = 32;

/// Instructions for each pair of elements that a sort compares.
const SORT_COST: u64 = 16;

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

/// About how many instructions an elementwise op takes.
pub fn elementwise_cost(op: Elementwise, out: CType) -> u64 {
    let wide = if matches!(out, CType::F64 | CType::C128) { 2 } else { 1 };
    wide * match op {
        Elementwise::Unary(op) => match op {
            Unary::Abs
            | Unary::Negate
            | Unary::Sign
            | Unary::BitwiseNot
            | Unary::Ceil
            | Unary::Floor
            | Unary::Round
            | Unary::IsNan
            | Unary::IsInfinity
            | Unary::Conjugate
            | Unary::Real
            | Unary::Imag
            | Unary::CountLeadingZeros
            | Unary::PopulationCount => 1,
            Unary::Sqrt | Unary::Rsqrt => 8,
            _ => 24,
        },
        Elementwise::Binary(op) => match op {
            Binary::Pow | Binary::Atan2 => 40,
            Binary::Divide | Binary::Remainder | Binary::Quotient => 8,
            _ => 1,
        },
        Elementwise::Select | Elementwise::Clip | Elementwise::AsType => 1,
    }
}

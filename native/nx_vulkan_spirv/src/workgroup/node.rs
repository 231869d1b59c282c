//! Values of a program as code sees them: where they are, or from what each element is computed.

use std::rc::Rc;

use nx_vulkan_ir::program::attribute::Axes;
use nx_vulkan_ir::program::ops::index::{IndexedAdd, IndexedPut, Indexing, update_count};
use nx_vulkan_ir::program::passes::MAX_ROWS;
use nx_vulkan_ir::program::reducer::Reducer;
use nx_vulkan_ir::program::workgroup::longest_loop;
use nx_vulkan_ir::program::{Binary, Instruction, Op, Operand, Program, Reduction};
use nx_vulkan_ir::shape::Dims;
use nx_vulkan_ir::{DType, Result, Type};
use rspirv::spirv::Word;
use smallvec::{SmallVec, smallvec};

use super::memory::Region;
use super::{Emitter, Port};

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
    pub kind: NodeKind,
    pub operands: SmallVec<[Id; 3]>,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Op(Op),
    Reduction(Reduce),
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
pub(super) struct Reduce {
    pub reducer: Reducer,
    pub reduced: Dims,
    pub what: Reduced,
}

#[derive(Debug)]
pub(super) enum Reduced {
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
    fn node(&mut self, ty: Type, kind: NodeKind, operands: &[Id]) -> Id {
        let node = Some(Rc::new(Node { kind, operands: operands.into() }));
        self.add(Entry { ty, source: Source::Lazy, node })
    }

    /// What is combined where a stack of a few tensors is reduced along its axis.
    fn parts(&self, stack: Id, axes: &Axes, ty: &Type) -> Option<SmallVec<[Id; 3]>> {
        let node = self.node_of(stack)?;
        let NodeKind::Op(Op::Stack { axis }) = &node.kind else { return None };
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
                        let kind = NodeKind::Control { op: Rc::clone(&op), first };
                        results.push(self.node(out.clone(), kind, &operands));
                    }
                }
                (Op::Reduce { reduction, axes, tie_high }, [a, ..]) if self.parts(operands[0], axes, a).is_some() => {
                    let parts = self.parts(operands[0], axes, a).unwrap_or_default();
                    let reducer = reducer(*reduction, *tie_high, a.dtype, out.dtype);
                    let reduction = Reduce { reducer, reduced: smallvec![parts.len() as u64], what: Reduced::Parts };
                    results.push(self.node(out, NodeKind::Reduction(reduction), &parts));
                }
                (Op::Reduce { reduction, axes, tie_high }, [a, ..]) => {
                    let mut axes = axes.clone();
                    axes.sort_unstable();
                    let reduced = axes.iter().map(|&axis| a.shape[axis]).collect();
                    let reducer = reducer(*reduction, *tie_high, a.dtype, out.dtype);
                    let reduction = Reduce { reducer, reduced, what: Reduced::Axes(axes) };
                    results.push(self.node(out, NodeKind::Reduction(reduction), &operands));
                }
                (Op::Dot { contract_a, batch_a, contract_b, batch_b }, [a, _]) => {
                    let reduced = contract_a.iter().map(|&axis| a.shape[axis]).collect();
                    let reducer = reducer(Reduction::Sum, false, a.dtype, out.dtype);
                    let what = Reduced::Products {
                        contract_a: contract_a.clone(),
                        batch_a: batch_a.clone(),
                        contract_b: contract_b.clone(),
                        batch_b: batch_b.clone(),
                    };
                    results.push(self.node(out, NodeKind::Reduction(Reduce { reducer, reduced, what }), &operands));
                }
                (Op::Indexing(Indexing::IndexedAdd(IndexedAdd { axes })), [_, indices, updates]) => {
                    let reducer = reducer(Reduction::Sum, false, updates.dtype, out.dtype);
                    let what = Reduced::Updates { axes: axes.clone() };
                    let reduction = Reduce { reducer, reduced: smallvec![update_count(indices)], what };
                    let sums = self.node(out.clone(), NodeKind::Reduction(reduction), &operands[1..]);
                    let add = NodeKind::Op(Op::Binary(Binary::Add));
                    results.push(self.node(out, add, &[operands[0], sums]));
                }
                (Op::Indexing(Indexing::IndexedPut(IndexedPut { axes })), [_, indices, _]) => {
                    let reducer = reducer(Reduction::Max, false, DType::U32, DType::U32);
                    let what = Reduced::LastUpdate { axes: axes.clone() };
                    let reduction = Reduce { reducer, reduced: smallvec![update_count(indices)], what };
                    let last =
                        self.node(Type::new(DType::U32, &out.shape), NodeKind::Reduction(reduction), &operands[1..2]);
                    let put = NodeKind::Put { axes: axes.clone() };
                    results.push(self.node(out, put, &[operands[0], last, operands[2]]));
                }
                (op, _) => results.push(self.node(out, NodeKind::Op(op.clone()), &operands)),
            }
        }
        Ok(results)
    }
}

/// Elements of the longest loop that a program needs.
pub(super) fn longest(program: &Program) -> u64 {
    let type_of = program.types();
    let find = |operand: &Operand| type_of(*operand);
    let of_op = |op: &Op| op.inside().map(longest).max().unwrap_or(1);
    let of_loop = |instruction: &Instruction| {
        let operands: SmallVec<[&Type; 3]> = instruction.operands.iter().filter_map(find).collect();
        longest_loop(&instruction.op, &operands, &instruction.outs)
    };
    let instructions = program.instructions.iter().map(|i| of_op(&i.op).max(of_loop(i))).max().unwrap_or(1);
    let outputs = program.outputs.iter().filter_map(find).map(Type::elements).max().unwrap_or(1);
    program.results().map(Type::elements).max().unwrap_or(1).max(instructions).max(outputs)
}

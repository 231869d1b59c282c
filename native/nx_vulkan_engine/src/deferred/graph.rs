//! The pending nodes that hang together, as a program.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use smallvec::{SmallVec, smallvec};

use super::lazy::{Inner, Lazy};
use super::node::Node;
use super::signature::Mix;
use crate::program::attribute::Axes;
use crate::program::{Instruction, Op, Operand, Program};
use crate::sync::Arc;
use crate::{Tensor, Type, Value, View};

/// Times that a result is computed without being kept.
const MAX_RUNS: u8 = 2;

type Numbers<T> = HashMap<u64, T, BuildHasherDefault<Mix>>;

/// Operands and results in bytes from which on an op that no kernel fuses is costly.
const COSTLY_BYTES: u64 = 1 << 16;

/// A node as it was when the graph was collected.
#[derive(Debug)]
struct Member {
    node: Arc<Node>,
    operands: SmallVec<[Lazy; 3]>,
    runs: u8,
    failed: bool,
}

/// What is kept of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// What structure says.
    Needed,
    /// All that was computed before besides.
    ComputedBefore,
}

/// An instruction of the graph.
#[derive(Debug)]
pub(super) struct GraphStep {
    pub node: Arc<Node>,
    pub operands: SmallVec<[Operand; 3]>,
    /// The number of its first result.
    pub first: u32,
    pub kept: bool,
}

/// A program over tensors that are there. Equal structures have equal graphs, but for the tensors and the values of
/// constants.
#[derive(Debug)]
pub(super) struct Graph {
    pub inputs: Vec<Tensor>,
    pub steps: Vec<GraphStep>,
    pub hash: u64,
}

/// What two graphs have to have in common to be one program.
#[derive(Debug)]
pub(super) struct Structure {
    inputs: Vec<Input>,
    instructions: Vec<Instruction>,
    kept: Vec<bool>,
}

#[derive(Debug, Clone, PartialEq)]
struct Input {
    ty: Type,
    /// Whether the view repeats one element, which is all that the program then takes.
    uniform: bool,
}

impl Input {
    fn of(tensor: &Tensor) -> Input {
        let ty = tensor.view.ty();
        Input { uniform: tensor.view.is_uniform() && ty.elements() > 1, ty }
    }
}

/// The nodes that `target` needs or that need the same ones, pending all.
fn members(target: &Arc<Node>) -> Vec<Member> {
    let mut seen: Numbers<()> = Numbers::default();
    let mut stack = vec![Arc::clone(target)];
    let mut members = Vec::new();
    while let Some(node) = stack.pop() {
        if seen.insert(node.number, ()).is_some() {
            continue;
        }
        let state = node.lock();
        if state.results.is_some() {
            continue;
        }
        let (operands, runs, failed) = (state.operands.clone(), state.runs, state.failed);
        stack.extend(operands.iter().filter_map(|operand| operand.pending().cloned()));
        stack.extend(state.readers.iter().filter_map(|reader| reader.upgrade()));
        drop(state);
        members.push(Member { node, operands, runs, failed });
    }
    members.sort_unstable_by_key(|member| member.node.number);
    members
}

/// Whether an op takes much longer than to read its result, and stores that in any case.
fn is_costly(node: &Node, operands: &[Lazy]) -> bool {
    let operands = || operands.iter().map(|o| o.ty().size_bytes());
    node.op.class().is_costly() && node.outs.iter().map(Type::size_bytes).chain(operands()).sum::<u64>() >= COSTLY_BYTES
}

/// Which members are computed, and the results of which are kept.
fn chosen(members: &[Member], places: &Numbers<usize>, target: &Arc<Node>, keep: Keep) -> (Vec<bool>, Vec<bool>) {
    let sources = |member: &Member| -> SmallVec<[usize; 3]> {
        member.operands.iter().filter_map(|o| places.get(&o.pending()?.number).copied()).collect()
    };
    let mut read = vec![false; members.len()];
    members.iter().for_each(|member| sources(member).into_iter().for_each(|at| read[at] = true));
    let mut needed = vec![false; members.len()];
    let mut kept = vec![false; members.len()];
    for (at, member) in members.iter().enumerate().rev() {
        let is_target = Arc::ptr_eq(&member.node, target);
        let wanted = is_target || (!read[at] && !member.failed);
        needed[at] |= wanted;
        if !needed[at] {
            continue;
        }
        kept[at] |= wanted
            || member.runs >= MAX_RUNS
            || (member.runs > 0 && keep == Keep::ComputedBefore)
            || is_costly(&member.node, &member.operands);
        for source in sources(member) {
            needed[source] = true;
            // Something new needs it once more, so others may too.
            kept[source] |= member.runs == 0 && members[source].runs > 0;
        }
    }
    (needed, kept)
}

impl Graph {
    /// What has to run for a result of `target`; nothing where that is computed.
    pub fn of(target: &Arc<Node>, keep: Keep) -> Graph {
        let members = members(target);
        let places: Numbers<usize> = members.iter().enumerate().map(|(at, m)| (m.node.number, at)).collect();
        let (needed, kept) = chosen(&members, &places, target, keep);
        let mut graph = Graph { inputs: Vec::new(), steps: Vec::with_capacity(members.len()), hash: 0 };
        let mut inputs: HashMap<(usize, u64), SmallVec<[u32; 1]>> = HashMap::new();
        let mut first: Vec<u32> = Vec::with_capacity(members.len());
        let mut count = 0;
        let mut mix = Mix::default();
        for (at, member) in members.into_iter().enumerate() {
            first.push(count);
            if !needed[at] {
                continue;
            }
            let mut operands: SmallVec<[Operand; 3]> = SmallVec::with_capacity(member.operands.len());
            for operand in &member.operands {
                let place = operand.pending().and_then(|node| places.get(&node.number));
                let operand = match (place, &operand.0) {
                    (Some(&at), Inner::Pending { result, .. }) => Operand::Result(first[at] + result),
                    // What others computed since the node was made.
                    (_, lazy) => match Lazy(lazy.clone()).ready() {
                        Some(tensor) => Operand::Input(graph.input(tensor, &mut inputs)),
                        None => NOWHERE,
                    },
                };
                mix.word(match operand {
                    Operand::Input(i) => u64::from(i) << 1 | 1,
                    Operand::Result(r) => u64::from(r) << 1,
                });
                operands.push(operand);
            }
            mix.word(member.node.signature);
            mix.word(kept[at].into());
            let outs = member.node.outs.len() as u32;
            graph.steps.push(GraphStep { node: member.node, operands, first: count, kept: kept[at] });
            count += outs;
        }
        for tensor in &graph.inputs {
            use std::hash::Hash;
            let Input { ty, uniform } = Input::of(tensor);
            (ty, uniform).hash(&mut mix);
        }
        graph.hash = std::hash::Hasher::finish(&mix);
        graph
    }

    /// The number of an input, the same for the same tensor.
    fn input(&mut self, tensor: Tensor, known: &mut HashMap<(usize, u64), SmallVec<[u32; 1]>>) -> u32 {
        let numbers = known.entry((Arc::as_ptr(&tensor.buffer) as usize, tensor.view.offset)).or_default();
        let same = |&&number: &&u32| self.inputs.get(number as usize).is_some_and(|t| t.view == tensor.view);
        if let Some(&number) = numbers.iter().find(same) {
            return number;
        }
        let number = self.inputs.len() as u32;
        self.inputs.push(tensor);
        numbers.push(number);
        number
    }

    /// Lets backlogs that are computed grow anew.
    pub fn restart_backlogs(&self) {
        self.steps.iter().for_each(|step| step.node.backlog().restart());
    }

    /// The bits of the constants, in order.
    pub fn constants(&self) -> Vec<u128> {
        let bits = |step: &GraphStep| match (&step.node.op, step.node.outs.as_slice()) {
            (Op::Constant(value), [out]) => Some(Value::from(*value).cast(out.dtype).to_bits(out.dtype)),
            _ => None,
        };
        self.steps.iter().filter_map(bits).collect()
    }

    pub fn structure(&self) -> Structure {
        let instruction = |step: &GraphStep| Instruction {
            op: step.node.op.clone(),
            operands: step.operands.clone(),
            outs: step.node.outs.clone(),
        };
        Structure {
            inputs: self.inputs.iter().map(Input::of).collect(),
            instructions: self.steps.iter().map(instruction).collect(),
            kept: self.steps.iter().map(|step| step.kept).collect(),
        }
    }

    /// The inputs of [`Structure::program`], and the constants that are inputs after those.
    pub fn arguments(&self, varying: &[bool]) -> (Vec<Tensor>, Vec<&GraphStep>) {
        let one = |tensor: &Tensor| match Input::of(tensor).uniform {
            true => tensor.with_view(View { offset: tensor.view.offset, ..View::contiguous(tensor.view.dtype, &[]) }),
            false => tensor.clone(),
        };
        let constants = self.steps.iter().filter(|step| matches!(step.node.op, Op::Constant(_)));
        let varying = constants.zip(varying).filter(|(_, varies)| **varies).map(|(step, _)| step);
        (self.inputs.iter().map(one).collect(), varying.collect())
    }
}

impl Structure {
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    pub fn is_of(&self, graph: &Graph) -> bool {
        let same = |instruction: &Instruction, step: &GraphStep| {
            let ops = match (&instruction.op, &step.node.op) {
                (Op::Constant(_), Op::Constant(_)) => true,
                (a, b) => a == b,
            };
            ops && instruction.operands == step.operands && instruction.outs == step.node.outs
        };
        self.inputs.len() == graph.inputs.len()
            && self.instructions.len() == graph.steps.len()
            && self.inputs.iter().zip(&graph.inputs).all(|(input, tensor)| *input == Input::of(tensor))
            && self.instructions.iter().zip(&graph.steps).all(|(a, b)| same(a, b))
            && self.kept.iter().zip(&graph.steps).all(|(kept, step)| *kept == step.kept)
    }

    /// The program whose outputs are the kept results in order. Constants that vary are inputs after the others.
    pub fn program(&self, graph: &Graph, varying: &[bool]) -> Program {
        let mut new = Build::default();
        let inputs: Vec<Operand> = self.inputs.iter().map(|input| new.input(&input.ty, input.uniform)).collect();
        let mut varying = varying.iter();
        let mut results: Vec<Operand> = Vec::new();
        for ((instruction, step), &kept) in self.instructions.iter().zip(&graph.steps).zip(&self.kept) {
            let before = results.len();
            let outs = &instruction.outs;
            match (&step.node.op, outs.as_slice()) {
                (Op::Constant(_), [out]) if varying.next() == Some(&true) => results.push(new.repeated(out)),
                (op, _) => {
                    let find = |operand: &Operand| match *operand {
                        Operand::Input(i) => inputs.get(i as usize).copied(),
                        Operand::Result(r) => results.get(r as usize).copied(),
                    };
                    let operands = instruction.operands.iter().map(|o| find(o).unwrap_or(NOWHERE)).collect();
                    results.extend(new.push(Instruction { op: op.clone(), operands, outs: outs.clone() }));
                }
            }
            if kept {
                new.program.outputs.extend_from_slice(&results[before..]);
            }
        }
        new.program
    }
}

/// What no program has.
const NOWHERE: Operand = Operand::Input(u32::MAX);

#[derive(Default)]
struct Build {
    program: Program,
    results: u32,
}

impl Build {
    fn push(&mut self, instruction: Instruction) -> impl Iterator<Item = Operand> + use<> {
        let first = self.results;
        self.results += instruction.outs.len() as u32;
        self.program.instructions.push(instruction);
        (first..self.results).map(Operand::Result)
    }

    fn input(&mut self, ty: &Type, uniform: bool) -> Operand {
        if uniform {
            return self.repeated(ty);
        }
        self.program.inputs.push(ty.clone());
        Operand::Input(self.program.inputs.len() as u32 - 1)
    }

    /// A tensor that repeats the one element of an input.
    fn repeated(&mut self, ty: &Type) -> Operand {
        let input = self.input(&Type::new(ty.dtype, &[]), false);
        if ty.shape.is_empty() {
            return input;
        }
        let op = Op::Broadcast { axes: Axes::new() };
        let broadcast = Instruction { op, operands: smallvec![input], outs: smallvec![ty.clone()] };
        self.push(broadcast).next().unwrap_or(NOWHERE)
    }
}

//! Tensor programs: a flat list of instructions in Nx's words. Eager ops are programs of one instruction.

pub mod attention;
pub mod attention_gradient;
pub mod attribute;
pub mod batched;
pub mod builder;
pub mod control;
pub mod conv;
pub mod counted;
pub mod dot;
pub mod epilogue;
pub mod factorization;
pub mod file;
pub mod flops;
pub mod fourier;
pub mod function;
pub mod fused;
pub mod index_map;
pub mod linalg;
mod liveness;
mod nested;
pub mod op;
pub mod ops;
mod packed;
pub mod pair;
pub mod passes;
pub mod put;
pub mod ranges;
pub mod reducer;
pub mod reductions;
pub mod rows;
pub mod step;
pub mod text;
pub mod verify;
pub mod window;
pub mod wire;
pub mod workgroup;

use std::collections::HashMap;

pub use attribute::Reduction;
pub use builder::Builder;
pub use control::{Branches, Loop};
pub use conv::Conv;
pub use fourier::Fourier;
pub use function::Function;
pub use linalg::{Linalg, Transform};
pub use op::Op;
pub use ops::{Binary, Elementwise, Unary};
use smallvec::SmallVec;
pub use window::Windows;

use crate::shape::Type;

/// Where an instruction finds an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// The n-th input of the program.
    Input(u32),
    /// An earlier result, counted over the outputs of all instructions in their order.
    Result(u32),
}

/// One op with its operands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The op with its attributes.
    pub op: Op,
    /// What it takes, as the op's documentation lists it.
    pub operands: SmallVec<[Operand; 3]>,
    /// The types of its results: one, except for ops such as `top_k`.
    pub outs: SmallVec<[Type; 1]>,
}

/// A flat list of instructions, each of which uses inputs and earlier results.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Program {
    /// The types of the inputs.
    pub inputs: Vec<Type>,
    /// In the order in which they run one by one.
    pub instructions: Vec<Instruction>,
    /// Which values the program gives.
    pub outputs: Vec<Operand>,
}

impl Program {
    /// Instructions of the program and of the loops and branches in it.
    pub fn size(&self) -> usize {
        self.instructions.iter().map(|instruction| 1 + instruction.op.inside().map(Program::size).sum::<usize>()).sum()
    }

    /// The types of all results in order.
    pub fn results(&self) -> impl Iterator<Item = &Type> {
        self.instructions.iter().flat_map(|instruction| &instruction.outs)
    }

    /// Appends another program's instructions, which take `inputs` in the place of its own. Answers its outputs.
    pub fn append(&mut self, other: &Program, inputs: &[Operand]) -> Vec<Operand> {
        self.append_at(self.results().count() as u32, other, inputs)
    }

    /// Appends another program's instructions where it is known how many results there are.
    pub(crate) fn append_at(&mut self, made: u32, other: &Program, inputs: &[Operand]) -> Vec<Operand> {
        let moved = |operand: &Operand| match *operand {
            Operand::Input(i) => inputs.get(i as usize).copied().unwrap_or(Operand::Input(u32::MAX)),
            Operand::Result(i) => Operand::Result(made + i),
        };
        self.instructions.extend(other.instructions.iter().map(|instruction| Instruction {
            operands: instruction.operands.iter().map(moved).collect(),
            ..instruction.clone()
        }));
        other.outputs.iter().map(moved).collect()
    }

    /// The program with its instructions in another order, in which each still follows those that it reads: the number
    /// of every one.
    pub(crate) fn reordered(&self, order: &[usize]) -> Program {
        let mut firsts = vec![0; self.instructions.len()];
        let mut next = 0;
        for &at in order {
            firsts[at] = next;
            next += self.instructions[at].outs.len() as u32;
        }
        let results = self.instructions.iter().zip(firsts).flat_map(|(i, first)| (first..).take(i.outs.len()));
        let results: Vec<u32> = results.collect();
        let moved = |operand: &Operand| match *operand {
            Operand::Input(_) => *operand,
            Operand::Result(i) => Operand::Result(results[i as usize]),
        };
        let instructions = order.iter().map(|&at| {
            let old = &self.instructions[at];
            Instruction { operands: old.operands.iter().map(moved).collect(), ..old.clone() }
        });
        Program {
            inputs: self.inputs.clone(),
            instructions: instructions.collect(),
            outputs: self.outputs.iter().map(moved).collect(),
        }
    }

    /// Answers which instruction makes an operand, none for inputs.
    pub(crate) fn makers(&self) -> impl Fn(Operand) -> Option<usize> + use<> {
        let of_result = self.instructions.iter().enumerate().flat_map(|(at, i)| i.outs.iter().map(move |_| at));
        let of_result: Vec<usize> = of_result.collect();
        move |operand| match operand {
            Operand::Input(_) => None,
            Operand::Result(i) => of_result.get(i as usize).copied(),
        }
    }

    /// How often each operand is read, by outputs too.
    pub(crate) fn reads(&self) -> HashMap<Operand, usize> {
        let mut reads = HashMap::new();
        for operand in self.instructions.iter().flat_map(|i| &i.operands).chain(&self.outputs) {
            *reads.entry(*operand).or_default() += 1;
        }
        reads
    }

    /// The types of the outputs that exist.
    pub fn output_types(&self) -> Vec<&Type> {
        let type_of = self.types();
        self.outputs.iter().filter_map(|&operand| type_of(operand)).collect()
    }

    /// Answers the types of operands that exist, as [`Program::type_of`] does, but lists the results only once.
    pub fn types<'a>(&'a self) -> impl Fn(Operand) -> Option<&'a Type> {
        let results: Vec<&Type> = self.results().collect();
        move |operand| match operand {
            Operand::Input(i) => self.inputs.get(i as usize),
            Operand::Result(i) => results.get(i as usize).copied(),
        }
    }

    /// The type of an operand, if it exists.
    pub fn type_of(&self, operand: Operand) -> Option<&Type> {
        match operand {
            Operand::Input(i) => self.inputs.get(i as usize),
            Operand::Result(i) => self.results().nth(i as usize),
        }
    }
}

//! Tensor programs: a flat list of instructions in Nx's words. Eager ops are programs of one instruction.

pub mod builder;
pub mod control;
pub mod conv;
pub(crate) mod counted;
pub mod dot;
#[allow(missing_docs)]
pub mod epilogue;
pub mod factorization;
pub mod file;
pub(crate) mod flops;
pub mod fourier;
pub mod function;
#[allow(missing_docs)]
pub mod fused;
pub mod linalg;
mod nested;
pub mod op;
pub mod passes;
pub(crate) mod text;
pub mod verify;
pub mod window;
mod workgroup;

pub mod wire;

use smallvec::SmallVec;

pub use builder::Builder;
pub use control::{Branches, Loop};
pub use conv::Conv;
pub use fourier::Fourier;
pub use function::Function;
pub use linalg::{Linalg, Transform};
pub use op::{Binary, Cumulative, Elementwise, Op, Reduction, Unary};
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
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// The op with its attributes.
    pub op: Op,
    /// What it takes, as the op's documentation lists it.
    pub operands: SmallVec<[Operand; 3]>,
    /// The types of its results: one, except for ops such as `top_k`.
    pub outs: SmallVec<[Type; 1]>,
}

/// A flat list of instructions, each of which uses inputs and earlier results.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// The types of the inputs.
    pub inputs: Vec<Type>,
    /// In the order in which they run one by one.
    pub instructions: Vec<Instruction>,
    /// Which values the program gives.
    pub outputs: Vec<Operand>,
}

impl Program {
    /// The types of all results in order.
    pub fn results(&self) -> impl Iterator<Item = &Type> {
        self.instructions.iter().flat_map(|instruction| &instruction.outs)
    }

    /// Appends another program's instructions, which take `inputs` in the place of its own. Answers its outputs.
    pub fn append(&mut self, other: &Program, inputs: &[Operand]) -> Vec<Operand> {
        let made = self.results().count() as u32;
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

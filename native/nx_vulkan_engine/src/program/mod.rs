//! Tensor programs: a flat list of instructions in Nx's words. Eager ops are programs of one instruction.

pub mod file;
pub mod op;
pub mod verify;

pub mod wire;

use smallvec::SmallVec;

pub use op::{Binary, Elementwise, Op, Reduction, Unary};

use crate::shape::Type;

/// Where an instruction finds an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The n-th input of the program.
    Input(u32),
    /// The result of an earlier instruction.
    Result(u32),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    pub op: Op,
    pub operands: SmallVec<[Operand; 3]>,
    pub out: Type,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    pub inputs: Vec<Type>,
    pub instructions: Vec<Instruction>,
    pub outputs: Vec<Operand>,
}

impl Program {
    /// The type of an operand, if it exists.
    pub fn type_of(&self, operand: Operand) -> Option<&Type> {
        match operand {
            Operand::Input(i) => self.inputs.get(i as usize),
            Operand::Result(i) => self.instructions.get(i as usize).map(|x| &x.out),
        }
    }
}

//! A program that is built anew while an old one is read.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::program::attribute::Scalar;
use crate::program::{Instruction, Op, Operand, Program, verify};
use crate::{Error, Result, Type};

/// Operands of one instruction.
pub type Operands = SmallVec<[Operand; 3]>;

/// The new program, and where the old one's results are in it.
#[derive(Debug)]
pub struct Rewriter {
    program: Program,
    /// The instruction and the type of each new result.
    made: Vec<(usize, Type)>,
    /// New operands of the old results.
    moved: Vec<Operand>,
}

impl Rewriter {
    pub fn new(old: &Program) -> Rewriter {
        // Most passes leave about as many.
        let count = old.instructions.len();
        let instructions = Vec::with_capacity(count);
        let program = Program { inputs: old.inputs.clone(), instructions, outputs: Vec::new() };
        Rewriter { program, made: Vec::with_capacity(count), moved: Vec::with_capacity(count) }
    }

    /// An operand of the old program in the new one.
    pub fn operand(&self, old: Operand) -> Result<Operand> {
        match old {
            Operand::Input(_) => Ok(old),
            Operand::Result(r) => self.moved.get(r as usize).copied().ok_or_else(|| missing(old)),
        }
    }

    pub fn operands(&self, old: &Instruction) -> Result<Operands> {
        old.operands.iter().map(|&o| self.operand(o)).collect()
    }

    /// The type of an operand of the new program.
    pub fn ty(&self, operand: Operand) -> Result<&Type> {
        let found = match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(r) => self.made.get(r as usize).map(|(_, ty)| ty),
        };
        found.ok_or_else(|| missing(operand))
    }

    /// The new instruction with an operand as its only result.
    pub fn maker(&self, operand: Operand) -> Option<&Instruction> {
        let Operand::Result(r) = operand else { return None };
        let (at, _) = self.made.get(r as usize)?;
        self.program.instructions.get(*at).filter(|i| i.outs.len() == 1)
    }

    /// The number that all elements of an operand are.
    pub fn constant(&self, operand: Operand) -> Option<Scalar> {
        match self.maker(operand)?.op {
            Op::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Adds an instruction; its results follow each other from the operand returned.
    pub fn push(&mut self, instruction: Instruction) -> Operand {
        let first = self.made.len() as u32;
        let at = self.program.instructions.len();
        self.made.extend(instruction.outs.iter().map(|ty| (at, ty.clone())));
        self.program.instructions.push(instruction);
        Operand::Result(first)
    }

    /// Adds an instruction of one result.
    pub fn push_one(&mut self, op: Op, operands: &[Operand], out: &Type) -> Operand {
        self.push(Instruction { op, operands: operands.into(), outs: SmallVec::from_elem(out.clone(), 1) })
    }

    /// Adds another program's instructions, which take `inputs` in the place of its own. Answers its outputs.
    pub fn append(&mut self, other: &Program, inputs: &[Operand]) -> Vec<Operand> {
        let first = self.program.instructions.len();
        let outputs = self.program.append_at(self.made.len() as u32, other, inputs);
        let added = self.program.instructions.iter().enumerate().skip(first);
        self.made.extend(added.flat_map(|(at, instruction)| instruction.outs.iter().map(move |ty| (at, ty.clone()))));
        outputs
    }

    /// Says where the next old result is.
    pub fn moved(&mut self, to: Operand) {
        self.moved.push(to);
    }

    /// Adds an instruction in the place of an old one with the same results.
    pub fn replace(&mut self, instruction: Instruction) {
        let count = instruction.outs.len() as u32;
        if let Operand::Result(first) = self.push(instruction) {
            self.moved.extend((first..first + count).map(Operand::Result));
        }
    }

    pub fn finish(mut self, old: &Program) -> Result<Program> {
        self.program.outputs = old.outputs.iter().map(|&o| self.operand(o)).collect::<Result<_>>()?;
        Ok(self.program)
    }

    /// The new program with these operands of its own as outputs.
    pub fn finish_with(mut self, outputs: Vec<Operand>) -> Program {
        self.program.outputs = outputs;
        self.program
    }
}

/// What an instruction with one result does, as a body of its operands: that of a fused op, or the op alone.
pub fn body_of<'a>(instruction: &Instruction, type_of: impl Fn(Operand) -> Option<&'a Type>) -> Option<Program> {
    if let Op::Fused(body) = &instruction.op {
        return Some((**body).clone());
    }
    let inputs: Vec<Type> = instruction.operands.iter().map(|&o| type_of(o).cloned()).collect::<Option<_>>()?;
    let operands = (0..inputs.len() as u32).map(Operand::Input).collect();
    let instructions = vec![Instruction { operands, ..instruction.clone() }];
    Some(Program { inputs, instructions, outputs: vec![Operand::Result(0)] })
}

/// The program without instructions that others took in, which alone read their results. `is_taken` is asked of each
/// instruction and its first result, `joined` for the op that an instruction becomes with what it took in, and the old
/// operands of that.
pub fn with_joined(
    old: &Program,
    is_taken: impl Fn(usize, Operand) -> bool,
    mut joined: impl FnMut(usize, &Instruction) -> Option<(Op, Vec<Operand>)>,
) -> Result<Program> {
    let mut new = Rewriter::new(old);
    let mut first = 0;
    for (at, instruction) in old.instructions.iter().enumerate() {
        let result = Operand::Result(first);
        first += instruction.outs.len() as u32;
        if is_taken(at, result) {
            instruction.outs.iter().for_each(|_| new.moved(Operand::Result(u32::MAX)));
            continue;
        }
        let (op, operands) =
            joined(at, instruction).unwrap_or_else(|| (instruction.op.clone(), instruction.operands.to_vec()));
        let operands = operands.iter().map(|&o| new.operand(o)).collect::<Result<_>>()?;
        new.replace(Instruction { op, operands, outs: instruction.outs.clone() });
    }
    new.finish(old)
}

/// The instructions that read each result, in order; outputs of the program are read by one behind the last.
pub fn readers(program: &Program) -> HashMap<Operand, Vec<usize>> {
    let mut readers: HashMap<Operand, Vec<usize>> = HashMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        for operand in &instruction.operands {
            readers.entry(*operand).or_default().push(at);
        }
    }
    for output in &program.outputs {
        readers.entry(*output).or_default().push(program.instructions.len());
    }
    readers
}

/// The result of each instruction that has one.
pub fn results(program: &Program) -> Vec<Option<Operand>> {
    let mut next = 0;
    let mut result = |instruction: &Instruction| {
        let first = next;
        next += instruction.outs.len() as u32;
        (instruction.outs.len() == 1).then_some(Operand::Result(first))
    };
    program.instructions.iter().map(&mut result).collect()
}

fn missing(operand: Operand) -> Error {
    Error::InvalidProgram { op: "program".to_string(), reason: format!("{operand:?} does not exist") }
}

/// In debug builds, the program if it keeps all rules.
pub fn checked(program: Program) -> Result<Program> {
    if cfg!(debug_assertions) {
        verify::program(&program)?;
    }
    Ok(program)
}

//! Makes a reduction of a take of one element from each line of a result that is reduced along these lines, too: one
//! kernel reads the result once for both, and nothing needs it behind that, so that what is made of it lies in its place.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::Target;
use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::ops::index::{Indexing, TakeAlongAxis};
use crate::program::{Binary, Instruction, Op, Operand, Program, Reduction};
use crate::value::range;
use crate::{DType, Result, Type};

/// Bytes of a result from which on it is worth it.
const LEAST_BYTES: u64 = 1 << 20;

/// Words that the elements of a line take beside each other: they themselves, and what is made of them.
const LIVE_WORDS: u32 = 2;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let found: Vec<Option<(usize, &Type)>> = Takes::new(program, target).found();
    let mut new = Rewriter::new(program);
    for (old, line) in program.instructions.iter().zip(found) {
        match line {
            Some((axis, whole)) => {
                let reduced = reduced(&mut new, old, whole, axis)?;
                new.moved(reduced);
            }
            None => {
                let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
                new.replace(instruction);
            }
        }
    }
    new.finish(program)
}

struct Takes<'a> {
    program: &'a Program,
    /// Elements of the longest line.
    most: u64,
    /// The instructions that read each operand, with their first results.
    users: HashMap<Operand, Vec<(usize, Operand)>>,
}

impl<'a> Takes<'a> {
    fn new(program: &'a Program, target: &Target) -> Takes<'a> {
        let limits = &target.rows;
        let most = u64::from(limits.elements_of(LIVE_WORDS)) * u64::from(limits.planned_invocations);
        let mut users: HashMap<Operand, Vec<(usize, Operand)>> = HashMap::new();
        let mut result = 0;
        for (at, instruction) in program.instructions.iter().enumerate() {
            let first = Operand::Result(result);
            instruction.operands.iter().for_each(|&read| users.entry(read).or_default().push((at, first)));
            result += instruction.outs.len() as u32;
        }
        Takes { program, most: most.min(i32::MAX as u64), users }
    }

    /// Of each instruction that is such a take, the axis, and the type of what it takes from.
    fn found(&self) -> Vec<Option<(usize, &'a Type)>> {
        let type_of = self.program.types();
        let mut result = 0;
        let found = self.program.instructions.iter().map(|old| {
            let made = Operand::Result(result);
            result += old.outs.len() as u32;
            let Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })) = old.op else { return None };
            let (&from @ Operand::Result(_), [out]) = (old.operands.first()?, old.outs.as_slice()) else { return None };
            let whole = type_of(from)?;
            let size = whole.shape[axis];
            let is = out.shape[axis] == 1
                && out.elements() * size == whole.elements()
                && (2..=self.most).contains(&size)
                && whole.size_bytes() >= LEAST_BYTES
                && matches!(whole.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64)
                && self.is_reduced(from, axis)
                && self.is_computed_with(made);
            is.then_some((axis, whole))
        });
        found.collect()
    }

    fn users(&self, operand: Operand) -> impl Iterator<Item = (&'a Op, Operand)> + '_ {
        let program = self.program;
        self.users.get(&operand).into_iter().flatten().map(move |&(at, first)| (&program.instructions[at].op, first))
    }

    /// Whether an operand, or what it is in another type, is reduced along an axis.
    fn is_reduced(&self, operand: Operand, axis: usize) -> bool {
        self.users(operand).any(|(op, made)| match op {
            Op::Reduce { axes, .. } => axes[..] == [axis],
            Op::AsType => self.is_reduced(made, axis),
            _ => false,
        })
    }

    /// Whether arithmetic alone reads it, or what it is in another type: what moves numbers as they are would tell one
    /// NaN from another.
    fn is_computed_with(&self, operand: Operand) -> bool {
        let computes = |(op, made): (&Op, Operand)| match op {
            Op::Binary(Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide) => true,
            Op::AsType => self.is_computed_with(made),
            _ => false,
        };
        !self.program.outputs.contains(&operand) && self.users(operand).all(computes)
    }
}

/// The largest of the element that is taken and -Inf in the place of all others.
fn reduced(new: &mut Rewriter, take: &Instruction, whole: &Type, axis: usize) -> Result<Operand> {
    let [from, index] = [new.operand(take.operands[0])?, new.operand(take.operands[1])?];
    let lines = new.ty(index)?.clone();
    // Indices out of bounds are clamped.
    let (least, most) = range(lines.dtype);
    let ends = [(Binary::Max, 0.max(least)), (Binary::Min, (whole.shape[axis] as i128 - 1).min(most))];
    let mut place = index;
    for (op, end) in ends {
        let end = new.push_one(Op::Constant(Scalar::Int(end)), &[], &lines);
        place = new.push_one(Op::Binary(op), &[place, end], &lines);
    }
    let place = new.push_one(Op::AsType, &[place], &Type { dtype: DType::S32, ..lines });
    let along: SmallVec<[u64; 6]> =
        whole.shape.iter().enumerate().map(|(k, &size)| if k == axis { size } else { 1 }).collect();
    let along = Type { dtype: DType::S32, shape: along.into_iter().collect() };
    let along = new.push_one(Op::Iota { axis: Some(axis) }, &[], &along);
    let is_there = Type { dtype: DType::U8, ..whole.clone() };
    let is_there = new.push_one(Op::Binary(Binary::Equal), &[along, place], &is_there);
    let nothing = Type { dtype: whole.dtype, shape: Default::default() };
    let nothing = new.push_one(Op::Constant(Scalar::Float(f64::NEG_INFINITY)), &[], &nothing);
    let chosen = new.push_one(Op::Select, &[is_there, from, nothing], whole);
    let reduce = Op::Reduce { reduction: Reduction::Max, axes: [axis].into_iter().collect(), tie_high: false };
    let reduced = Type { dtype: whole.dtype, shape: take.outs[0].shape.clone() };
    Ok(new.push_one(reduce, &[chosen], &reduced))
}

//! Loops that count: how often they run follows from a start, a step and an end.

use super::attribute::Scalar;
use super::{Binary, Instruction, Loop, Op, Operand, Program};
use crate::DType;

/// What is known of how often a loop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trips {
    /// So often.
    Known(u64),
    /// As often as a counter says.
    Counted(Counted),
    /// As often as the last state says, a number that stays 0 once it is; iterations change nothing then.
    Guarded,
}

/// A loop that adds a constant to a counter as long as the counter is below an end that does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counted {
    /// The loop's operand at which the counter starts.
    pub start: u32,
    /// Where it ends.
    pub end: End,
    step: i64,
    /// Whether it also runs where the counter is the end.
    through: bool,
    dtype: DType,
}

/// What a counter is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// A number.
    Number(i64),
    /// An operand of the loop.
    Operand(u32),
}

/// The number that a constant holds, if it is a whole one.
pub fn whole_number(value: Scalar) -> Option<i64> {
    match value {
        Scalar::Int(i) => i64::try_from(i).ok(),
        Scalar::Float(x) if x.fract() == 0.0 && x.abs() < 1e15 => Some(x as i64),
        Scalar::Float(_) | Scalar::Complex(..) => None,
    }
}

/// The instruction that makes a result, if that is its only one.
fn maker(program: &Program, result: u32) -> Option<&Instruction> {
    let mut first = 0;
    for instruction in &program.instructions {
        if result == first && instruction.outs.len() == 1 {
            return Some(instruction);
        }
        first += instruction.outs.len() as u32;
    }
    None
}

impl Counted {
    /// How a loop counts, if it does. `number` answers what whole number an operand of the loop is, where that is
    /// known.
    pub(super) fn of(op: &Loop, number: impl Fn(u32) -> Option<i64>) -> Option<Counted> {
        let states = op.body.outputs.len() as u32;
        let constant = |program: &Program, operand: Operand| match operand {
            Operand::Input(i) => number(i),
            Operand::Result(r) => match maker(program, r)?.op {
                Op::Constant(value) => whole_number(value),
                _ => None,
            },
        };
        let &[Operand::Result(holds)] = &op.condition.outputs[..] else { return None };
        let test = maker(&op.condition, holds)?;
        let (counter, end, through) = match (&test.op, &test.operands[..]) {
            (Op::Binary(Binary::Less), &[Operand::Input(counter), end]) => (counter, end, false),
            (Op::Binary(Binary::LessEqual), &[Operand::Input(counter), end]) => (counter, end, true),
            (Op::Binary(Binary::Greater), &[end, Operand::Input(counter)]) => (counter, end, false),
            (Op::Binary(Binary::GreaterEqual), &[end, Operand::Input(counter)]) => (counter, end, true),
            _ => return None,
        };
        let is_fixed = |i: u32| i >= states || op.body.outputs.get(i as usize) == Some(&Operand::Input(i));
        let end = match (constant(&op.condition, end), end) {
            (_, Operand::Input(i)) if !is_fixed(i) => return None,
            (Some(number), _) => End::Number(number),
            (None, Operand::Input(i)) if op.condition.inputs.get(i as usize)?.dtype.is_integer() => End::Operand(i),
            (None, _) => return None,
        };
        let &Operand::Result(next) = op.body.outputs.get(counter as usize)? else { return None };
        let add = maker(&op.body, next)?;
        let step = match (&add.op, &add.operands[..]) {
            (Op::Binary(Binary::Add), &[Operand::Input(i), step] | &[step, Operand::Input(i)]) if i == counter => {
                match step {
                    Operand::Input(i) if !is_fixed(i) => return None,
                    step => constant(&op.body, step)?,
                }
            }
            _ => return None,
        };
        let counter_type = op.body.inputs.get(counter as usize)?;
        (step > 0 && counter_type.elements() == 1).then_some(Counted {
            start: counter,
            end,
            step,
            through,
            dtype: counter_type.dtype,
        })
    }

    /// What each iteration adds to the counter.
    pub(super) fn step(&self) -> i64 {
        self.step
    }

    /// How often the loop runs, where numbers say so.
    pub(super) fn known(&self, number: impl Fn(u32) -> Option<i64>) -> Option<u64> {
        match self.end {
            End::Number(end) => self.trips(number(self.start)?, end),
            End::Operand(_) => None,
        }
    }

    /// How often the loop runs. `None` where the counter might wrap before it gets past the end, or lose ones.
    pub fn trips(&self, start: i64, end: i64) -> Option<u64> {
        let end = end.checked_add(i64::from(self.through))?;
        let limit = match self.dtype {
            DType::S32 | DType::S64 | DType::U32 | DType::U64 => i64::from(i32::MAX),
            DType::F32 | DType::F64 => 1 << 24,
            _ => return None,
        };
        let exact = end.checked_add(self.step)? < limit && start >= 0 && start < limit;
        exact.then(|| end.saturating_sub(start).max(0) as u64).map(|length| length.div_ceil(self.step as u64))
    }
}

/// Notes of all loops in a program how often they run, where that is known.
pub fn note(program: &mut Program) {
    let of = |instruction: &Instruction| match instruction.op {
        Op::Constant(value) => whole_number(value),
        _ => None,
    };
    let numbers: Vec<Option<i64>> =
        program.instructions.iter().flat_map(|i| std::iter::repeat_n(of(i), i.outs.len())).collect();
    for Instruction { op, operands, .. } in &mut program.instructions {
        if let Op::While(op) = op {
            let number = |i: u32| match operands.get(i as usize)? {
                Operand::Input(_) => None,
                Operand::Result(r) => numbers.get(*r as usize).copied().flatten(),
            };
            op.trips = Counted::of(op, number)
                .map(|counted| counted.known(number).map_or(Trips::Counted(counted), Trips::Known));
        }
        op.inside_mut().for_each(note);
    }
}

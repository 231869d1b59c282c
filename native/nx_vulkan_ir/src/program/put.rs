//! Bodies of fused ops that compute what they put into something larger: rows that an iteration adds to a cache.

use smallvec::SmallVec;

use super::fused::Plan;
use super::index_map::{Line, Part, Place};
use super::{Op, Operand, Program};
use crate::Type;

/// What is put into a tensor, and what computes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Put {
    /// The operand of the body into which it is put.
    pub target: u32,
    /// How it lies there. What lines read is an operand of the put.
    part: Part,
    /// The operands of the body that the put takes, `None` for what is put.
    operands: SmallVec<[Option<u32>; 4]>,
    /// Steps alone.
    pub plan: Plan,
    /// The type of what is put.
    pub ty: Type,
}

impl Put {
    /// What a body puts into one of its operands, if steps compute it that need no more than so many words at once;
    /// `None` for other bodies.
    pub fn of(body: &Program, live_words: u32) -> Option<Put> {
        let (put, before) = body.instructions.split_last()?;
        let last = Operand::Result(body.results().count().checked_sub(1)? as u32);
        if !matches!(put.op, Op::PutSlice { .. }) || body.outputs != [last] {
            return None;
        }
        let operand = |operand: &Operand| match *operand {
            Operand::Input(i) => Some(i),
            Operand::Result(_) => None,
        };
        let operands: SmallVec<[Option<u32>; 4]> = put.operands.iter().map(operand).collect();
        let (&target, &update) = (operands.first()?, put.operands.get(1)?);
        let ty = body.type_of(update)?.clone();
        let map = put.index_map(|operand| body.type_of(operand))?;
        let [part] = &map.parts[..] else { return None };
        let are_inputs = (0..operands.len()).all(|k| (k == part.operand) == operands[k].is_none());
        if !are_inputs || put.outs.first()?.dtype != ty.dtype {
            return None;
        }
        let (inputs, instructions) = (body.inputs.clone(), before.to_vec());
        let plan = Plan::of(&Program { inputs, instructions, outputs: vec![update] }, live_words).ok()?;
        let is_map = plan.axes.is_empty() && plan.stores.len() == 1;
        is_map.then_some(Put { target: target?, part: part.clone(), operands, plan, ty })
    }

    /// The part of the result where it lies if everything that is read is 0.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The lines that begin where an operand of the body says, and what it may say at most.
    pub fn starts(&self) -> impl Iterator<Item = (&Line, u32, u64)> {
        self.part.lines.iter().filter_map(|line| match line.at {
            Place::Read { operand, room: room @ 1.. } => {
                let operand = self.operands.get(operand as usize).copied().flatten()?;
                Some((line, operand, room))
            }
            _ => None,
        })
    }
}

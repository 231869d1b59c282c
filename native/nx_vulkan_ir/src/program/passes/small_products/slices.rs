//! Multiplies a whole tensor with a matrix where each of its slices is multiplied with that, as inputs of the steps of
//! a recurrent network are: steps then wait for nothing but what comes from the step before.

use std::collections::HashMap;

use super::{Reader, is_kept, together, turned};
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let groups = groups(program, target);
    let members: Vec<&[usize]> = groups.iter().map(|group| &group.products[..]).collect();
    together(program, &members, 0, |new, group, first| groups[group].emit(new, first))
}

/// Products of all slices of a tensor along an axis with one matrix.
#[derive(Debug)]
struct Group {
    source: Operand,
    axis: usize,
    /// Which axis of a slice is contracted.
    contracted: usize,
    /// By the slice.
    products: Vec<usize>,
}

fn groups(program: &Program, target: &Target) -> Vec<Group> {
    let reader = Reader::of(program);
    // Those that are multiplied alike, in the program's order.
    let mut alike: Vec<Group> = Vec::new();
    let mut numbers: HashMap<(&Op, &Type, Operand, Operand, usize), usize> = HashMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        let Some([contracted, _]) = reader.contracted(instruction, target) else { continue };
        let Some((source, axis, index)) = reader.slice(instruction.operands[0]) else { continue };
        let key = (&instruction.op, &instruction.outs[0], source, instruction.operands[1], axis);
        let number = *numbers.entry(key).or_insert_with(|| {
            alike.push(Group { source, axis, contracted, products: Vec::new() });
            alike.len() - 1
        });
        if alike[number].products.len() as i64 == index {
            alike[number].products.push(at);
        }
    }
    alike.retain(|group| {
        let is_whole = reader.ty(group.source).is_some_and(|ty| ty.shape[group.axis] == group.products.len() as u64);
        let left_out = group.products.len().saturating_sub(1) as u64;
        let taken = reader.size_bytes(group.source);
        let made: u64 = group.products.iter().map(|&at| program.instructions[at].outs[0].size_bytes()).sum();
        is_whole
            && is_kept(made, taken, target)
            && 2 * taken <= left_out * (target.short_bytes / target.small_products.neighbours)
    });
    alike
}

impl Group {
    /// The product of all slices, one below the other, with the matrix, in the place of the first one's.
    fn emit(&self, new: &mut Rewriter, first: &Instruction) -> Result<Operand> {
        let source = new.operand(self.source)?;
        let all = turned(new, source, self.axis, 1 - self.contracted)?;
        let matrix = new.operand(first.operands[1])?;
        let mut shape = first.outs[0].shape.clone();
        shape[0] *= self.products.len() as u64;
        Ok(new.push_one(first.op.clone(), &[all, matrix], &Type { dtype: first.outs[0].dtype, shape }))
    }
}

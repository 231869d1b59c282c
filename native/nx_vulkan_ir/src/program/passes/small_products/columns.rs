//! Multiplies a matrix once with all that it is multiplied with, as states are with the weights of gates: these lie
//! side by side, which costs little where several steps share them.

use std::collections::HashMap;

use super::{Reader, beside, concatenations, is_kept, together};
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let reader = Reader::of(program);
    let groups = groups(&reader, target);
    let members: Vec<&[usize]> = groups.iter().map(|group| &group.products[..]).collect();
    together(program, &members, 1, |new, group, first| groups[group].emit(new, first))
}

/// Products of one matrix with several, which are all there before the first one.
#[derive(Debug)]
struct Group {
    /// In the order of `with`.
    products: Vec<usize>,
    with: Vec<Operand>,
    /// Along which axis `with` lie beside each other.
    axis: usize,
}

fn groups(reader: &Reader<'_>, target: &Target) -> Vec<Group> {
    let contracted = |at: usize| {
        let most_flops = target.short_flops.saturating_mul(target.small_products.most_of_columns);
        reader.contracted_up_to(&reader.program.instructions[at], most_flops)
    };
    let mut alike: HashMap<(&Op, DType, Operand), Vec<usize>> = HashMap::new();
    for (at, instruction) in reader.program.instructions.iter().enumerate() {
        if contracted(at).is_some() {
            alike.entry((&instruction.op, instruction.outs[0].dtype, instruction.operands[0])).or_default().push(at);
        }
    }
    let group = |products: Vec<usize>| {
        let &first = products.first()?;
        let [_, contracted] = contracted(first)?;
        let with = |at: &usize| reader.program.instructions[*at].operands[1];
        let dtype = |operand: Operand| reader.ty(operand).map(|ty| ty.dtype);
        let of_first = dtype(with(&first));
        let fits = |at: &usize| reader.is_before(with(at), first) && dtype(with(at)) == of_first;
        let mut products: Vec<usize> = products.into_iter().filter(fits).collect();
        products.sort_by_key(with);
        let with = products.iter().map(with).collect();
        (products.len() > 1).then_some(Group { products, with, axis: 1 - contracted })
    };
    let mut groups: Vec<Group> = alike.into_values().filter_map(group).collect();
    groups.sort_by_key(|group| group.products.iter().min().copied());
    let mut uses: HashMap<(Vec<Operand>, usize), u64> = HashMap::new();
    for group in &groups {
        *uses.entry((group.with.clone(), group.axis)).or_default() += 1;
    }
    let known = concatenations(reader.program);
    groups.retain(|group| {
        let products = group.products.iter().map(|&at| &reader.program.instructions[at]);
        let made: u64 = products.clone().map(|product| product.outs[0].size_bytes()).sum();
        let taken = products.take(1).map(|product| reader.size_bytes(product.operands[0])).sum::<u64>();
        if !is_kept(made, taken, target) {
            return false;
        }
        let laid = (group.with.clone(), group.axis);
        if known.contains(&laid) {
            return true;
        }
        let bytes: u64 = group.with.iter().map(|&matrix| reader.size_bytes(matrix)).sum();
        let uses = uses.get(&laid).copied().unwrap_or(1);
        let left_out = group.products.len() as u64 - 1;
        2 * bytes / uses <= left_out * (target.short_bytes / target.small_products.neighbours)
    });
    groups
}

impl Group {
    fn emit(&self, new: &mut Rewriter, first: &Instruction) -> Result<Operand> {
        let all = beside(new, &self.with, self.axis)?;
        let matrix = new.operand(first.operands[0])?;
        let mut ty = Type { dtype: first.outs[0].dtype, shape: first.outs[0].shape.clone() };
        ty.shape[1] = new.ty(all)?.shape[self.axis];
        Ok(new.push_one(first.op.clone(), &[matrix, all], &ty))
    }
}

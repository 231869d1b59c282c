//! Multiplies matrices together where each of them is multiplied with the same one and the results are put together, as
//! the gradients of the inputs of steps are.

use std::collections::HashSet;

use smallvec::{SmallVec, smallvec};

use super::{Reader, beside, concatenations};
use crate::Result;
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Op, Operand, Program};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let reader = Reader::of(program);
    let reads = program.reads();
    let known = concatenations(program);
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        match Together::of(&reader, old, target, &known, |operand| reads.get(&operand) == Some(&1)) {
            Some(together) => {
                let operand = together.emit(&mut new, old)?;
                new.moved(operand);
            }
            None => {
                let operands = new.operands(old)?;
                new.replace(Instruction { operands, ..old.clone() });
            }
        }
    }
    new.finish(program)
}

/// Products with one matrix whose results are slices of a tensor of three axes, all of those along an axis.
struct Together<'a> {
    op: &'a Op,
    matrices: Vec<Operand>,
    with: Operand,
    /// What is done to each result: an op with a number behind it.
    after: Option<(&'a Op, Operand)>,
    /// The axis of the matrices that is not contracted.
    rows: usize,
    axis: usize,
}

impl<'a> Together<'a> {
    fn of(
        reader: &Reader<'a>,
        instruction: &Instruction,
        target: &Target,
        known: &HashSet<(Vec<Operand>, usize)>,
        is_read_once: impl Fn(Operand) -> bool,
    ) -> Option<Together<'a>> {
        let (&Op::Concatenate { axis }, [out]) = (&instruction.op, instruction.outs.as_slice()) else { return None };
        if out.shape.len() != 3 || instruction.operands.len() < 2 {
            return None;
        }
        let product = |&slice: &Operand| {
            let (_, view) = reader.maker(slice).filter(|_| is_read_once(slice))?;
            let mut shape = view.outs[0].shape.clone();
            let is_layer = shape.remove(axis) == 1;
            let is_view = match &view.op {
                Op::Reshape => true,
                Op::Broadcast { axes } => axes.iter().copied().eq((0..3).filter(|&other| other != axis)),
                _ => false,
            };
            let &source = view.operands.first().filter(|_| is_view)?;
            let (_, mut product) = reader.maker(source).filter(|_| is_read_once(source))?;
            let mut after = None;
            if let (op @ Op::Binary(_), &[inner, number]) = (&product.op, &product.operands[..])
                && reader.ty(number)?.shape.is_empty()
            {
                after = Some((op, number));
                product = reader.maker(inner).filter(|_| is_read_once(inner))?.1;
            }
            let [contracted, _] = reader.contracted(product, target)?;
            let is_whole = is_layer && product.outs[0].shape == shape && product.outs[0].dtype == out.dtype;
            is_whole.then_some((product, 1 - contracted, after))
        };
        let products = instruction.operands.iter().map(product).collect::<Option<Vec<_>>>()?;
        let &(first, rows, after) = products.first()?;
        let with = first.operands[1];
        let are_alike = |&(product, _, then): &(&Instruction, usize, Option<(&Op, Operand)>)| {
            then == after
                && product.op == first.op
                && product.operands[1] == with
                && reader.ty(product.operands[0]) == reader.ty(first.operands[0])
        };
        let matrices: Vec<Operand> = products.iter().map(|(product, ..)| product.operands[0]).collect();
        let bytes: u64 = matrices.iter().map(|&matrix| reader.size_bytes(matrix)).sum();
        let copied = if known.contains(&(matrices.clone(), rows)) { 0 } else { 2 * bytes };
        let left_out = matrices.len() as u64 - 1;
        let pays = copied
            <= left_out * (target.short_bytes / target.small_products.neighbours + 2 * first.outs[0].size_bytes());
        (products.iter().all(are_alike) && pays).then_some(Together {
            op: &first.op,
            matrices,
            with,
            after,
            rows,
            axis,
        })
    }

    fn emit(&self, new: &mut Rewriter, old: &Instruction) -> Result<Operand> {
        let all = beside(new, &self.matrices, self.rows)?;
        let with = new.operand(self.with)?;
        let mut ty = old.outs[0].clone();
        let count = ty.shape.remove(self.axis);
        let mut joined = ty.clone();
        joined.shape[0] *= count;
        let mut product = new.push_one(self.op.clone(), &[all, with], &joined);
        if let Some((op, number)) = self.after {
            let number = new.operand(number)?;
            product = new.push_one(op.clone(), &[product, number], &joined);
        }
        ty.shape.insert(0, count);
        let layers = new.push_one(Op::Reshape, &[product], &ty);
        let mut axes: SmallVec<[usize; 6]> = smallvec![1, 2];
        axes.insert(self.axis, 0);
        Ok(new.push_one(Op::Transpose { axes }, &[layers], &old.outs[0]))
    }
}

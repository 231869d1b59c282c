//! Bodies of fused ops around two products of one operand with two matrices: gates, and what they are multiplied with.

use super::epilogue::{Following, following};
use super::{Instruction, Op, Operand, Program};
use crate::{CType, DType, Type};

/// Two products, and what follows both.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The operands of the body that the first product takes.
    pub factors: [u32; 2],
    /// Which of them is its matrix, of which the second product takes another.
    pub place: usize,
    /// The operand that is the other matrix.
    pub other: u32,
    /// Vectors by which both are multiplied.
    pub vectors: u64,
    /// Inputs 0 and 1 are the products.
    pub following: Following,
}

impl Pair {
    /// What a body does that has two products and steps on both, which nothing else reads and which need no more than so
    /// many words at once; `None` for other bodies.
    pub fn of(body: &Program, live_words: u32) -> Option<Pair> {
        let [first, second, ..] = body.instructions.as_slice() else { return None };
        let place = Pair::matrix_of(first, second)?;
        let input = |operand: &Operand| match *operand {
            Operand::Input(i) => Some(i),
            Operand::Result(_) => None,
        };
        let factors = [input(first.operands.first()?)?, input(first.operands.get(1)?)?];
        let other = input(second.operands.get(place)?)?;
        let [matrix, beside] = [factors[place], other].map(|i| body.inputs.get(i as usize));
        let [ty] = first.outs.as_slice() else { return None };
        let vectors = vectors(&first.op, body.inputs.get(factors[1 - place] as usize)?, 1 - place)?;
        let following = following(body, &[0, 1], ty, live_words)?;
        (matrix == beside).then_some(Pair { factors, place, other, vectors, following })
    }

    /// Which operand of two products of equal types is another, where the others are one.
    pub(super) fn matrix_of(first: &Instruction, second: &Instruction) -> Option<usize> {
        let is_dot = matches!(first.op, Op::Dot { .. }) && first.op == second.op && first.outs == second.outs;
        let differs = |k: usize| first.operands.get(k) != second.operands.get(k);
        match (is_dot, differs(0), differs(1)) {
            (true, true, false) => Some(0),
            (true, false, true) => Some(1),
            _ => None,
        }
    }

    /// Whether kernels of products by few vectors, up to `most`, may take it: sums of f32, which are reductions where
    /// one vector of f32 is multiplied.
    pub(super) fn fits(&self, product: &Type, most: u64) -> bool {
        let is_sum = product.dtype.ctype() == CType::F32 && (product.dtype != DType::F32 || self.vectors > 1);
        is_sum && self.vectors <= most && self.vectors < product.elements() / self.vectors.max(1)
    }
}

/// Rows or columns of an operand of a product, of which it is the `k`-th.
fn vectors(op: &Op, ty: &Type, k: usize) -> Option<u64> {
    let Op::Dot { contract_a, batch_a, contract_b, batch_b } = op else { return None };
    let (contract, batch) = if k == 0 { (contract_a, batch_a) } else { (contract_b, batch_b) };
    let free = (0..ty.shape.len()).filter(|axis| !contract.contains(axis) && !batch.contains(axis));
    Some(free.map(|axis| ty.shape[axis]).product())
}

//! Bits that say for whom something holds, and what is chosen by them.

use smallvec::{SmallVec, smallvec};

use super::{Batch, Value};
use crate::program::attribute::{Reduction, Scalar};
use crate::program::ops::index::{IndexedPut, Indexing};
use crate::program::{Instruction, Op, Operand};
use crate::{DType, Type};

/// A value, and what puts into it.
type Put = (Operand, Option<Instruction>);

impl Batch {
    /// The type of bits, a byte for each.
    pub(super) fn bit(&self) -> Type {
        Type::new(DType::U8, &[self.count])
    }

    /// Whether a predicate, a scalar, holds for each.
    pub(super) fn bits(&self, predicate: Value) -> Operand {
        let numbers = self.b.reshape(self.wide(predicate), &[self.count]);
        match self.b.ty(numbers).dtype {
            DType::U8 => numbers,
            dtype => self.b.not_equal(numbers, self.b.constant(dtype, Scalar::Int(0))),
        }
    }

    pub(super) fn not(&self, bits: Operand) -> Operand {
        self.b.equal(bits, 0.0)
    }

    pub(super) fn and(&self, a: Operand, b: Option<Operand>) -> Operand {
        b.map_or(a, |b| self.b.logical_and(a, b))
    }

    /// Whether a bit is set for anyone.
    pub(super) fn any(&self, bits: Operand) -> Operand {
        self.b.reduce(Reduction::Any, bits, &[0], false)
    }

    /// Of two values of their own with that type for each, the first where the bit is set.
    pub(super) fn chosen(&self, bits: Operand, [on_true, on_false]: [Operand; 2], ty: &Type) -> Operand {
        let all = self.lead(ty);
        // What is put into what both are made of is put nowhere instead where it does not count.
        let [puts, others] = [on_true, on_false].map(|value| self.puts_into(value, &all));
        let common = puts.iter().position(|(base, _)| others.iter().any(|(other, _)| other == base));
        let Some(at) = common else {
            let mut shape = vec![1; all.shape.len()];
            shape[0] = self.count;
            return self.b.push(Op::Select, &[self.b.reshape(bits, &shape), on_true, on_false], &all);
        };
        let end = others.iter().position(|(base, _)| *base == puts[at].0).unwrap_or(0);
        let value = self.put_where(&puts[..=at], puts[at].0, bits);
        if end > 0 { self.put_where(&others[..=end], value, self.not(bits)) } else { value }
    }

    /// The value, what it is where what was put last into values of this type is not put, and so on, each with what
    /// puts into it.
    fn puts_into(&self, value: Operand, all: &Type) -> SmallVec<[Put; 3]> {
        let mut found: SmallVec<[Put; 3]> = smallvec![(value, None)];
        let mut value = value;
        while let Some(put) = self.b.maker(value)
            && let Op::Indexing(Indexing::IndexedPut(IndexedPut { axes })) = &put.op
            && axes.first() == Some(&0)
            && let Some(&base) = put.operands.first()
            && self.b.ty(base) == *all
        {
            found.push((base, Some(put)));
            value = base;
        }
        found
    }

    /// The same put into `base`, the last first, for those whose bit is set: others have indices that are out of bounds.
    fn put_where(&self, puts: &[Put], base: Operand, bits: Operand) -> Operand {
        let mut value = base;
        for Instruction { op, operands, outs } in puts.iter().rev().filter_map(|(_, put)| put.as_ref()) {
            let &[_, indices, updates] = &operands[..] else { continue };
            let ty = self.b.ty(indices);
            let mut shape = vec![1; ty.shape.len()];
            shape[0] = self.count;
            let nowhere = self.b.constant(ty.dtype, Scalar::Int(-1));
            let indices = self.b.push(Op::Select, &[self.b.reshape(bits, &shape), indices, nowhere], &ty);
            value = self.b.push(op.clone(), &[value, indices, updates], &outs[0]);
        }
        value
    }
}

//! Rows by their numbers: what each reads at its own number is read of all at once.

use super::{Batch, Value};
use crate::Type;
use crate::program::attribute::Scalar;
use crate::program::ops::index::{Indexing, Take};
use crate::program::{Op, Operand};
use crate::shape::Dims;

/// Where numbers begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum First {
    Number(i64),
    /// A scalar of the new program.
    Operand(Operand),
}

impl Batch {
    /// The number of each.
    pub(super) fn numbers(&self, ty: &Type) -> Value {
        let all = self.lead(ty);
        let counted = self.b.iota(ty.dtype, &all.shape, Some(0));
        let at = match self.first {
            First::Number(0) => counted,
            First::Number(first) => self.b.add(counted, self.b.constant(ty.dtype, Scalar::Int(first.into()))),
            First::Operand(first) => self.b.add(counted, first),
        };
        Value { at, own: true, is_number: true }
    }

    /// Whether an op leaves each one's number as it is.
    pub(super) fn is_number(&self, op: &Op, operands: &[Value], out: &Type) -> bool {
        let [value] = operands else { return false };
        let dtype = self.b.ty(value.at).dtype;
        let holds = dtype.is_integer() && out.dtype.is_integer() && out.dtype.bits() >= 32;
        let is_same = matches!(op, Op::Reshape | Op::Squeeze) || matches!(op, Op::AsType) && holds;
        value.is_number && is_same && out.elements() == 1
    }

    /// What of a tensor of all lies along one axis at each one's number, if that is what the op reads: numbers beyond its
    /// end read its last part.
    pub(super) fn row(&self, op: &Op, operands: &[Value], out: &Type) -> Option<Operand> {
        let &[whole, index] = operands else { return None };
        if whole.own || !index.is_number {
            return None;
        }
        let ty = self.b.ty(whole.at);
        let axis = match op {
            Op::Indexing(Indexing::Take(Take { axis })) => *axis,
            Op::Slice { starts, lengths, .. } => {
                let axis = starts.iter().position(Option::is_none)?;
                let is_whole = |other: usize| other == axis || lengths[other] == ty.shape[other];
                let is_row = lengths[axis] == 1 && (0..lengths.len()).all(is_whole);
                (is_row && out.elements() * ty.shape[axis] == ty.elements()).then_some(axis)?
            }
            _ => return None,
        };
        if ty.shape[axis] < self.end {
            return None;
        }
        let rows = self.rows_along(whole.at, axis, &ty);
        let front: Vec<usize> = [axis].into_iter().chain((0..ty.shape.len()).filter(|&other| other != axis)).collect();
        let rows = if axis == 0 { rows } else { self.b.transpose(rows, &front) };
        Some(self.b.reshape(rows, &self.lead(out).shape))
    }

    /// The parts of a tensor along an axis that have everyone's numbers.
    fn rows_along(&self, whole: Operand, axis: usize, ty: &Type) -> Operand {
        if self.first == First::Number(0) && self.count == ty.shape[axis] {
            return whole;
        }
        let mut lengths: Dims = ty.shape.clone();
        lengths[axis] = self.count;
        let start = |other: usize| match self.first {
            First::Number(first) if other == axis => Some(first),
            First::Operand(_) if other == axis => None,
            First::Number(_) | First::Operand(_) => Some(0),
        };
        let op = Op::Slice {
            starts: (0..lengths.len()).map(start).collect(),
            strides: lengths.iter().map(|_| 1).collect(),
            lengths: lengths.iter().copied().collect(),
        };
        let first = if let First::Operand(first) = self.first { Some(first) } else { None };
        let operands: Vec<Operand> = [whole].into_iter().chain(first).collect();
        self.b.push(op, &operands, &Type { dtype: ty.dtype, shape: lengths })
    }
}

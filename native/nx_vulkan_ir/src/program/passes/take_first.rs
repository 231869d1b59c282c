//! Takes elements from what a result is computed from, and not from the result, where only these are read: of the
//! logarithms of a row of probabilities that of the label's alone. Of taken elements those alone that a slice shows.

use std::collections::HashMap;

use super::rewrite::{Rewriter, readers};
use crate::program::ops::index::{Indexing, Take, TakeAlongAxis};
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// The part of a result up to which few of its elements are taken.
const MAX_PART: u64 = 4;

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    let takes = Takes { program, readers: readers(program), type_of: program.types(), maker: program.makers() };
    for (at, old) in program.instructions.iter().enumerate() {
        let taken = match (&old.op, &old.operands[..], old.outs.as_slice()) {
            (&Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })), &[a, indices], [out])
                if takes.only_reader(a) == Some(at)
                    && (takes.type_of)(a).is_some_and(|a| out.elements() <= a.elements() / MAX_PART) =>
            {
                let known = HashMap::new();
                let mut taking = Taking { axis, indices: new.operand(indices)?, from: a, shape: out, known };
                takes.taken(&mut new, a, &mut taking)?
            }
            (Op::Slice { .. }, &[a], _) if takes.only_reader(a) == Some(at) => takes.sliced(&mut new, old)?,
            _ => None,
        };
        match taken {
            Some(result) => new.moved(result),
            None => {
                let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
                new.replace(instruction);
            }
        }
    }
    new.finish(program)
}

struct Takes<'a, T, M> {
    program: &'a Program,
    readers: HashMap<Operand, Vec<usize>>,
    type_of: T,
    maker: M,
}

/// Elements along an axis of what has the shape of `from`, which give what has `shape`.
struct Taking<'a> {
    axis: usize,
    /// Of the new program.
    indices: Operand,
    from: Operand,
    shape: &'a Type,
    /// What was taken of operands, none where these lie in memory.
    known: HashMap<Operand, Option<Operand>>,
}

impl<'a, T: Fn(Operand) -> Option<&'a Type>, M: Fn(Operand) -> Option<usize>> Takes<'a, T, M> {
    fn only_reader(&self, operand: Operand) -> Option<usize> {
        let readers = self.readers.get(&operand)?;
        readers.iter().all(|reader| *reader == readers[0]).then_some(readers[0])
    }

    /// Whether kernels that read an operand can compute it: then it need not lie in memory.
    fn is_computed(&self, operand: Operand) -> bool {
        let is_light = |op: &Op| {
            op.elementwise().is_some() || matches!(op, Op::Reduce { .. } | Op::Indexing(Indexing::TakeAlongAxis(_)))
        };
        let reads = |&at: &usize| self.program.instructions.get(at).is_some_and(|reader| is_light(&reader.op));
        self.readers.get(&operand).is_some_and(|readers| readers.iter().all(reads))
    }

    /// What a slice shows of taken elements, taken by a slice of their indices. `None` where these are not all that it
    /// is a slice of.
    fn sliced(&self, new: &mut Rewriter, slice: &Instruction) -> Result<Option<Operand>> {
        let Op::Slice { starts, strides, lengths } = &slice.op else { return Ok(None) };
        let maker = (self.maker)(slice.operands[0]).map(|at| &self.program.instructions[at]);
        let Some(Instruction { op, operands, outs }) = maker else { return Ok(None) };
        let Some(ty) = operands.get(1).and_then(|&indices| (self.type_of)(indices)) else { return Ok(None) };
        // The axes of the result which are some of the indices, and the first of those.
        let (along, first) = match *op {
            Op::Indexing(Indexing::Take(Take { axis })) => (axis..axis + ty.shape.len(), axis),
            Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })) => (axis..axis + 1, 0),
            _ => return Ok(None),
        };
        let (result, shown) = (&outs[0].shape, &slice.outs[0]);
        if (0..result.len()).any(|axis| result[axis] != shown.shape[axis] && !along.contains(&axis)) {
            return Ok(None);
        }
        let own = first..first + ty.shape.len();
        let part = Op::Slice {
            starts: starts[own.clone()].into(),
            strides: strides[own.clone()].into(),
            lengths: lengths[own.clone()].into(),
        };
        let [a, indices] = [new.operand(operands[0])?, new.operand(operands[1])?];
        let indices = new.push_one(part, &[indices], &Type::new(ty.dtype, &shown.shape[own]));
        Ok(Some(new.push_one(op.clone(), &[a, indices], shown)))
    }

    /// The elements taken of an operand; `None` where nothing is won, or an operand can't be taken from.
    fn taken(&self, new: &mut Rewriter, operand: Operand, taking: &mut Taking<'_>) -> Result<Option<Operand>> {
        if let Some(&known) = taking.known.get(&operand) {
            return Ok(known);
        }
        let taken = self.taken_anew(new, operand, taking)?;
        taking.known.insert(operand, taken);
        Ok(taken)
    }

    fn taken_anew(&self, new: &mut Rewriter, operand: Operand, taking: &mut Taking<'_>) -> Result<Option<Operand>> {
        let Some(at) = (self.maker)(operand).filter(|_| self.is_computed(operand)) else { return Ok(None) };
        let Instruction { op, operands, outs } = &self.program.instructions[at];
        let (Some(_), [out]) = (op.elementwise(), outs.as_slice()) else { return Ok(None) };
        let mut parts: Vec<Operand> = Vec::with_capacity(operands.len());
        for &part in operands {
            let Some(ty) = (self.type_of)(part) else { return Ok(None) };
            let whole = (self.type_of)(taking.from).map(|from| &from.shape);
            let is_line = |shape: &[u64]| {
                whole.is_some_and(|whole| {
                    let line = |(axis, (&own, &size)): (usize, (&u64, &u64))| {
                        own == if axis == taking.axis { 1 } else { size }
                    };
                    shape.len() == whole.len() && shape.iter().zip(whole).enumerate().all(line)
                })
            };
            if ty.shape.is_empty() || is_line(&ty.shape) {
                parts.push(new.operand(part)?);
            } else if Some(&ty.shape) == whole {
                let inner = self.taken(new, part, taking)?;
                let taken = match inner {
                    Some(taken) => taken,
                    None => {
                        let of = new.operand(part)?;
                        let ty = Type { dtype: ty.dtype, shape: taking.shape.shape.clone() };
                        new.push_one(Op::from(TakeAlongAxis { axis: taking.axis }), &[of, taking.indices], &ty)
                    }
                };
                parts.push(taken);
            } else {
                return Ok(None);
            }
        }
        let ty = Type { dtype: out.dtype, shape: taking.shape.shape.clone() };
        Ok(Some(new.push_one(op.clone(), &parts, &ty)))
    }
}

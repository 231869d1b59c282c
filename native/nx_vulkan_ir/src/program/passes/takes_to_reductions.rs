//! Makes a reduction of a take of one element from each line of a result that is reduced along these lines, too: one
//! kernel of rows reads the result once for both, and nothing needs it behind that, so that what is made of it lies in
//! its place.

use std::collections::HashMap;

use super::Target;
use super::rewrite::{Rewriter, readers, results};
use crate::program::attribute::Scalar;
use crate::program::fused::Plan;
use crate::program::ops::index::{Indexing, TakeAlongAxis};
use crate::program::{Binary, Builder, Instruction, Op, Operand, Program, Reduction};
use crate::shape::Dims;
use crate::value::range;
use crate::{DType, Result, Type};

/// Bytes of a result from which on it is worth it, and up to which one launch reaches all of it.
const LEAST_BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = u32::MAX as u64;

/// Takes of one result at most, so that a kernel has reductions left for the lines.
const MOST_TAKES: usize = 2;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    if !program.instructions.iter().any(|instruction| axis_of(&instruction.op).is_some()) {
        return Ok(program.clone());
    }
    let found = Takes::new(program).found(target)?;
    let mut new = Rewriter::new(program);
    for (old, take) in program.instructions.iter().zip(found) {
        let operands = new.operands(old)?;
        match take {
            Some(reduction) => {
                let results = new.append(&reduction, &operands);
                results.into_iter().for_each(|result| new.moved(result));
            }
            None => new.replace(Instruction { operands, ..old.clone() }),
        }
    }
    new.finish(program)
}

fn axis_of(op: &Op) -> Option<usize> {
    match op {
        Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })) => Some(*axis),
        _ => None,
    }
}

struct Takes<'a> {
    program: &'a Program,
    readers: HashMap<Operand, Vec<usize>>,
    results: Vec<Option<Operand>>,
}

impl<'a> Takes<'a> {
    fn new(program: &'a Program) -> Takes<'a> {
        Takes { program, readers: readers(program), results: results(program) }
    }

    /// What each instruction becomes that is such a take: a program of the result and the indices.
    fn found(&self, target: &Target) -> Result<Vec<Option<Program>>> {
        let type_of = self.program.types();
        let mut fits: HashMap<(Operand, usize), bool> = HashMap::new();
        let mut of = |(at, old): (usize, &Instruction)| {
            let Some((axis, from, whole, index)) = self.candidate(at, old, &type_of) else { return Ok(None) };
            let fits = match fits.get(&(from, axis)) {
                Some(&known) => known,
                None => {
                    let fit = self.is_reduced(from, axis) && is_row(whole, index, axis, target)?;
                    fits.insert((from, axis), fit);
                    fit
                }
            };
            fits.then(|| reduction(whole, index, axis)).transpose()
        };
        self.program.instructions.iter().enumerate().map(&mut of).collect()
    }

    /// The axis, the operand and its type, and that of the indices, of what takes one element from each line of a large
    /// result for arithmetic alone.
    fn candidate(
        &self,
        at: usize,
        old: &Instruction,
        type_of: impl Fn(Operand) -> Option<&'a Type>,
    ) -> Option<(usize, Operand, &'a Type, &'a Type)> {
        let axis = axis_of(&old.op)?;
        let &[from @ Operand::Result(_), index] = &old.operands[..] else { return None };
        let (whole, index) = (type_of(from)?, type_of(index)?);
        let is = is_of_lines(whole, index, axis) && self.is_computed_with(self.results[at]?);
        is.then_some((axis, from, whole, index))
    }

    /// What reads an operand, with its result; none for the program itself.
    fn readers(&self, operand: Operand) -> impl Iterator<Item = Option<(&'a Op, Option<Operand>)>> + '_ {
        let instruction = |&at: &usize| Some((&self.program.instructions.get(at)?.op, self.results[at]));
        self.readers.get(&operand).into_iter().flatten().map(instruction)
    }

    /// Whether an operand, or what it is in another type, is reduced along an axis, and few elements are taken of it.
    fn is_reduced(&self, operand: Operand, axis: usize) -> bool {
        let reduces = |op: &Op| matches!(op, Op::Reduce { axes, .. } if axes[..] == [axis]);
        let is_reduced = self.readers(operand).flatten().any(|(op, made)| match (op, made) {
            (Op::AsType, Some(made)) => self.readers(made).flatten().any(|(op, _)| reduces(op)),
            (op, _) => reduces(op),
        });
        is_reduced && self.readers(operand).flatten().filter(|(op, _)| axis_of(op).is_some()).count() <= MOST_TAKES
    }

    /// Whether arithmetic alone reads it, or what it is in another type: what moves numbers as they are would tell one
    /// NaN from another.
    fn is_computed_with(&self, operand: Operand) -> bool {
        let computes =
            |op: &Op| matches!(op, Op::Binary(Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide));
        self.readers(operand).all(|reader| match reader {
            Some((Op::AsType, Some(made))) => {
                self.readers(made).all(|reader| reader.is_some_and(|(op, _)| computes(op)))
            }
            Some((op, _)) => computes(op),
            None => false,
        })
    }
}

/// Whether indices take one element from each line of something large.
fn is_of_lines(whole: &Type, index: &Type, axis: usize) -> bool {
    let size = whole.shape[axis];
    index.shape[axis] == 1
        && index.elements() * size == whole.elements()
        && (2..=i32::MAX as u64).contains(&size)
        && (LEAST_BYTES..=MOST_BYTES).contains(&whole.size_bytes())
        && matches!(whole.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64)
}

/// Whether one kernel of rows holds the lines for a softmax and the element that is taken.
fn is_row(whole: &Type, index: &Type, axis: usize, target: &Target) -> Result<bool> {
    let b = Builder::new();
    let x = b.input(whole.dtype, &whole.shape);
    let picked = picked(&b, x, b.input(index.dtype, &index.shape), axis);
    let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[axis], true)));
    let total = b.reduce(Reduction::Sum, exp, &[axis], true);
    let shares = b.divide(exp, total);
    let body = b.finish(&[picked, shares])?;
    Ok(Plan::of(&body, target.live_words).is_ok_and(|plan| target.rows.fit(&plan)))
}

/// The take as a program of its operands.
fn reduction(whole: &Type, index: &Type, axis: usize) -> Result<Program> {
    let b = Builder::new();
    let x = b.input(whole.dtype, &whole.shape);
    let picked = picked(&b, x, b.input(index.dtype, &index.shape), axis);
    b.finish(&[picked])
}

/// The largest of the element that is taken and -Inf in the place of all others.
fn picked(b: &Builder, x: Operand, index: Operand, axis: usize) -> Operand {
    let (whole, lines) = (b.ty(x), b.ty(index));
    let (least, most) = range(lines.dtype);
    // Indices out of bounds are clamped.
    let mut place = index;
    for (op, end, is_there) in [
        (Binary::Max, 0, least < 0),
        (Binary::Min, i128::from(whole.shape[axis]) - 1, most >= i128::from(whole.shape[axis])),
    ] {
        if is_there {
            let end = b.push(Op::Constant(Scalar::Int(end)), &[], &lines);
            place = b.push(Op::Binary(op), &[place, end], &lines);
        }
    }
    let place = b.push(Op::AsType, &[place], &Type { dtype: DType::S32, ..lines });
    let mut along = Dims::from_elem(1, whole.shape.len());
    along[axis] = whole.shape[axis];
    let along = b.push(Op::Iota { axis: Some(axis) }, &[], &Type { dtype: DType::S32, shape: along });
    let is_there = b.push(Op::Binary(Binary::Equal), &[along, place], &Type { dtype: DType::U8, ..whole.clone() });
    let least = Type { dtype: whole.dtype, shape: Dims::new() };
    let least = b.push(Op::Constant(Scalar::Float(f64::NEG_INFINITY)), &[], &least);
    let chosen = b.push(Op::Select, &[is_there, x, least], &whole);
    b.reduce(Reduction::Max, chosen, &[axis], true)
}

//! Makes one product of many small ones, as steps of recurrent networks and their gradients have them: launches of
//! which each waits for the one before, or fills a part of the device only.

mod columns;
mod concatenated;
mod slices;
mod stacks;
mod steps;
mod sums;

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::rewrite::{Rewriter, checked};
use super::target::{Saving, Target};
use super::{cse, dce};
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// What a product makes or takes at once that was made or taken bit by bit, at most: in times of a short iteration's
/// bytes, or of what it takes anyway.
const MOST_KEPT: u64 = 4;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    // What is put together lies in memory together.
    if matches!(target.saving, Saving::Kernels | Saving::Reductions) {
        return Ok(program.clone());
    }
    let program = slices::run(program, target)?;
    let program = checked(dce::run(&cse::run(&sums::run(&program, target)?)?)?)?;
    let program = checked(dce::run(&cse::run(&concatenated::run(&program, target)?)?)?)?;
    let program = checked(cse::run(&columns::run(&program, target)?)?)?;
    let program = checked(dce::run(&cse::run(&steps::run(&program)?)?)?)?;
    checked(cse::run(&stacks::run(&program, target)?)?)
}

/// A program, and which instruction makes each of its results.
struct Reader<'a> {
    program: &'a Program,
    made: Vec<usize>,
}

impl<'a> Reader<'a> {
    fn of(program: &'a Program) -> Reader<'a> {
        let made = program.instructions.iter().enumerate().flat_map(|(at, i)| i.outs.iter().map(move |_| at));
        Reader { program, made: made.collect() }
    }

    /// The instruction that has an operand as its only result, and its number.
    fn maker(&self, operand: Operand) -> Option<(usize, &'a Instruction)> {
        let Operand::Result(r) = operand else { return None };
        let at = *self.made.get(r as usize)?;
        let instruction = self.program.instructions.get(at)?;
        (instruction.outs.len() == 1).then_some((at, instruction))
    }

    /// Whether an operand is there before an instruction.
    fn is_before(&self, operand: Operand, at: usize) -> bool {
        match operand {
            Operand::Input(_) => true,
            Operand::Result(_) => self.maker(operand).is_some_and(|(maker, _)| maker < at),
        }
    }

    /// The only result of an instruction.
    fn result_of(&self, at: usize) -> Operand {
        Operand::Result(self.made.partition_point(|&made| made < at) as u32)
    }

    fn ty(&self, operand: Operand) -> Option<&'a Type> {
        match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(_) => self.maker(operand).and_then(|(_, maker)| maker.outs.first()),
        }
    }

    fn size_bytes(&self, operand: Operand) -> u64 {
        self.ty(operand).map_or(0, Type::size_bytes)
    }

    /// The contracted axis of each operand of a small product of two matrices of floats.
    fn contracted(&self, instruction: &Instruction, target: &Target) -> Option<[usize; 2]> {
        self.contracted_up_to(instruction, target.short_flops)
    }

    /// The contracted axis of each operand of a product of two matrices of floats of so many operations at most.
    fn contracted_up_to(&self, instruction: &Instruction, most_flops: u64) -> Option<[usize; 2]> {
        let Op::Dot { contract_a, batch_a, contract_b, .. } = &instruction.op else { return None };
        let (&[a, b], [out]) = (&instruction.operands[..], instruction.outs.as_slice()) else { return None };
        let (&[of_a], &[of_b], []) = (&contract_a[..], &contract_b[..], &batch_a[..]) else { return None };
        let (a, b) = (self.ty(a)?, self.ty(b)?);
        let are_matrices = a.shape.len() == 2 && b.shape.len() == 2;
        let is_small = instruction.op.flops(&[a, b], &instruction.outs).is_some_and(|flops| flops <= most_flops);
        (out.dtype.is_float() && are_matrices && is_small).then_some([of_a, of_b])
    }

    /// The tensor of three axes of which a matrix is a slice, the axis along which that is one element, and which.
    fn slice(&self, matrix: Operand) -> Option<(Operand, usize, i64)> {
        let is_view = |view: &Instruction| matches!(view.op, Op::Reshape | Op::Squeeze);
        let (_, view) = self.maker(matrix).filter(|(_, view)| is_view(view))?;
        let (_, slice) = self.maker(*view.operands.first()?)?;
        let (Op::Slice { starts, strides, lengths }, &[source]) = (&slice.op, &slice.operands[..]) else { return None };
        let ty = self.ty(source).filter(|ty| ty.shape.len() == 3)?;
        let axis = lengths.iter().zip(&ty.shape).position(|(length, size)| length != size)?;
        let mut others = (0..3).filter(|&other| other != axis);
        let is_one = lengths[axis] == 1 && strides.iter().all(|&stride| stride == 1);
        let is_whole = others.clone().all(|other| lengths[other] == ty.shape[other] && starts[other] == Some(0));
        let is_matrix = others.by_ref().map(|other| ty.shape[other]).eq(view.outs[0].shape.iter().copied());
        (is_one && is_whole && is_matrix).then_some((source, axis, starts[axis]?))
    }

    /// The tensor, and its axis, of which matrices are all slices in their order.
    fn all_slices(&self, matrices: &[Operand]) -> Option<(Operand, usize)> {
        let slices = matrices.iter().map(|&matrix| self.slice(matrix)).collect::<Option<Vec<_>>>()?;
        let &(source, axis, _) = slices.first()?;
        let are_all = slices.iter().enumerate().all(|(i, slice)| *slice == (source, axis, i as i64));
        (are_all && self.ty(source)?.shape[axis] == slices.len() as u64).then_some((source, axis))
    }
}

/// The slices of a new tensor of three axes along `axis` as matrices that lie beside each other along axis `along` of
/// one.
fn turned(new: &mut Rewriter, source: Operand, axis: usize, along: usize) -> Result<Operand> {
    let ty = new.ty(source)?.clone();
    let mut axes: SmallVec<[usize; 6]> = (0..3).filter(|&other| other != axis).collect();
    axes.insert(along, axis);
    let mut joined = Type { dtype: ty.dtype, shape: axes.iter().map(|&axis| ty.shape[axis]).collect() };
    let turned = new.push_one(Op::Transpose { axes }, &[source], &joined);
    let count = joined.shape.remove(along);
    joined.shape[along] *= count;
    Ok(new.push_one(Op::Reshape, &[turned], &joined))
}

/// What a program puts beside each other, and along which axis.
fn concatenations(program: &Program) -> HashSet<(Vec<Operand>, usize)> {
    let concatenation = |instruction: &Instruction| match instruction.op {
        Op::Concatenate { axis } => Some((instruction.operands.to_vec(), axis)),
        _ => None,
    };
    program.instructions.iter().filter_map(concatenation).collect()
}

/// Whether so much may be made at once of what takes so much.
fn is_kept(made_bytes: u64, taken_bytes: u64, target: &Target) -> bool {
    made_bytes <= target.short_bytes.max(MOST_KEPT * taken_bytes)
}

/// Matrices of the old program beside each other in the new one.
fn beside(new: &mut Rewriter, matrices: &[Operand], axis: usize) -> Result<Operand> {
    let matrices = matrices.iter().map(|&matrix| new.operand(matrix)).collect::<Result<Vec<_>>>()?;
    concatenate(new, &matrices, axis)
}

fn concatenate(new: &mut Rewriter, parts: &[Operand], axis: usize) -> Result<Operand> {
    let mut ty = new.ty(parts[0])?.clone();
    ty.shape[axis] = 0;
    for &part in parts {
        ty.shape[axis] += new.ty(part)?.shape[axis];
    }
    Ok(new.push_one(Op::Concatenate { axis }, parts, &ty))
}

/// So much of a tensor along an axis, from `start` on.
fn part_of(new: &mut Rewriter, whole: Operand, axis: usize, start: u64, length: u64) -> Result<Operand> {
    let mut ty = new.ty(whole)?.clone();
    ty.shape[axis] = length;
    let rank = ty.shape.len();
    let mut starts = SmallVec::from_elem(Some(0), rank);
    starts[axis] = Some(start as i64);
    let slice = Op::Slice { starts, strides: SmallVec::from_elem(1, rank), lengths: ty.shape.clone() };
    Ok(new.push_one(slice, &[whole], &ty))
}

/// The program with one product in the place of the first of each group of products, and parts of it along `axis` in
/// the place of all of them.
fn together(
    program: &Program,
    groups: &[&[usize]],
    axis: usize,
    mut product: impl FnMut(&mut Rewriter, usize, &Instruction) -> Result<Operand>,
) -> Result<Program> {
    let members = groups.iter().enumerate().flat_map(|(group, members)| {
        let sizes = members.iter().map(|&at| program.instructions[at].outs[0].shape[axis]);
        let starts = sizes.scan(0, |end, size| Some(std::mem::replace(end, *end + size)));
        members.iter().zip(starts).map(move |(&at, start)| (at, (group, start)))
    });
    let members: HashMap<usize, (usize, u64)> = members.collect();
    let mut wholes: Vec<Option<Operand>> = vec![None; groups.len()];
    let mut new = Rewriter::new(program);
    for (at, old) in program.instructions.iter().enumerate() {
        let Some(&(group, start)) = members.get(&at) else {
            let operands = new.operands(old)?;
            new.replace(Instruction { operands, ..old.clone() });
            continue;
        };
        let whole = match wholes[group] {
            Some(whole) => whole,
            None => product(&mut new, group, old)?,
        };
        wholes[group] = Some(whole);
        let part = part_of(&mut new, whole, axis, start, old.outs[0].shape[axis])?;
        new.moved(part);
    }
    new.finish(program)
}

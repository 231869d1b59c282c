//! Lays what steps make in memory in the order of the steps, whichever axis it is stacked along: a step's result then
//! can be written where it will lie. Of what is stacked twice, shifted by a step, as states that products take before
//! and after a step, memory holds one.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{Reader, part_of};
use crate::Result;
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Op, Operand, Program};

/// Results that are stacked, at least.
const FEWEST: usize = 4;

/// What a result takes is a multiple of so many bytes, or others could not begin at its end.
const PART_BYTES: u64 = 256;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let reader = Reader::of(program);
    let stacks: Vec<Stack<'_>> = (0..program.instructions.len()).filter_map(|at| reader.stack(at, target)).collect();
    let places = places(&reader, &stacks);
    let mut wholes: HashMap<usize, Operand> = HashMap::new();
    let mut new = Rewriter::new(program);
    for (at, old) in program.instructions.iter().enumerate() {
        let Some(place) = places.get(&at) else {
            let operands = new.operands(old)?;
            new.replace(Instruction { operands, ..old.clone() });
            continue;
        };
        let whole = match wholes.get(&place.first) {
            Some(&whole) => whole,
            None => place.whole(&mut new)?,
        };
        wholes.insert(place.first, whole);
        let part = place.part(&mut new, whole, old)?;
        new.moved(part);
    }
    new.finish(program)
}

/// Results of one type that an instruction puts together.
struct Stack<'a> {
    at: usize,
    parts: &'a [Operand],
    /// The axis that they are counted along, none where they lie below each other.
    axis: Option<usize>,
}

/// Where the parts of a stack lie.
struct Stacked {
    /// The instruction in whose place the whole is made.
    first: usize,
    parts: Vec<Operand>,
    /// Of `parts` the first one of this stack.
    start: usize,
    axis: Option<usize>,
}

impl<'a> Reader<'a> {
    fn stack(&self, at: usize, target: &Target) -> Option<Stack<'a>> {
        let instruction = &self.program.instructions[at];
        let axis = match instruction.op {
            Op::Stack { axis } => Some(axis),
            Op::Concatenate { axis: 0 } => None,
            _ => return None,
        };
        let parts = &instruction.operands[..];
        let ty = self.ty(*parts.first()?)?;
        let bytes = ty.size_bytes();
        let run = ty.shape.iter().skip(axis.unwrap_or(0)).product::<u64>() * ty.dtype.size_bytes();
        let fits = parts.len() >= FEWEST
            && parts.iter().all(|&part| self.ty(part) == Some(ty))
            && bytes > 0
            && bytes.is_multiple_of(PART_BYTES)
            && bytes <= target.short_bytes
            && run >= target.small_products.run_bytes;
        fits.then_some(Stack { at, parts, axis })
    }
}

/// The places of those stacks that are to lie otherwise than the program says, by the numbers of their instructions.
fn places(reader: &Reader<'_>, stacks: &[Stack<'_>]) -> HashMap<usize, Stacked> {
    let behind: HashMap<&[Operand], usize> =
        stacks.iter().enumerate().filter_map(|(i, stack)| Some((stack.parts.split_first()?.1, i))).collect();
    let mut places: HashMap<usize, Stacked> = HashMap::new();
    for (i, stack) in stacks.iter().enumerate() {
        let shifted = stack.parts.split_last().and_then(|(_, parts)| behind.get(parts)).filter(|&&other| other != i);
        if let Some(other) = shifted.map(|&other| &stacks[other]) {
            // `other` begins with what comes before this one's first part.
            let (before, last) = (other.parts[0], stack.parts[stack.parts.len() - 1]);
            let first = stack.at.min(other.at);
            let is_there = reader.is_before(before, first) && reader.is_before(last, first);
            if is_there && !places.contains_key(&stack.at) && !places.contains_key(&other.at) {
                let parts: Vec<Operand> = [before].iter().chain(stack.parts).copied().collect();
                places.insert(other.at, Stacked { first, parts: parts.clone(), start: 0, axis: other.axis });
                places.insert(stack.at, Stacked { first, parts, start: 1, axis: stack.axis });
            }
        }
    }
    for stack in stacks.iter().filter(|stack| stack.axis.is_some_and(|axis| axis > 0)) {
        let own = || Stacked { first: stack.at, parts: stack.parts.to_vec(), start: 0, axis: stack.axis };
        places.entry(stack.at).or_insert_with(own);
    }
    places
}

impl Stacked {
    /// All parts, counted along the first axis.
    fn whole(&self, new: &mut Rewriter) -> Result<Operand> {
        let parts = self.parts.iter().map(|&part| new.operand(part)).collect::<Result<Vec<_>>>()?;
        let mut ty = new.ty(parts[0])?.clone();
        ty.shape.insert(0, parts.len() as u64);
        Ok(new.push_one(Op::Stack { axis: 0 }, &parts, &ty))
    }

    /// The result of an old instruction as a view of that.
    fn part(&self, new: &mut Rewriter, whole: Operand, old: &Instruction) -> Result<Operand> {
        let out = &old.outs[0];
        let layers = part_of(new, whole, 0, self.start as u64, old.operands.len() as u64)?;
        let Some(axis) = self.axis else { return Ok(new.push_one(Op::Reshape, &[layers], out)) };
        let mut axes: SmallVec<[usize; 6]> = (1..out.shape.len()).collect();
        axes.insert(axis, 0);
        Ok(new.push_one(Op::Transpose { axes }, &[layers], out))
    }
}

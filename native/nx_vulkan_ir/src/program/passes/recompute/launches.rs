//! Large results in kernels of their own for what reads them late.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smallvec::{SmallVec, smallvec};

use super::MIN_BYTES;
use super::lives::{Again, Lives, Made};
use crate::Result;
use crate::program::fused::shares_memory;
use crate::program::passes::rewrite::Rewriter;
use crate::program::{Instruction, Op, Operand, Program};

/// The part of all bytes that a program moves that it may move in addition.
const MAX_MORE: u64 = 16;

pub fn run(program: &Program) -> Result<Program> {
    let mut lives = Lives::of(program);
    let mut again = Vec::new();
    let peak = lives.peak();
    let mut more = lives.moved_bytes() / MAX_MORE;
    let mut late: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for result in 0..lives.results.len() {
        if lives.is_late(result, peak) {
            late.entry(lives.results[result].maker).or_default().push(result);
        }
    }
    // What takes most comes first.
    let mut late: Vec<(usize, Vec<usize>)> = late.into_iter().collect();
    let bytes = |results: &[usize]| results.iter().map(|&r| lives.results[r].bytes).sum::<u64>();
    late.sort_by_key(|(_, results)| std::cmp::Reverse(bytes(results)));
    let mut needed: BTreeSet<Operand> = BTreeSet::new();
    for (maker, mut results) in late {
        results.retain(|&r| !needed.contains(&Operand::Result(r as u32)));
        let Some(part) = lives.part(maker, &results, peak) else { continue };
        // With less there, most may be there at another level.
        let (from, to) = lives.between(&part.results, peak);
        if part.bytes <= more && (from + 1..to).contains(&lives.peak()) {
            more -= part.bytes;
            lives.note(&part, peak);
            needed.extend(part.operands.iter().map(|&operand| lives.base_of(operand)));
            again.push(part);
        }
    }
    if again.is_empty() { Ok(program.clone()) } else { lives.rewritten(&again, peak) }
}

impl Lives<'_> {
    /// Whether a large result of a fused op lies in memory at the peak for what reads it later.
    fn is_late(&self, result: usize, peak: usize) -> bool {
        let Made { maker, bytes, last, .. } = self.results[result];
        let is_fused = matches!(self.program.instructions[maker].op, Op::Fused(_));
        let is_there = self.level[maker] < peak && last != usize::MAX && last > peak;
        let (early, late) = self.readers(result, peak);
        bytes >= MIN_BYTES && is_fused && is_there && !early.is_empty() && !late.is_empty()
    }

    /// What gives these results of a fused op from operands that are there when they are read late; fewer of them where
    /// not all can be.
    fn part(&self, maker: usize, results: &[usize], peak: usize) -> Option<Again> {
        let alone = results.iter().filter_map(|&r| self.part_of_all(maker, &[r], self.between(&[r], peak)));
        let mut alone: Vec<Again> = alone.collect();
        let results: Vec<usize> = alone.iter().flat_map(|part| part.results.iter().copied()).collect();
        if results.len() > 1 {
            alone.extend(self.part_of_all(maker, &results, self.between(&results, peak)));
        }
        let bytes = |part: &Again| part.results.iter().map(|&r| self.results[r].bytes).sum::<u64>();
        alone.into_iter().max_by_key(bytes)
    }

    /// Notes how long everything is there if this is computed again.
    fn note(&mut self, part: &Again, peak: usize) {
        let (from, to) = self.between(&part.results, peak);
        for &result in &part.results {
            self.results[result].last = from;
        }
        for &operand in &part.operands {
            if let Operand::Result(r) = self.base_of(operand) {
                let made = &mut self.results[r as usize];
                made.last = made.last.max(to);
            }
        }
    }

    fn rewritten(&self, again: &[Again], peak: usize) -> Result<Program> {
        let mut new = Rewriter::new(self.program);
        let mut part_of: HashMap<u32, usize> = HashMap::new();
        for (k, part) in again.iter().enumerate() {
            part_of.extend(part.results.iter().map(|&r| (r as u32, k)));
        }
        // Operands of the new program for late readers, by operands of the old one.
        let mut later: HashMap<Operand, Operand> = HashMap::new();
        for (at, instruction) in self.program.instructions.iter().enumerate() {
            let mut operands: SmallVec<[Operand; 3]> = SmallVec::new();
            for &operand in &instruction.operands {
                let part = match self.base_of(operand) {
                    Operand::Result(r) if self.level[at] > peak => part_of.get(&r),
                    _ => None,
                };
                operands.push(match part.filter(|_| !shares_memory(&instruction.op)) {
                    Some(&part) => self.late(&mut new, &again[part], operand, &mut later)?,
                    None => new.operand(operand)?,
                });
            }
            new.replace(Instruction { operands, ..instruction.clone() });
        }
        new.finish(self.program)
    }

    /// An operand as it is computed again, through the views that it is seen through.
    fn late(
        &self,
        new: &mut Rewriter,
        part: &Again,
        operand: Operand,
        later: &mut HashMap<Operand, Operand>,
    ) -> Result<Operand> {
        if let Some(&known) = later.get(&operand) {
            return Ok(known);
        }
        if self.base_of(operand) != operand {
            let Some(made) = self.made(operand) else { return new.operand(operand) };
            let view = &self.program.instructions[made.maker];
            let inner = self.late(new, part, view.operands[0], later)?;
            let mut operands: SmallVec<[Operand; 3]> = smallvec![inner];
            for &other in &view.operands[1..] {
                operands.push(new.operand(other)?);
            }
            let seen = new.push(Instruction { operands, ..view.clone() });
            later.insert(operand, seen);
            return Ok(seen);
        }
        let operands = part.operands.iter().map(|&o| new.operand(o)).collect::<Result<SmallVec<[Operand; 3]>>>()?;
        let outs = part.results.iter().filter_map(|&r| self.ty(Operand::Result(r as u32)).cloned()).collect();
        let first = new.push(Instruction { op: Op::Fused(Box::new(part.body.clone())), operands, outs });
        if let Operand::Result(first) = first {
            let results = part.results.iter().map(|&r| Operand::Result(r as u32));
            later.extend(results.zip((first..).map(Operand::Result)));
        }
        later.get(&operand).copied().map_or_else(|| new.operand(operand), Ok)
    }
}

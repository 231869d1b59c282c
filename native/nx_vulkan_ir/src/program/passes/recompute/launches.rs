//! Large results in launches of their own for what reads them late.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use smallvec::{SmallVec, smallvec};

use super::lives::{Again, Lives, Made, Taken};
use crate::program::fused::{Plan, shares_memory};
use crate::program::ops::Class;
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::{Recompute, Target};
use crate::program::passes::{dce, fuse};
use crate::program::{Instruction, Op, Operand, Program, epilogue};
use crate::{Result, Type};

/// Parts of what a program costs of which [`Recompute`] says how many more it may cost.
const SHARES: u64 = 16;

/// Instructions that give a result again, at most.
const MAX_CHAIN: usize = 4;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let Recompute { flops_per_byte, shares, most_per_byte, .. } = target.recompute;
    let mut lives = Lives::of(program, target);
    let mut again = Vec::new();
    let (peak, _) = lives.peak();
    let cost = |program: &Program| cost(program, flops_per_byte);
    let mut more = (cost(program) / SHARES).saturating_mul(shares);
    let mut late: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for result in 0..lives.results.len() {
        if lives.is_late(result, peak) {
            late.entry(lives.results[result].maker).or_default().push(result);
        }
    }
    // What costs least for its bytes comes first, of that what takes most.
    let bytes = |lives: &Lives<'_>, results: &[usize]| results.iter().map(|&r| lives.results[r].bytes).sum::<u64>();
    let mut parts: Vec<(u64, u64, usize, Vec<usize>)> = Vec::new();
    for (maker, results) in late {
        if let Some(part) = lives.part(maker, &results, peak, target) {
            let (cost, saved) = (cost(&part.program), bytes(&lives, &part.results).max(1));
            parts.push((cost.saturating_mul(SHARES) / saved, saved, maker, results));
        }
    }
    parts.sort_by_key(|&(cost, saved, maker, _)| (cost, Reverse(saved), maker));
    for (_, _, maker, mut results) in parts {
        // What is left of an instruction's results may be computed again, too, of other operands.
        while let Some(part) = lives.part(maker, &results, peak, target) {
            // With less there, most may be there at another level.
            let (from, to) = lives.between(&part.results, peak);
            let cost = cost(&part.program);
            let most = bytes(&lives, &part.results).saturating_mul(most_per_byte);
            results.retain(|result| !part.results.contains(result));
            if cost <= more.min(most) && (from + 1..to).contains(&lives.peak().0) {
                more -= cost;
                lives.note(&part, peak);
                again.push(part);
            }
        }
    }
    if again.is_empty() { Ok(program.clone()) } else { lives.rewritten(&again, peak) }
}

impl Lives<'_> {
    /// Whether a large result lies in memory at the peak for what reads it later.
    fn is_late(&self, result: usize, peak: usize) -> bool {
        let Made { maker, bytes, last, is_fenced, .. } = self.results[result];
        let is_there = self.level[maker] < peak && last != usize::MAX && last > peak;
        let (_, late) = self.readers(result, peak);
        bytes >= self.target.joins.read_bytes && is_there && !is_fenced && !late.is_empty()
    }

    /// What gives these results of an instruction from operands that are there when they are read late; fewer of them
    /// where not all can be.
    fn part(&self, maker: usize, results: &[usize], peak: usize, target: &Target) -> Option<Again> {
        let steps = |results: &[usize]| {
            let Again { results, program, operands } = self.steps_of(maker, results, self.between(results, peak))?;
            Some(Again { results, program: in_kernels(program, target)?, operands })
        };
        let alone = results.iter().filter_map(|&r| steps(&[r]).or_else(|| self.chain(r, peak, target)));
        let mut alone: Vec<Again> = alone.collect();
        let results: Vec<usize> = alone.iter().flat_map(|part| part.results.iter().copied()).collect();
        if results.len() > 1 {
            alone.extend(steps(&results));
        }
        let bytes = |part: &Again| part.results.iter().map(|&r| self.results[r].bytes).sum::<u64>();
        alone.into_iter().max_by_key(bytes)
    }

    /// The few instructions that give a result from what is there when it is read late, products among them.
    fn chain(&self, result: usize, peak: usize, target: &Target) -> Option<Again> {
        let between = self.between(&[result], peak);
        let mut chain =
            Chain { lives: self, target, between, least: self.results[result].bytes, taken: Taken::of(self), made: 0 };
        let output = chain.made_again(Operand::Result(result as u32))?;
        let Taken { mut program, operands, .. } = chain.taken;
        program.outputs = vec![output];
        Some(Again { results: vec![result], program, operands })
    }

    /// Notes how long everything is there if this is computed again.
    fn note(&mut self, part: &Again, peak: usize) {
        let (from, to) = self.between(&part.results, peak);
        let late: BTreeSet<usize> = part.results.iter().flat_map(|&r| self.readers(r, peak).1).collect();
        for &result in &part.results {
            let made = &mut self.results[result];
            made.again = Some((to, made.last));
            made.last = from;
        }
        for &operand in &part.operands {
            for r in self.behind(self.base_of(operand)) {
                let made = &mut self.results[r];
                // It is read where these are made.
                made.readers.extend(&late);
                match &mut made.again {
                    Some((first, last)) => (*first, *last) = (to.min(*first), to.max(*last)),
                    None => made.last = made.last.max(to),
                }
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
                operands.push(match part.is_some() && !shares_memory(&instruction.op) {
                    true => self.late(&mut new, (again, &part_of), operand, &mut later)?,
                    false => new.operand(operand)?,
                });
            }
            new.replace(Instruction { operands, ..instruction.clone() });
        }
        new.finish(self.program)
    }

    /// An operand as it is computed again, if it is, through the views that it is seen through.
    fn late(
        &self,
        new: &mut Rewriter,
        again: (&[Again], &HashMap<u32, usize>),
        operand: Operand,
        later: &mut HashMap<Operand, Operand>,
    ) -> Result<Operand> {
        if let Some(&known) = later.get(&operand) {
            return Ok(known);
        }
        let base = self.base_of(operand);
        let part = match base {
            Operand::Result(r) => again.1.get(&r).and_then(|&part| again.0.get(part)),
            Operand::Input(_) => None,
        };
        let Some(part) = part else { return new.operand(operand) };
        if base != operand {
            let Some(made) = self.made(operand) else { return new.operand(operand) };
            let view = &self.program.instructions[made.maker];
            let inner = self.late(new, again, view.operands[0], later)?;
            let seen = new.push(Instruction { operands: smallvec![inner], ..view.clone() });
            later.insert(operand, seen);
            return Ok(seen);
        }
        let operands = part.operands.iter().map(|&o| self.late(new, again, o, later));
        let operands = operands.collect::<Result<Vec<Operand>>>()?;
        let made = new.append(&part.program, &operands);
        later.extend(part.results.iter().map(|&r| Operand::Result(r as u32)).zip(made));
        later.get(&operand).copied().map_or_else(|| new.operand(operand), Ok)
    }
}

/// The steps of a kernel as one, or as several where one would compute some of them over and over, as what all elements
/// of a row share.
fn in_kernels(steps: Program, target: &Target) -> Option<Program> {
    if Plan::of(&steps, target.live_words).is_err() {
        let kernels = fuse::run(&steps, target).ok()?;
        let count = kernels.instructions.iter().filter(|i| !shares_memory(&i.op)).count();
        return (count <= MAX_CHAIN).then_some(kernels);
    }
    let outs: SmallVec<[Type; 1]> = steps.output_types().into_iter().cloned().collect();
    let outputs = (0..outs.len() as u32).map(Operand::Result).collect();
    let operands = (0..steps.inputs.len() as u32).map(Operand::Input).collect();
    let inputs = steps.inputs.clone();
    let kernel = Instruction { op: Op::Fused(Box::new(steps)), operands, outs };
    Some(Program { inputs, instructions: vec![kernel], outputs })
}

/// Instructions that lead to a result, from what is there when that is read late.
struct Chain<'a> {
    lives: &'a Lives<'a>,
    target: &'a Target,
    between: (usize, usize),
    /// Bytes of the result.
    least: u64,
    taken: Taken<'a>,
    /// Instructions of it that are no views.
    made: usize,
}

impl Chain<'_> {
    /// An operand as it is seen through views.
    fn seen(&mut self, operand: Operand) -> Option<Operand> {
        let base = self.lives.base_of(operand);
        if self.lives.is_there(base, self.between, self.least) {
            return self.taken.input(operand);
        }
        if base == operand {
            return self.made_again(operand);
        }
        if let Some(&known) = self.taken.known.get(&operand) {
            return Some(known);
        }
        let view = &self.lives.program.instructions[self.lives.made(operand)?.maker];
        let inner = self.seen(*view.operands.first()?)?;
        Some(self.taken.push(operand, Instruction { operands: smallvec![inner], ..view.clone() }))
    }

    fn made_again(&mut self, result: Operand) -> Option<Operand> {
        if let Some(&known) = self.taken.known.get(&result) {
            return Some(known);
        }
        self.made += 1;
        if self.made > MAX_CHAIN {
            return None;
        }
        let Operand::Result(r) = result else { return None };
        let maker = self.lives.made(result)?.maker;
        let instruction = &self.lives.program.instructions[maker];
        let wanted: Vec<bool> =
            (self.lives.first[maker]..).map(|k| k == r as usize).take(instruction.outs.len()).collect();
        let instruction = match &instruction.op {
            Op::Fused(_) if wanted.contains(&false) => dce::with_outputs(instruction, &wanted).ok()??,
            Op::Fused(_) => instruction.clone(),
            op if epilogue::is_product(op) => instruction.clone(),
            op if matches!(op.class(), Class::Elementwise | Class::Gather) => instruction.clone(),
            _ => return None,
        };
        if let Op::Fused(body) = &instruction.op {
            Plan::of(body, self.target.live_words).ok().filter(|plan| self.target.takes(plan))?;
        }
        let operands =
            instruction.operands.iter().map(|&o| self.seen(o)).collect::<Option<SmallVec<[Operand; 3]>>>()?;
        Some(self.taken.push(result, Instruction { operands, ..instruction }))
    }
}

/// What a program costs, in bytes that are read or written in the same time.
fn cost(program: &Program, flops_per_byte: u64) -> u64 {
    let ty = program.types();
    let of = |instruction: &Instruction| {
        if shares_memory(&instruction.op) {
            return 0;
        }
        let types: Vec<&Type> = instruction.operands.iter().filter_map(|&o| ty(o)).collect();
        let mut bytes = types.iter().copied().chain(&instruction.outs).map(Type::size_bytes).sum::<u64>();
        if let (Class::Gather, Some(from)) = (instruction.op.class(), types.first()) {
            // It reads what it writes.
            let written = instruction.outs.iter().map(Type::size_bytes).sum::<u64>();
            bytes -= from.size_bytes().saturating_sub(written);
        }
        let step = |step: &Instruction| {
            let elements = step.outs.first().map_or(0, Type::elements);
            step.op.elementwise().map_or(0, |op| op.instructions()).saturating_mul(elements)
        };
        let flops = match &instruction.op {
            Op::Fused(body) => body.instructions.iter().map(step).sum(),
            op => op.flops(&types, &instruction.outs).unwrap_or(0),
        };
        bytes.max(flops / flops_per_byte.max(1))
    };
    program.instructions.iter().map(of).sum()
}

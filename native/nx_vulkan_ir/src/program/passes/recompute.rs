//! Computes large results again for what reads them late, as the backward pass does, where all that they are computed of is
//! there then anyway: elementwise steps of few operands take less time than such a result takes memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smallvec::{SmallVec, smallvec};

use super::rewrite::Rewriter;
use crate::program::fused::{Plan, is_view, shares_memory};
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// Bytes from which a result is worth a launch more: a GPU takes about as long to read them as to begin one.
const MIN_BYTES: u64 = 4 << 20;

/// Instructions for an element that are worth it: a GPU does some 70 in the time in which it stores and reads a number.
const MAX_INSTRUCTIONS: u64 = 96;

/// The part of a result up to which its operands are kept for it.
const LITTLE: u64 = 16;

/// The part of the time between its readers for which an operand of the same size is kept for it.
const LONGER: usize = 4;

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

/// A result of an instruction.
struct Made {
    maker: usize,
    bytes: u64,
    /// The instructions that read it, by way of views or not.
    readers: BTreeSet<usize>,
    /// The last level at which it is there.
    last: usize,
}

/// What is computed again: some of the results of a fused op.
struct Again {
    results: Vec<usize>,
    body: Program,
    operands: Vec<Operand>,
    /// What it reads and writes.
    bytes: u64,
}

struct Lives<'a> {
    program: &'a Program,
    /// Instructions that must run one after the other before each.
    level: Vec<usize>,
    results: Vec<Made>,
    /// The first result of each instruction.
    first: Vec<usize>,
    /// What each result is a view of.
    base: Vec<Operand>,
}

impl<'a> Lives<'a> {
    fn of(program: &'a Program) -> Lives<'a> {
        let mut lives = Lives { program, level: Vec::new(), results: Vec::new(), first: Vec::new(), base: Vec::new() };
        for (at, instruction) in program.instructions.iter().enumerate() {
            let bases: SmallVec<[Operand; 3]> = instruction.operands.iter().map(|&o| lives.base_of(o)).collect();
            let after = |operand: &Operand| lives.made(*operand).map(|made| lives.level[made.maker] + 1);
            let level = bases.iter().filter_map(after).max().unwrap_or(0);
            lives.level.push(level);
            lives.first.push(lives.results.len());
            let views = shares_memory(&instruction.op);
            for base in bases.iter().filter(|_| !views) {
                if let Operand::Result(r) = *base {
                    let made = &mut lives.results[r as usize];
                    made.readers.insert(at);
                    made.last = made.last.max(level);
                }
            }
            for out in &instruction.outs {
                let own = Operand::Result(lives.results.len() as u32);
                lives.base.push(if views { bases.first().copied().unwrap_or(own) } else { own });
                let is_kept = !views && !matches!(instruction.op, Op::Constant(_));
                let bytes = if is_kept { out.size_bytes() } else { 0 };
                lives.results.push(Made { maker: at, bytes, readers: BTreeSet::new(), last: level });
            }
        }
        for output in &program.outputs {
            if let Operand::Result(r) = lives.base_of(*output) {
                lives.results[r as usize].last = usize::MAX;
            }
        }
        lives
    }

    fn base_of(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Input(_) => operand,
            Operand::Result(r) => self.base.get(r as usize).copied().unwrap_or(operand),
        }
    }

    fn made(&self, operand: Operand) -> Option<&Made> {
        match operand {
            Operand::Input(_) => None,
            Operand::Result(r) => self.results.get(r as usize),
        }
    }

    /// The level at which results take most.
    fn peak(&self) -> usize {
        let last = self.level.iter().max().copied().unwrap_or(0);
        let mut changes = vec![0i128; last + 2];
        for made in &self.results {
            changes[self.level[made.maker]] += i128::from(made.bytes);
            changes[made.last.min(last) + 1] -= i128::from(made.bytes);
        }
        let (mut live, mut most) = (0, (0, 0));
        for (level, change) in changes.iter().enumerate() {
            live += change;
            if live > most.0 {
                most = (live, level);
            }
        }
        most.1
    }

    /// What all instructions read and write.
    fn moved_bytes(&self) -> u64 {
        let read = |instruction: &Instruction| {
            instruction.operands.iter().filter_map(|&o| self.ty(o)).map(Type::size_bytes).sum::<u64>()
        };
        let written = self.results.iter().map(|made| made.bytes).sum::<u64>();
        written + self.program.instructions.iter().map(read).sum::<u64>()
    }

    fn ty(&self, operand: Operand) -> Option<&Type> {
        match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(r) => {
                let maker = self.results.get(r as usize)?.maker;
                self.program.instructions[maker].outs.get(r as usize - self.first[maker])
            }
        }
    }

    /// Readers before a level or at it, and those after it.
    fn readers(&self, result: usize, peak: usize) -> (Vec<usize>, Vec<usize>) {
        self.results[result].readers.iter().partition(|&&reader| self.level[reader] <= peak)
    }

    /// Whether a large result of a fused op lies in memory at the peak for what reads it later.
    fn is_late(&self, result: usize, peak: usize) -> bool {
        let Made { maker, bytes, last, .. } = self.results[result];
        let is_fused = matches!(self.program.instructions[maker].op, Op::Fused(_));
        let is_there = self.level[maker] < peak && last != usize::MAX && last > peak;
        let (early, late) = self.readers(result, peak);
        bytes >= MIN_BYTES && is_fused && is_there && !early.is_empty() && !late.is_empty()
    }

    /// The levels between the last early and the first late reader of any of these results.
    fn between(&self, results: &[usize], peak: usize) -> (usize, usize) {
        let readers = results.iter().map(|&r| self.readers(r, peak));
        readers.fold((0, usize::MAX), |(from, to), (early, late)| {
            let early = early.iter().map(|&at| self.level[at]).max().unwrap_or(0);
            let late = late.iter().map(|&at| self.level[at]).min().unwrap_or(usize::MAX);
            (from.max(early), to.min(late))
        })
    }

    /// Whether an operand is there at a level, or little enough to be kept until then, for results of so many bytes.
    fn is_there(&self, operand: Operand, (from, to): (usize, usize), bytes: u64) -> bool {
        let Some(made) = self.made(self.base_of(operand)) else { return true };
        let longer = to.saturating_sub(from) / LONGER;
        made.last >= to || made.bytes <= bytes / LITTLE || (made.bytes <= bytes && made.last + longer >= to)
    }

    /// What gives these results of a fused op from operands that are there when they are read late; fewer of them where
    /// not all can be.
    fn part(&self, maker: usize, results: &[usize], peak: usize) -> Option<Again> {
        let alone = results.iter().filter_map(|&r| self.part_of_all(maker, &[r], peak));
        let mut alone: Vec<Again> = alone.collect();
        let results: Vec<usize> = alone.iter().flat_map(|part| part.results.iter().copied()).collect();
        if results.len() > 1 {
            alone.extend(self.part_of_all(maker, &results, peak));
        }
        let bytes = |part: &Again| part.results.iter().map(|&r| self.results[r].bytes).sum::<u64>();
        alone.into_iter().max_by_key(bytes)
    }

    fn part_of_all(&self, maker: usize, results: &[usize], peak: usize) -> Option<Again> {
        let instruction = &self.program.instructions[maker];
        let Op::Fused(whole) = &instruction.op else { return None };
        let between = self.between(results, peak);
        let least = results.iter().map(|&r| self.results[r].bytes).min()?;
        let output = |r: usize| whole.outputs.get(r - self.first[maker]).copied();
        // Other results that lie in memory then.
        let others = (0..instruction.outs.len()).map(|k| self.first[maker] + k);
        let others =
            others.filter(|r| !results.contains(r) && self.is_there(Operand::Result(*r as u32), between, least));
        let others: HashMap<Operand, usize> = others.filter_map(|r| Some((output(r)?, r))).collect();
        let mut slice = Slice {
            lives: self,
            whole,
            instruction,
            others,
            body: Program::default(),
            operands: Vec::new(),
            known: HashMap::new(),
            cost: 0,
        };
        let outputs =
            results.iter().map(|&r| slice.add(output(r)?, between, least)).collect::<Option<Vec<Operand>>>()?;
        let Slice { mut body, operands, .. } = slice;
        // A result that is one of the operands as it is has nothing to be computed.
        if outputs.iter().any(|output| matches!(output, Operand::Input(_))) {
            return None;
        }
        body.outputs = outputs;
        Plan::of(&body).ok()?;
        let read = operands.iter().filter_map(|&o| self.ty(o)).map(Type::size_bytes).sum::<u64>();
        let written = results.iter().map(|&r| self.results[r].bytes).sum::<u64>();
        Some(Again { results: results.to_vec(), body, operands, bytes: read + written })
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

/// The part of a fused op's body that leads to some of its results.
struct Slice<'a> {
    lives: &'a Lives<'a>,
    whole: &'a Program,
    instruction: &'a Instruction,
    /// Results of the whole that are operands here.
    others: HashMap<Operand, usize>,
    body: Program,
    operands: Vec<Operand>,
    known: HashMap<Operand, Operand>,
    cost: u64,
}

impl Slice<'_> {
    /// An operand of the whole body in the part.
    fn add(&mut self, operand: Operand, between: (usize, usize), least: u64) -> Option<Operand> {
        if let Some(&known) = self.known.get(&operand) {
            return Some(known);
        }
        let added = match (self.others.get(&operand), operand) {
            (Some(&r), _) => self.input(Operand::Result(r as u32))?,
            (None, Operand::Input(i)) => {
                let from = *self.instruction.operands.get(i as usize)?;
                if !self.lives.is_there(from, between, least) {
                    return None;
                }
                self.input(from)?
            }
            (None, Operand::Result(r)) => {
                let step = self.whole.instructions.get(r as usize)?;
                let is_light = match &step.op {
                    Op::Constant(_) | Op::Iota { .. } => true,
                    op if is_view(op) => true,
                    op => {
                        self.cost += op.elementwise()?.instructions();
                        self.cost <= MAX_INSTRUCTIONS
                    }
                };
                if !is_light {
                    return None;
                }
                let operands = step.operands.iter().map(|&o| self.add(o, between, least));
                let operands = operands.collect::<Option<SmallVec<[Operand; 3]>>>()?;
                self.body.instructions.push(Instruction { operands, ..step.clone() });
                Operand::Result(self.body.instructions.len() as u32 - 1)
            }
        };
        self.known.insert(operand, added);
        Some(added)
    }

    fn input(&mut self, from: Operand) -> Option<Operand> {
        let at = self.operands.iter().position(|known| *known == from).unwrap_or(self.operands.len());
        if at == self.operands.len() {
            self.body.inputs.push(self.lives.ty(from)?.clone());
            self.operands.push(from);
        }
        Some(Operand::Input(at as u32))
    }
}

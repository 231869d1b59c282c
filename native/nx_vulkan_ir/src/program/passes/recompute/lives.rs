//! How long results lie in memory, and what gives some of them again from what is there later.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::program::fused::{is_view, shares_memory};
use crate::program::ops::Class;
use crate::program::passes::target::Target;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{DType, Type};

/// The part of a result up to which its operands are kept for it.
const LITTLE: u64 = 16;

/// The part of the time between its readers for which an operand of the same size is kept for it.
const LONGER: usize = 4;

/// Bytes of an element of f32 as matrix units take it: three numbers of 16 bits.
const SPLIT_BYTES: u64 = 6;

/// A result of an instruction.
pub struct Made {
    pub maker: usize,
    pub bytes: u64,
    /// The instructions that read it, by way of views or not.
    pub readers: BTreeSet<usize>,
    /// The last level at which it is there.
    pub last: usize,
    /// The first and the last level at which it is there again, where it is made again.
    pub again: Option<(usize, usize)>,
    /// Whether it is seen behind a fence, and so is there until that is passed.
    pub is_fenced: bool,
}

/// What gives some results again.
pub struct Again {
    pub results: Vec<usize>,
    /// Takes the operands, gives the results.
    pub program: Program,
    pub operands: Vec<Operand>,
}

pub struct Lives<'a> {
    pub program: &'a Program,
    pub target: &'a Target,
    /// Instructions that must run one after the other before each.
    pub level: Vec<usize>,
    /// Bytes that an instruction of each level takes besides operands and results.
    besides: Vec<u64>,
    pub results: Vec<Made>,
    /// The first result of each instruction.
    pub first: Vec<usize>,
    /// What each result is a view of.
    pub base: Vec<Operand>,
}

impl<'a> Lives<'a> {
    pub fn of(program: &'a Program, target: &'a Target) -> Lives<'a> {
        let (level, besides, results, first, base) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut lives = Lives { program, target, level, besides, results, first, base };
        for (at, instruction) in program.instructions.iter().enumerate() {
            let bases: SmallVec<[Operand; 3]> = instruction.operands.iter().map(|&o| lives.base_of(o)).collect();
            let after = |operand: &Operand| lives.made(*operand).map(|made| lives.level[made.maker] + 1);
            let level = bases.iter().filter_map(after).max().unwrap_or(0);
            lives.level.push(level);
            let split_bytes = lives.split_bytes(instruction);
            if lives.besides.len() <= level {
                lives.besides.resize(level + 1, 0);
            }
            lives.besides[level] = lives.besides[level].max(split_bytes);
            lives.first.push(lives.results.len());
            let views = shares_memory(&instruction.op);
            for base in bases.iter().filter(|_| !views) {
                for r in lives.behind(*base) {
                    let made = &mut lives.results[r];
                    made.readers.insert(at);
                    made.last = made.last.max(level);
                    made.is_fenced |= instruction.op == Op::After;
                }
            }
            for out in &instruction.outs {
                let own = Operand::Result(lives.results.len() as u32);
                lives.base.push(if views { bases.first().copied().unwrap_or(own) } else { own });
                let is_kept = !views && !matches!(instruction.op, Op::Constant(_) | Op::After);
                let bytes = if is_kept { out.size_bytes() } else { 0 };
                lives.results.push(Made {
                    maker: at,
                    bytes,
                    readers: BTreeSet::new(),
                    last: level,
                    again: None,
                    is_fenced: false,
                });
            }
        }
        for output in &program.outputs {
            for r in lives.behind(lives.base_of(*output)) {
                lives.results[r].last = usize::MAX;
            }
        }
        lives
    }

    pub fn base_of(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Input(_) => operand,
            Operand::Result(r) => self.base.get(r as usize).copied().unwrap_or(operand),
        }
    }

    /// The results that are read with one: itself, and what it shows of behind fences.
    pub fn behind(&self, base: Operand) -> SmallVec<[usize; 2]> {
        let result = |operand: Operand| match operand {
            Operand::Input(_) => None,
            Operand::Result(r) => Some(r as usize),
        };
        let fenced = |&r: &usize| {
            let maker = self.program.instructions.get(self.results.get(r)?.maker)?;
            let first = maker.operands.first().filter(|_| maker.op == Op::After)?;
            result(self.base_of(*first))
        };
        std::iter::successors(result(base), fenced).collect()
    }

    pub fn made(&self, operand: Operand) -> Option<&Made> {
        match operand {
            Operand::Input(_) => None,
            Operand::Result(r) => self.results.get(r as usize),
        }
    }

    /// What the operands of a product take as matrix units read them, if those take it.
    fn split_bytes(&self, instruction: &Instruction) -> u64 {
        let Instruction { op, operands, outs } = instruction;
        let types: SmallVec<[&Type; 3]> = operands.iter().filter_map(|&operand| self.ty(operand)).collect();
        let is_split = self.target.matrix_units
            && op.class() == Class::Product
            && types.iter().all(|ty| ty.dtype == DType::F32)
            && op.flops(&types, outs).is_some_and(|flops| flops / 2 >= self.target.joins.unit_work);
        if is_split { types.iter().map(|ty| ty.elements().saturating_mul(SPLIT_BYTES)).sum() } else { 0 }
    }

    /// The level at which results take most, and how many bytes.
    pub fn peak(&self) -> (usize, u64) {
        let last = self.level.iter().max().copied().unwrap_or(0);
        let mut changes = vec![0i128; last + 2];
        for made in &self.results {
            changes[self.level[made.maker]] += i128::from(made.bytes);
            changes[made.last.min(last) + 1] -= i128::from(made.bytes);
            if let Some((first, end)) = made.again {
                changes[first.min(last)] += i128::from(made.bytes);
                changes[end.min(last) + 1] -= i128::from(made.bytes);
            }
        }
        let (mut live, mut most) = (0, (0, 0));
        for (level, change) in changes.iter().enumerate() {
            live += change;
            let all = live + i128::from(self.besides.get(level).copied().unwrap_or(0));
            if all > most.1 {
                most = (level, all);
            }
        }
        (most.0, u64::try_from(most.1).unwrap_or(u64::MAX))
    }

    pub fn bytes_of(&self, operands: &[Operand]) -> u64 {
        operands.iter().filter_map(|&o| self.ty(o)).map(Type::size_bytes).sum()
    }

    pub fn ty(&self, operand: Operand) -> Option<&Type> {
        match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(r) => {
                let maker = self.results.get(r as usize)?.maker;
                self.program.instructions[maker].outs.get(r as usize - self.first[maker])
            }
        }
    }

    /// Readers before a level or at it, and those after it.
    pub fn readers(&self, result: usize, peak: usize) -> (Vec<usize>, Vec<usize>) {
        self.results[result].readers.iter().partition(|&&reader| self.level[reader] <= peak)
    }

    /// The levels between the last early reader of any of these results, or what makes them, and the first late one.
    pub fn between(&self, results: &[usize], peak: usize) -> (usize, usize) {
        let readers = results.iter().map(|&r| (self.level[self.results[r].maker], self.readers(r, peak)));
        readers.fold((0, usize::MAX), |(from, to), (made, (early, late))| {
            let early = early.iter().map(|&at| self.level[at]).max().unwrap_or(made);
            let late = late.iter().map(|&at| self.level[at]).min().unwrap_or(usize::MAX);
            (from.max(early), to.min(late))
        })
    }

    /// Whether an operand is there at a level, or little enough to be kept until then, for results of so many bytes.
    pub fn is_there(&self, operand: Operand, (from, to): (usize, usize), bytes: u64) -> bool {
        let longer = to.saturating_sub(from) / LONGER;
        self.behind(self.base_of(operand)).into_iter().all(|r| {
            let made = &self.results[r];
            made.last >= to
                || made.again.is_some_and(|(first, last)| (first..=last).contains(&to))
                || made.bytes <= bytes / LITTLE
                || (made.bytes <= bytes && made.last + longer >= to)
        })
    }

    /// The steps of a fused op that give these of its results from operands that are there at the second of two levels,
    /// if the results are there up to the first.
    pub fn steps_of(&self, maker: usize, results: &[usize], between: (usize, usize)) -> Option<Again> {
        let instruction = &self.program.instructions[maker];
        let Op::Fused(whole) = &instruction.op else { return None };
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
        Some(Again { results: results.to_vec(), program: body, operands })
    }
}

/// A program of some instructions of another, with what it takes of that. Each has one result.
pub struct Taken<'a> {
    pub lives: &'a Lives<'a>,
    pub program: Program,
    pub operands: Vec<Operand>,
    /// Operands of the program, by what they are to the other.
    pub known: HashMap<Operand, Operand>,
}

impl<'a> Taken<'a> {
    pub fn of(lives: &'a Lives<'a>) -> Taken<'a> {
        Taken { lives, program: Program::default(), operands: Vec::new(), known: HashMap::new() }
    }

    pub fn input(&mut self, from: Operand) -> Option<Operand> {
        if let Some(&known) = self.known.get(&from) {
            return Some(known);
        }
        let input = Operand::Input(self.operands.len() as u32);
        self.program.inputs.push(self.lives.ty(from)?.clone());
        self.operands.push(from);
        self.known.insert(from, input);
        Some(input)
    }

    /// Adds the instruction that gives this operand of the other program.
    pub fn push(&mut self, of: Operand, instruction: Instruction) -> Operand {
        self.program.instructions.push(instruction);
        let result = Operand::Result(self.program.instructions.len() as u32 - 1);
        self.known.insert(of, result);
        result
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
                        self.cost <= self.lives.target.recompute.most_instructions
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

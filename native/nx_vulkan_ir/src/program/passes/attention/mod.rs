//! Makes one fused op of attention: of the product of queries and keys, what is done to the scores, their softmax, and
//! its product with values, where nothing else reads what lies between.

mod gradient;

use std::collections::{BTreeSet, HashMap};

use super::rewrite::{checked, readers, results, with_joined};
use super::target::Target;
use crate::program::attention::Attention;
use crate::program::fused::MAX_VALUES;
use crate::program::ops::Class;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// Ops that are computed anew for every score, rather than read: causal masks are a few.
const MAX_SOURCES: usize = 16;

/// How many times smaller a tensor is that is read for every score, rather than what is computed from it.
const LESS: u64 = 16;

/// Gradients come first: where they compute weights again, nothing else reads those of attention.
pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let program = &checked(gradient::run(program, target)?)?;
    let search = Search::of(program, target);
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut joined: HashMap<usize, (Op, Vec<Operand>)> = HashMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        if matches!(instruction.op, Op::Dot { .. })
            && !joined.contains_key(&at)
            && let Some((mut members, mut last)) = search.members(at)
        {
            if let Some(turned) = search.turned(last) {
                members.insert(last);
                last = turned;
            }
            // Of scores that are sums of several products one alone is the attention's.
            if members.is_disjoint(&taken)
                && let Some(found) = search.join(&members, last, true).or_else(|| search.join(&members, last, false))
            {
                taken.extend(members);
                joined.insert(last, found);
            }
        }
    }
    with_joined(program, |at, _| taken.contains(&at), |at, _| joined.remove(&at))
}

struct Search<'a> {
    program: &'a Program,
    maker: Box<dyn Fn(Operand) -> Option<usize>>,
    type_of: Box<dyn Fn(Operand) -> Option<&'a Type> + 'a>,
    results: Vec<Option<Operand>>,
    readers: HashMap<Operand, Vec<usize>>,
    target: &'a Target,
}

impl<'a> Search<'a> {
    fn of(program: &'a Program, target: &'a Target) -> Search<'a> {
        Search {
            program,
            maker: Box::new(program.makers()),
            type_of: Box::new(program.types()),
            results: results(program),
            readers: readers(program),
            target,
        }
    }

    /// The instructions from one product to another one that alone reads what comes of it, and the latter.
    fn members(&self, product: usize) -> Option<(BTreeSet<usize>, usize)> {
        let program = self.program;
        let mut members = BTreeSet::from([product]);
        let mut last = None;
        let mut open = BTreeSet::from([product]);
        // Readers come after what they read.
        while let Some(at) = open.pop_first() {
            let result = self.result(at)?;
            for &reader in self.readers.get(&result)? {
                let instruction = program.instructions.get(reader)?;
                if matches!(instruction.op, Op::Dot { .. }) {
                    let is_first = instruction.operands.first() == Some(&result);
                    if !is_first || instruction.operands.get(1) == Some(&result) || last.is_some_and(|l| l != reader) {
                        return None;
                    }
                    last = Some(reader);
                } else if !is_step(instruction) || members.len() > MAX_VALUES {
                    return None;
                } else if members.insert(reader) {
                    open.insert(reader);
                }
            }
        }
        let reductions = members.iter().filter(|&&at| program.instructions[at].op.class() == Class::Reduction);
        last.filter(|_| reductions.count() == 2).map(|last| (members, last))
    }

    /// The only result of an instruction.
    fn result(&self, at: usize) -> Option<Operand> {
        self.results.get(at).copied().flatten()
    }

    /// A transpose that alone reads a product and leaves its last axis in place.
    fn turned(&self, product: usize) -> Option<usize> {
        let [reader] = *self.readers.get(&self.result(product)?)?.as_slice() else { return None };
        match &self.program.instructions.get(reader)?.op {
            Op::Transpose { axes } if axes.last() == Some(&(axes.len() - 1)) => Some(reader),
            _ => None,
        }
    }

    /// The views through which an operand repeats another one.
    fn repeated(&self, mut operand: Operand) -> BTreeSet<usize> {
        let (mut found, mut repeats) = (BTreeSet::new(), false);
        while let Some(at) = (self.maker)(operand)
            && let Instruction { op, operands, outs } = &self.program.instructions[at]
            && op.class() == Class::View
            && let ([from], [out]) = (operands.as_slice(), outs.as_slice())
        {
            repeats |= (self.type_of)(*from).is_some_and(|from| from.elements() < out.elements());
            found.insert(at);
            operand = *from;
        }
        if repeats { found } else { BTreeSet::new() }
    }

    /// What makes an operand of next to nothing: numbers, counters, tensors that are much smaller, and cheap steps on
    /// them.
    fn sources(&self, operand: Operand) -> Option<BTreeSet<usize>> {
        let elements = (self.type_of)(operand)?.elements();
        let mut found = BTreeSet::new();
        let mut open = vec![operand];
        while let Some(operand) = open.pop() {
            let ty = (self.type_of)(operand)?;
            let instruction = (self.maker)(operand).map(|at| (at, &self.program.instructions[at]));
            let of_steps = instruction.filter(|(_, i)| is_source(i));
            let Some((at, instruction)) = of_steps else {
                if ty.elements().saturating_mul(LESS) > elements {
                    return None;
                }
                continue;
            };
            if found.insert(at) {
                open.extend(instruction.operands.iter().copied());
            }
            if found.len() > MAX_SOURCES {
                return None;
            }
        }
        Some(found)
    }

    /// The fused op of these instructions and the last one, with its operands, if it is attention that the device
    /// takes; perhaps with what makes the operands.
    fn join(&self, members: &BTreeSet<usize>, last: usize, with_sources: bool) -> Option<(Op, Vec<Operand>)> {
        let mut all = if with_sources { self.with_sources(members, &[last]) } else { members.clone() };
        all.insert(last);
        let (body, operands) = self.body(&all, &[last])?;
        let attention = Attention::of(&body, self.target.live_words)?;
        if !self.target.heads.take(&attention, &body) {
            return None;
        }
        Some((Op::Fused(Box::new(body)), operands))
    }

    /// These instructions, with what makes operands of theirs and of the others of next to nothing.
    fn with_sources(&self, members: &BTreeSet<usize>, others: &[usize]) -> BTreeSet<usize> {
        let mut all = members.clone();
        for &at in members.iter().chain(others) {
            let Instruction { op, operands, .. } = &self.program.instructions[at];
            for &operand in operands.iter().filter(|&&o| (self.maker)(o).is_none_or(|at| !members.contains(&at))) {
                all.extend(match op {
                    Op::Dot { .. } => self.repeated(operand),
                    _ => self.sources(operand).unwrap_or_default(),
                });
            }
        }
        all
    }

    /// A program of these instructions, and its operands.
    fn body(&self, all: &BTreeSet<usize>, outputs: &[usize]) -> Option<(Program, Vec<Operand>)> {
        let mut body = Program::default();
        let mut operands: Vec<Operand> = Vec::new();
        let mut inner: HashMap<Operand, Operand> = HashMap::new();
        for (result, &at) in (0..).zip(all) {
            let mut instruction = self.program.instructions[at].clone();
            for operand in &mut instruction.operands {
                *operand = match inner.get(operand) {
                    Some(&known) => known,
                    None => {
                        let input = Operand::Input(operands.len() as u32);
                        body.inputs.push((self.type_of)(*operand)?.clone());
                        operands.push(*operand);
                        inner.insert(*operand, input);
                        input
                    }
                };
            }
            inner.insert(self.result(at)?, Operand::Result(result));
            body.instructions.push(instruction);
        }
        body.outputs = outputs.iter().map(|&at| inner.get(&self.result(at)?).copied()).collect::<Option<_>>()?;
        Some((body, operands))
    }
}

/// Whether it is computed anew for every score.
fn is_source(instruction: &Instruction) -> bool {
    let Instruction { op, outs, .. } = instruction;
    let is_cheap = outs.first().is_some_and(|out| op.elementwise().is_none_or(|e| e.is_cheap(&[out.dtype], out.dtype)));
    match op.class() {
        Class::Source | Class::Elementwise | Class::View => outs.len() == 1 && is_cheap,
        _ => false,
    }
}

/// Whether it may stand between both products.
fn is_step(instruction: &Instruction) -> bool {
    let is_step = match instruction.op.class() {
        Class::Elementwise | Class::View => true,
        Class::Reduction => matches!(instruction.op, Op::Reduce { .. }),
        _ => false,
    };
    is_step && instruction.outs.len() == 1
}

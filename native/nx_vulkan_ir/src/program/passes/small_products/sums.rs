//! Makes one product of a sum of small ones, whose operands come to lie side by side along the contracted axis: gradients by
//! weights that several steps use are such sums, and so are those by what several products take. Each of the products would
//! wait for the one before. The sum is rounded once instead of once for each of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Reader, SHORT_LAUNCHES, concatenate, part_of, turned};
use crate::program::passes::Target;
use crate::program::passes::rewrite::Rewriter;
use crate::program::{Binary, Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let reader = Reader::of(program);
    let sums = reader.sums(target);
    if sums.is_empty() {
        return Ok(program.clone());
    }
    let places = Places { reader: &reader, rows: rows(&sums) };
    let mut new = Rewriter::new(program);
    let mut results = 0;
    for (at, old) in program.instructions.iter().enumerate() {
        match sums.get(&at) {
            Some(sum) => {
                let operand = places.emit(&mut new, sum, old, results)?;
                new.moved(operand);
            }
            None => {
                let operands = new.operands(old)?;
                new.replace(Instruction { operands, ..old.clone() });
            }
        }
        results += old.outs.len() as u32;
    }
    new.finish(program)
}

/// The contracted axes of a product of two matrices, and the types of these.
type Kind = ([usize; 2], [DType; 2]);

/// Matrices that are to lie side by side along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Beside {
    matrices: Vec<Operand>,
    axis: usize,
}

/// Products of two matrices each that become one.
#[derive(Debug)]
struct Joined {
    op: Op,
    factors: [Beside; 2],
}

/// What a sum is of.
#[derive(Debug, Default)]
struct Sum {
    joined: Vec<Joined>,
    others: Vec<Operand>,
}

impl<'a> Reader<'a> {
    /// Sums with products that are better one, by the numbers of their last additions.
    fn sums(&self, target: &Target) -> BTreeMap<usize, Sum> {
        let reads = self.program.reads();
        let mut within = HashSet::new();
        let mut sums = BTreeMap::new();
        for (at, instruction) in self.program.instructions.iter().enumerate().rev() {
            if is_sum(instruction) && !within.contains(&at) {
                let sum = self.sum(instruction, &reads, &mut within, target);
                if !sum.joined.is_empty() {
                    sums.insert(at, sum);
                }
            }
        }
        let mut uses: HashMap<&Beside, u64> = HashMap::new();
        for factor in sums.values().flat_map(|sum| &sum.joined).flat_map(|joined| &joined.factors) {
            *uses.entry(factor).or_default() += 1;
        }
        let bytes = |factor: &Beside| factor.matrices.iter().map(|&matrix| self.size_bytes(matrix)).sum::<u64>();
        let copied: HashMap<Beside, u64> =
            uses.into_iter().map(|(factor, uses)| (factor.clone(), 2 * bytes(factor) / uses)).collect();
        let pays = |joined: &Joined, result_bytes: u64| {
            let copied: u64 = joined.factors.iter().filter_map(|factor| copied.get(factor)).sum();
            let left_out = joined.factors[0].matrices.len() as u64 - 1;
            copied <= left_out * (target.short_bytes / SHORT_LAUNCHES + 2 * result_bytes)
        };
        sums.retain(|&at, sum| {
            let result_bytes = self.program.instructions[at].outs.iter().map(Type::size_bytes).sum();
            sum.joined.iter().all(|joined| pays(joined, result_bytes))
        });
        sums
    }

    /// The terms of a sum and of the sums within it that it alone reads.
    fn sum(
        &self,
        last: &'a Instruction,
        reads: &HashMap<Operand, usize>,
        within: &mut HashSet<usize>,
        target: &Target,
    ) -> Sum {
        let mut products: BTreeMap<Kind, Vec<(Operand, &'a Instruction)>> = BTreeMap::new();
        let mut sum = Sum::default();
        let mut left: Vec<Operand> = last.operands.iter().rev().copied().collect();
        while let Some(term) = left.pop() {
            let maker = self.maker(term).filter(|(_, maker)| reads.get(&term) == Some(&1) && maker.outs == last.outs);
            match maker {
                Some((at, maker)) if is_sum(maker) => {
                    within.insert(at);
                    left.extend(maker.operands.iter().rev());
                }
                Some((_, maker)) if let Some(kind) = self.kind(maker, target) => {
                    products.entry(kind).or_default().push((term, maker));
                }
                _ => sum.others.push(term),
            }
        }
        for (([a, b], _), mut products) in products {
            // As what they take was made first: what one sum takes lies in the same order for others.
            products.sort_by_key(|(_, product)| {
                let [a, b] = [0, 1].map(|k| product.operands[k]);
                (a.min(b), a.max(b))
            });
            match products.as_slice() {
                [(term, _)] => sum.others.push(*term),
                [] => {}
                [(_, first), ..] => {
                    let factor = |k: usize, axis: usize| Beside {
                        matrices: products.iter().map(|(_, product)| product.operands[k]).collect(),
                        axis,
                    };
                    sum.joined.push(Joined { op: first.op.clone(), factors: [factor(0, a), factor(1, b)] });
                }
            }
        }
        sum
    }

    fn kind(&self, product: &Instruction, target: &Target) -> Option<Kind> {
        let contracted = self.contracted(product, target)?;
        let &[a, b] = &product.operands[..] else { return None };
        Some((contracted, [self.ty(a)?.dtype, self.ty(b)?.dtype]))
    }
}

/// Whether it is a sum of floats of one type, of whose terms the order may change.
fn is_sum(instruction: &Instruction) -> bool {
    let [out] = instruction.outs.as_slice() else { return false };
    instruction.op == Op::Binary(Binary::Add) && out.dtype.is_float()
}

/// Matrices that lie side by side for a sum, each with those and its place among them.
fn rows(sums: &BTreeMap<usize, Sum>) -> HashMap<Operand, (&Beside, usize)> {
    let factors = sums.values().flat_map(|sum| &sum.joined).flat_map(|joined| &joined.factors);
    let rows = factors.filter(|factor| factor.axis == 1);
    rows.flat_map(|row| row.matrices.iter().enumerate().map(move |(i, &matrix)| (matrix, (row, i)))).collect()
}

/// Where operands of products come to lie.
struct Places<'a> {
    reader: &'a Reader<'a>,
    rows: HashMap<Operand, (&'a Beside, usize)>,
}

impl Places<'_> {
    /// The sum in the place of its last addition, before which the program has so many results.
    fn emit(&self, new: &mut Rewriter, sum: &Sum, last: &Instruction, results: u32) -> Result<Operand> {
        let mut terms: Vec<Operand> = Vec::with_capacity(sum.joined.len() + sum.others.len());
        for Joined { op, factors: [a, b] } in &sum.joined {
            let factors = [self.beside(new, a, results)?, self.beside(new, b, results)?];
            terms.push(new.push_one(op.clone(), &factors, &last.outs[0]));
        }
        for &other in &sum.others {
            terms.push(new.operand(other)?);
        }
        let sum = terms.into_iter().reduce(|a, b| new.push_one(last.op.clone(), &[a, b], &last.outs[0]));
        Ok(sum.unwrap_or(Operand::Result(u32::MAX)))
    }

    fn beside(&self, new: &mut Rewriter, factor: &Beside, results: u32) -> Result<Operand> {
        if let Some((source, axis)) = self.reader.all_slices(&factor.matrices) {
            let source = new.operand(source)?;
            return turned(new, source, axis, factor.axis);
        }
        if let Some(part) = self.part_of_rows(new, factor, results)? {
            return Ok(part);
        }
        let matrices = factor.matrices.iter().map(|&matrix| new.operand(matrix)).collect::<Result<Vec<_>>>()?;
        concatenate(new, &matrices, factor.axis)
    }

    /// One column of rows that other products take, where all of them are there: so all columns lie in memory once.
    fn part_of_rows(&self, new: &mut Rewriter, factor: &Beside, results: u32) -> Result<Option<Operand>> {
        let Some(found) = factor.matrices.iter().map(|matrix| self.rows.get(matrix)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let Some(&&(first, column)) = found.first() else { return Ok(None) };
        let is_there = |operand: &Operand| {
            matches!(operand, Operand::Input(_)) || matches!(operand, Operand::Result(r) if *r < results)
        };
        let types = |row: &Beside| row.matrices.iter().map(|&matrix| self.reader.ty(matrix)).collect::<Vec<_>>();
        let are_alike = found
            .iter()
            .all(|(row, at)| *at == column && types(row) == types(first) && row.matrices.iter().all(is_there));
        if factor.axis != 0 || !are_alike {
            return Ok(None);
        }
        let mut rows = Vec::with_capacity(found.len());
        for (row, _) in &found {
            let matrices = row.matrices.iter().map(|&matrix| new.operand(matrix)).collect::<Result<Vec<_>>>()?;
            rows.push(concatenate(new, &matrices, 1)?);
        }
        let whole = concatenate(new, &rows, 0)?;
        let before: u64 = types(first).into_iter().take(column).flatten().map(|ty| ty.shape[1]).sum();
        let columns = self.reader.ty(factor.matrices[0]).map_or(0, |ty| ty.shape[1]);
        part_of(new, whole, 1, before, columns).map(Some)
    }
}

//! Makes one product of a sum of small ones, whose operands come to lie side by side along the contracted axis:
//! gradients by weights that several steps use are such sums, and so are those by what several products take. Each of
//! the products would wait for the one before. Their sum is rounded once instead of once for each of them; other terms
//! are added as before, to what stands in the place of the first product.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{MOST_KEPT, Reader, beside, concatenate, part_of, turned};
use crate::program::passes::rewrite::Rewriter;
use crate::program::passes::target::Target;
use crate::program::{Binary, Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let reader = Reader::of(program);
    let sums = reader.sums(target);
    if sums.is_empty() {
        return Ok(program.clone());
    }
    let places = Places::of(&reader, &sums);
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
    /// Of the terms that are products, the first ones with what they become, and the others, which are left out.
    places: HashMap<Operand, Option<usize>>,
    /// The additions within it, in the program's order.
    additions: Vec<usize>,
}

impl<'a> Reader<'a> {
    /// Sums with products that are better one, by the numbers of their last additions.
    fn sums(&self, target: &Target) -> BTreeMap<usize, Sum> {
        let reads = self.program.reads();
        let mut within = HashSet::new();
        let mut sums = BTreeMap::new();
        for (at, instruction) in self.program.instructions.iter().enumerate().rev() {
            if is_sum(instruction) && !within.contains(&at) {
                let mut sum = self.sum(instruction, &reads, target);
                within.extend(sum.additions.iter().copied());
                sum.additions.push(at);
                sum.additions.sort_unstable();
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
        // What waits for the last term lies in memory until then.
        let fits =
            |joined: &Joined| joined.factors.iter().all(|factor| bytes(factor) <= MOST_KEPT * target.short_bytes);
        let pays = |joined: &Joined, result_bytes: u64| {
            let copied: u64 = joined.factors.iter().filter_map(|factor| copied.get(factor)).sum();
            let left_out = joined.factors[0].matrices.len() as u64 - 1;
            copied <= left_out * (target.short_bytes / target.small_products.launches + 2 * result_bytes)
        };
        sums.retain(|&at, sum| {
            let result_bytes = self.program.instructions[at].outs.iter().map(Type::size_bytes).sum();
            sum.joined.iter().all(|joined| fits(joined) && pays(joined, result_bytes))
        });
        sums
    }

    /// The terms of a sum and of the sums within it that it alone reads.
    fn sum(&self, last: &'a Instruction, reads: &HashMap<Operand, usize>, target: &Target) -> Sum {
        let mut products: BTreeMap<Kind, Vec<(Operand, &'a Instruction)>> = BTreeMap::new();
        let mut sum = Sum::default();
        let mut left: Vec<Operand> = last.operands.iter().rev().copied().collect();
        while let Some(term) = left.pop() {
            let maker = self.maker(term).filter(|(_, maker)| reads.get(&term) == Some(&1) && maker.outs == last.outs);
            match maker {
                Some((at, maker)) if is_sum(maker) => {
                    sum.additions.push(at);
                    left.extend(maker.operands.iter().rev());
                }
                Some((_, maker)) if let Some(kind) = self.kind(maker, target) => {
                    products.entry(kind).or_default().push((term, maker));
                }
                _ => {}
            }
        }
        products.retain(|_, products| products.len() > 1);
        for (([a, b], _), mut products) in products {
            let places =
                products.iter().enumerate().map(|(i, (term, _))| (*term, (i == 0).then_some(sum.joined.len())));
            sum.places.extend(places);
            // As what they take was made first: what one sum takes lies in the same order for others.
            products.sort_by_key(|(_, product)| {
                let [a, b] = [0, 1].map(|k| product.operands[k]);
                (a.min(b), a.max(b))
            });
            let factor = |k: usize, axis: usize| Beside {
                matrices: products.iter().map(|(_, product)| product.operands[k]).collect(),
                axis,
            };
            let factors = [factor(0, a), factor(1, b)];
            sum.joined.extend(products.first().map(|(_, first)| Joined { op: first.op.clone(), factors }));
        }
        sum
    }

    fn kind(&self, product: &Instruction, target: &Target) -> Option<Kind> {
        let contracted = self.contracted(product, target)?;
        let &[a, b] = &product.operands[..] else { return None };
        Some((contracted, [self.ty(a)?.dtype, self.ty(b)?.dtype]))
    }
}

/// Whether it is a sum of floats whose products may be added up alone: in f16 they could leave the range.
fn is_sum(instruction: &Instruction) -> bool {
    let [out] = instruction.outs.as_slice() else { return false };
    instruction.op == Op::Binary(Binary::Add) && matches!(out.dtype, DType::F32 | DType::F64 | DType::Bf16)
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
    /// What is multiplied with all columns of rows, the first of those, and how many they are: one product gives them
    /// all.
    whole: HashSet<(&'a Beside, &'a Beside, usize)>,
}

impl<'a> Places<'a> {
    fn of(reader: &'a Reader<'a>, sums: &'a BTreeMap<usize, Sum>) -> Places<'a> {
        let mut places = Places { reader, rows: rows(sums), whole: HashSet::new() };
        let mut columns: HashMap<(&Beside, &Beside, usize), HashSet<usize>> = HashMap::new();
        for Joined { factors: [a, b], .. } in sums.values().flat_map(|sum| &sum.joined) {
            let column = b.matrices.first().and_then(|matrix| places.rows.get(matrix)).filter(|_| b.axis == 0);
            if let Some(&(row, column)) = column {
                columns.entry((a, row, b.matrices.len())).or_default().insert(column);
            }
        }
        let all = columns.into_iter().filter(|((_, row, _), columns)| columns.len() == row.matrices.len());
        places.whole = all.map(|(key, _)| key).collect();
        places
    }

    /// The sum in the place of its last addition, before which the program has so many results.
    fn emit(&self, new: &mut Rewriter, sum: &Sum, last: &Instruction, results: u32) -> Result<Operand> {
        // Of additions within it, none where nothing is left of their terms.
        let mut values: HashMap<Operand, Option<Operand>> = HashMap::new();
        let mut whole = None;
        for &at in &sum.additions {
            let mut terms = [None; 2];
            for (term, &operand) in terms.iter_mut().zip(&self.reader.program.instructions[at].operands) {
                *term = match (values.get(&operand), sum.places.get(&operand)) {
                    (Some(&value), _) => value,
                    (None, Some(Some(joined))) => Some(self.product(new, &sum.joined[*joined], last, results)?),
                    (None, Some(None)) => None,
                    (None, None) => Some(new.operand(operand)?),
                };
            }
            whole = match terms {
                [Some(a), Some(b)] => Some(new.push_one(last.op.clone(), &[a, b], &last.outs[0])),
                [a, b] => a.or(b),
            };
            values.insert(self.reader.result_of(at), whole);
        }
        Ok(whole.unwrap_or(Operand::Result(u32::MAX)))
    }

    fn product(&self, new: &mut Rewriter, joined: &Joined, last: &Instruction, results: u32) -> Result<Operand> {
        let Joined { op, factors: [a, b] } = joined;
        let of_columns = self.rows_of(b, results).filter(|(rows, _)| self.whole.contains(&(a, rows[0], rows.len())));
        let a = self.beside(new, a, results)?;
        let Some((rows, column)) = of_columns else {
            let b = self.beside(new, b, results)?;
            return Ok(new.push_one(op.clone(), &[a, b], &last.outs[0]));
        };
        let (whole, start) = self.columns(new, &rows, column)?;
        let mut ty = last.outs[0].clone();
        let columns = std::mem::replace(&mut ty.shape[1], new.ty(whole)?.shape[1]);
        let product = new.push_one(op.clone(), &[a, whole], &ty);
        part_of(new, product, 1, start, columns)
    }

    fn beside(&self, new: &mut Rewriter, factor: &Beside, results: u32) -> Result<Operand> {
        if let Some((source, axis)) = self.reader.all_slices(&factor.matrices) {
            let source = new.operand(source)?;
            return turned(new, source, axis, factor.axis);
        }
        if let Some((rows, column)) = self.rows_of(factor, results) {
            let (whole, start) = self.columns(new, &rows, column)?;
            let columns = self.reader.ty(factor.matrices[0]).map_or(0, |ty| ty.shape[1]);
            return part_of(new, whole, 1, start, columns);
        }
        beside(new, &factor.matrices, factor.axis)
    }

    /// Rows that other products take of which matrices are one column, and which, where the program has all of them
    /// among so many results: so all columns lie in memory once.
    fn rows_of(&self, factor: &Beside, results: u32) -> Option<(Vec<&Beside>, usize)> {
        let found = factor.matrices.iter().map(|matrix| self.rows.get(matrix)).collect::<Option<Vec<_>>>()?;
        let &&(first, column) = found.first()?;
        let is_there = |operand: &Operand| match operand {
            Operand::Input(_) => true,
            Operand::Result(r) => *r < results,
        };
        let types = |row: &Beside| row.matrices.iter().map(|&matrix| self.reader.ty(matrix)).collect::<Vec<_>>();
        let is_alike = |(row, at): &&(&Beside, usize)| {
            *at == column && types(row) == types(first) && row.matrices.iter().all(is_there)
        };
        let are_rows = factor.axis == 0 && found.iter().all(is_alike);
        are_rows.then(|| (found.iter().map(|(row, _)| *row).collect(), column))
    }

    /// Rows one below the other, and where a column begins.
    fn columns(&self, new: &mut Rewriter, rows: &[&Beside], column: usize) -> Result<(Operand, u64)> {
        let mut whole = Vec::with_capacity(rows.len());
        for row in rows {
            whole.push(beside(new, &row.matrices, 1)?);
        }
        let before = rows.iter().take(1).flat_map(|row| &row.matrices).take(column);
        let start = before.filter_map(|&matrix| self.reader.ty(matrix)).map(|ty| ty.shape[1]).sum();
        Ok((concatenate(new, &whole, 0)?, start))
    }
}

//! Computes what is made row by row in blocks of rows where that is large and only little of it is kept: distances of
//! all points to all others of which the nearest ones count are never all in memory.

use std::collections::{HashMap, HashSet};

use smallvec::{SmallVec, smallvec};

use super::rewrite::{Operands, Rewriter, readers};
use super::target::Target;
use crate::program::attribute::Scalar;
use crate::program::counted::Trips;
use crate::program::ops::index::{Indexing, Take, TakeAlongAxis};
use crate::program::ops::moved::{Moved, Pad, Reverse};
use crate::program::ops::order::{Argsort, Order, Scan, Searchsorted, Sort, TopK};
use crate::program::{Binary, Instruction, Loop, Op, Operand, Program};
use crate::{DType, Result, Type};

/// Blocks, at least, that are worth a loop.
const MIN_BLOCKS: u64 = 2;

/// Rows of a block, at least: products of fewer read the other operand too often.
const MIN_ROWS: u64 = 64;

/// What is kept of rows takes at most this part of the largest of what they are made of.
const KEPT_PART: u64 = 3;

/// Regions of one program.
const MAX_REGIONS: usize = 16;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let mut program = program.clone();
    for instruction in &mut program.instructions {
        for inside in instruction.op.inside_mut() {
            *inside = run(inside, target)?;
        }
    }
    for _ in 0..MAX_REGIONS {
        let Some(region) = Region::find(&program, target) else { break };
        program = region.in_blocks(&program)?;
    }
    Ok(program)
}

/// Which operands an instruction reads row by row, where each row of its results is made of theirs alone. All results
/// have the rows as their first axis.
fn reads_rows(instruction: &Instruction, types: &[&Type], rows: u64) -> Option<SmallVec<[bool; 3]>> {
    let has_rows = |ty: &Type| ty.shape.first() == Some(&rows);
    if instruction.outs.is_empty() || !instruction.outs.iter().all(has_rows) {
        return None;
    }
    let out = &instruction.outs[0];
    // All of them, whose shapes have the result's rank.
    let all = |holds: bool| {
        let fits = holds && types.iter().all(|ty| has_rows(ty));
        fits.then(|| SmallVec::from_elem(true, types.len()))
    };
    let first = |holds: bool| {
        let reads = (0..types.len()).map(|k| k == 0).collect();
        (holds && has_rows(types.first()?)).then_some(reads)
    };
    if instruction.op.elementwise().is_some() {
        let reads = |ty: &&Type| match ty.shape.len() == out.shape.len() && ty.shape[0] == rows {
            true => Some(true),
            false => (ty.shape.len() < out.shape.len() || ty.shape[0] == 1).then_some(false),
        };
        return types.iter().map(reads).collect();
    }
    match &instruction.op {
        Op::Constant(_) => Some(smallvec![]),
        Op::Iota { axis: Some(_) } => Some(smallvec![]),
        Op::Bitcast => all(true),
        Op::Reshape | Op::Squeeze => all(true),
        Op::Broadcast { axes } => match axes.iter().position(|&axis| axis == 0) {
            Some(0) if has_rows(types[0]) => Some(smallvec![true]),
            Some(k) if types[0].shape[k] != 1 => None,
            _ => Some(smallvec![false]),
        },
        Op::Transpose { axes } => all(axes.first() == Some(&0)),
        Op::Slice { starts, strides, lengths } => first(starts[0] == Some(0) && strides[0] == 1 && lengths[0] == rows),
        Op::Concatenate { axis } | Op::Stack { axis } => all(*axis > 0),
        Op::Reduce { axes, .. } => all(!axes.contains(&0)),
        Op::Moved(Moved::Reverse(Reverse { axes })) => all(!axes.contains(&0)),
        Op::Moved(Moved::Pad(Pad { config })) => first(config[0] == (0, 0, 0)),
        Op::Order(Order::TopK(TopK { .. })) => all(types[0].shape.len() > 1),
        Op::Order(
            Order::Sort(Sort { axis, .. }) | Order::Argsort(Argsort { axis, .. }) | Order::Scan(Scan { axis, .. }),
        ) => all(*axis > 0),
        Op::Order(Order::Searchsorted(Searchsorted { .. })) => match types[0].shape.len() {
            1 => (types[1].shape.len() > 1).then(|| smallvec![false, true]),
            _ => all(true),
        },
        Op::Indexing(Indexing::TakeAlongAxis(TakeAlongAxis { axis })) => all(*axis > 0),
        Op::Indexing(Indexing::Take(Take { axis: 0 })) => {
            (has_rows(types[1]) && !types[1].shape.is_empty()).then(|| smallvec![false, true])
        }
        Op::Indexing(Indexing::Take(Take { .. })) => first(true),
        // Batches of products, as those of attention, have kernels of their own.
        Op::Dot { contract_a, batch_a, .. } => first(batch_a.is_empty() && !contract_a.contains(&0)),
        _ => None,
    }
}

/// Instructions whose results are made row by row, and what of them others read.
struct Region {
    rows: u64,
    block: u64,
    /// Numbers of instructions, in order.
    inside: Vec<usize>,
    /// For each of them, which operands are read row by row.
    reads: HashMap<usize, SmallVec<[bool; 3]>>,
}

impl Region {
    /// The first region of a program that is worth a loop.
    fn find(program: &Program, target: &Target) -> Option<Region> {
        let budget = target.mapped_bytes;
        let is_large = |ty: &Type| budget > 0 && ty.size_bytes() / budget >= MIN_BLOCKS;
        let mut tried = HashSet::new();
        for instruction in &program.instructions {
            let Some(out) = instruction.outs.iter().find(|ty| is_large(ty)) else { continue };
            let Some(&rows) = out.shape.first() else { continue };
            if rows >= MIN_BLOCKS * MIN_ROWS
                && rows <= i32::MAX as u64
                && tried.insert(rows)
                && let Some(region) = Region::of(program, rows, budget)
            {
                return Some(region);
            }
        }
        None
    }

    fn of(program: &Program, rows: u64, budget: u64) -> Option<Region> {
        let (type_of, readers, makers) = (program.types(), readers(program), program.makers());
        let count = program.instructions.len();
        let mut firsts = Vec::with_capacity(count);
        let mut next = 0;
        for instruction in &program.instructions {
            firsts.push(next);
            next += instruction.outs.len() as u32;
        }
        let results = |at: usize| (firsts[at]..).take(program.instructions[at].outs.len()).map(Operand::Result);
        let of = |at: usize| {
            let instruction = &program.instructions[at];
            let types: Option<Vec<&Type>> = instruction.operands.iter().map(|&o| type_of(o)).collect();
            reads_rows(instruction, &types?, rows)
        };
        let reads: HashMap<usize, SmallVec<[bool; 3]>> = (0..count).filter_map(|at| Some((at, of(at)?))).collect();
        let bytes = |at: usize| program.instructions[at].outs.iter().map(Type::size_bytes).max().unwrap_or(0);
        // What need not be in memory: it is read row by row alone.
        let is_read_by_rows = |at: usize| {
            results(at).all(|result| {
                readers.get(&result).is_some_and(|readers| {
                    readers.iter().all(|reader| {
                        let Some(reads) = reads.get(reader) else { return false };
                        let operands = &program.instructions[*reader].operands;
                        operands.iter().zip(reads).all(|(&operand, &row)| operand != result || row)
                    })
                })
            })
        };
        let large: Vec<usize> = (0..count)
            .filter(|at| bytes(*at) / budget >= MIN_BLOCKS && reads.contains_key(at) && is_read_by_rows(*at))
            .collect();
        let largest = large.iter().map(|&at| bytes(at)).max()?;
        let mut inside: HashSet<usize> = large.iter().copied().collect();
        for &at in &large {
            inside.extend(results(at).filter_map(|result| readers.get(&result)).flatten());
        }
        // What lies between two of them is made row by row, too.
        let behind = reached(count, &inside, |at| {
            results(at).filter_map(|result| readers.get(&result)).flatten().copied().filter(|&at| at < count).collect()
        });
        let before = reached(count, &inside, |at| {
            program.instructions[at].operands.iter().filter_map(|&operand| makers(operand)).collect()
        });
        inside.extend((0..count).filter(|&at| behind[at] && before[at]));
        let mut inside: Vec<usize> = inside.into_iter().collect();
        inside.sort_unstable();
        let is_inside = |operand: Operand| makers(operand).is_some_and(|at| inside.binary_search(&at).is_ok());
        let fits = inside.iter().all(|at| {
            let Some(reads) = reads.get(at) else { return false };
            program.instructions[*at].operands.iter().zip(reads).all(|(&operand, &row)| row || !is_inside(operand))
        });
        let block = (rows * budget / largest.max(1)).max(MIN_ROWS);
        let is_large = |operand: Operand| makers(operand).is_some_and(|at| large.binary_search(&at).is_ok());
        let op = |at: &usize| &program.instructions[*at].op;
        let reads_large = |at: &usize| program.instructions[*at].operands.iter().any(|&operand| is_large(operand));
        let orders = inside.iter().any(|at| matches!(op(at), Op::Order(_)) && reads_large(at));
        let reduces = inside.iter().any(|at| matches!(op(at), Op::Reduce { .. }) && reads_large(at));
        let multiplies = large.iter().any(|at| matches!(op(at), Op::Dot { .. }));
        // What is elementwise alone is part of the kernels that reduce it anyway.
        let pays = orders || reduces && multiplies;
        let is_read = |&at: &usize| {
            results(at).filter_map(|result| readers.get(&result)).flatten().any(|at| inside.binary_search(at).is_err())
        };
        let kept: u64 = inside.iter().copied().filter(is_read).map(bytes).sum();
        let reads = reads.into_iter().filter(|(at, _)| inside.binary_search(at).is_ok()).collect();
        (fits && pays && kept <= largest / KEPT_PART && block < rows).then_some(Region { rows, block, inside, reads })
    }

    fn in_blocks(&self, program: &Program) -> Result<Program> {
        let count = program.instructions.len();
        let makers = program.makers();
        let is_inside = |at: usize| self.inside.binary_search(&at).is_ok();
        // What needs the region comes behind it, all else before.
        let mut behind = vec![false; count];
        for at in 0..count {
            let needs = |&operand: &Operand| makers(operand).is_some_and(|from| behind[from] || is_inside(from));
            behind[at] = !is_inside(at) && program.instructions[at].operands.iter().any(needs);
        }
        let before = (0..count).filter(|&at| !behind[at] && !is_inside(at));
        let order: Vec<usize> =
            before.chain(self.inside.iter().copied()).chain((0..count).filter(|&at| behind[at])).collect();
        let start = order.len() - self.inside.len() - behind.iter().filter(|behind| **behind).count();
        let sorted = program.reordered(&order);
        let region = start..start + self.inside.len();
        let mut new = Rewriter::new(&sorted);
        for old in &sorted.instructions[..region.start] {
            let operands = new.operands(old)?;
            new.replace(Instruction { operands, ..old.clone() });
        }
        self.add(&mut new, &sorted, &order, region.clone())?;
        for old in &sorted.instructions[region.end..] {
            let operands = new.operands(old)?;
            new.replace(Instruction { operands, ..old.clone() });
        }
        new.finish(&sorted)
    }

    /// Adds the loop in the place of instructions of the old program.
    fn add(&self, new: &mut Rewriter, old: &Program, order: &[usize], region: std::ops::Range<usize>) -> Result<()> {
        let first = old.instructions[..region.start].iter().map(|i| i.outs.len() as u32).sum::<u32>();
        let inside = &old.instructions[region.clone()];
        let end = first + inside.iter().map(|i| i.outs.len() as u32).sum::<u32>();
        let others = old.instructions[region.end..].iter().flat_map(|i| &i.operands).chain(&old.outputs);
        let mut read: Vec<u32> = others
            .filter_map(|operand| match *operand {
                Operand::Result(r) if (first..end).contains(&r) => Some(r),
                _ => None,
            })
            .collect();
        read.sort_unstable();
        read.dedup();
        let types: Vec<Type> = inside.iter().flat_map(|i| i.outs.iter().cloned()).collect();
        let outs: Vec<Type> = read.iter().map(|&r| types[(r - first) as usize].clone()).collect();
        // The state: a counter and what is kept; then what is read.
        let index = Type::new(DType::S32, &[]);
        let mut operands: Operands = smallvec![new.push_one(Op::Constant(Scalar::Int(0)), &[], &index)];
        let mut inputs = vec![index.clone()];
        for ty in &outs {
            let zero = if ty.dtype.is_integer() { Scalar::Int(0) } else { Scalar::Float(0.0) };
            operands.push(new.push_one(Op::Constant(zero), &[], ty));
            inputs.push(ty.clone());
        }
        let mut captured: HashMap<Operand, u32> = HashMap::new();
        for &operand in inside.iter().flat_map(|i| &i.operands) {
            if matches!(operand, Operand::Result(r) if (first..end).contains(&r)) {
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(place) = captured.entry(operand) {
                place.insert(inputs.len() as u32);
                let moved = new.operand(operand)?;
                inputs.push(new.ty(moved)?.clone());
                operands.push(moved);
            }
        }
        let blocks = self.rows.div_ceil(self.block);
        let condition = {
            let mut new = Rewriter::new(&Program { inputs: inputs.clone(), ..Program::default() });
            let end = Op::Constant(Scalar::Int(i128::from(blocks * self.block)));
            let end = new.push_one(end, &[], &index);
            let below = Op::Binary(Binary::Less);
            let below = new.push_one(below, &[Operand::Input(0), end], &Type::new(DType::U8, &[]));
            new.finish_with(vec![below])
        };
        let mut body = Rewriter::new(&Program { inputs, ..Program::default() });
        let number =
            |body: &mut Rewriter, number: u64| body.push_one(Op::Constant(Scalar::Int(number.into())), &[], &index);
        // The last block begins so that it is whole.
        let last = number(&mut body, self.rows - self.block);
        let base = body.push_one(Op::Binary(Binary::Min), &[Operand::Input(0), last], &index);
        let made = self.block_of(&mut body, inside, &order[region], base, (first, &captured))?;
        let step = number(&mut body, self.block);
        let mut next = vec![body.push_one(Op::Binary(Binary::Add), &[Operand::Input(0), step], &index)];
        for (k, (&r, ty)) in read.iter().zip(&outs).enumerate() {
            let starts = (0..ty.shape.len()).map(|axis| (axis > 0).then_some(0)).collect();
            let operands = [Operand::Input(k as u32 + 1), made[(r - first) as usize], base];
            next.push(body.push_one(Op::PutSlice { starts }, &operands, ty));
        }
        let op = Loop { condition, body: body.finish_with(next), trips: Some(Trips::Known(blocks)) };
        let all = std::iter::once(index).chain(outs).collect();
        let Operand::Result(made) = new.push(Instruction { op: Op::While(Box::new(op)), operands, outs: all }) else {
            return Ok(());
        };
        for r in first..end {
            // What others don't read has no place; what asks for it would be wrong.
            let place = read.iter().position(|&read| read == r);
            new.moved(Operand::Result(place.map_or(u32::MAX, |place| made + 1 + place as u32)));
        }
        Ok(())
    }

    /// Adds the region's instructions for the rows from `base` on. Answers their results.
    fn block_of(
        &self,
        body: &mut Rewriter,
        inside: &[Instruction],
        order: &[usize],
        base: Operand,
        (first, captured): (u32, &HashMap<Operand, u32>),
    ) -> Result<Vec<Operand>> {
        let mut made: Vec<Operand> = Vec::new();
        let mut slices: HashMap<Operand, Operand> = HashMap::new();
        let none = SmallVec::new();
        for (instruction, at) in inside.iter().zip(order) {
            let reads = self.reads.get(at).unwrap_or(&none);
            let mut operands = Operands::new();
            for (&operand, &row) in instruction.operands.iter().zip(reads) {
                let own = match (captured.get(&operand), operand) {
                    (Some(&input), _) if row => match slices.get(&operand) {
                        Some(&slice) => slice,
                        None => {
                            let slice = self.rows_of(body, Operand::Input(input), base)?;
                            slices.insert(operand, slice);
                            slice
                        }
                    },
                    (Some(&input), _) => Operand::Input(input),
                    (None, Operand::Result(r)) => made[(r - first) as usize],
                    (None, input) => input,
                };
                operands.push(own);
            }
            let outs: SmallVec<[Type; 1]> = instruction.outs.iter().map(|ty| self.of_block(ty)).collect();
            let op = match &instruction.op {
                Op::Slice { starts, strides, lengths } => {
                    let mut lengths = lengths.clone();
                    lengths[0] = self.block;
                    Op::Slice { starts: starts.clone(), strides: strides.clone(), lengths }
                }
                op => op.clone(),
            };
            let counts = matches!(op, Op::Iota { axis: Some(0) });
            let ty = outs[0].clone();
            let count = outs.len() as u32;
            let Operand::Result(result) = body.push(Instruction { op, operands, outs }) else { continue };
            if counts {
                let from = Type::new(ty.dtype, &[]);
                let from = body.push_one(Op::AsType, &[base], &from);
                made.push(body.push_one(Op::Binary(Binary::Add), &[Operand::Result(result), from], &ty));
            } else {
                made.extend((result..result + count).map(Operand::Result));
            }
        }
        Ok(made)
    }

    fn of_block(&self, ty: &Type) -> Type {
        let mut ty = ty.clone();
        ty.shape[0] = self.block;
        ty
    }

    fn rows_of(&self, body: &mut Rewriter, whole: Operand, base: Operand) -> Result<Operand> {
        let ty = self.of_block(body.ty(whole)?);
        let op = Op::Slice {
            starts: (0..ty.shape.len()).map(|axis| (axis > 0).then_some(0)).collect(),
            strides: SmallVec::from_elem(1, ty.shape.len()),
            lengths: ty.shape.clone(),
        };
        Ok(body.push_one(op, &[whole, base], &ty))
    }
}

/// What can be reached from some instructions, without these where nothing leads back to them.
fn reached(count: usize, from: &HashSet<usize>, next: impl Fn(usize) -> Vec<usize>) -> Vec<bool> {
    let mut found = vec![false; count];
    let mut stack: Vec<usize> = from.iter().flat_map(|&at| if at < count { next(at) } else { vec![] }).collect();
    while let Some(at) = stack.pop() {
        if !std::mem::replace(&mut found[at], true) {
            stack.extend(next(at));
        }
    }
    found
}

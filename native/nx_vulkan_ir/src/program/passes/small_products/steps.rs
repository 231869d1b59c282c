//! Does to all columns of a product at once what is done to each of its parts, as sums with what inputs and biases give
//! are in the gates of a recurrent cell: the product's kernel does it then, and what gates and gradients read is one
//! tensor.

use std::collections::{HashMap, HashSet};

use super::{Reader, beside, part_of, together};
use crate::program::passes::rewrite::Rewriter;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

/// Products for which tensors are put beside each other, at least: that takes a launch.
const FEWEST_PRODUCTS: usize = 4;

pub fn run(program: &Program) -> Result<Program> {
    let reader = Reader::of(program);
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); reader.made.len()];
    for (at, instruction) in program.instructions.iter().enumerate() {
        for operand in &instruction.operands {
            if let Operand::Result(r) = operand {
                readers[*r as usize].push(at);
            }
        }
    }
    let outputs: HashSet<Operand> = program.outputs.iter().copied().collect();
    let products = (0..program.instructions.len()).filter(|&at| matches!(program.instructions[at].op, Op::Dot { .. }));
    let is_read_within = |operand: &Operand| !outputs.contains(operand);
    let mut found: Vec<Columns> = products.filter_map(|at| reader.columns(at, &readers, is_read_within)).collect();
    let mut uses: HashMap<Vec<Operand>, usize> = HashMap::new();
    for columns in &found {
        columns.others.put_together(&mut |parts| *uses.entry(parts.to_vec()).or_default() += 1);
    }
    found.retain(|columns| {
        let mut is_worth_it = true;
        columns.others.put_together(&mut |parts| is_worth_it &= uses[parts] >= FEWEST_PRODUCTS);
        is_worth_it
    });
    let members: Vec<&[usize]> = found.iter().map(|columns| &columns.steps[..]).collect();
    together(program, &members, 1, |new, columns, first| found[columns].emit(new, first))
}

/// The same step on all parts of a product's columns.
struct Columns {
    product: Operand,
    /// The instruction that takes each part, in the order of the columns.
    steps: Vec<usize>,
    /// Which of its operands the part is.
    place: usize,
    /// The others.
    others: Beside,
}

/// What tensors that belong to parts of columns are, beside each other.
enum Beside {
    /// So many rows of a tensor of all columns.
    Rows { source: Operand, start: u64 },
    /// Tensors of one axis.
    Put(Vec<Operand>),
    /// One number for all.
    Number(Operand),
    /// An elementwise op of such.
    Step { op: Box<Op>, dtype: DType, operands: Vec<Beside> },
}

/// A part of a matrix: the first row and column, and the matrix.
struct Cut {
    source: Operand,
    starts: [u64; 2],
}

impl Reader<'_> {
    /// The step on all parts of a product, if all that reads it takes a part of its columns, and no column twice.
    fn columns(&self, at: usize, readers: &[Vec<usize>], is_read_within: impl Fn(&Operand) -> bool) -> Option<Columns> {
        let product = self.result_of(at);
        let readers_of = |operand: Operand| match operand {
            Operand::Result(r) if is_read_within(&operand) => readers.get(r as usize).map(Vec::as_slice),
            _ => None,
        };
        let slices = readers_of(product)?;
        let [rows, all] = self.ty(product)?.shape[..] else { return None };
        let mut parts: Vec<(u64, usize)> = Vec::new();
        for &slice in slices {
            let part = self.result_of(slice);
            let (cut, &[step]) = (self.cut(part), readers_of(part)?) else { return None };
            if cut.source != product || cut.starts[0] != 0 || self.ty(part)?.shape[0] != rows {
                return None;
            }
            parts.push((cut.starts[1], step));
        }
        parts.sort_unstable();
        let &(_, first) = parts.first()?;
        let first = &self.program.instructions[first];
        let widths = parts.iter().map(|&(_, at)| self.width(self.result_of(at))).collect::<Option<Vec<u64>>>()?;
        let spans: Vec<(u64, u64)> = parts.iter().map(|&(start, _)| start).zip(widths).collect();
        let begins = spans.iter().scan(0, |end, (_, width)| Some(std::mem::replace(end, *end + width)));
        let are_all =
            begins.eq(spans.iter().map(|&(start, _)| start)) && spans.iter().map(|span| span.1).sum::<u64>() == all;
        let before = parts.iter().map(|&(_, at)| at).min()?;
        let place = first.operands.iter().position(|&o| self.cut(o).source == product)?;
        let steps: Vec<usize> = parts.iter().map(|&(_, at)| at).collect();
        let are_alike = steps.iter().all(|&at| {
            let step = &self.program.instructions[at];
            step.op == first.op
                && step.operands.len() == 2
                && step.outs.len() == 1
                && step.outs[0].dtype == first.outs[0].dtype
                && step.operands.get(place).is_some_and(|&o| {
                    self.cut(o).source == product && self.ty(o).is_some_and(|ty| ty.shape == step.outs[0].shape)
                })
        });
        if parts.len() < 2 || !are_all || !are_alike || first.op.elementwise().is_none() {
            return None;
        }
        let other = |&at: &usize| self.program.instructions[at].operands.get(1 - place).copied();
        let others: Vec<Operand> = steps.iter().map(other).collect::<Option<_>>()?;
        let others = self.beside(&others, &spans, rows, before)?;
        Some(Columns { product, steps, place, others })
    }

    fn width(&self, operand: Operand) -> Option<u64> {
        self.ty(operand)?.shape.last().copied()
    }

    /// Of what an operand is a part, itself where it is none.
    fn cut(&self, operand: Operand) -> Cut {
        let mut cut = Cut { source: operand, starts: [0, 0] };
        while let Some((_, view)) = self.maker(cut.source)
            && let Op::Slice { starts, strides, .. } = &view.op
            && let ([Some(row), Some(column)], [1, 1]) = (&starts[..], &strides[..])
        {
            cut.starts = [cut.starts[0] + *row as u64, cut.starts[1] + *column as u64];
            cut.source = view.operands[0];
        }
        cut
    }

    /// What all rows of an operand are, itself where it says nothing of that: elementwise ops repeat it by themselves.
    fn row(&self, operand: Operand) -> Operand {
        let repeats = |view: &Instruction| matches!(&view.op, Op::Broadcast { axes } if axes[..] == [1]);
        let view = self.maker(operand).filter(|(_, view)| repeats(view));
        view.and_then(|(_, view)| view.operands.first().copied()).unwrap_or(operand)
    }

    /// What belongs to the parts of columns that begin and are as wide as `spans` say, beside each other, made of what
    /// is there before an instruction.
    fn beside(&self, parts: &[Operand], spans: &[(u64, u64)], rows: u64, before: usize) -> Option<Beside> {
        let parts: Vec<Operand> = parts.iter().map(|&part| self.row(part)).collect();
        let &first = parts.first()?;
        let shape = &self.ty(first)?.shape[..];
        match *shape {
            [] if parts.iter().all(|&part| part == first) => {
                return self.is_before(first, before).then_some(Beside::Number(first));
            }
            [_] => {
                let dtype = self.ty(first)?.dtype;
                let fits = |(&part, &(_, width)): (&Operand, &(u64, u64))| {
                    let ty = self.ty(part).filter(|ty| ty.shape[..] == [width] && ty.dtype == dtype);
                    ty.is_some() && self.is_before(part, before)
                };
                return parts.iter().zip(spans).all(fits).then_some(Beside::Put(parts));
            }
            _ => {}
        }
        let is_whole = |(&part, &(_, width)): (&Operand, &(u64, u64))| {
            self.ty(part).is_some_and(|ty| ty.shape[..] == [rows, width])
        };
        if !parts.iter().zip(spans).all(is_whole) {
            return None;
        }
        let cuts: Vec<Cut> = parts.iter().map(|&part| self.cut(part)).collect();
        let [Cut { source, starts: [start, _] }, ..] = cuts[..] else { return None };
        let is_row = |(cut, span): (&Cut, &(u64, u64))| cut.source == source && cut.starts == [start, span.0];
        let width = spans.last().map(|(start, width)| start + width);
        if cuts.iter().zip(spans).all(is_row) && self.is_before(source, before) && self.width(source) == width {
            return Some(Beside::Rows { source, start });
        }
        let makers: Vec<&Instruction> = parts.iter().map(|&part| Some(self.maker(part)?.1)).collect::<Option<_>>()?;
        let &[first, ..] = &makers[..] else { return None };
        first.op.elementwise()?;
        let dtype = first.outs[0].dtype;
        let is_alike = |other: &&Instruction| {
            other.op == first.op && other.operands.len() == first.operands.len() && other.outs[0].dtype == dtype
        };
        if !makers.iter().all(is_alike) {
            return None;
        }
        let operands = (0..first.operands.len()).map(|k| {
            let parts: Vec<Operand> = makers.iter().map(|made| made.operands[k]).collect();
            self.beside(&parts, spans, rows, before)
        });
        Some(Beside::Step { op: Box::new(first.op.clone()), dtype, operands: operands.collect::<Option<_>>()? })
    }
}

impl Columns {
    /// The step on all columns, in the place of its first part's.
    fn emit(&self, new: &mut Rewriter, first: &Instruction) -> Result<Operand> {
        let product = new.operand(self.product)?;
        let shape = new.ty(product)?.shape.clone();
        let other = self.others.emit(new, &shape)?;
        let mut operands = [product, other];
        if self.place == 1 {
            operands.swap(0, 1);
        }
        Ok(new.push_one(first.op.clone(), &operands, &Type { dtype: first.outs[0].dtype, shape }))
    }
}

impl Beside {
    /// Tells of each list of tensors that have to be put beside each other.
    fn put_together(&self, tell: &mut impl FnMut(&[Operand])) {
        match self {
            Beside::Put(parts) => tell(parts),
            Beside::Step { operands, .. } => operands.iter().for_each(|operand| operand.put_together(tell)),
            Beside::Rows { .. } | Beside::Number(_) => {}
        }
    }

    /// The tensor, of a shape as the product's.
    fn emit(&self, new: &mut Rewriter, shape: &[u64]) -> Result<Operand> {
        match self {
            Beside::Rows { source, start } => {
                let source = new.operand(*source)?;
                part_of(new, source, 0, *start, shape[0])
            }
            Beside::Put(parts) => beside(new, parts, 0),
            Beside::Number(number) => new.operand(*number),
            Beside::Step { op, dtype, operands } => {
                let operands =
                    operands.iter().map(|operand| operand.emit(new, shape)).collect::<Result<Vec<Operand>>>()?;
                Ok(new.push_one(Op::clone(op), &operands, &Type::new(*dtype, shape)))
            }
        }
    }
}

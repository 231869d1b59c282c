//! Makes one tensor of slices that are put into zeros and added up, as gradients of slices are: where they lie beside
//! each other along an axis, the sum is their concatenation.

use std::collections::{HashMap, HashSet};

use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::fused::is_view;
use crate::program::{Binary, Instruction, Op, Operand, Program};
use crate::shape::Dims;
use crate::value::Value;
use crate::{Result, Type};

/// Elements from which a tensor is made of its parts: smaller ones become kernels of one workgroup together with what
/// they are made from.
const MIN_ELEMENTS: u64 = 1 << 12;

pub fn run(program: &Program) -> Result<Program> {
    let joined = Sums::of(program).joined();
    let mut new = Rewriter::new(program);
    for (at, old) in program.instructions.iter().enumerate() {
        match joined.get(&at) {
            Some(joined) => {
                let operand = joined.emit(&mut new, &old.outs[0])?;
                new.moved(operand);
            }
            None => {
                let operands = new.operands(old)?;
                new.replace(Instruction { operands, ..old.clone() });
            }
        }
    }
    new.finish(program)
}

/// What a program's sums are of.
struct Sums<'a> {
    program: &'a Program,
    /// The number of the instruction that has an operand as its only result.
    makers: HashMap<Operand, usize>,
    /// How often operands are read.
    reads: HashMap<Operand, usize>,
}

/// A slice at a place along the axis, in a tensor of zeros otherwise.
#[derive(Debug)]
struct Piece<'a> {
    slice: Operand,
    start: u64,
    length: u64,
    /// What the slice is a view of that something computes for it alone, and the ops of the view, the last one first.
    computed: Option<(Operand, Vec<&'a Instruction>)>,
}

/// Pieces along an axis, in order and without overlaps, and zeros between them.
#[derive(Debug)]
struct Joined<'a> {
    axis: usize,
    pieces: Vec<Piece<'a>>,
}

/// A slice, its type, and its first position along each axis.
type Slice<'a> = (Operand, &'a Type, Dims);

impl<'a> Sums<'a> {
    fn of(program: &'a Program) -> Sums<'a> {
        let mut results = 0;
        let mut makers = HashMap::new();
        for (at, instruction) in program.instructions.iter().enumerate() {
            if instruction.outs.len() == 1 {
                makers.insert(Operand::Result(results), at);
            }
            results += instruction.outs.len() as u32;
        }
        Sums { program, makers, reads: program.reads() }
    }

    fn maker(&self, operand: Operand) -> Option<(usize, &'a Instruction)> {
        let at = *self.makers.get(&operand)?;
        Some((at, self.program.instructions.get(at)?))
    }

    fn ty(&self, operand: Operand) -> Option<&'a Type> {
        match operand {
            Operand::Input(i) => self.program.inputs.get(i as usize),
            Operand::Result(_) => self.maker(operand).and_then(|(_, maker)| maker.outs.first()),
        }
    }

    /// What sums of slices give, by the numbers of their instructions, but for those that are terms of others.
    fn joined(&self) -> HashMap<usize, Joined<'a>> {
        let mut within = HashSet::new();
        let mut found = HashMap::new();
        for (at, sum) in self.program.instructions.iter().enumerate().rev() {
            let [out] = sum.outs.as_slice() else { continue };
            let is_sum = sum.op == Op::Binary(Binary::Add) && !out.dtype.is_complex() && out.elements() >= MIN_ELEMENTS;
            if !is_sum || within.contains(&at) {
                continue;
            }
            if let Some((slices, sums)) = self.terms(sum, out)
                && let Some(joined) = self.side_by_side(slices, out)
            {
                found.insert(at, joined);
                within.extend(sums);
            }
        }
        found
    }

    /// The slices that a sum is of and the sums within it, where each is read by it alone, and it is of nothing else.
    fn terms(&self, sum: &Instruction, out: &Type) -> Option<(Vec<Slice<'a>>, Vec<usize>)> {
        let (mut slices, mut sums) = (Vec::new(), Vec::new());
        let mut left = sum.operands.to_vec();
        while let Some(term) = left.pop() {
            if self.is_zero(term) {
                continue;
            }
            let (at, maker) = self.maker(term).filter(|(_, maker)| maker.outs[0] == *out)?;
            if self.reads.get(&term) != Some(&1) {
                return None;
            }
            if maker.op == Op::Binary(Binary::Add) {
                sums.push(at);
                left.extend(&maker.operands);
            } else {
                slices.push(self.put_into_zeros(maker, out)?);
            }
        }
        Some((slices, sums))
    }

    /// The slice that an instruction puts into zeros, with its type and its first position.
    fn put_into_zeros(&self, instruction: &Instruction, out: &Type) -> Option<Slice<'a>> {
        let map = instruction.index_map(|operand| self.ty(operand))?;
        let ([part], Some(around)) = (map.parts.as_slice(), map.around) else { return None };
        let (slice, around) = (*instruction.operands.get(part.operand)?, *instruction.operands.get(around)?);
        let ty = self.ty(slice)?;
        let starts = part.corner(&ty.shape, &out.shape)?;
        (ty.dtype == out.dtype && self.is_zero(around)).then_some((slice, ty, starts))
    }

    fn is_zero(&self, operand: Operand) -> bool {
        let Some((_, maker)) = self.maker(operand) else { return false };
        let Op::Constant(value) = maker.op else { return false };
        match Value::from(value).cast(maker.outs[0].dtype) {
            Value::Int(number) => number == 0,
            Value::Float(number) => number == 0.0 && number.is_sign_positive(),
            Value::Complex(..) => false,
        }
    }

    /// The slices as pieces along the only axis that they don't fill.
    fn side_by_side(&self, slices: Vec<Slice<'a>>, out: &Type) -> Option<Joined<'a>> {
        let [(_, first, _), _, ..] = slices.as_slice() else { return None };
        let axis = (0..out.shape.len()).find(|&axis| first.shape[axis] != out.shape[axis])?;
        let fills = |ty: &Type| (0..out.shape.len()).all(|k| k == axis || ty.shape[k] == out.shape[k]);
        if !slices.iter().all(|(_, ty, _)| fills(ty)) {
            return None;
        }
        let piece = |(slice, ty, starts): Slice<'a>| {
            let (start, length) = (starts[axis], ty.shape[axis]);
            Piece { slice, start, length, computed: self.computed(slice) }
        };
        let mut pieces: Vec<Piece<'a>> = slices.into_iter().map(piece).collect();
        pieces.sort_by_key(|piece| piece.start);
        let is_apart = pieces.windows(2).all(|pair| pair[0].start + pair[0].length <= pair[1].start);
        is_apart.then_some(Joined { axis, pieces })
    }

    /// See [`Piece::computed`].
    fn computed(&self, slice: Operand) -> Option<(Operand, Vec<&'a Instruction>)> {
        let (mut operand, mut views) = (slice, Vec::new());
        loop {
            let (_, maker) = self.maker(operand).filter(|_| self.reads.get(&operand) == Some(&1))?;
            match (&maker.op, &maker.operands[..]) {
                (op, &[source]) if is_view(op) && self.ty(source)?.elements() == maker.outs[0].elements() => {
                    views.push(maker);
                    operand = source;
                }
                (Op::Dot { .. } | Op::Reduce { .. }, _) => return Some((operand, views)),
                (op, _) => return op.elementwise().map(|_| (operand, views)),
            }
        }
    }
}

impl Joined<'_> {
    /// A sum with zero, which makes 0.0 of -0.0, stands where the slices are computed, if all are.
    fn emit(&self, new: &mut Rewriter, out: &Type) -> Result<Operand> {
        let value = if out.dtype.is_integer() { Scalar::Int(0) } else { Scalar::Float(0.0) };
        let plus_zero = |new: &mut Rewriter, operand: Operand, ty: &Type| {
            let zero = new.push_one(Op::Constant(value), &[], &Type::new(out.dtype, &[]));
            new.push_one(Op::Binary(Binary::Add), &[operand, zero], ty)
        };
        let gap = |new: &mut Rewriter, from: u64, to: u64| {
            let mut ty = out.clone();
            ty.shape[self.axis] = to - from;
            (to > from).then(|| new.push_one(Op::Constant(value), &[], &ty))
        };
        let adds = !out.dtype.is_integer();
        let adds_before = adds && self.pieces.iter().all(|piece| piece.computed.is_some());
        let mut operands = Vec::new();
        let mut end = 0;
        for piece in &self.pieces {
            operands.extend(gap(new, end, piece.start));
            operands.push(match &piece.computed {
                Some((source, views)) if adds_before => {
                    let source = new.operand(*source)?;
                    let ty = new.ty(source)?.clone();
                    let sum = plus_zero(new, source, &ty);
                    views
                        .iter()
                        .rev()
                        .fold(sum, |operand, view| new.push_one(view.op.clone(), &[operand], &view.outs[0]))
                }
                _ => new.operand(piece.slice)?,
            });
            end = piece.start + piece.length;
        }
        operands.extend(gap(new, end, out.shape[self.axis]));
        let joined = new.push_one(Op::Concatenate { axis: self.axis }, &operands, out);
        Ok(if adds && !adds_before { plus_zero(new, joined, out) } else { joined })
    }
}

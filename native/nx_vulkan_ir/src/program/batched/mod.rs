//! A program for many at once: what each has of its own gets an axis in front, and what all share stays as it is. So
//! chains of a sampler take every step together, each kernel for all of them, and so do rows that a loop makes.
//!
//! Values that depend on nothing of their own are computed once. A product of a shared matrix and vectors of their own
//! is a product of two matrices. A loop goes on until it has ended for all; those for which it has ended keep their
//! state. Of a branch that each chooses on its own both ways are computed, and chosen from: what those compute who
//! don't take it is of no use, but ends, as they run none of its loops.

mod choice;
mod control;
mod indexing;
mod numbered;
mod owns;

use std::cell::Cell;

use smallvec::{SmallVec, smallvec};

use super::attribute::{Axes, Scalar};
use super::ops::index::Indexing;
use super::ops::matrix::Matrix;
use super::ops::moved::{Moved, Pad, Reverse};
use super::ops::order::{Argsort, Order, Scan, Searchsorted, Sort};
use super::ops::transform::{Fft, Spectral};
use super::ops::window::{Window, WindowFold, WindowScatter, Windowed};
use super::passes::steps_of_all_close;
use super::{Builder, Op, Operand, Program, Windows, counted, verify};
use crate::{DType, Error, Result, Type};
use numbered::First;
pub(super) use owns::{cells, results};

/// The program whose inputs have an axis of `count` in front where each has its `own`, and whose outputs all have it.
/// Results are those of the program for each alone, but for the order of sums, and but for whether a system is regular:
/// one flag says it of all.
///
/// # Errors
/// `InvalidProgram` for a program that breaks a rule, or other inputs than it has; `TooLarge` where values would have
/// more elements than any tensor; `Unsupported` for what can't run for several at once: convolutions, folds and windows
/// with initial or captured values of their own, and what passes have made.
pub fn of(program: &Program, own: &[bool], count: u64) -> Result<Program> {
    verify::program(program)?;
    if own.len() != program.inputs.len() || count == 0 {
        let reason = format!("{} inputs for {}, {count} times", own.len(), program.inputs.len());
        return Err(Error::InvalidProgram { op: "batched".to_string(), reason });
    }
    fits(program, count)?;
    let mut program = program.clone();
    counted::note(&mut program);
    let batch = Batch::new(count, First::Number(0));
    let inputs: Vec<Value> = program.inputs.iter().zip(own).map(|(ty, &own)| batch.input(ty, own)).collect();
    batch.finish(&program, &inputs)
}

/// The program for rows that it numbers: input `number` is the row's number, which counts from `first`, or from what
/// that input is where it is not known before, and is below `end`. Other inputs are those of all rows; outputs have an
/// axis in front.
///
/// # Errors
/// As of [`of`].
pub(super) fn of_rows(program: &Program, number: u32, first: Option<i64>, end: u64, count: u64) -> Result<Program> {
    fits(program, count)?;
    let first = first.map_or(First::Operand(Operand::Input(number)), First::Number);
    let batch = Batch { end, ..Batch::new(count, first) };
    let mut inputs: Vec<Value> = program.inputs.iter().map(|ty| batch.input(ty, false)).collect();
    if let (Some(input), Some(ty)) = (inputs.get_mut(number as usize), program.inputs.get(number as usize)) {
        *input = batch.numbers(ty);
    }
    batch.finish(program, &inputs)
}

/// Whether all values may have the axis in front.
fn fits(program: &Program, count: u64) -> Result<()> {
    for ty in program.inputs.iter().chain(program.results()) {
        let elements = ty.elements().saturating_mul(count);
        verify::input(0, &Type::new(ty.dtype, &[elements]))?;
    }
    program
        .instructions
        .iter()
        .flat_map(|instruction| instruction.op.inside())
        .try_for_each(|inside| fits(inside, count))
}

/// A value of the new program.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Value {
    at: Operand,
    /// Whether it has the axis in front.
    own: bool,
    /// Whether it is each one's number, as a scalar of its own.
    is_number: bool,
}

impl Value {
    fn new(at: Operand, own: bool) -> Value {
        Value { at, own, is_number: false }
    }

    fn own(at: Operand) -> Value {
        Value::new(at, true)
    }
}

/// The new program as it grows.
struct Batch {
    b: Builder,
    count: u64,
    first: First,
    /// All numbers are below it.
    end: u64,
    /// A byte for each: whether what is added runs for it, where others take another branch or have ended their loop.
    mask: Cell<Option<Operand>>,
}

/// Axes behind one more.
fn behind(axes: &[usize]) -> Axes {
    axes.iter().map(|axis| axis + 1).collect()
}

/// Axes behind the one in front, and that one.
fn with_front(axes: &[usize]) -> Axes {
    [0].into_iter().chain(axes.iter().map(|axis| axis + 1)).collect()
}

/// As items of all axes, one for the axis in front.
fn before<T: Clone>(first: T, items: &[T]) -> SmallVec<[T; 6]> {
    [first].into_iter().chain(items.iter().cloned()).collect()
}

fn unsupported<T>(op: &Op, needs: &str) -> Result<T> {
    Err(Error::Unsupported { op: op.name().to_string(), dtype: None, needs: needs.to_string() })
}

impl Batch {
    fn new(count: u64, first: First) -> Batch {
        Batch { b: Builder::new(), count, first, end: count, mask: Cell::new(None) }
    }

    /// A program that takes such inputs in the place of its own, for each.
    fn finish(self, program: &Program, inputs: &[Value]) -> Result<Program> {
        let outputs = self.append(program, inputs)?;
        let outputs: Vec<Operand> = outputs.iter().map(|&value| self.wide(value)).collect();
        self.b.finish(&outputs)
    }

    fn input(&self, ty: &Type, own: bool) -> Value {
        let ty = if own { self.lead(ty) } else { ty.clone() };
        Value::new(self.b.input(ty.dtype, &ty.shape), own)
    }

    /// The type with the axis in front.
    fn lead(&self, ty: &Type) -> Type {
        Type { dtype: ty.dtype, shape: [self.count].into_iter().chain(ty.shape.iter().copied()).collect() }
    }

    /// The type of a value without that axis.
    fn each(&self, value: Value) -> Type {
        let mut ty = self.b.ty(value.at);
        if value.own && !ty.shape.is_empty() {
            ty.shape.remove(0);
        }
        ty
    }

    /// The value with the axis in front.
    fn wide(&self, value: Value) -> Operand {
        match value.own {
            true => value.at,
            false => self.b.broadcast(value.at, &self.lead(&self.b.ty(value.at)).shape),
        }
    }

    /// The value as an operand of an elementwise op whose result has that rank for each.
    fn aligned(&self, value: Value, rank: usize) -> Operand {
        let shape = self.each(value).shape;
        if !value.own || shape.len() == rank {
            return value.at;
        }
        let ones = std::iter::repeat_n(1, rank.saturating_sub(shape.len()));
        let aligned: Vec<u64> = [self.count].into_iter().chain(ones).chain(shape.iter().copied()).collect();
        self.b.reshape(value.at, &aligned)
    }

    /// Adds a program that takes such inputs in the place of its own. Answers its outputs.
    fn append(&self, program: &Program, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut results: Vec<Value> = Vec::new();
        let find = |results: &[Value], operand: Operand| {
            let found = match operand {
                Operand::Input(i) => inputs.get(i as usize),
                Operand::Result(r) => results.get(r as usize),
            };
            let missing = || Error::InvalidProgram { op: "batched".to_string(), reason: format!("no {operand:?}") };
            found.copied().ok_or_else(missing)
        };
        for instruction in &program.instructions {
            let operands: Vec<Value> =
                instruction.operands.iter().map(|&o| find(&results, o)).collect::<Result<_>>()?;
            results.extend(self.instruction(&instruction.op, &operands, &instruction.outs)?);
        }
        program.outputs.iter().map(|&o| find(&results, o)).collect()
    }

    fn instruction(&self, op: &Op, operands: &[Value], outs: &[Type]) -> Result<Vec<Value>> {
        let is_masked = self.mask.get().is_some() && owns::might_not_end(op);
        if !is_masked && operands.iter().all(|value| !value.own) {
            let operands: Vec<Operand> = operands.iter().map(|value| value.at).collect();
            let results = self.b.push_all(op.clone(), &operands, outs);
            return Ok(results.into_iter().map(|at| Value::new(at, false)).collect());
        }
        match op {
            Op::While(op) => return self.while_loop(op, operands),
            Op::Cond(op) => return self.cond(op, operands, outs),
            Op::Matrix(op) => return Ok(self.matrix(op, operands, outs)),
            Op::Order(Order::TopK(_)) => {
                let outs: Vec<Type> = outs.iter().map(|out| self.lead(out)).collect();
                let results = self.b.push_all(op.clone(), &[operands[0].at], &outs);
                return Ok(results.into_iter().map(Value::own).collect());
            }
            _ => {}
        }
        let [out] = outs else { return unsupported(op, "one result") };
        if let Some(row) = self.row(op, operands, out) {
            return Ok(vec![Value::own(row)]);
        }
        let at = self.one(op, operands, out)?;
        Ok(vec![Value { at, own: true, is_number: self.is_number(op, operands, out) }])
    }

    /// An op of one result, of which something is each one's own.
    fn one(&self, op: &Op, operands: &[Value], out: &Type) -> Result<Operand> {
        let all = self.lead(out);
        let wides = || -> Vec<Operand> { operands.iter().map(|&value| self.wide(value)).collect() };
        let push = |op: Op, operands: &[Operand]| Ok(self.b.push(op, operands, &all));
        match op {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => {
                let aligned: Vec<Operand> =
                    operands.iter().map(|&value| self.aligned(value, out.shape.len())).collect();
                push(op.clone(), &aligned)
            }
            Op::Bitcast | Op::Reshape | Op::Squeeze => {
                let op = if matches!(op, Op::Bitcast) { Op::Bitcast } else { Op::Reshape };
                push(op, &[operands[0].at])
            }
            // It has no operands.
            Op::Constant(_) | Op::Iota { .. } | Op::Eye => unsupported(op, "operands"),
            Op::After => {
                let waited: Vec<Operand> = operands.iter().skip(1).map(|value| value.at).collect();
                push(Op::After, &[&[self.wide(operands[0])], &waited[..]].concat())
            }
            Op::Broadcast { axes } => push(Op::Broadcast { axes: with_front(axes) }, &[operands[0].at]),
            Op::Transpose { axes } => push(Op::Transpose { axes: with_front(axes) }, &[operands[0].at]),
            Op::Slice { starts, strides, lengths } => Ok(self.slice(starts, [strides, lengths], operands)),
            Op::PutSlice { starts } => Ok(self.put_slice(starts, operands, out)),
            Op::Concatenate { axis } => push(Op::Concatenate { axis: axis + 1 }, &wides()),
            Op::Stack { axis } => push(Op::Stack { axis: axis + 1 }, &wides()),
            Op::Reduce { reduction, axes, tie_high } => {
                let op = Op::Reduce { reduction: *reduction, axes: behind(axes), tie_high: *tie_high };
                push(op, &[operands[0].at])
            }
            Op::AllClose { equal_nan, rtol, atol } => {
                let [a, b] = [self.each(operands[0]), self.each(operands[1])];
                let steps = steps_of_all_close([&a, &b], *equal_nan, [*rtol, *atol])?;
                let found = self.append(&steps, operands)?;
                found.first().map_or_else(|| unsupported(op, "a result"), |&value| Ok(self.wide(value)))
            }
            Op::Moved(Moved::Reverse(Reverse { axes })) => {
                push(Reverse { axes: behind(axes) }.into(), &[operands[0].at])
            }
            Op::Moved(Moved::Pad(pad)) => Ok(self.pad(pad, [operands[0], operands[1]], out)),
            Op::Order(op) => self.order(op, operands, out),
            Op::Indexing(op) => Ok(match op {
                Indexing::Gather(op) => self.gather(&op.axes, [operands[0], operands[1]], out),
                Indexing::Take(op) => self.take(op.axis, [operands[0], operands[1]], out),
                Indexing::TakeAlongAxis(op) => self.take_along_axis(op.axis, &wides(), out),
                Indexing::IndexedAdd(add) => self.update(op, &add.axes, operands, out),
                Indexing::IndexedPut(put) => self.update(op, &put.axes, operands, out),
            }),
            Op::Windowed(windowed) => self.windowed(op, windowed, operands, &all),
            Op::Spectral(Spectral::Fft(fft)) => {
                push(Fft { axis: fft.axis + 1, ..fft.clone() }.into(), &[operands[0].at])
            }
            Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
                Ok(self.dot([contract_a, contract_b], [batch_a, batch_b], [operands[0], operands[1]], out))
            }
            Op::Conv(_) => unsupported(op, "images and kernels that all share"),
            Op::Fold { axes, function } => {
                if operands[1..].iter().any(|value| value.own) {
                    return unsupported(op, "an initial value and captured values that all share");
                }
                let rest: Vec<Operand> = operands[1..].iter().map(|value| value.at).collect();
                let op = Op::Fold { axes: behind(axes), function: function.clone() };
                push(op, &[&[operands[0].at], &rest[..]].concat())
            }
            // They have been taken before.
            Op::Matrix(_) | Op::While(_) | Op::Cond(_) => unsupported(op, "one result"),
            Op::Fused(_) | Op::Workgroup(_) => unsupported(op, "a program before passes"),
        }
    }

    fn order(&self, op: &Order, operands: &[Value], out: &Type) -> Result<Operand> {
        let all = self.lead(out);
        let op: Op = match op {
            Order::Scan(op) => Scan { axis: op.axis + 1, ..op.clone() }.into(),
            Order::Sort(op) => Sort { axis: op.axis + 1, ..op.clone() }.into(),
            Order::Argsort(op) => Argsort { axis: op.axis + 1, ..op.clone() }.into(),
            Order::TopK(op) => return unsupported(&op.clone().into(), "two results"),
            Order::Searchsorted(op) => return Ok(self.searchsorted(op, [operands[0], operands[1]], out)),
        };
        Ok(self.b.push(op, &[operands[0].at], &all))
    }

    /// One sorted row for all values is one for those of each.
    fn searchsorted(&self, op: &Searchsorted, [sorted, values]: [Value; 2], out: &Type) -> Operand {
        let all = self.lead(out);
        let is_row = self.each(sorted).shape.len() == 1;
        if is_row && !sorted.own {
            return self.b.push(op.clone().into(), &[sorted.at, values.at], &all);
        }
        let (sorted, values) = (self.wide(sorted), self.wide(values));
        if !is_row {
            return self.b.push(op.clone().into(), &[sorted, values], &all);
        }
        let flat = [self.count, out.elements()];
        let values = self.b.reshape(values, &flat);
        let places = self.b.push(op.clone().into(), &[sorted, values], &Type::new(out.dtype, &flat));
        self.b.reshape(places, &all.shape)
    }

    /// With a value of its own, what is around is chosen.
    fn pad(&self, pad: &Pad, [a, value]: [Value; 2], out: &Type) -> Operand {
        let all = self.lead(out);
        let config = before((0, 0, 0), &pad.config);
        let padded = |a, around, ty: &Type| self.b.push(Pad { config: config.clone() }.into(), &[a, around], ty);
        let a = self.wide(a);
        if !value.own {
            return padded(a, value.at, &all);
        }
        let shape = self.b.ty(a).shape;
        let inside = self.b.broadcast(self.b.number(DType::U8, 1.0), &shape);
        let inside =
            padded(inside, self.b.number(DType::U8, 0.0), &Type { dtype: DType::U8, shape: all.shape.clone() });
        let around = self.b.constant(self.b.ty(a).dtype, Scalar::Int(0));
        let padded = padded(a, around, &all);
        self.b.push(Op::Select, &[inside, padded, self.aligned(value, out.shape.len())], &all)
    }

    fn windowed(&self, op: &Op, windowed: &Windowed, operands: &[Value], all: &Type) -> Result<Operand> {
        let led = |windows: &Windows| Windows {
            sizes: before(1, &windows.sizes),
            padding: before((0, 0), &windows.padding),
            strides: before(1, &windows.strides),
            dilations: before(1, &windows.dilations),
        };
        let wide = |range: std::ops::Range<usize>| -> Vec<Operand> {
            operands[range].iter().map(|&value| self.wide(value)).collect()
        };
        let shared = |from: usize| -> Result<Vec<Operand>> {
            match operands[from..].iter().all(|value| !value.own) {
                true => Ok(operands[from..].iter().map(|value| value.at).collect()),
                false => unsupported(op, "an initial value and captured values that all share"),
            }
        };
        let (op, operands): (Op, Vec<Operand>) = match windowed {
            Windowed::Window(op) => (Window { windows: led(&op.windows), ..op.clone() }.into(), wide(0..1)),
            Windowed::WindowFold(op) => {
                (WindowFold { windows: led(&op.windows), ..op.clone() }.into(), [wide(0..1), shared(1)?].concat())
            }
            Windowed::WindowScatter(op) => {
                (WindowScatter { windows: led(&op.windows), ..op.clone() }.into(), [wide(0..2), shared(2)?].concat())
            }
        };
        Ok(self.b.push(op, &operands, all))
    }

    /// A system's flag is one for all.
    fn matrix(&self, op: &Matrix, operands: &[Value], outs: &[Type]) -> Vec<Value> {
        let op = Op::from(op.clone());
        let flag = |i: usize| owns::is_flag(&op, i);
        let lead = |(i, out): (usize, &Type)| if flag(i) { out.clone() } else { self.lead(out) };
        let outs: Vec<Type> = outs.iter().enumerate().map(lead).collect();
        let operands: Vec<Operand> = operands.iter().map(|&value| self.wide(value)).collect();
        let results = self.b.push_all(op.clone(), &operands, &outs);
        results.into_iter().enumerate().map(|(i, at)| Value::new(at, !flag(i))).collect()
    }

    /// Where one operand is shared, and has no batches, the axis in front is a free one of the other.
    fn dot(&self, contract: [&Axes; 2], batch: [&Axes; 2], [a, b]: [Value; 2], out: &Type) -> Operand {
        let all = self.lead(out);
        let product = |[a, b]: [Operand; 2], contract: [Axes; 2], batch: [Axes; 2], out: &Type| {
            let ([contract_a, contract_b], [batch_a, batch_b]) = (contract, batch);
            self.b.push(Op::Dot { contract_a, batch_a, contract_b, batch_b }, &[a, b], out)
        };
        let [contract_a, contract_b] = contract;
        if (a.own && b.own) || !batch[0].is_empty() {
            let both = [self.wide(a), self.wide(b)];
            return product(both, contract.map(|axes| behind(axes)), batch.map(|axes| with_front(axes)), &all);
        }
        let none = || [smallvec![], smallvec![]];
        if a.own {
            return product([a.at, b.at], [behind(contract_a), contract_b.clone()], none(), &all);
        }
        // The axis in front comes first only of the first operand.
        let free_a = self.each(a).shape.len() - contract_a.len();
        let free_b = self.each(b).shape.len() - contract_b.len();
        let turned: SmallVec<[usize; 6]> =
            [0].into_iter().chain(1 + free_b..1 + free_b + free_a).chain(1..1 + free_b).collect();
        let mut shape = all.shape.clone();
        for (&from, &size) in turned.iter().zip(&all.shape) {
            shape[from] = size;
        }
        let out = Type { dtype: all.dtype, shape };
        let result = product([b.at, a.at], [behind(contract_b), contract_a.clone()], none(), &out);
        if free_a == 0 || free_b == 0 { result } else { self.b.transpose(result, &turned) }
    }
}

//! A program for many rows at once: each value that differs from row to row has a first axis more.

use smallvec::{SmallVec, smallvec};

use super::super::rewrite::Rewriter;
use super::varying;
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::index::Indexing;
use crate::program::{Binary, Branches, Instruction, Loop, Op, Operand, Program, Reduction};
use crate::shape::Dims;
use crate::{DType, Result, Type};

/// A value of the old program in the new one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// The same for all rows.
    Same(Operand),
    /// One for each row, along the first axis.
    Rows(Operand),
    /// The numbers of the rows, which count from [`Batch::first`] on.
    Index(Operand),
}

impl Value {
    pub fn varies(self) -> bool {
        matches!(self, Value::Rows(_) | Value::Index(_))
    }

    pub fn operand(self) -> Operand {
        match self {
            Value::Same(operand) | Value::Rows(operand) | Value::Index(operand) => operand,
        }
    }
}

/// Values of an instruction, or of a program.
pub(super) type Values = SmallVec<[Value; 3]>;

/// Where the rows begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum First {
    Number(i64),
    /// A scalar of the program that is built.
    Operand(Operand),
}

/// The program that is built, for so many rows.
pub(super) struct Batch<'a> {
    pub new: &'a mut Rewriter,
    pub rows: u64,
    pub first: First,
    /// Which rows are to run, a bit each: what the others compute is of no use, but must end.
    pub mask: Option<Operand>,
}

pub(super) fn bit(shape: &[u64]) -> Type {
    Type::new(DType::U8, shape)
}

impl Batch<'_> {
    /// The type of a value that has one for each row.
    pub fn of_rows(&self, ty: &Type) -> Type {
        Type { dtype: ty.dtype, shape: std::iter::once(self.rows).chain(ty.shape.iter().copied()).collect() }
    }

    /// The value with one for each row.
    pub fn spread(&mut self, value: Value, ty: &Type) -> Operand {
        match value {
            Value::Rows(operand) | Value::Index(operand) => operand,
            Value::Same(operand) => {
                let axes = (1..=ty.shape.len()).collect();
                self.new.push_one(Op::Broadcast { axes }, &[operand], &self.of_rows(ty))
            }
        }
    }

    pub fn reshape(&mut self, operand: Operand, shape: &[u64]) -> Result<Operand> {
        let ty = Type::new(self.new.ty(operand)?.dtype, shape);
        Ok(if *self.new.ty(operand)? == ty { operand } else { self.new.push_one(Op::Reshape, &[operand], &ty) })
    }

    pub fn cast(&mut self, operand: Operand, dtype: DType) -> Result<Operand> {
        let ty = Type { dtype, ..self.new.ty(operand)?.clone() };
        Ok(if *self.new.ty(operand)? == ty { operand } else { self.new.push_one(Op::AsType, &[operand], &ty) })
    }

    pub fn transpose(&mut self, operand: Operand, axes: Axes) -> Result<Operand> {
        if axes.iter().copied().eq(0..axes.len()) {
            return Ok(operand);
        }
        let ty = self.new.ty(operand)?;
        let ty = Type { dtype: ty.dtype, shape: axes.iter().map(|&axis| ty.shape[axis]).collect() };
        Ok(self.new.push_one(Op::Transpose { axes }, &[operand], &ty))
    }

    /// For each row `on_true` where its bit of the mask is set, else `on_false`.
    pub fn choose(&mut self, mask: Operand, [on_true, on_false]: [Operand; 2], ty: &Type) -> Result<Operand> {
        // What is put into what both are made of is put nowhere instead where it does not count.
        let [puts, others] = [on_true, on_false].map(|value| self.puts_into(value, ty));
        let common = puts.iter().position(|(base, _)| others.iter().any(|(other, _)| other == base));
        if let Some(at) = common {
            let mut value = puts[at].0;
            for (_, put) in puts[..=at].iter().rev() {
                value = self.put_where(put.as_ref(), value, mask)?;
            }
            let end = others.iter().position(|(base, _)| *base == puts[at].0).unwrap_or(0);
            let fails = if end > 0 { self.not(mask) } else { mask };
            for (_, put) in others[..=end].iter().rev() {
                value = self.put_where(put.as_ref(), value, fails)?;
            }
            return Ok(value);
        }
        let shape: Dims = std::iter::once(self.rows).chain(ty.shape.iter().map(|_| 1)).collect();
        let mask = self.reshape(mask, &shape)?;
        Ok(self.new.push_one(Op::Select, &[mask, on_true, on_false], &self.of_rows(ty)))
    }

    /// The value, what it is where what was put last into rows of this type is not put, and so on, each with what puts
    /// into it.
    fn puts_into(&self, value: Operand, ty: &Type) -> SmallVec<[(Operand, Option<Instruction>); 3]> {
        let mut found: SmallVec<[(Operand, Option<Instruction>); 3]> = smallvec![(value, None)];
        let mut value = value;
        while let Some(put) = self.new.maker(value)
            && matches!(put.op, Op::Indexing(Indexing::IndexedPut(_)))
            && let Some(&base) = put.operands.first()
            && self.new.ty(base).is_ok_and(|base| *base == self.of_rows(ty) && *base == put.outs[0])
        {
            found.push((base, Some(put.clone())));
            value = base;
        }
        found
    }

    /// The same put into `base`, in rows whose bit is set: others have indices that are out of bounds.
    fn put_where(&mut self, put: Option<&Instruction>, base: Operand, mask: Operand) -> Result<Operand> {
        let Some(Instruction { op, operands, outs }) = put else { return Ok(base) };
        let &[_, indices, updates] = &operands[..] else { return Ok(base) };
        let ty = self.new.ty(indices)?.clone();
        let shape: Dims = ty.shape.iter().enumerate().map(|(axis, &size)| if axis == 0 { size } else { 1 }).collect();
        let mask = self.reshape(mask, &shape)?;
        let nowhere = self.new.push_one(Op::Constant(Scalar::Int(-1)), &[], &Type::new(ty.dtype, &[]));
        let indices = self.new.push_one(Op::Select, &[mask, indices, nowhere], &ty);
        Ok(self.new.push_one(op.clone(), &[base, indices, updates], &outs[0]))
    }

    fn not(&mut self, mask: Operand) -> Operand {
        let zero = self.new.push_one(Op::Constant(Scalar::Int(0)), &[], &bit(&[]));
        self.new.push_one(Op::Binary(Binary::Equal), &[mask, zero], &bit(&[self.rows]))
    }

    fn and(&mut self, a: Operand, b: Option<Operand>) -> Operand {
        match b {
            Some(b) => self.new.push_one(Op::Binary(Binary::LogicalAnd), &[a, b], &bit(&[self.rows])),
            None => a,
        }
    }

    /// A scalar that differs from row to row, as bits.
    fn bits(&mut self, value: Value, ty: &Type) -> Result<Option<Operand>> {
        if ty.elements() != 1 || !ty.dtype.is_integer() {
            return Ok(None);
        }
        let operand = self.spread(value, ty);
        let numbers = self.reshape(operand, &[self.rows])?;
        if ty.dtype == DType::U8 {
            return Ok(Some(numbers));
        }
        let zero = self.new.push_one(Op::Constant(Scalar::Int(0)), &[], &Type::new(ty.dtype, &[]));
        Ok(Some(self.new.push_one(Op::Binary(Binary::NotEqual), &[numbers, zero], &bit(&[self.rows]))))
    }

    /// Adds a program's instructions. Answers its outputs; `None` where it has what can't be done for many rows.
    pub fn program(&mut self, program: &Program, inputs: &[Value]) -> Result<Option<Values>> {
        let type_of = program.types();
        let mut results: Vec<Value> = Vec::new();
        let find = |results: &[Value], operand: Operand| match operand {
            Operand::Input(i) => inputs.get(i as usize).copied(),
            Operand::Result(r) => results.get(r as usize).copied(),
        };
        for instruction in &program.instructions {
            let operands: Option<Values> = instruction.operands.iter().map(|&o| find(&results, o)).collect();
            let types: Option<Vec<&Type>> = instruction.operands.iter().map(|&o| type_of(o)).collect();
            let (Some(operands), Some(types)) = (operands, types) else { return Ok(None) };
            let Some(values) = self.instruction(instruction, &operands, &types)? else { return Ok(None) };
            results.extend(values);
        }
        Ok(program.outputs.iter().map(|&output| find(&results, output)).collect())
    }

    fn instruction(&mut self, old: &Instruction, operands: &[Value], types: &[&Type]) -> Result<Option<Values>> {
        match &old.op {
            Op::While(op) => self.repeat(op, operands, &old.outs),
            Op::Cond(op) => self.choice(op, operands, types, &old.outs),
            _ if !operands.iter().any(|value| value.varies()) => Ok(Some(self.unchanged(old, operands))),
            _ => self.op(old, operands, types),
        }
    }

    /// The instruction as it is, the same for all rows.
    pub fn unchanged(&mut self, old: &Instruction, operands: &[Value]) -> Values {
        let operands = operands.iter().map(|value| value.operand()).collect();
        self.made(Instruction { operands, ..old.clone() }, Value::Same)
    }

    fn made(&mut self, instruction: Instruction, value: impl Fn(Operand) -> Value) -> Values {
        let count = instruction.outs.len() as u32;
        let Operand::Result(first) = self.new.push(instruction) else { return Values::new() };
        (first..first + count).map(|r| value(Operand::Result(r))).collect()
    }

    /// Adds an instruction whose results have a first axis more.
    pub fn push_rows(&mut self, op: Op, operands: &[Operand], outs: &[Type]) -> Values {
        let outs = outs.iter().map(|ty| self.of_rows(ty)).collect();
        self.made(Instruction { op, operands: operands.into(), outs }, Value::Rows)
    }

    /// A program of its own for the same rows, such as that of a loop. Its inputs are like `inputs`, and with an input
    /// more, which says which rows run, before input `mask`. `end` makes its outputs.
    fn inner(
        &self,
        program: &Program,
        inputs: &[Value],
        mask: Option<u32>,
        end: impl FnOnce(&mut Batch<'_>, &[Value], Values) -> Result<Option<Vec<Operand>>>,
    ) -> Result<Option<Program>> {
        let mut types = Vec::with_capacity(inputs.len() + 1);
        for (value, ty) in inputs.iter().zip(&program.inputs) {
            types.push(if value.varies() { self.of_rows(ty) } else { ty.clone() });
        }
        let moved = |i: usize| Operand::Input(i as u32 + u32::from(mask.is_some_and(|mask| i as u32 >= mask)));
        let own = |(i, value): (usize, &Value)| match value.varies() {
            true => Value::Rows(moved(i)),
            false => Value::Same(moved(i)),
        };
        let own: Values = inputs.iter().enumerate().map(own).collect();
        if let Some(mask) = mask {
            types.insert(mask as usize, bit(&[self.rows]));
        }
        let mut new = Rewriter::new(&Program { inputs: types, ..Program::default() });
        let mask = mask.map(Operand::Input);
        let mut batch = Batch { new: &mut new, rows: self.rows, first: First::Number(0), mask };
        let Some(outputs) = batch.program(program, &own)? else { return Ok(None) };
        let Some(outputs) = end(&mut batch, &own, outputs)? else { return Ok(None) };
        Ok(Some(new.finish_with(outputs)))
    }

    /// A loop in each row: all go on as long as one does, and those that have ended keep their state.
    fn repeat(&mut self, op: &Loop, operands: &[Value], outs: &[Type]) -> Result<Option<Values>> {
        let states = outs.len();
        let differing: Vec<bool> = operands.iter().map(|value| value.varies()).collect();
        let (varies, ends_apart) = varying::states(op, &differing);
        // A loop may go on for ever where no row was to run it.
        let is_masked = ends_apart || self.mask.is_some() && op.known_trips().is_none();
        let is_kept = |k: usize| op.body.outputs.get(k) == Some(&Operand::Input(k as u32));
        let varies = |k: usize| varies[k] || k < states && is_masked && !is_kept(k);
        let mut start: Values = Values::new();
        for (k, &value) in operands.iter().enumerate() {
            let differs = varies(k) && !value.varies();
            start.push(match (differs, outs.get(k)) {
                (true, Some(ty)) => Value::Rows(self.spread(value, ty)),
                _ => value,
            });
        }
        let [Some(condition_type)] =
            &op.condition.outputs.iter().map(|&o| op.condition.type_of(o)).collect::<Vec<_>>()[..]
        else {
            return Ok(None);
        };
        let place = is_masked.then_some(states as u32);
        let condition = match place {
            Some(mask) => {
                let inputs = Program { inputs: op.condition.inputs.clone(), ..Program::default() };
                self.inner(&inputs, &start, place, |batch, _, _| {
                    let op = Op::Reduce { reduction: Reduction::Any, axes: smallvec![0], tie_high: false };
                    Ok(Some(vec![batch.new.push_one(op, &[Operand::Input(mask)], &bit(&[]))]))
                })?
            }
            None => self.inner(&op.condition, &start, None, |_, _, outputs| {
                Ok(Some(outputs.iter().map(|value| value.operand()).collect()))
            })?,
        };
        let body = self.inner(&op.body, &start, place, |batch, before, next| {
            let mut outputs = Vec::with_capacity(states + 1);
            for (k, (&next, ty)) in next.iter().zip(outs).enumerate() {
                outputs.push(match (varies(k), batch.mask) {
                    (false, _) => next.operand(),
                    (true, Some(mask)) if is_masked && !is_kept(k) => {
                        let next = batch.spread(next, ty);
                        batch.choose(mask, [next, before[k].operand()], ty)?
                    }
                    (true, _) => batch.spread(next, ty),
                });
            }
            if let Some(mask) = batch.mask.filter(|_| is_masked) {
                let state: Values = (0..before.len())
                    .map(|k| match outputs.get(k) {
                        Some(&next) if varies(k) => Value::Rows(next),
                        Some(&next) => Value::Same(next),
                        None => before[k],
                    })
                    .collect();
                let Some(holds) = batch.program(&op.condition, &state)? else { return Ok(None) };
                let Some(holds) = batch.bits(holds[0], condition_type)? else { return Ok(None) };
                outputs.push(batch.and(holds, Some(mask)));
            }
            Ok(Some(outputs))
        })?;
        let (Some(condition), Some(body)) = (condition, body) else { return Ok(None) };
        let mut new_operands: SmallVec<[Operand; 3]> = start.iter().map(|value| value.operand()).collect();
        let own = |batch: &Self, k: usize| if varies(k) { batch.of_rows(&outs[k]) } else { outs[k].clone() };
        let mut new_outs: SmallVec<[Type; 1]> = (0..states).map(|k| own(self, k)).collect();
        if is_masked {
            let Some(holds) = self.program(&op.condition, &start)? else { return Ok(None) };
            let Some(holds) = self.bits(holds[0], condition_type)? else { return Ok(None) };
            let going = self.and(holds, self.mask);
            new_operands.insert(states, going);
            new_outs.push(bit(&[self.rows]));
        }
        let trips = op.trips.filter(|_| !is_masked);
        let op = Op::While(Box::new(Loop { condition, body, trips }));
        let made = self.made(Instruction { op, operands: new_operands, outs: new_outs }, Value::Rows);
        let value = |(k, value): (usize, Value)| if varies(k) { value } else { Value::Same(value.operand()) };
        Ok(Some(made.into_iter().take(states).enumerate().map(value).collect()))
    }

    /// Branches: one of them where all rows take the same, else both.
    fn choice(&mut self, op: &Branches, operands: &[Value], types: &[&Type], outs: &[Type]) -> Result<Option<Values>> {
        let ([predicate, captured @ ..], [predicate_type, ..]) = (operands, types) else { return Ok(None) };
        if !predicate.varies() {
            return self.common_choice(op, operands, outs);
        }
        let Some(holds) = self.bits(*predicate, predicate_type)? else { return Ok(None) };
        let fails = self.not(holds);
        let outer = self.mask;
        let mut results = [None, None];
        for (result, (program, taken)) in results.iter_mut().zip([(&op.on_true, holds), (&op.on_false, fails)]) {
            self.mask = Some(self.and(taken, outer));
            *result = self.program(program, captured)?;
            self.mask = outer;
        }
        let [Some(on_true), Some(on_false)] = results else { return Ok(None) };
        let mut chosen = Values::new();
        for ((&a, &b), ty) in on_true.iter().zip(&on_false).zip(outs) {
            chosen.push(match a == b {
                true => a,
                false => {
                    let pair = [self.spread(a, ty), self.spread(b, ty)];
                    Value::Rows(self.choose(holds, pair, ty)?)
                }
            });
        }
        Ok(Some(chosen))
    }

    /// Branches of which all rows take the same.
    fn common_choice(&mut self, op: &Branches, operands: &[Value], outs: &[Type]) -> Result<Option<Values>> {
        let captured = &operands[1..];
        // What is masked here is masked in the branches, too.
        let mut inputs: Values = captured.into();
        let place = self.mask.map(|mask| {
            inputs.push(Value::Rows(mask));
            captured.len() as u32
        });
        let differing: Vec<bool> = captured.iter().map(|value| value.varies()).collect();
        let varies = [&op.on_true, &op.on_false].map(|branch| varying::outputs(branch, &differing));
        // A loop that is masked makes rows of what it changes.
        let varies = |k: usize| varies[0][k] || varies[1][k] || self.mask.is_some();
        let branch = |program: &Program| {
            self.inner(program, captured, place, |batch, _, outputs| {
                let result = |(k, (value, ty)): (usize, (&Value, &Type))| match varies(k) {
                    true => batch.spread(*value, ty),
                    false => value.operand(),
                };
                Ok(Some(outputs.iter().zip(outs).enumerate().map(result).collect()))
            })
        };
        let (Some(on_true), Some(on_false)) = (branch(&op.on_true)?, branch(&op.on_false)?) else { return Ok(None) };
        let new_outs = outs.iter().enumerate().map(|(k, ty)| if varies(k) { self.of_rows(ty) } else { ty.clone() });
        let new_outs: SmallVec<[Type; 1]> = new_outs.collect();
        let values: SmallVec<[bool; 4]> = (0..outs.len()).map(varies).collect();
        let operands = std::iter::once(operands[0]).chain(inputs).map(|value| value.operand()).collect();
        let op = Op::Cond(Box::new(Branches { on_true, on_false }));
        let made = self.made(Instruction { op, operands, outs: new_outs }, Value::Rows);
        let value = |(value, varies): (Value, bool)| if varies { value } else { Value::Same(value.operand()) };
        Ok(Some(made.into_iter().zip(values).map(value).collect()))
    }
}

//! Runs the iterations of a loop side by side where each of them makes a row of its own of what the loop gives, and
//! reads no row of another: Nx's loops over vectorized tensors, and searches that are written row by row.

use smallvec::SmallVec;

use super::rewrite::{Operands, Rewriter, readers};
use super::target::Target;
use crate::program::attribute::Scalar;
use crate::program::counted::{Counted, Trips, whole_number};
use crate::program::ops::index::{IndexedPut, Indexing, Take};
use crate::program::{Binary, Instruction, Loop, Op, Operand, Program, batched};
use crate::shape::Dims;
use crate::{DType, Error, Result, Type};

/// Rows side by side, at least, that are worth it where a loop has so many.
const MIN_ROWS: u64 = 8;

pub fn run(program: &Program, target: &Target) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        for program in instruction.op.inside_mut() {
            *program = run(program, target)?;
        }
        match mapped(&mut new, &instruction, target)? {
            Some(states) => states.into_iter().for_each(|state| new.moved(state)),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// What the iterations of a loop make of a state.
#[derive(Debug, Clone, PartialEq)]
enum State {
    Counter,
    Kept,
    /// The row of the iteration's number becomes a value of the body, from these places along the other axes on.
    Row {
        value: Operand,
        starts: SmallVec<[i64; 6]>,
    },
}

/// A loop whose iterations do not read what others of them make.
struct Map {
    body: Program,
    /// Of the loop, in the new program.
    operands: Operands,
    states: Vec<State>,
    counter: u32,
    first: i64,
    rows: u64,
}

fn mapped(new: &mut Rewriter, instruction: &Instruction, target: &Target) -> Result<Option<Vec<Operand>>> {
    let Op::While(op) = &instruction.op else { return Ok(None) };
    let number = |k: u32| whole_number(new.constant(*instruction.operands.get(k as usize)?)?);
    let Some(counted) = Counted::of(op, number).filter(|counted| counted.step() == 1) else { return Ok(None) };
    let (Some(first), Some(rows)) = (number(counted.start), counted.known(number)) else { return Ok(None) };
    if rows < 2 || target.mapped_bytes == 0 {
        return Ok(None);
    }
    let Some(mut map) = Map::of(op, instruction, counted.start, first, rows)? else { return Ok(None) };
    map.with_equal_rows(new)?;
    let most = (target.mapped_bytes / map.row_bytes()).min(rows);
    if most < MIN_ROWS.min(rows) {
        return Ok(None);
    }
    map.side_by_side(new, instruction, most)
}

/// The program without what passes through its loops and branches unchanged.
fn without_kept(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        for program in instruction.op.inside_mut() {
            *program = without_kept(program)?;
        }
        let kept = |k: usize| match &instruction.op {
            Op::While(op) => (op.body.outputs.get(k) == Some(&Operand::Input(k as u32))).then_some(k),
            Op::Cond(op) => match (op.on_true.outputs.get(k), op.on_false.outputs.get(k)) {
                (Some(Operand::Input(a)), Some(Operand::Input(b))) if a == b => Some(*a as usize + 1),
                _ => None,
            },
            _ => None,
        };
        let kept: SmallVec<[Option<Operand>; 4]> =
            (0..old.outs.len()).map(|k| kept(k).and_then(|k| instruction.operands.get(k).copied())).collect();
        let made = new.push(instruction);
        let Operand::Result(made) = made else { continue };
        for (k, kept) in kept.into_iter().enumerate() {
            new.moved(kept.unwrap_or(Operand::Result(made + k as u32)));
        }
    }
    new.finish(program)
}

/// Whether an operand of a body is the number of the iteration.
fn is_counter(body: &Program, mut operand: Operand, counter: u32) -> bool {
    let (type_of, maker) = (body.types(), body.makers());
    loop {
        if operand == Operand::Input(counter) {
            return true;
        }
        let Some(Instruction { op, operands, outs }) = maker(operand).map(|at| &body.instructions[at]) else {
            return false;
        };
        let Some(from) = operands.first().and_then(|&from| type_of(from)) else { return false };
        let is_index = outs[0].elements() == 1 && from.elements() == 1;
        let holds = from.dtype.is_integer() && outs[0].dtype.is_integer() && outs[0].dtype.bits() >= 32;
        if !(is_index && (matches!(op, Op::Reshape | Op::Squeeze) || matches!(op, Op::AsType) && holds)) {
            return false;
        }
        operand = operands[0];
    }
}

/// Whether an instruction reads the row of the iteration's number of its first operand, and nothing else of it.
fn reads_row(body: &Program, instruction: &Instruction, counter: u32) -> bool {
    let [whole, index] = instruction.operands[..] else { return false };
    let Some(ty) = body.type_of(whole) else { return false };
    let is_row = match &instruction.op {
        Op::Indexing(Indexing::Take(Take { axis: 0 })) => {
            body.type_of(index).is_some_and(|index| index.elements() == 1)
        }
        Op::Slice { starts, lengths, .. } => {
            starts[0].is_none() && lengths[0] == 1 && lengths[1..] == ty.shape[1..] && {
                instruction.outs[0].elements() * ty.shape[0] == ty.elements()
            }
        }
        _ => false,
    };
    is_row && index != whole && is_counter(body, index, counter)
}

/// The number behind the last of so many rows from one on, which is not negative.
fn end(first: i64, rows: u64) -> u64 {
    first.unsigned_abs().saturating_add(rows)
}

/// Whether a value is the row of the iteration's number of an input, as it is.
fn is_row_of(body: &Program, mut value: Operand, input: Operand, counter: u32) -> bool {
    let maker = body.makers();
    while let Some(instruction) = maker(value).map(|at| &body.instructions[at]) {
        match &instruction.op {
            Op::Reshape | Op::Squeeze => value = instruction.operands[0],
            _ => return instruction.operands[0] == input && reads_row(body, instruction, counter),
        }
    }
    false
}

impl Map {
    fn of(op: &Loop, instruction: &Instruction, counter: u32, first: i64, rows: u64) -> Result<Option<Map>> {
        let mut body = without_kept(&op.body)?;
        let outs = &instruction.outs;
        let is_index = outs.get(counter as usize).is_some_and(|ty| ty.shape.is_empty() && ty.dtype.is_integer());
        if !is_index || first < 0 {
            return Ok(None);
        }
        // A row that is put where it was read changes nothing.
        let end = end(first, rows);
        for (k, ty) in outs.iter().enumerate() {
            let own = Operand::Input(k as u32);
            if let Some(State::Row { value, .. }) = row_of(&body, k, counter, ty, end)
                && is_row_of(&body, value, own, counter)
            {
                body.outputs[k] = own;
            }
        }
        let body = super::dce::run(&body)?;
        let state = |(k, ty): (usize, &Type)| match body.outputs[k] == Operand::Input(k as u32) {
            _ if k as u32 == counter => Some(State::Counter),
            true => Some(State::Kept),
            false => row_of(&body, k, counter, ty, end),
        };
        let Some(states) = outs.iter().enumerate().map(state).collect::<Option<Vec<State>>>() else { return Ok(None) };
        let map = Map { body, operands: instruction.operands.clone(), states, counter, first, rows };
        let makes_rows = map.states.iter().any(|state| matches!(state, State::Row { .. }));
        Ok((makes_rows && map.is_independent()).then_some(map))
    }

    /// Whether iterations read no other row of what they make than their own, as it was before the loop.
    fn is_independent(&self) -> bool {
        let readers = readers(&self.body);
        let at_end = self.body.instructions.len();
        let results = super::rewrite::results(&self.body);
        self.states.iter().enumerate().all(|(k, state)| {
            let own = Operand::Input(k as u32);
            let reads = readers.get(&own).map_or(&[][..], |readers| readers);
            match state {
                // The next number of the counter is the counter's alone.
                State::Counter => self.body.outputs.iter().filter(|&&o| o == self.body.outputs[k]).count() == 1,
                State::Kept => true,
                State::Row { .. } => {
                    let put = self.body.outputs[k];
                    let is_alone = readers.get(&put).is_some_and(|readers| readers[..] == [at_end]);
                    is_alone
                        && reads.iter().all(|&at| {
                            self.body.instructions.get(at).is_some_and(|reader| {
                                let others = reader.operands.iter().skip(1).all(|&operand| operand != own);
                                let is_put = results[at] == Some(put);
                                others && (is_put || reads_row(&self.body, reader, self.counter))
                            })
                        })
                }
            }
        })
    }

    /// Bytes of the largest value that an iteration makes.
    fn row_bytes(&self) -> u64 {
        let inputs: Vec<bool> = (0..self.body.inputs.len()).map(|k| k as u32 == self.counter).collect();
        let outputs = self.states.iter().enumerate().filter_map(|(k, state)| {
            let ty = self.body.inputs.get(k)?;
            matches!(state, State::Row { .. }).then(|| ty.size_bytes() / ty.shape.first().copied().unwrap_or(1).max(1))
        });
        // What puts rows is made of all of them.
        let puts: Vec<Operand> = self.body.outputs.clone();
        let largest = largest(&self.body, &inputs, &puts);
        outputs.fold(largest, u64::max).max(1)
    }

    /// Adds the loop's work to the new program, `most` rows at a time. Answers the last states.
    fn side_by_side(&self, new: &mut Rewriter, old: &Instruction, most: u64) -> Result<Option<Vec<Operand>>> {
        // Parts of about one size, since each is a program of its own.
        let parts = self.rows.div_ceil(most);
        let rows = self.rows.div_ceil(parts);
        let (whole, rest) = (self.rows / rows, self.rows % rows);
        let mut states: Vec<Operand> = self.operands.to_vec();
        let mut done = 0;
        if whole > 1 {
            let Some(next) = self.in_parts(new, old, rows, whole)? else { return Ok(None) };
            states.splice(..next.len(), next);
            done = whole * rows;
        }
        for rows in [rows * u64::from(whole == 1), rest] {
            if rows > 0 {
                let first = Some(self.first + done as i64);
                let Some(next) = self.rows(new, &states, old, first, rows)? else { return Ok(None) };
                states.splice(..next.len(), next);
                done += rows;
            }
        }
        states.truncate(old.outs.len());
        let counter = self.counter as usize;
        let end = i128::from(self.first) + i128::from(self.rows);
        states[counter] = new.push_one(Op::Constant(Scalar::Int(end)), &[], &old.outs[counter]);
        Ok(Some(states))
    }

    /// A loop over `count` parts of so many rows.
    fn in_parts(&self, new: &mut Rewriter, old: &Instruction, rows: u64, count: u64) -> Result<Option<Vec<Operand>>> {
        let empty = || Program { inputs: self.body.inputs.clone(), ..Program::default() };
        let counter = Operand::Input(self.counter);
        let ty = &old.outs[self.counter as usize];
        let constant = |new: &mut Rewriter, number: i128| new.push_one(Op::Constant(Scalar::Int(number)), &[], ty);
        let mut condition = Rewriter::new(&empty());
        let end = constant(&mut condition, i128::from(self.first) + i128::from(rows * count));
        let below = condition.push_one(Op::Binary(Binary::Less), &[counter, end], &Type::new(DType::U8, &[]));
        let condition = condition.finish_with(vec![below]);
        let mut body = Rewriter::new(&empty());
        let inputs: Vec<Operand> = (0..self.body.inputs.len() as u32).map(Operand::Input).collect();
        let Some(mut next) = self.rows(&mut body, &inputs, old, None, rows)? else { return Ok(None) };
        let step = constant(&mut body, rows.into());
        next[self.counter as usize] = body.push_one(Op::Binary(Binary::Add), &[counter, step], ty);
        let body = body.finish_with(next);
        let op = Op::While(Box::new(Loop { condition, body, trips: Some(Trips::Known(count)) }));
        let operands = self.operands.clone();
        let made = new.push(Instruction { op, operands, outs: old.outs.clone() });
        let Operand::Result(made) = made else { return Ok(None) };
        Ok(Some((made..).take(old.outs.len()).map(Operand::Result).collect()))
    }

    /// Adds the work of so many rows, which begin at that number, or at the counter. Answers the states after it; that
    /// of the counter is no number.
    fn rows(
        &self,
        new: &mut Rewriter,
        inputs: &[Operand],
        old: &Instruction,
        first: Option<i64>,
        count: u64,
    ) -> Result<Option<Vec<Operand>>> {
        // Outputs are the rows, not what has been put.
        let values = self.states.iter().map(|state| match state {
            State::Row { value, .. } => *value,
            State::Counter | State::Kept => Operand::Input(self.counter),
        });
        let values = super::dce::run(&Program { outputs: values.collect(), ..self.body.clone() })?;
        let all = match batched::of_rows(&values, self.counter, first, end(self.first, self.rows), count) {
            Ok(all) => super::dce::run(&all)?,
            Err(Error::Unsupported { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let rows = new.append(&all, inputs);
        let mut next = Vec::with_capacity(self.states.len());
        for (k, state) in self.states.iter().enumerate() {
            let (before, out) = (inputs[k], &old.outs[k]);
            let State::Row { starts, .. } = state else {
                next.push(before);
                continue;
            };
            let ty = new.ty(rows[k])?.clone();
            let each = &ty.shape[1..];
            let lengths =
                if each.len() == out.shape.len() && each.first() == Some(&1) { &each[1..] } else { &out.shape[1..] };
            let shape: Dims = std::iter::once(count).chain(lengths.iter().copied()).collect();
            let part = Type { dtype: ty.dtype, shape };
            let row = if part == ty { rows[k] } else { new.push_one(Op::Reshape, &[rows[k]], &part) };
            if part.shape == out.shape {
                next.push(if part == *out { row } else { new.push_one(Op::AsType, &[row], out) });
                continue;
            }
            let starts = std::iter::once(first).chain(starts.iter().map(|&start| Some(start))).collect();
            let counter = if first.is_none() { Some(inputs[self.counter as usize]) } else { None };
            let operands: Operands = [before, row].into_iter().chain(counter).collect();
            next.push(new.push_one(Op::PutSlice { starts }, &operands, out));
        }
        Ok(Some(next))
    }

    /// Reads one of rows that are all equal where an operand of the loop has such, as an operand more.
    fn with_equal_rows(&mut self, new: &mut Rewriter) -> Result<()> {
        let mut rows: Vec<Option<Operand>> = vec![];
        for k in 0..self.operands.len() {
            let is_kept = self.states.get(k).is_none_or(|state| *state == State::Kept);
            rows.push(if is_kept { equal_row(new, self.operands[k])? } else { None });
        }
        let mut inputs = self.body.inputs.clone();
        for row in rows.iter_mut().flatten() {
            let own = Operand::Input(inputs.len() as u32);
            inputs.push(new.ty(*row)?.clone());
            self.operands.push(*row);
            *row = own;
        }
        let mut body = Rewriter::new(&Program { inputs, ..Program::default() });
        for old in &self.body.instructions {
            let row = match old.operands.first() {
                Some(Operand::Input(k)) if reads_row(&self.body, old, self.counter) => rows[*k as usize],
                _ => None,
            };
            let instruction = match row {
                Some(row) => Instruction { op: Op::Reshape, operands: [row].into_iter().collect(), ..old.clone() },
                None => Instruction { operands: body.operands(old)?, ..old.clone() },
            };
            body.replace(instruction);
        }
        self.body = body.finish(&self.body)?;
        Ok(())
    }
}

/// One of the parts of a tensor along its first axis, if all are equal.
fn equal_row(new: &mut Rewriter, operand: Operand) -> Result<Option<Operand>> {
    let ty = new.ty(operand)?.clone();
    let Some((&size, rest)) = ty.shape.split_first() else { return Ok(None) };
    let row = Type::new(ty.dtype, rest);
    let Some(Instruction { op, operands, .. }) = new.maker(operand).cloned() else { return Ok(None) };
    match op {
        Op::Broadcast { axes } => {
            let from = new.ty(operands[0])?.clone();
            let Some(first) = axes.iter().position(|&axis| axis == 0) else {
                let axes = axes.iter().map(|axis| axis - 1).collect();
                return Ok(Some(new.push_one(Op::Broadcast { axes }, &operands, &row)));
            };
            if from.shape[first] != 1 || size == 1 {
                return Ok(None);
            }
            let kept = |&(k, _): &(usize, &usize)| k != first;
            let shape: Dims = from.shape.iter().enumerate().filter(|(k, _)| *k != first).map(|(_, &n)| n).collect();
            let axes = axes.iter().enumerate().filter(kept).map(|(_, axis)| axis - 1).collect();
            let part = new.push_one(Op::Reshape, &operands, &Type::new(ty.dtype, &shape));
            Ok(Some(new.push_one(Op::Broadcast { axes }, &[part], &row)))
        }
        Op::Reshape | Op::Squeeze => {
            let from = new.ty(operands[0])?.clone();
            if from.shape.first() != Some(&size) {
                return Ok(None);
            }
            let Some(part) = equal_row(new, operands[0])? else { return Ok(None) };
            Ok(Some(new.push_one(Op::Reshape, &[part], &row)))
        }
        _ => Ok(None),
    }
}

/// What makes a row of a state of the loop: `None` where its iterations do anything else with it.
fn row_of(body: &Program, k: usize, counter: u32, ty: &Type, end: u64) -> Option<State> {
    let maker = body.makers();
    let put = maker(body.outputs[k]).map(|at| &body.instructions[at])?;
    let own = Operand::Input(k as u32);
    if put.operands.first() != Some(&own) || ty.shape.first().is_none_or(|&size| size < end) {
        return None;
    }
    let value = *put.operands.get(1)?;
    match &put.op {
        Op::PutSlice { starts } => {
            let part = body.type_of(value)?;
            let &[_, _, index] = &put.operands[..] else { return None };
            let others: Option<SmallVec<[i64; 6]>> = starts.iter().skip(1).copied().collect();
            let room = |(axis, start): (usize, i64)| {
                let room = ty.shape[axis + 1].saturating_sub(part.shape[axis + 1]);
                start.clamp(0, room as i64)
            };
            let starts = others?.into_iter().enumerate().map(room).collect();
            let is_row = part.shape.first() == Some(&1) && put.operands.len() == 3;
            (is_row && is_counter(body, index, counter)).then_some(State::Row { value, starts })
        }
        Op::Indexing(Indexing::IndexedPut(IndexedPut { axes })) if axes[..] == [0] => {
            let &[_, index, value] = &put.operands[..] else { return None };
            let is_row = body.type_of(index)?.elements() == 1 && is_counter(body, index, counter);
            is_row.then(|| State::Row { value, starts: SmallVec::from_elem(0, ty.shape.len() - 1) })
        }
        _ => None,
    }
}

/// Bytes of the largest value of a program that differs from row to row, but for those that are `not`.
fn largest(program: &Program, inputs: &[bool], not: &[Operand]) -> u64 {
    let varies = batched::results(program, inputs, false);
    let of = |operand: Operand| match operand {
        Operand::Input(k) => inputs.get(k as usize).copied().unwrap_or(true),
        Operand::Result(r) => varies.get(r as usize).copied().unwrap_or(true),
    };
    let (mut most, mut next) = (0, 0);
    for instruction in &program.instructions {
        for ty in &instruction.outs {
            if varies[next as usize] && !not.contains(&Operand::Result(next)) {
                most = most.max(ty.size_bytes());
            }
            next += 1;
        }
        let operands: Vec<bool> = instruction.operands.iter().map(|&operand| of(operand)).collect();
        most = match &instruction.op {
            Op::While(op) => {
                let (varies, _) = batched::cells(op, &operands, false);
                most.max(largest(&op.condition, &varies, &[])).max(largest(&op.body, &varies, &[]))
            }
            Op::Cond(op) => {
                let inside = |program: &Program| largest(program, &operands[1..], &[]);
                most.max(inside(&op.on_true)).max(inside(&op.on_false))
            }
            _ => most,
        };
    }
    most
}

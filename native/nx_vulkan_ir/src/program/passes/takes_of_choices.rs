//! Makes a take by chosen numbers that count a choice: of a row's own element and that of the column, where there is
//! a table of which of both counts, as labels that spread among neighbours are taken. The table is a byte for each
//! pair, the numbers would be four, and what is taken as much again.

use std::collections::HashMap;

use smallvec::smallvec;

use super::rewrite::{Rewriter, readers};
use crate::program::ops::index::{Indexing, Take};
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let numbers = match &mut instruction.op {
            Op::While(_) => with_tables(&new, &mut instruction)?,
            _ => HashMap::new(),
        };
        for inside in instruction.op.inside_mut() {
            *inside = run(inside)?;
        }
        if let Some(chosen) = chosen(&mut new, &instruction)? {
            new.moved(chosen);
            continue;
        }
        let count = instruction.outs.len() as u32;
        let Operand::Result(first) = new.push(instruction) else { continue };
        for k in 0..count {
            new.moved(numbers.get(&k).copied().unwrap_or(Operand::Result(first + k)));
        }
    }
    new.finish(program)
}

/// Which of a loop's operands are now tables, and what they were: numbers that are chosen by these, which nothing but
/// takes in the body reads.
fn with_tables(new: &Rewriter, instruction: &mut Instruction) -> Result<HashMap<u32, Operand>> {
    let mut numbers = HashMap::new();
    let states = instruction.outs.len();
    let Op::While(op) = &mut instruction.op else { return Ok(numbers) };
    for k in 0..instruction.operands.len() {
        let own = Operand::Input(k as u32);
        let is_kept = k >= states || op.body.outputs.get(k) == Some(&own);
        let Some(maker) = new.maker(instruction.operands[k]).filter(|_| is_kept).cloned() else { continue };
        let (Op::Select, &[table, on_true, on_false]) = (&maker.op, &maker.operands[..]) else { continue };
        let ty = maker.outs[0].clone();
        let (Some(a), Some(b)) = (counted(new, on_true, &ty), counted(new, on_false, &ty)) else { continue };
        let table_type = new.ty(table)?.clone();
        let at_end = op.body.instructions.len();
        let is_index = |at: &usize| match op.body.instructions.get(*at) {
            Some(reader) => is_take(reader, own),
            None => *at == at_end && k < states,
        };
        let reads = |program: &Program| readers(program).remove(&own).unwrap_or_default();
        let is_taken_by = reads(&op.body).iter().all(is_index) && reads(&op.body).iter().any(|&at| at < at_end);
        let is_smaller = table_type.shape == ty.shape && table_type.size_bytes() < ty.size_bytes();
        if !(is_taken_by && is_smaller && reads(&op.condition).is_empty()) {
            continue;
        }
        numbers.insert(k as u32, instruction.operands[k]);
        instruction.operands[k] = table;
        op.condition.inputs[k] = table_type.clone();
        op.body = with_choice(&op.body, k, &table_type, (&ty, [a, b]))?;
        if let Some(out) = instruction.outs.get_mut(k) {
            *out = table_type;
        }
    }
    Ok(numbers)
}

/// The body with a table as an input, from which it chooses the numbers that it takes by.
fn with_choice(body: &Program, k: usize, table: &Type, (ty, axes): (&Type, [usize; 2])) -> Result<Program> {
    let mut inputs = body.inputs.clone();
    inputs[k] = table.clone();
    let own = Operand::Input(k as u32);
    let mut new = Rewriter::new(&Program { inputs, ..Program::default() });
    let [a, b] = axes.map(|axis| new.push_one(Op::Iota { axis: Some(axis) }, &[], ty));
    let numbers = new.push_one(Op::Select, &[own, a, b], ty);
    let moved = |new: &Rewriter, operand: Operand| if operand == own { Ok(numbers) } else { new.operand(operand) };
    for old in &body.instructions {
        let operands = old.operands.iter().map(|&operand| moved(&new, operand)).collect::<Result<_>>()?;
        new.replace(Instruction { operands, ..old.clone() });
    }
    new.finish(body)
}

fn is_take(reader: &Instruction, indices: Operand) -> bool {
    let takes = matches!(reader.op, Op::Indexing(Indexing::Take(Take { axis: 0 })));
    takes && reader.operands.get(1) == Some(&indices) && reader.operands[0] != indices
}

/// The axis along which numbers of a shape count from 0 on.
fn counted(new: &Rewriter, mut operand: Operand, ty: &Type) -> Option<usize> {
    while let Some(Instruction { op, operands, outs }) = new.maker(operand) {
        // Numbers that all types hold alike.
        let most = outs[0].shape.iter().copied().max().unwrap_or(1);
        let holds = outs[0].dtype.is_integer() && (outs[0].dtype.bits() >= 32 || most <= 1 << 7);
        if !holds {
            return None;
        }
        match op {
            Op::Iota { axis: Some(axis) } if outs[0].shape == ty.shape => return Some(*axis),
            Op::AsType => operand = operands[0],
            _ => return None,
        }
    }
    None
}

/// A take from a vector by numbers that are chosen among the places along two axes, as a choice between its elements.
fn chosen(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let Op::Indexing(Indexing::Take(Take { axis: 0 })) = instruction.op else { return Ok(None) };
    let (&[a, indices], [out]) = (&instruction.operands[..], instruction.outs.as_slice()) else { return Ok(None) };
    let Some(Instruction { op: Op::Select, operands, outs }) = new.maker(indices).cloned() else { return Ok(None) };
    let (vector, ty) = (new.ty(a)?.clone(), &outs[0]);
    let table = new.ty(operands[0])?.shape.clone();
    let axes = [counted(new, operands[1], ty), counted(new, operands[2], ty)];
    let [Some(on_true), Some(on_false)] = axes else { return Ok(None) };
    let fits = |axis: usize| vector.shape[..] == ty.shape[axis..=axis];
    if !(fits(on_true) && fits(on_false) && table == ty.shape) {
        return Ok(None);
    }
    let parts = [on_true, on_false].map(|axis| new.push_one(Op::Broadcast { axes: smallvec![axis] }, &[a], out));
    Ok(Some(new.push_one(Op::Select, &[operands[0], parts[0], parts[1]], out)))
}

//! Treats what was stacked from a few tensors as these tensors: what is computed of all rows alike becomes one op per
//! row, so that rows that are read at the same positions are computed together.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use super::rewrite::Rewriter;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Result, Type};

/// Rows of a stack that are told apart. Each becomes code of its own.
pub const MAX_ROWS: usize = 8;

/// The tensors that a value is stacked from, along an axis. They are of its type, without the axis.
#[derive(Debug, Clone)]
struct Unstacked {
    axis: usize,
    rows: SmallVec<[Operand; 4]>,
}

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    let mut known: HashMap<Operand, Unstacked> = HashMap::new();
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let Some(rows) = rows(&mut new, &instruction, &known)? else {
            match picked(&mut new, &instruction, &known)? {
                Some(row) => new.moved(row),
                None => new.replace(instruction),
            }
            continue;
        };
        let op = Op::Stack { axis: rows.axis };
        let whole = new.push_one(op, &rows.rows, &instruction.outs[0]);
        known.insert(whole, rows);
        new.moved(whole);
    }
    new.finish(program)
}

/// The type of a row.
fn row_type(ty: &Type, axis: usize) -> Type {
    let mut row = ty.clone();
    row.shape.remove(axis);
    row
}

/// An operand as `ty`, which has as many elements.
fn reshaped(new: &mut Rewriter, operand: Operand, ty: &Type) -> Result<Operand> {
    let mut operand = operand;
    let mut now = new.ty(operand)?.clone();
    if now.dtype != ty.dtype {
        now.dtype = ty.dtype;
        operand = new.push_one(Op::AsType, &[operand], &now);
    }
    Ok(if now.shape == ty.shape { operand } else { new.push_one(Op::Reshape, &[operand], ty) })
}

/// The rows of the instruction's result, where they are known.
fn rows(
    new: &mut Rewriter,
    instruction: &Instruction,
    known: &HashMap<Operand, Unstacked>,
) -> Result<Option<Unstacked>> {
    let [out] = instruction.outs.as_slice() else { return Ok(None) };
    let operands = &instruction.operands;
    let begins = match &instruction.op {
        Op::Stack { axis } => Some(*axis),
        Op::Concatenate { axis } => {
            let sizes: Option<Vec<u64>> =
                operands.iter().map(|&o| new.ty(o).ok().and_then(|ty| ty.shape.get(*axis).copied())).collect();
            sizes.is_some_and(|sizes| sizes.iter().all(|&size| size == 1)).then_some(*axis)
        }
        _ => None,
    };
    if let Some(axis) = begins {
        let row = row_type(out, axis);
        // Scalars side by side are computed by as many invocations.
        if operands.len() > MAX_ROWS || row.elements() <= 1 {
            return Ok(None);
        }
        let rows = operands.iter().map(|&o| reshaped(new, o, &row)).collect::<Result<_>>()?;
        return Ok(Some(Unstacked { axis, rows }));
    }
    if instruction.op.elementwise().is_some() {
        return elementwise(new, instruction, known);
    }
    let Some(Unstacked { axis, rows }) = operands.first().and_then(|operand| known.get(operand)) else {
        return Ok(None);
    };
    let Some(chosen) = window(new, instruction, *axis, rows) else { return Ok(None) };
    Ok((chosen.len() > 1).then_some(Unstacked { axis: *axis, rows: chosen }))
}

/// The rows that a slice has of every other axis's elements all.
fn window(new: &Rewriter, slice: &Instruction, axis: usize, rows: &[Operand]) -> Option<SmallVec<[Operand; 4]>> {
    let Op::Slice { .. } = slice.op else { return None };
    let (map, out, ty) = (slice.index_map(|o| new.ty(o).ok())?, slice.outs.first()?, new.ty(slice.operands[0]).ok()?);
    let line = map.parts.first()?.lines.get(axis)?;
    let whole = (0..ty.shape.len()).all(|other| other == axis || out.shape[other] == ty.shape[other]);
    if !whole || line.is_read() {
        return None;
    }
    (0..out.shape[axis] as i64).map(|i| rows.get((line.from.number() + i * line.step) as usize).copied()).collect()
}

/// One row alone, as the instruction gives it.
fn picked(
    new: &mut Rewriter,
    instruction: &Instruction,
    known: &HashMap<Operand, Unstacked>,
) -> Result<Option<Operand>> {
    let [out] = instruction.outs.as_slice() else { return Ok(None) };
    let Some(Unstacked { axis, rows }) = instruction.operands.first().and_then(|operand| known.get(operand)) else {
        return Ok(None);
    };
    match window(new, instruction, *axis, rows).as_deref() {
        Some(&[row]) => reshaped(new, row, out).map(Some),
        _ => Ok(None),
    }
}

fn elementwise(
    new: &mut Rewriter,
    instruction: &Instruction,
    known: &HashMap<Operand, Unstacked>,
) -> Result<Option<Unstacked>> {
    let out = &instruction.outs[0];
    let rank = out.shape.len();
    // Operands are aligned to the last axes.
    let stacked = instruction.operands.iter().find_map(|&operand| {
        let known = known.get(&operand)?;
        let axis = known.axis + rank.checked_sub(new.ty(operand).ok()?.shape.len())?;
        (out.shape[axis] == known.rows.len() as u64).then_some((axis, known.rows.len()))
    });
    let Some((axis, count)) = stacked else { return Ok(None) };
    let row = row_type(out, axis);
    let mut rows: SmallVec<[Operand; 4]> = smallvec![];
    for i in 0..count {
        let mut operands: SmallVec<[Operand; 3]> = smallvec![];
        for &operand in &instruction.operands {
            operands.push(row_of(new, operand, known, (axis, rank), i)?);
        }
        rows.push(new.push_one(instruction.op.clone(), &operands, &row));
    }
    Ok(Some(Unstacked { axis, rows }))
}

/// What an operand of an elementwise op holds for row `i` along `axis` of a result of `rank`.
fn row_of(
    new: &mut Rewriter,
    operand: Operand,
    known: &HashMap<Operand, Unstacked>,
    (axis, rank): (usize, usize),
    i: usize,
) -> Result<Operand> {
    let ty = new.ty(operand)?.clone();
    let Some(axis) = (axis + ty.shape.len()).checked_sub(rank) else { return Ok(operand) };
    let row = row_type(&ty, axis);
    if ty.shape[axis] == 1 {
        return reshaped(new, operand, &row);
    }
    if let Some(known) = known.get(&operand).filter(|known| known.axis == axis)
        && let Some(&found) = known.rows.get(i)
    {
        return Ok(found);
    }
    if let Some(value) = new.constant(operand) {
        return Ok(new.push_one(Op::Constant(value), &[], &row));
    }
    if let Some(Instruction { op: Op::Broadcast { axes }, operands, .. }) = new.maker(operand).cloned()
        && let &[source] = operands.as_slice()
        && !axes.contains(&axis)
    {
        if new.ty(source)?.shape == row.shape {
            return Ok(source);
        }
        let axes = axes.iter().map(|&other| if other > axis { other - 1 } else { other }).collect();
        return Ok(new.push_one(Op::Broadcast { axes }, &[source], &row));
    }
    let (mut starts, mut lengths) = (SmallVec::from_elem(Some(0), ty.shape.len()), ty.shape.clone());
    starts[axis] = Some(i as i64);
    lengths[axis] = 1;
    let strides = SmallVec::from_elem(1, ty.shape.len());
    let part = Type { dtype: ty.dtype, shape: lengths.clone() };
    let part = new.push_one(Op::Slice { starts, strides, lengths }, &[operand], &part);
    reshaped(new, part, &row)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::program::passes::dce;
    use crate::program::{Binary, Builder, Reduction, Unary};
    use crate::reference::{self, Array};
    use crate::value::Value;

    #[test]
    fn rows_of_a_softmax_are_ops_of_vectors() {
        let maker = Builder::new();
        let parts = [maker.input(DType::F32, &[5]), maker.input(DType::F32, &[5]), maker.input(DType::F32, &[5])];
        let (row, whole) = (Type::new(DType::F32, &[5]), Type::new(DType::F32, &[3, 5]));
        let stack = maker.push(Op::Stack { axis: 0 }, &parts, &whole);
        let exp = maker.unary(Unary::Exp, stack);
        let sum = maker.reduce(Reduction::Sum, exp, &[0], false);
        let sums = maker.push(Op::Broadcast { axes: smallvec![1] }, &[sum], &whole);
        let softmax = maker.binary(Binary::Divide, exp, sums);
        let slice =
            Op::Slice { starts: smallvec![Some(1), Some(0)], strides: smallvec![1, 1], lengths: smallvec![1, 5] };
        let second = maker.push(slice, &[softmax], &Type::new(DType::F32, &[1, 5]));
        let second = maker.push(Op::Squeeze, &[second], &row);
        let program = maker.finish(&[second]).unwrap();
        let apart = dce::run(&run(&program).unwrap()).unwrap();
        let quotients: Vec<&Instruction> =
            apart.instructions.iter().filter(|i| i.op == Op::Binary(Binary::Divide)).collect();
        assert!(matches!(quotients[..], [one] if one.outs[0] == row), "{apart:#?}");
        let input = |k: i32| Array::new(&row, (0..5).map(|i| Value::Float(f64::from(k * i) * 0.3 - 1.0)));
        let inputs = [input(1), input(-2), input(3)];
        assert_eq!(reference::run(&apart, &inputs).unwrap(), reference::run(&program, &inputs).unwrap());
    }
}

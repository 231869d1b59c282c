//! Gives ops the numbers that they compute with fastest, where these are the same: integers beside floats become
//! floats, so that nothing is computed in f64 for the sake of a 2, and what is computed of choices among numbers is a
//! choice among results.

use smallvec::SmallVec;

use super::fold_constants::computed;
use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::{Binary, Elementwise, Instruction, Op, Operand, Program};
use crate::shape::Dims;
use crate::value::Value;
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        if let Some(dtype) = float_of(&new, &instruction)? {
            let first = usize::from(instruction.op == Op::Select);
            for i in first..instruction.operands.len() {
                if let Some(number) = as_float(&mut new, instruction.operands[i], dtype)? {
                    instruction.operands[i] = number;
                }
            }
        }
        match chosen(&mut new, &instruction)? {
            Some(result) => new.moved(result),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The real type in which an op whose results round once takes its operands, if it is one of floats.
fn float_of(new: &Rewriter, instruction: &Instruction) -> Result<Option<DType>> {
    let [out] = instruction.outs.as_slice() else { return Ok(None) };
    let of = match instruction.op.elementwise() {
        Some(Elementwise::Binary(op)) if op.is_predicate() => {
            let floats = instruction.operands.iter().map(|&o| new.ty(o).map(|ty| ty.dtype));
            floats.collect::<Result<SmallVec<[DType; 3]>>>()?.into_iter().find(|dtype| !dtype.is_integer())
        }
        // Those of others are approximations, whose last bits hang on the type that they are computed in.
        Some(Elementwise::Binary(
            Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Max | Binary::Min,
        )) => Some(out.dtype),
        Some(Elementwise::Select | Elementwise::Clip) => Some(out.dtype),
        _ => None,
    };
    Ok(of.filter(|dtype| matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64)))
}

/// An integer that all elements of an operand are, as a float, if that is the same number.
fn as_float(new: &mut Rewriter, operand: Operand, dtype: DType) -> Result<Option<Operand>> {
    let ty = new.ty(operand)?.clone();
    let Some(value @ Scalar::Int(_)) = new.constant(operand).filter(|_| ty.dtype.is_integer()) else { return Ok(None) };
    let whole = Value::from(value).cast(ty.dtype);
    let float = whole.cast(dtype);
    let is_same = matches!((whole, float), (Value::Int(i), Value::Float(x)) if x.is_finite() && x as i128 == i);
    let number = Type { dtype, ..ty };
    Ok(is_same.then(|| new.push_one(Op::Constant(Scalar::Float(float.real())), &[], &number)))
}

/// What an op makes of operands of which each is one of two constants, or a constant: a choice among results that the
/// host computes.
fn chosen(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let (Some(op @ Elementwise::Binary(_)), &[a, b], [out]) =
        (instruction.op.elementwise(), instruction.operands.as_slice(), instruction.outs.as_slice())
    else {
        return Ok(None);
    };
    let (Some(a), Some(b)) = (choice(new, a)?, choice(new, b)?) else { return Ok(None) };
    if a.predicate.is_none() && b.predicate.is_none() {
        return Ok(None);
    }
    let mut results: SmallVec<[Operand; 2]> = SmallVec::new();
    for &x in &a.values {
        let values = b.values.iter().map(|&y| computed(op, &[(x, a.dtype), (y, b.dtype)], out.dtype));
        let Some(values) = values.collect::<Option<SmallVec<[Value; 2]>>>() else { return Ok(None) };
        let numbers: SmallVec<[Operand; 2]> = values
            .into_iter()
            .map(|value| new.push_one(Op::Constant(value.into()), &[], &Type::new(out.dtype, &[])))
            .collect();
        results.push(selected(new, &b, &numbers, &Type { dtype: out.dtype, shape: b.shape.clone() }));
    }
    let result = selected(new, &a, &results, out);
    Ok((new.ty(result)? == out).then_some(result))
}

/// An operand that is one number, or one of two.
struct Choice {
    predicate: Option<Operand>,
    values: SmallVec<[Value; 2]>,
    dtype: DType,
    shape: Dims,
}

fn choice(new: &Rewriter, operand: Operand) -> Result<Option<Choice>> {
    let number = |operand: Operand| -> Result<Option<(Value, DType)>> {
        let dtype = new.ty(operand)?.dtype;
        Ok(new.constant(operand).map(|value| (Value::from(value).cast(dtype), dtype)))
    };
    let Type { dtype, shape } = new.ty(operand)?.clone();
    if let Some((value, _)) = number(operand)? {
        return Ok(Some(Choice { predicate: None, values: SmallVec::from_slice(&[value]), dtype, shape: Dims::new() }));
    }
    let Some(Instruction { op: Op::Select, operands, .. }) = new.maker(operand) else { return Ok(None) };
    let &[predicate, x, y] = operands.as_slice() else { return Ok(None) };
    let (Some((x, x_dtype)), Some((y, y_dtype))) = (number(x)?, number(y)?) else { return Ok(None) };
    let values = SmallVec::from_slice(&[x, y]);
    // One predicate for many elements would give one element.
    let is_each = new.ty(predicate)?.shape == shape;
    Ok((is_each && x_dtype == dtype && y_dtype == dtype).then_some(Choice {
        predicate: Some(predicate),
        values,
        dtype,
        shape,
    }))
}

/// The choice with these in the place of its values.
fn selected(new: &mut Rewriter, choice: &Choice, results: &[Operand], out: &Type) -> Operand {
    match (choice.predicate, results) {
        (Some(predicate), &[x, y]) => new.push_one(Op::Select, &[predicate, x, y], out),
        _ => results[0],
    }
}

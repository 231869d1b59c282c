//! Gives ops the numbers that they compute with fastest, where these are the same: integers beside floats become floats, so that nothing is
//! computed in f64 for the sake of a 2, and quotients by powers of two become products.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use crate::program::op::Scalar;
use crate::program::{Binary, Elementwise, Instruction, Op, Operand, Program};
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
        if let Some(product) = product(&mut new, &instruction)? {
            instruction = product;
        }
        new.replace(instruction);
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

/// The product that a quotient is, where the divisor is a power of two or one of two such.
fn product(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Instruction>> {
    let (Op::Binary(Binary::Divide), &[a, divisor], [out]) =
        (&instruction.op, instruction.operands.as_slice(), instruction.outs.as_slice())
    else {
        return Ok(None);
    };
    let is_real_float = |dtype: DType| matches!(dtype, DType::F32 | DType::F64);
    if !is_real_float(out.dtype) || new.ty(a)?.dtype != out.dtype || new.ty(divisor)?.dtype != out.dtype {
        return Ok(None);
    }
    let reciprocal = match new.maker(divisor).cloned() {
        Some(Instruction { op: Op::Select, operands, outs }) => {
            let &[predicate, x, y] = operands.as_slice() else { return Ok(None) };
            let (Some(x), Some(y)) = (reciprocal(new, x)?, reciprocal(new, y)?) else { return Ok(None) };
            let [x, y] = [x, y].map(|(value, ty)| new.push_one(Op::Constant(Scalar::Float(value)), &[], &ty));
            new.push_one(Op::Select, &[predicate, x, y], &outs[0])
        }
        Some(Instruction { op: Op::Constant(_), .. }) => {
            let Some((value, ty)) = reciprocal(new, divisor)? else { return Ok(None) };
            new.push_one(Op::Constant(Scalar::Float(value)), &[], &ty)
        }
        _ => return Ok(None),
    };
    let operands = SmallVec::from_slice(&[a, reciprocal]);
    Ok(Some(Instruction { op: Op::Binary(Binary::Multiply), operands, outs: instruction.outs.clone() }))
}

/// One over a constant of f32 or f64 that is a power of two, and the constant's type.
fn reciprocal(new: &Rewriter, operand: Operand) -> Result<Option<(f64, Type)>> {
    let ty = new.ty(operand)?.clone();
    let Some(value) = new.constant(operand) else { return Ok(None) };
    let (Value::Float(x), true) = (Value::from(value).cast(ty.dtype), matches!(ty.dtype, DType::F32 | DType::F64))
    else {
        return Ok(None);
    };
    // Both are normal numbers of f32.
    let is_power = x.to_bits() << 12 == 0 && (2f64.powi(-126)..=2f64.powi(126)).contains(&x.abs());
    Ok(is_power.then(|| (1.0 / x, ty)))
}

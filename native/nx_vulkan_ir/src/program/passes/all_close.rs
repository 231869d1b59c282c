//! Writes `all_close` as the steps that Nx takes, which one kernel takes on what it reads.

use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::{Binary, Builder, Instruction, Op, Operand, Program, Reduction, Unary};
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    if !program.instructions.iter().any(|instruction| matches!(instruction.op, Op::AllClose { .. })) {
        return Ok(program.clone());
    }
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let types: Vec<Type> = instruction.operands.iter().map(|&o| new.ty(o).cloned()).collect::<Result<_>>()?;
        match (&instruction.op, &types[..]) {
            (&Op::AllClose { equal_nan, rtol, atol }, [a, b]) => {
                let steps = steps([a, b], equal_nan, [rtol, atol])?;
                let outputs = new.append(&steps, &instruction.operands);
                outputs.into_iter().for_each(|output| new.moved(output));
            }
            _ => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The program of `all_close` on operands of these types, with its relative and its absolute tolerance.
///
/// # Errors
/// `InvalidProgram` for operands that do not broadcast.
pub fn steps(types: [&Type; 2], equal_nan: bool, [rtol, atol]: [Scalar; 2]) -> Result<Program> {
    let b = Builder::new();
    let [x, y] = types.map(|ty| b.input(ty.dtype, &ty.shape));
    let integers = types.iter().all(|ty| ty.dtype.is_integer());
    // The least integer has no magnitude in its type.
    let size = b.abs(if integers { b.as_type(y, DType::F64) } else { y });
    let limit = with_number(&b, Binary::Add, atol, with_number(&b, Binary::Multiply, rtol, size));
    let near = b.less_equal(b.abs(b.subtract(x, y)), limit);
    let close = if integers { near } else { of_floats(&b, [x, y], near, equal_nan) };
    let axes: Vec<usize> = (0..b.ty(close).shape.len()).collect();
    let all = b.reduce(Reduction::All, close, &axes, false);
    b.finish(&[all])
}

/// Infinities are close to themselves, and so are NaN if they count as equal.
fn of_floats(b: &Builder, [x, y]: [Operand; 2], near: Operand, equal_nan: bool) -> Operand {
    let is = |op, x| b.unary(op, x);
    let infinite = b.logical_or(is(Unary::IsInfinity, x), is(Unary::IsInfinity, y));
    let close = b.select(infinite, b.equal(x, y), near);
    if !equal_nan {
        return close;
    }
    b.logical_or(b.logical_and(is(Unary::IsNan, x), is(Unary::IsNan, y)), close)
}

/// An op of a number and a tensor, in the tensor's type if that holds such numbers. The number is one of Nx's own type
/// for it, which rounds it.
fn with_number(b: &Builder, op: Binary, number: Scalar, tensor: Operand) -> Operand {
    let ty = b.ty(tensor);
    let (of_number, dtype) = match number {
        Scalar::Int(i) if i32::try_from(i).is_ok() => (DType::S32, ty.dtype),
        Scalar::Int(i) if i64::try_from(i).is_ok() => (DType::S64, ty.dtype),
        Scalar::Int(_) => (DType::U64, ty.dtype),
        Scalar::Float(_) if ty.dtype.is_integer() => (DType::F32, DType::F32),
        Scalar::Float(_) => (DType::F32, ty.dtype),
        Scalar::Complex(..) => (DType::C64, DType::C64),
    };
    let number = b.constant(of_number, number);
    b.push(Op::Binary(op), &[number, tensor], &Type { dtype, ..ty })
}

//! Removes ops that give their operand back, for every number that there is: `x * 1`, but not `x + 0.0`, which changes
//! -0.0. Squares, and cubes of 16 bits, become products with the bits that `pow` gives.

use super::rewrite::{Operands, Rewriter};
use crate::program::{Binary, Elementwise, Instruction, Op, Operand, Program, Unary};
use crate::value::Value;
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let mut instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        skip_exact_casts(&new, &mut instruction)?;
        multiply_for_square(&new, &mut instruction)?;
        multiply_for_cube(&mut new, &mut instruction)?;
        let (found, out) = (same(&new, &instruction)?, instruction.outs.first());
        match (found, out) {
            (Some(operand), Some(out)) if new.ty(operand)? == out => new.moved(operand),
            // What is chosen may be of another type.
            (Some(operand), Some(out)) if instruction.op == Op::Select && new.ty(operand)?.shape == out.shape => {
                let cast = Instruction { op: Op::AsType, operands: Operands::from_slice(&[operand]), ..instruction };
                new.replace(cast);
            }
            _ => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The operand whose numbers are the instruction's result.
fn same(new: &Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let [out] = instruction.outs.as_slice() else { return Ok(None) };
    let operands = &instruction.operands[..];
    Ok(match (&instruction.op, operands) {
        (Op::Binary(op), &[a, b]) => match (constant(new, a)?, constant(new, b)?) {
            (_, Some(value)) if right_neutral(*op, value, out.dtype) => Some(a),
            (Some(value), _) if left_neutral(*op, value, out.dtype) => Some(b),
            _ => None,
        },
        (Op::Unary(Unary::Negate | Unary::BitwiseNot), &[a]) => match new.maker(a) {
            Some(inner) if inner.op == instruction.op && inner.outs[0].dtype == out.dtype => {
                inner.operands.first().copied()
            }
            _ => None,
        },
        (Op::Select, &[pred, a, b]) => constant(new, pred)?.map(|value| if value.truthy() { a } else { b }),
        (Op::AsType, &[a]) => Some(a),
        _ => None,
    })
}

fn constant(new: &Rewriter, operand: Operand) -> Result<Option<Value>> {
    let dtype = new.ty(operand)?.dtype;
    Ok(new.constant(operand).map(|value| Value::from(value).cast(dtype)))
}

fn equals(value: Value, number: i32) -> bool {
    value == Value::Int(number.into()) || value == Value::Float(number.into())
}

/// Whether `x op value` is `x`, for real numbers.
fn right_neutral(op: Binary, value: Value, out: DType) -> bool {
    let integer_zero = out.is_integer() && value == Value::Int(0);
    let sign = |negative: bool| matches!(value, Value::Float(x) if x == 0.0 && x.is_sign_negative() == negative);
    if out.is_complex() {
        return false;
    }
    match op {
        Binary::Multiply | Binary::Divide | Binary::Pow => equals(value, 1),
        Binary::Add => integer_zero || sign(true),
        Binary::Subtract => integer_zero || sign(false),
        Binary::BitwiseOr | Binary::BitwiseXor | Binary::LeftShift | Binary::RightShift => integer_zero,
        _ => false,
    }
}

/// Whether `value op x` is `x`.
fn left_neutral(op: Binary, value: Value, out: DType) -> bool {
    let commutes = matches!(op, Binary::Multiply | Binary::Add | Binary::BitwiseOr | Binary::BitwiseXor);
    commutes && right_neutral(op, value, out)
}

/// Makes the square of a real number a product, which has the same bits.
fn multiply_for_square(new: &Rewriter, instruction: &mut Instruction) -> Result<()> {
    let (&Op::Binary(Binary::Pow), &[base, exponent], [out]) =
        (&instruction.op, &instruction.operands[..], &instruction.outs[..])
    else {
        return Ok(());
    };
    let is_two = constant(new, exponent)?.is_some_and(|value| equals(value, 2));
    if is_two && !out.dtype.is_complex() && new.ty(base)? == out {
        (instruction.op, instruction.operands[1]) = (Op::Binary(Binary::Multiply), base);
    }
    Ok(())
}

/// Makes the cube of a number of 16 bits two products in f32, and a cast: the square is exact there, and so is the cube
/// of bf16. Of f16 it rounds to the number that `pow` gives, for each of all.
fn multiply_for_cube(new: &mut Rewriter, instruction: &mut Instruction) -> Result<()> {
    let (&Op::Binary(Binary::Pow), &[base, exponent], [out]) =
        (&instruction.op, &instruction.operands[..], &instruction.outs[..])
    else {
        return Ok(());
    };
    let is_three = constant(new, exponent)?.is_some_and(|value| equals(value, 3));
    if is_three && matches!(out.dtype, DType::F16 | DType::Bf16) && new.ty(base)? == out {
        let wide = Type { dtype: DType::F32, ..out.clone() };
        let x = new.push_one(Op::AsType, &[base], &wide);
        let square = new.push_one(Op::Binary(Binary::Multiply), &[x, x], &wide);
        let cube = new.push_one(Op::Binary(Binary::Multiply), &[square, x], &wide);
        (instruction.op, instruction.operands) = (Op::AsType, Operands::from_slice(&[cube]));
    }
    Ok(())
}

/// Lets a cast of a cast read the first operand where the type in between holds all of its values, and what becomes of
/// them is the same: floats become the nearest number that an integer type has, where integers wrap.
fn skip_exact_casts(new: &Rewriter, instruction: &mut Instruction) -> Result<()> {
    while instruction.op.elementwise() == Some(Elementwise::AsType)
        && let Some(inner) = new.maker(instruction.operands[0])
        && inner.op == Op::AsType
        && let &[source] = inner.operands.as_slice()
        && let (from, between) = (new.ty(source)?, &inner.outs[0])
        && holds_all(from, between)
        && (from.dtype.is_integer() == between.dtype.is_integer()
            || instruction.outs.iter().all(|to| !to.dtype.is_integer() || holds_all(from, to)))
    {
        instruction.operands[0] = source;
    }
    Ok(())
}

/// Whether every value of one type is a value of the other.
fn holds_all(inner: &Type, outer: &Type) -> bool {
    let (a, b) = (inner.dtype, outer.dtype);
    let mantissa = |t: DType| t.format().map_or(0, |format| format.mantissa + 1);
    match (a.is_integer(), b.is_integer()) {
        (true, true) if a.is_signed() == b.is_signed() => a.bits() <= b.bits(),
        (true, true) => a.is_unsigned() && a.bits() < b.bits(),
        (true, false) => matches!(b, DType::F32 | DType::F64) && a.bits() <= mantissa(b),
        (false, false) => matches!(b, DType::F32 | DType::F64) && a.is_float() && mantissa(a) <= mantissa(b),
        (false, true) => false,
    }
}

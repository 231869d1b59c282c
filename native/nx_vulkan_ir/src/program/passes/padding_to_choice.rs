//! Makes fusible ops of what puts one element among constants, as gradients of `x[i]` do, and leaves out padding by
//! nothing.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use crate::program::attribute::Scalar;
use crate::program::index_map::is_identity;
use crate::program::{Binary, Instruction, Op, Operand, Program};
use crate::value::Value;
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        match placed(&mut new, &instruction)? {
            Some(operand) => new.moved(operand),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// What the instruction gives, if other ops say it.
fn placed(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let [out] = instruction.outs.as_slice() else { return Ok(None) };
    let Some(map) = instruction.index_map(|operand| new.ty(operand).ok()) else { return Ok(None) };
    let ([part], Some(around)) = (map.parts.as_slice(), map.around) else { return Ok(None) };
    let (element, around) = (instruction.operands[part.operand], instruction.operands[around]);
    let shape = &new.ty(element)?.shape;
    if is_identity(&part.lines, shape, &out.shape) {
        return Ok((new.ty(element)? == out).then_some(element));
    }
    let position = part.corner(shape, &out.shape).and_then(|corner| position(out, &corner));
    let (Some(position), Some(value)) = (position, new.constant(around)) else { return Ok(None) };
    if new.ty(element)?.elements() != 1 || !out.dtype.is_canonical() || out.dtype.is_complex() {
        return Ok(None);
    }
    let value = Value::from(value).cast(new.ty(around)?.dtype).cast(out.dtype);
    let (scalar, index) = (Type::new(out.dtype, &[]), Type::new(DType::S32, &[]));
    let counted = new.push_one(Op::Iota { axis: None }, &[], &Type { dtype: DType::S32, shape: out.shape.clone() });
    let position = new.push_one(Op::Constant(Scalar::Int(position)), &[], &index);
    let is_there = Type { dtype: DType::U8, shape: out.shape.clone() };
    let is_there = new.push_one(Op::Binary(Binary::Equal), &[counted, position], &is_there);
    let element_type = Type { dtype: new.ty(element)?.dtype, shape: SmallVec::new() };
    let mut element = new.push_one(Op::Reshape, &[element], &element_type);
    if element_type != scalar {
        element = new.push_one(Op::AsType, &[element], &scalar);
    }
    let around = new.push_one(Op::Constant(value.into()), &[], &scalar);
    Ok(Some(new.push_one(Op::Select, &[is_there, element, around], out)))
}

/// The place of an element in a row-major tensor of fewer than 2^31.
fn position(out: &Type, at: &[u64]) -> Option<i128> {
    let place = out.shape.iter().zip(at).fold(0, |place, (&size, &at)| place * i128::from(size) + i128::from(at));
    (1..=i32::MAX as u64).contains(&out.elements()).then_some(place)
}

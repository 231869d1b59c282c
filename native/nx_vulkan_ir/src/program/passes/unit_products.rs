//! Products by a vector of two numbers of which each is 0, 1, -1, i or -i are sums: of real and imaginary parts, which
//! make complex random numbers. What computes the parts and what follows is then the same kernel.

use super::rewrite::Rewriter;
use crate::program::attribute::{Axes, Scalar};
use crate::program::{Binary, Instruction, Op, Operand, Program};
use crate::{DType, Result, Type};

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        match sum(&mut new, &instruction)? {
            Some(sum) => new.moved(sum),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// The sum that a product is. It begins with a zero, as products do, and is rounded once.
fn sum(new: &mut Rewriter, instruction: &Instruction) -> Result<Option<Operand>> {
    let (Op::Dot { contract_a, batch_a, contract_b, batch_b }, &[a, b]) = (&instruction.op, &instruction.operands[..])
    else {
        return Ok(None);
    };
    let (&[along_a], &[along_b]) = (&contract_a[..], &contract_b[..]) else { return Ok(None) };
    let out = &instruction.outs[0];
    // Batches come first, so that results lie as the operand does. Kernels have no numbers of 128 bits.
    let are_first = |batch: &Axes| batch.iter().enumerate().all(|(at, &axis)| at == axis);
    if !are_first(batch_a) || !are_first(batch_b) || out.dtype == DType::C128 {
        return Ok(None);
    }
    let batches = batch_a.len();
    let (of, along, units) = match (units(new, a, along_a, batches)?, units(new, b, along_b, batches)?) {
        (_, Some(units)) => (a, along_a, units),
        (Some(units), None) => (b, along_b, units),
        (None, None) => return Ok(None),
    };
    let ty = new.ty(of)?.clone();
    let number = |value| (Op::Constant(value), Type::new(out.dtype, &[]));
    let (zero, scalar) = number(Scalar::Int(0));
    let mut sum = new.push_one(zero, &[], &scalar);
    for (start, unit) in (0..).zip(units) {
        let mut part = ty.clone();
        part.shape[along] = 1;
        let starts = (0..ty.shape.len()).map(|axis| Some(if axis == along { start } else { 0 })).collect();
        let lengths = part.shape.iter().copied().collect();
        let slice = Op::Slice { starts, strides: ty.shape.iter().map(|_| 1).collect(), lengths };
        let part = new.push_one(slice, &[of], &part);
        let part = new.push_one(Op::Reshape, &[part], &Type::new(ty.dtype, &out.shape));
        let (unit, scalar) = number(unit);
        let unit = new.push_one(unit, &[], &scalar);
        let product = new.push_one(Op::Binary(Binary::Multiply), &[part, unit], out);
        sum = new.push_one(Op::Binary(Binary::Add), &[sum, product], out);
    }
    Ok(Some(sum))
}

/// The two numbers along an axis of an operand that has no others but the first ones, and is the same along these, if
/// they are such numbers.
fn units(new: &Rewriter, mut operand: Operand, mut axis: usize, batches: usize) -> Result<Option<[Scalar; 2]>> {
    let shape = &new.ty(operand)?.shape;
    if shape.len() != batches + 1 || shape[axis] != 2 {
        return Ok(None);
    }
    while let Some(Instruction { op, operands, .. }) = new.maker(operand) {
        let found = match (op, &operands[..]) {
            (&Op::Constant(value), _) => [value; 2],
            (&(Op::Stack { axis: own } | Op::Concatenate { axis: own }), &[one, other]) if own == axis => {
                match (new.constant(one), new.constant(other)) {
                    (Some(one), Some(other)) => [one, other],
                    _ => break,
                }
            }
            (op @ (Op::Reshape | Op::Squeeze | Op::Broadcast { .. }), &[source]) => {
                let from = new.ty(source)?;
                let Some(own) = from.shape.iter().position(|&size| size == 2).filter(|_| from.elements() == 2) else {
                    break;
                };
                if matches!(op, Op::Broadcast { axes } if axes[own] != axis) {
                    break;
                }
                (operand, axis) = (source, own);
                continue;
            }
            _ => break,
        };
        return Ok(Some(found).filter(|found| found.iter().all(|&value| is_unit(value))));
    }
    Ok(None)
}

fn is_unit(value: Scalar) -> bool {
    match value {
        Scalar::Int(i) => (-1..=1).contains(&i),
        Scalar::Float(x) => x == 0.0 || x.abs() == 1.0,
        Scalar::Complex(x, y) => [x, y].iter().all(|part| *part == 0.0 || part.abs() == 1.0) && (x == 0.0 || y == 0.0),
    }
}

//! A slow, obvious interpreter of programs on the CPU: what results the engine is tested against.
//!
//! Every element is one [`Value`]; integers are exact, floats and the parts of complex numbers are computed in f64, and
//! each instruction rounds once to its result's dtype.

mod array;
mod axes;
mod complex;
mod control;
mod conv;
mod elementwise;
mod fold;
mod fourier;
mod index;
#[cfg(test)]
mod index_maps;
mod linalg;
mod matrix;
mod movement;
mod order;
mod real;
mod window;

pub use array::Array;
pub(crate) use elementwise::apply;
pub use elementwise::real_function;
pub use real::erf_inv;

use array::{Given, indices, invalid};

use crate::program::ops::result_dtype;
use crate::program::{Binary, Elementwise, Op, Operand, Program, Unary, verify};
use crate::shape::Dims;
use crate::value::Value;
use crate::{DType, Error, Result, Type};

/// Runs a program.
///
/// # Errors
/// `InvalidProgram` where the program breaks a rule, or the inputs are not those that it declares.
pub fn run(program: &Program, inputs: &[Array]) -> Result<Vec<Array>> {
    verify::program(program)?;
    if !inputs.iter().map(|a| &a.ty).eq(&program.inputs) {
        return Err(Error::InvalidProgram {
            op: "program".to_string(),
            reason: format!("inputs {:?} for {:?}", inputs.iter().map(|a| &a.ty).collect::<Vec<_>>(), program.inputs),
        });
    }
    let mut results: Vec<Array> = Vec::new();
    let find = |results: &[Array], operand: Operand| match operand {
        Operand::Input(i) => inputs.get(i as usize).cloned(),
        Operand::Result(i) => results.get(i as usize).cloned(),
    };
    for instruction in &program.instructions {
        let operands: Vec<Array> = instruction.operands.iter().filter_map(|&o| find(&results, o)).collect();
        results.extend(evaluate_all(&instruction.op, &operands, &instruction.outs)?);
    }
    Ok(program.outputs.iter().filter_map(|&o| find(&results, o)).collect())
}

/// Runs one op of any number of results.
///
/// # Errors
/// `InvalidProgram` where the op does not take the operands or does not give the types `outs`.
pub fn evaluate_all(op: &Op, operands: &[Array], outs: &[Type]) -> Result<Vec<Array>> {
    let types: Vec<&Type> = operands.iter().map(|a| &a.ty).collect();
    verify::instruction(op, &types, outs)?;
    match op {
        Op::While(op) => control::repeat(op, operands, outs.len()),
        Op::Cond(op) => control::choose(op, operands),
        Op::Workgroup(program) | Op::Fused(program) => run(program, operands),
        Op::Moved(op) => op.accept(Given { operands, outs }),
        Op::Order(op) => op.accept(Given { operands, outs }),
        Op::Indexing(op) => op.accept(Given { operands, outs }),
        Op::Windowed(op) => op.accept(Given { operands, outs }),
        Op::Spectral(op) => op.accept(Given { operands, outs }),
        Op::Matrix(op) => op.accept(Given { operands, outs }),
        _ => match outs {
            [out] => Ok(vec![evaluate_one(op, operands, out)?]),
            _ => Err(invalid(op, "has one result")),
        },
    }
}

/// Runs one op of one result.
///
/// # Errors
/// `InvalidProgram` where the op does not take the operands or does not give the type `out`.
pub fn evaluate(op: &Op, operands: &[Array], out: &Type) -> Result<Array> {
    let mut results = evaluate_all(op, operands, std::slice::from_ref(out))?;
    results.pop().ok_or_else(|| invalid(op, "no result"))
}

fn evaluate_one(op: &Op, operands: &[Array], out: &Type) -> Result<Array> {
    let a = || operands.first().ok_or_else(|| invalid(op, "an operand is missing"));
    let operand = |i: usize| operands.get(i).ok_or_else(|| invalid(op, "an operand is missing"));
    if let Some(elementwise) = op.elementwise() {
        let values = indices(&out.shape).map(|index| {
            let args: Vec<_> = operands.iter().map(|a| (broadcast_at(a, &index), a.ty.dtype)).collect();
            elementwise::apply(elementwise, &args, out.dtype).ok_or_else(|| invalid(op, "no meaning for these types"))
        });
        return Ok(Array { ty: out.clone(), values: values.collect::<Result<_>>()? });
    }
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => Err(invalid(op, "not elementwise")),
        Op::Constant(value) => Ok(Array::new(out, std::iter::repeat_n(Value::from(*value), out.elements() as usize))),
        Op::Iota { axis } => Ok(Array::new(
            out,
            indices(&out.shape)
                .zip(0i128..)
                .map(|(index, linear)| Value::Int(axis.map_or(linear, |axis| index[axis].into()))),
        )),
        Op::Eye => {
            let rank = out.shape.len();
            Ok(Array::new(out, indices(&out.shape).map(|index| Value::bool(index[rank - 2] == index[rank - 1]))))
        }
        Op::Reshape | Op::Squeeze | Op::After => Ok(Array { ty: out.clone(), values: a()?.values.clone() }),
        Op::Bitcast => {
            let from = a()?;
            let values = from.values.iter().map(|v| Value::from_bits(out.dtype, v.to_bits(from.ty.dtype)));
            Ok(Array { ty: out.clone(), values: values.collect() })
        }
        Op::Broadcast { axes } => Ok(movement::broadcast(a()?, axes, out)),
        Op::Transpose { axes } => Ok(movement::transpose(a()?, axes, out)),
        Op::Slice { starts, strides, .. } => {
            let starts = movement::starts(starts, a()?, &window(op)?, &operands[1..]);
            Ok(movement::slice(a()?, &starts, strides, out))
        }
        Op::PutSlice { starts } => {
            let update = operand(1)?;
            let starts = movement::starts(starts, a()?, &update.ty.shape, &operands[2..]);
            Ok(movement::put_slice(a()?, update, &starts, out))
        }
        Op::Concatenate { axis } => Ok(movement::concatenate(operands, *axis, out)),
        Op::Stack { axis } => Ok(movement::stack(operands, *axis, out)),
        Op::Reduce { reduction, axes, tie_high } => axes::reduce(*reduction, a()?, axes, *tie_high, out),
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            Ok(axes::dot([a()?, operand(1)?], [contract_a, contract_b], [batch_a, batch_b], out))
        }
        Op::Fold { axes, function } => {
            fold::fold(operands, axes, function, out).ok_or_else(|| invalid(op, "no meaning"))
        }
        Op::Conv(op) => {
            let sizes = op.sizes(&a()?.ty.shape, &operand(1)?.ty.shape);
            let sizes = sizes.map_err(|reason| Error::InvalidProgram { op: "conv".to_string(), reason })?;
            conv::conv([a()?, operand(1)?], op, &sizes, out)
        }
        Op::While(_)
        | Op::Cond(_)
        | Op::Workgroup(_)
        | Op::Fused(_)
        | Op::Moved(_)
        | Op::Order(_)
        | Op::Indexing(_)
        | Op::Windowed(_)
        | Op::Spectral(_)
        | Op::Matrix(_) => Err(invalid(op, "its results come together")),
        Op::AllClose { equal_nan, rtol, atol } => {
            let close = all_close([a()?, operand(1)?], *equal_nan, [rtol.real(), atol.real()]);
            Ok(Array::new(out, [Value::bool(close.ok_or_else(|| invalid(op, "no meaning for these types"))?)]))
        }
    }
}

/// Whether no element is farther than `atol + rtol |b|` from that of b. Infinities are close to themselves alone.
fn all_close([a, b]: [&Array; 2], equal_nan: bool, [rtol, atol]: [f64; 2]) -> Option<bool> {
    let rank = a.ty.shape.len().max(b.ty.shape.len());
    let size = |of: &Array, axis: usize| (axis + of.ty.shape.len()).checked_sub(rank).map_or(1, |at| of.ty.shape[at]);
    let shape: Dims = (0..rank).map(|axis| size(a, axis).max(size(b, axis))).collect();
    let apply = |op, args: &[(Value, DType)]| {
        let out = result_dtype(op, &args.iter().map(|(_, dtype)| *dtype).collect::<Vec<_>>())?;
        Some((elementwise::apply(op, args, out)?, out))
    };
    let is = |op, x| apply(Elementwise::Unary(op), &[x]).is_some_and(|(answer, _)| answer.truthy());
    let mut all = true;
    for index in indices(&shape) {
        let [x, y] = [a, b].map(|of| (broadcast_at(of, &index), of.ty.dtype));
        let difference = apply(Elementwise::Binary(Binary::Subtract), &[x, y])?;
        let (distance, _) = apply(Elementwise::Unary(Unary::Abs), &[difference])?;
        let magnitude = if let Value::Complex(re, im) = y.0 { re.hypot(im) } else { y.0.real().abs() };
        let infinite = is(Unary::IsInfinity, x) || is(Unary::IsInfinity, y);
        let same = || Some(apply(Elementwise::Binary(Binary::Equal), &[x, y])?.0.truthy());
        let nan = equal_nan && is(Unary::IsNan, x) && is(Unary::IsNan, y);
        all &= nan || if infinite { same()? } else { distance.real() <= atol + rtol * magnitude };
    }
    Some(all)
}

fn window(op: &Op) -> Result<Dims> {
    match op {
        Op::Slice { lengths, .. } => Ok(Dims::from_slice(lengths)),
        _ => Err(invalid(op, "not a slice")),
    }
}

/// The element that broadcasting puts at an index of a larger shape.
fn broadcast_at(a: &Array, index: &[u64]) -> Value {
    let lead = index.len() - a.ty.shape.len();
    let own: Dims = index[lead..].iter().zip(&a.ty.shape).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect();
    a.at(&own)
}

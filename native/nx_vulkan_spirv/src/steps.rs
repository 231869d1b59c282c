//! Elementwise steps as code: values of one element, and of one element each of the vectors of an invocation.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use half::{bf16, f16};
use nx_vulkan_ir::program::ops::Rule;
use nx_vulkan_ir::program::ranges::are_of_normal;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{CType, DType, Error, Result};
use rspirv::spirv::Word;
use smallvec::SmallVec;

use super::access::{self, Element};
use super::link::Code;
use super::params::Param;
use super::scalar::{self, Value};

/// Constants, without signs, that `nx_divide_by_f32` divides by.
const DIVISORS: RangeInclusive<f32> = 9.094_947e-13..=1.099_511_6e12;

/// The results of steps on values.
pub fn run_steps(
    code: &mut Code<'_, '_>,
    steps: &[Step],
    inputs: &[Value],
    linear: Word,
    coordinates: &[Word],
) -> Result<SmallVec<[Value; 4]>> {
    let mut results: SmallVec<[Value; 4]> = SmallVec::new();
    code.assumes = pays_to_assume(steps);
    let are_of_normal = if code.shares_doubts { are_of_normal(steps) } else { vec![] };
    for (k, step) in steps.iter().enumerate() {
        let find = |&r: &Ref| find(code, r, inputs, &results, linear, coordinates);
        let args: SmallVec<[Value; 3]> = step.args.iter().map(find).collect::<Result<_>>()?;
        code.is_of_normal = are_of_normal.get(k).copied().unwrap_or(false);
        let id = emit_step(code, step, &args)?;
        code.is_of_normal = false;
        results.push(Value { id, dtype: step.out });
    }
    code.assumes = false;
    Ok(results)
}

/// Whether no step gives an operand of 16 bits as a wider float, or its bits, in which one sees which NaN it is.
pub fn hides_nan<'a>(steps: impl IntoIterator<Item = &'a Step>) -> bool {
    let shows = |step: &Step| match step.op {
        Elementwise::AsType | Elementwise::Select | Elementwise::Unary(Unary::Negate | Unary::Abs) => {
            !step.out.is_integer() && step.out.size_bytes() > 2
        }
        Elementwise::Bitcast => true,
        _ => false,
    };
    !steps.into_iter().any(shows)
}

/// Whether steps round to bf16 more often than they read bf16, so that a test of each of these is less than they save.
pub fn pays_to_assume<'a>(steps: impl IntoIterator<Item = &'a Step>) -> bool {
    let rounds = |step: &&Step| {
        step.out == DType::Bf16
            && match step.op {
                Elementwise::Binary(op) => !matches!(op, Binary::Max | Binary::Min),
                Elementwise::Unary(op) => op != Unary::Negate && op.rule() == Rule::Real,
                _ => false,
            }
    };
    let (mut rounding, mut read): (usize, HashSet<Ref>) = (0, HashSet::new());
    for step in steps.into_iter().filter(rounds) {
        rounding += 1;
        read.extend(step.args.iter().copied().filter(|arg| matches!(arg, Ref::Input(_))));
    }
    rounding > read.len()
}

/// The result of one step. Where every number of 16 bits has the same quotient by a constant as it has product with the
/// constant's reciprocal, it is that. Where fma rounds once, and the device does not round quotients itself, others by
/// constants of f32 take their reciprocals, too.
pub fn emit_step(code: &mut Code<'_, '_>, step: &Step, args: &[Value]) -> Result<Word> {
    for (arg, &value) in step.args.iter().zip(args) {
        if let Ref::Constant(_, bits) = *arg {
            code.know_constant(value, bits);
        }
    }
    if let (Elementwise::Binary(Binary::Multiply), DType::Bf16, &[a, b]) = (step.op, step.out, args) {
        for (number, by, arg) in [(a, b, step.args.get(1)), (b, a, step.args.first())] {
            if let Some(&Ref::Constant(dtype, bits)) = arg
                && dtype.ctype() == CType::F32
                && let Some(id) = code.exact_product(number, by, bits)?
            {
                return Ok(id);
            }
        }
    }
    let is_narrow = matches!(step.out, DType::F16 | DType::Bf16) && args.first().map(|a| a.dtype) == Some(step.out);
    if let (Elementwise::Binary(Binary::Divide), &[_, Ref::Constant(dtype, bits)], &[a, b]) =
        (step.op, &step.args[..], args)
        && dtype.ctype() == CType::F32
    {
        let (divisor, modes) = (f32::from_bits(bits as u32), code.linker.modes);
        let is_product = is_narrow
            && (modes.kept || code.is_normal_product(a, 1.0 / divisor)?)
            && *code
                .reciprocals
                .entry((bits as u32, step.out))
                .or_insert_with(|| quotients_are_products(step.out, divisor));
        let is_short = modes.fused
            && !modes.rounded
            && DIVISORS.contains(&divisor.abs())
            && [a.dtype, step.out].iter().all(|dtype| dtype.ctype() == CType::F32);
        if (is_product || is_short)
            && let Some(id) = access::constant(code, CType::F32, (1.0 / divisor).to_bits().into())
        {
            let reciprocal = Value { id, dtype: DType::F32 };
            let bits = (1.0 / divisor).to_bits().into();
            code.know_constant(reciprocal, bits);
            if !is_product {
                return scalar::divide_by(code, a, b, reciprocal, step.out);
            }
            return match code.exact_product(a, reciprocal, bits)? {
                Some(id) => Ok(id),
                None => scalar::emit(code, Elementwise::Binary(Binary::Multiply), &[a, reciprocal], step.out),
            };
        }
    }
    scalar::emit(code, step.op, args, step.out)
}

/// Whether every number of a narrow type, divided by `divisor`, rounds to what it does times the divisor's reciprocal.
fn quotients_are_products(dtype: DType, divisor: f32) -> bool {
    type FromBits = fn(u16) -> f32;
    type ToBits = fn(f32) -> u16;
    let reciprocal = 1.0 / divisor;
    let (number, round): (FromBits, ToBits) = match dtype {
        DType::F16 => (|bits| f16::from_bits(bits).to_f32(), |x| f16::from_f32(x).to_bits()),
        DType::Bf16 => (|bits| bf16::from_bits(bits).to_f32(), |x| bf16::from_f32(x).to_bits()),
        // Of no other type all numbers are tried.
        _ => return false,
    };
    // Up to infinity; the others have another sign.
    let infinity = round(f32::INFINITY);
    let same = |x: f32| round(x / divisor) == round(x * reciprocal);
    divisor.is_normal() && reciprocal.is_normal() && (0..=infinity).map(number).all(same)
}

/// One result of steps on values that know no positions.
pub fn emit_steps(code: &mut Code<'_, '_>, steps: &[Step], result: Ref, inputs: &[Value]) -> Result<Value> {
    let zero = code.linker.const_u32(0);
    let results = run_steps(code, steps, inputs, zero, &[])?;
    find(code, result, inputs, &results, zero, &[])
}

/// Raw bits count as unsigned numbers; nothing computes with them.
pub fn dtype_of(element: Element) -> DType {
    match element {
        Element::Typed(dtype) => dtype,
        Element::Raw(_) => DType::U32,
    }
}

/// What a reference of a step stands for.
pub fn find(
    code: &mut Code<'_, '_>,
    from: Ref,
    inputs: &[Value],
    results: &[Value],
    linear: Word,
    coordinates: &[Word],
) -> Result<Value> {
    let found = match from {
        Ref::Input(k) => inputs.get(k as usize).copied(),
        Ref::Result(k) => results.get(k as usize).copied(),
        Ref::Coordinate(k) => coordinates.get(k as usize).map(|&id| Value { id, dtype: DType::U32 }),
        Ref::Linear => Some(Value { id: linear, dtype: DType::U32 }),
        Ref::Constant(dtype, bits) => access::exact_constant(code, dtype.ctype(), bits)?.map(|id| Value { id, dtype }),
    };
    found.ok_or_else(|| Error::InvalidProgram { op: "kernel".to_string(), reason: format!("{from:?} does not exist") })
}

/// The parameters that bound input `k`, behind `others` of the launch.
pub fn bounds(others: u8, k: u8) -> [Param; 2] {
    [0, 1].map(|i| Param::Extra(others + 2 * k + i))
}

/// The parameters that are number `j` of a launch with so many inputs, which may have bounds: its lower bits and its
/// upper ones.
pub fn number(inputs: usize, j: usize) -> [Param; 2] {
    [0, 1].map(|i| Param::Extra((2 * (inputs + j) + i) as u8))
}

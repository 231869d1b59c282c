//! Elementwise ops on single values.

use std::cmp::Ordering;

use super::complex::{self, Pair};
use super::real;
use crate::DType;
use crate::dtype::merge;
use crate::program::{Binary, Elementwise, Unary};
use crate::value::Value;

/// The result for one element of each operand, canonical for `out`. `None` where the op has no meaning for the types.
///
/// Real operands are the numbers they are; the result is rounded once.
pub fn apply(op: Elementwise, args: &[(Value, DType)], out: DType) -> Option<Value> {
    match (op, args) {
        (Elementwise::Unary(op), &[a]) => unary(op, a, out),
        (Elementwise::Binary(op), &[a, b]) => binary(op, a, b, out),
        (Elementwise::Select, &[pred, a, b]) => Some(if pred.0.truthy() { a.0.cast(out) } else { b.0.cast(out) }),
        (Elementwise::Clip, &[a, min, max]) => {
            let (a, min, max) = (a.0.cast(out), min.0.cast(out), max.0.cast(out));
            let low = if compare(a, min)?.is_some_and(|o| o.is_gt()) { a } else { min };
            Some(if compare(low, max)?.is_some_and(|o| o.is_lt()) { low } else { max })
        }
        (Elementwise::AsType, &[a]) => Some(a.0.cast(out)),
        (Elementwise::Bitcast, &[a]) => Some(Value::from_bits(out, a.0.to_bits(a.1))),
        _ => None,
    }
}

/// The larger value, or the smaller one if `flip`.
pub fn extreme(a: Value, b: Value, flip: bool) -> Option<Value> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(Value::Int(if flip { a.min(b) } else { a.max(b) })),
        (Value::Float(a), Value::Float(b)) => Some(Value::Float(real::extreme(a, b, flip))),
        _ => None,
    }
}

/// The same of many, in whatever order: 0.0 is larger than -0.0.
pub fn extreme_of_all(a: Value, b: Value, flip: bool) -> Option<Value> {
    match (a, b) {
        (Value::Float(x), Value::Float(y)) if x == 0.0 && y == 0.0 => {
            Some(if x.is_sign_negative() == flip { a } else { b })
        }
        _ => extreme(a, b, flip),
    }
}

fn unary(op: Unary, (a, dtype): (Value, DType), out: DType) -> Option<Value> {
    let value = match (op, a) {
        (Unary::IsNan, _) => Value::bool(a.real().is_nan() || a.imag().is_nan()),
        (Unary::IsInfinity, _) => Value::bool(a.real().is_infinite() || a.imag().is_infinite()),
        (Unary::CountLeadingZeros, Value::Int(_)) => {
            Value::Int(i128::from(a.to_bits(dtype).leading_zeros() + dtype.bits()) - 128)
        }
        (Unary::PopulationCount, Value::Int(_)) => Value::Int(a.to_bits(dtype).count_ones().into()),
        (Unary::Real, _) if !out.is_complex() => a,
        (Unary::Imag, _) if !out.is_complex() => Value::Float(a.imag()),
        (Unary::Abs, Value::Complex(re, im)) => Value::Float(complex::abs((re, im))),
        _ => match number(a, out) {
            Value::Int(i) => Value::Int(unary_int(op, i)?),
            Value::Float(x) => Value::Float(unary_real(op, x)?),
            Value::Complex(re, im) => pair(unary_complex(op, (re, im))?),
        },
    };
    Some(value.cast(out))
}

fn pair((re, im): Pair) -> Value {
    Value::Complex(re, im)
}

fn unary_int(op: Unary, i: i128) -> Option<i128> {
    Some(match op {
        Unary::Abs => i.abs(),
        Unary::Negate => -i,
        Unary::Sign => i.signum(),
        Unary::BitwiseNot => !i,
        Unary::Ceil | Unary::Floor | Unary::Round => i,
        _ => return None,
    })
}

fn unary_real(op: Unary, x: f64) -> Option<f64> {
    Some(match op {
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sigmoid => real::sigmoid(x),
        Unary::Cos => x.cos(),
        Unary::Sin => x.sin(),
        Unary::Tan => x.tan(),
        Unary::Cosh => x.cosh(),
        Unary::Sinh => x.sinh(),
        Unary::Tanh => x.tanh(),
        Unary::Acos => x.acos(),
        Unary::Asin => x.asin(),
        Unary::Atan => x.atan(),
        Unary::Acosh => real::acosh(x),
        Unary::Asinh => real::asinh(x),
        Unary::Atanh => real::atanh(x),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Cbrt => x.cbrt(),
        Unary::Erf => libm::erf(x),
        Unary::Erfc => libm::erfc(x),
        Unary::ErfInv => real::erf_inv(x),
        Unary::Abs => x.abs(),
        Unary::Ceil => x.ceil(),
        Unary::Floor => x.floor(),
        Unary::Negate => -x,
        Unary::Round => real::round(x),
        Unary::Sign => real::sign(x),
        Unary::BitwiseNot
        | Unary::Conjugate
        | Unary::CountLeadingZeros
        | Unary::PopulationCount
        | Unary::Real
        | Unary::Imag
        | Unary::IsNan
        | Unary::IsInfinity => return None,
    })
}

fn unary_complex(op: Unary, z: Pair) -> Option<Pair> {
    Some(match op {
        Unary::Exp => complex::exp(z),
        Unary::Expm1 => complex::expm1(z),
        Unary::Log => complex::log(z),
        Unary::Log1p => complex::log1p(z),
        Unary::Sigmoid => complex::sigmoid(z),
        Unary::Cos => complex::cos(z),
        Unary::Sin => complex::sin(z),
        Unary::Tan => complex::tan(z),
        Unary::Cosh => complex::cosh(z),
        Unary::Sinh => complex::sinh(z),
        Unary::Tanh => complex::tanh(z),
        Unary::Acos => complex::acos(z),
        Unary::Asin => complex::asin(z),
        Unary::Atan => complex::atan(z),
        Unary::Acosh => complex::acosh(z),
        Unary::Asinh => complex::asinh(z),
        Unary::Atanh => complex::atanh(z),
        Unary::Sqrt => complex::sqrt(z),
        Unary::Rsqrt => complex::rsqrt(z),
        Unary::Cbrt => complex::cbrt(z),
        Unary::Conjugate => (z.0, -z.1),
        Unary::Negate => complex::negate(z),
        Unary::Sign => complex::sign(z),
        Unary::Erf
        | Unary::Erfc
        | Unary::ErfInv
        | Unary::Abs
        | Unary::BitwiseNot
        | Unary::Ceil
        | Unary::Floor
        | Unary::Round
        | Unary::CountLeadingZeros
        | Unary::PopulationCount
        | Unary::Real
        | Unary::Imag
        | Unary::IsNan
        | Unary::IsInfinity => return None,
    })
}

/// An operand: real ops take real operands as they are.
fn number(a: Value, out: DType) -> Value {
    match a {
        Value::Int(i) if out.is_float() => Value::Float(i as f64),
        Value::Int(_) if out.is_integer() => a,
        Value::Float(_) if out.is_float() => a,
        _ => a.cast(out),
    }
}

fn binary(op: Binary, (a, a_type): (Value, DType), (b, b_type): (Value, DType), out: DType) -> Option<Value> {
    if op.is_predicate() {
        return Some(Value::bool(predicate(op, a, b, merge(a_type, b_type))?).cast(out));
    }
    let value = match (number(a, out), number(b, out)) {
        (Value::Int(a), Value::Int(b)) => Value::Int(binary_int(op, a, b)?),
        (Value::Float(a), Value::Float(b)) => Value::Float(binary_real(op, a, b)?),
        (a, b) => pair(binary_complex(op, (a.real(), a.imag()), (b.real(), b.imag()))?),
    };
    Some(value.cast(out))
}

fn predicate(op: Binary, a: Value, b: Value, merged: DType) -> Option<bool> {
    let logical = |f: fn(bool, bool) -> bool| Some(f(a.truthy(), b.truthy()));
    let Some(order) = compare(a, b) else {
        let (a, b) = (a.cast(merged), b.cast(merged));
        return match op {
            Binary::Equal => Some(a == b),
            Binary::NotEqual => Some(a != b),
            Binary::LogicalAnd => logical(|a, b| a && b),
            Binary::LogicalOr => logical(|a, b| a || b),
            Binary::LogicalXor => logical(|a, b| a != b),
            _ => None,
        };
    };
    match op {
        Binary::Equal => Some(order.is_some_and(|o| o.is_eq())),
        Binary::NotEqual => Some(order.is_none_or(|o| o.is_ne())),
        Binary::Greater => Some(order.is_some_and(|o| o.is_gt())),
        Binary::GreaterEqual => Some(order.is_some_and(|o| o.is_ge())),
        Binary::Less => Some(order.is_some_and(|o| o.is_lt())),
        Binary::LessEqual => Some(order.is_some_and(|o| o.is_le())),
        Binary::LogicalAnd => logical(|a, b| a && b),
        Binary::LogicalOr => logical(|a, b| a || b),
        Binary::LogicalXor => logical(|a, b| a != b),
        _ => None,
    }
}

/// The exact order of real numbers, `Some(None)` if one is NaN. `None` for complex ones.
fn compare(a: Value, b: Value) -> Option<Option<Ordering>> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(Some(a.cmp(&b))),
        (Value::Float(a), Value::Float(b)) => Some(a.partial_cmp(&b)),
        (Value::Int(a), Value::Float(b)) => Some(compare_with_float(a, b)),
        (Value::Float(a), Value::Int(b)) => Some(compare_with_float(b, a).map(Ordering::reverse)),
        _ => None,
    }
}

fn compare_with_float(a: i128, b: f64) -> Option<Ordering> {
    // a cast to i128 saturates, far beyond any integer here
    let whole = b.trunc();
    let order = a.cmp(&(whole as i128)).then(0.0.partial_cmp(&(b - whole)).unwrap_or(Ordering::Equal));
    (!b.is_nan()).then_some(order)
}

fn binary_int(op: Binary, a: i128, b: i128) -> Option<i128> {
    // Shifts by more than any register has, or by a negative number, leave nothing.
    let shift = u32::try_from(b).ok().filter(|&s| s < 64);
    Some(match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a.wrapping_mul(b),
        Binary::Pow => int_pow(a, b),
        Binary::Remainder if b == 0 => a,
        Binary::Remainder => a % b,
        Binary::Quotient if b == 0 => -1,
        Binary::Quotient => a / b,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::BitwiseAnd => a & b,
        Binary::BitwiseOr => a | b,
        Binary::BitwiseXor => a ^ b,
        Binary::LeftShift => shift.map_or(0, |s| a << s),
        Binary::RightShift => shift.map_or(if a < 0 { -1 } else { 0 }, |s| a >> s),
        _ => return None,
    })
}

/// a^b modulo 2^128; a negative exponent gives what an integer can hold of 1 / a^-b.
fn int_pow(a: i128, b: i128) -> i128 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 if b % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut base, mut exponent) = (1i128, a, b);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent /= 2;
    }
    result
}

fn binary_real(op: Binary, a: f64, b: f64) -> Option<f64> {
    Some(match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        // Correctly rounded, which powf need not be.
        Binary::Pow if b == 2.0 => a * a,
        Binary::Pow => a.powf(b),
        Binary::Remainder => a % b,
        Binary::Divide => a / b,
        Binary::Atan2 => a.atan2(b),
        Binary::Min => real::extreme(a, b, true),
        Binary::Max => real::extreme(a, b, false),
        _ => return None,
    })
}

fn binary_complex(op: Binary, a: Pair, b: Pair) -> Option<Pair> {
    Some(match op {
        Binary::Add => complex::add(a, b),
        Binary::Subtract => complex::subtract(a, b),
        Binary::Multiply => complex::multiply(a, b),
        Binary::Pow => complex::pow(a, b),
        Binary::Divide => complex::divide(a, b),
        Binary::Atan2 => complex::atan2(a, b),
        _ => return None,
    })
}

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

/// The larger of two values among many, or the smaller one if `flip`, in whatever order: 0.0 is larger than -0.0.
pub fn extreme_of_all(a: Value, b: Value, flip: bool) -> Option<Value> {
    match (a, b) {
        (Value::Float(x), Value::Float(y)) if x == 0.0 && y == 0.0 => {
            Some(if x.is_sign_negative() == flip { a } else { b })
        }
        _ => extreme(a, b, flip),
    }
}

/// What an op makes of one element.
enum Meaning {
    /// Of any number.
    Any(fn(Value) -> Value),
    /// Of the bits of an integer, and how many there are.
    Bits(fn(u128, u32) -> u32),
    /// Of a number as the type of the result holds it: an integer, a real one, a complex one.
    Number { integer: Option<fn(i128) -> i128>, real: Option<fn(f64) -> f64>, complex: Option<fn(Pair) -> Pair> },
}

/// Of integers, floats and complex numbers alike.
fn numbers(integer: fn(i128) -> i128, real: fn(f64) -> f64, complex: fn(Pair) -> Pair) -> Meaning {
    Meaning::Number { integer: Some(integer), real: Some(real), complex: Some(complex) }
}

/// Of integers and floats.
fn reals(integer: fn(i128) -> i128, real: fn(f64) -> f64) -> Meaning {
    Meaning::Number { integer: Some(integer), real: Some(real), complex: None }
}

/// Of floats and complex numbers.
fn floats(real: fn(f64) -> f64, complex: fn(Pair) -> Pair) -> Meaning {
    Meaning::Number { integer: None, real: Some(real), complex: Some(complex) }
}

/// Of floats.
fn real_floats(real: fn(f64) -> f64) -> Meaning {
    Meaning::Number { integer: None, real: Some(real), complex: None }
}

fn meaning(op: Unary) -> Meaning {
    match op {
        Unary::Exp => floats(f64::exp, complex::exp),
        Unary::Expm1 => floats(f64::exp_m1, complex::expm1),
        Unary::Log => floats(f64::ln, complex::log),
        Unary::Log1p => floats(f64::ln_1p, complex::log1p),
        Unary::Log2 => real_floats(f64::log2),
        Unary::Sigmoid => floats(real::sigmoid, complex::sigmoid),
        Unary::Cos => floats(f64::cos, complex::cos),
        Unary::Sin => floats(f64::sin, complex::sin),
        Unary::Tan => floats(f64::tan, complex::tan),
        Unary::Cosh => floats(f64::cosh, complex::cosh),
        Unary::Sinh => floats(f64::sinh, complex::sinh),
        Unary::Tanh => floats(f64::tanh, complex::tanh),
        Unary::Acos => floats(f64::acos, complex::acos),
        Unary::Asin => floats(f64::asin, complex::asin),
        Unary::Atan => floats(f64::atan, complex::atan),
        Unary::Acosh => floats(real::acosh, complex::acosh),
        Unary::Asinh => floats(real::asinh, complex::asinh),
        Unary::Atanh => floats(real::atanh, complex::atanh),
        Unary::Sqrt => floats(f64::sqrt, complex::sqrt),
        Unary::Rsqrt => floats(|x| 1.0 / x.sqrt(), complex::rsqrt),
        Unary::Cbrt => floats(f64::cbrt, complex::cbrt),
        Unary::Erf => real_floats(libm::erf),
        Unary::Erfc => real_floats(libm::erfc),
        Unary::ErfInv => real_floats(real::erf_inv),
        // Of a complex number in `unary`: its result is none.
        Unary::Abs => reals(i128::abs, f64::abs),
        Unary::BitwiseNot => Meaning::Number { integer: Some(|i| !i), real: None, complex: None },
        Unary::Ceil => reals(|i| i, f64::ceil),
        Unary::Conjugate => Meaning::Number { integer: None, real: None, complex: Some(|z| (z.0, -z.1)) },
        Unary::Floor => reals(|i| i, f64::floor),
        Unary::Negate => numbers(|i| -i, |x| -x, complex::negate),
        Unary::Round => reals(|i| i, real::round),
        Unary::Sign => numbers(i128::signum, real::sign, complex::sign),
        Unary::CountLeadingZeros => Meaning::Bits(|bits, width| bits.leading_zeros() + width - u128::BITS),
        Unary::PopulationCount => Meaning::Bits(|bits, _| bits.count_ones()),
        Unary::Real => Meaning::Any(|a| match a {
            Value::Complex(re, _) => Value::Float(re),
            real => real,
        }),
        Unary::Imag => Meaning::Any(|a| Value::Float(a.imag())),
        Unary::Phase => Meaning::Any(|a| Value::Float(a.imag().atan2(a.real()))),
        Unary::IsNan => Meaning::Any(|a| Value::bool(a.real().is_nan() || a.imag().is_nan())),
        Unary::IsInfinity => Meaning::Any(|a| Value::bool(a.real().is_infinite() || a.imag().is_infinite())),
    }
}

/// What an op makes of a real number that is no integer, if it takes such.
pub fn real_function(op: Unary) -> Option<fn(f64) -> f64> {
    match meaning(op) {
        Meaning::Number { real, .. } => real,
        Meaning::Any(_) | Meaning::Bits(_) => None,
    }
}

fn unary(op: Unary, (a, dtype): (Value, DType), out: DType) -> Option<Value> {
    let value = match (meaning(op), a) {
        (Meaning::Any(of), _) => of(a),
        (Meaning::Bits(of), Value::Int(_)) => Value::Int(of(a.to_bits(dtype), dtype.bits()).into()),
        (Meaning::Bits(_), _) => return None,
        (Meaning::Number { .. }, Value::Complex(re, im)) if op == Unary::Abs => Value::Float(complex::abs((re, im))),
        (Meaning::Number { integer, real, complex }, _) => match number(a, out) {
            Value::Int(i) => Value::Int(integer?(i)),
            Value::Float(x) => Value::Float(real?(x)),
            Value::Complex(re, im) => pair(complex?((re, im))),
        },
    };
    Some(value.cast(out))
}

fn pair((re, im): Pair) -> Value {
    Value::Complex(re, im)
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
        // Of floats, and predicates, which have another function.
        Binary::Divide | Binary::Atan2 => return None,
        Binary::Equal | Binary::NotEqual | Binary::Greater | Binary::GreaterEqual => return None,
        Binary::Less | Binary::LessEqual => return None,
        Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => return None,
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
        // Of integers, and predicates, which have another function.
        Binary::Quotient | Binary::LeftShift | Binary::RightShift => return None,
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => return None,
        Binary::Equal | Binary::NotEqual | Binary::Greater | Binary::GreaterEqual => return None,
        Binary::Less | Binary::LessEqual => return None,
        Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => return None,
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
        // Of real numbers, and predicates, which have another function.
        Binary::Quotient | Binary::Remainder | Binary::Min | Binary::Max => return None,
        Binary::LeftShift | Binary::RightShift => return None,
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => return None,
        Binary::Equal | Binary::NotEqual | Binary::Greater | Binary::GreaterEqual => return None,
        Binary::Less | Binary::LessEqual => return None,
        Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => return None,
    })
}

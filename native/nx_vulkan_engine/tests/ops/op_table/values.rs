//! Operands: special values first, then random ones.

use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Type, Value, value};
use nx_vulkan_ir::dtype::Format;

use crate::common::Rng;

/// What numbers an operand takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// Everything: zeros of both signs, denormals, infinities, NaN, extremes, any bits.
    All,
    /// Numbers of ordinary size, without zero.
    Ordinary,
    /// From 0 to the width of the type, and a little beyond both ends.
    Shift,
}

fn largest(dtype: DType) -> f64 {
    dtype.format().map_or(f64::from(f32::MAX), Format::max)
}

fn least_normal(dtype: DType) -> f64 {
    dtype.format().map_or(f64::from(f32::MIN_POSITIVE), |format| 2f64.powi(format.least_exponent()))
}

fn special_floats(dtype: DType) -> Vec<f64> {
    let (max, tiny) = (largest(dtype), least_normal(dtype));
    let positive = [0.0, 1.0, 0.5, 2.5, 3.0, f64::INFINITY, max, tiny, tiny * 0.75, 0.999, 100.5, 1e-3];
    positive.into_iter().flat_map(|x| [x, -x]).chain([f64::NAN]).collect()
}

pub fn specials(dtype: DType) -> Vec<Value> {
    if dtype.is_integer() {
        let (low, high) = value::range(dtype);
        return [0, 1, 2, 3, -1, -2, 7, low, low + 1, high, high - 1].map(|i| Value::Int(i).cast(dtype)).to_vec();
    }
    let floats = special_floats(dtype);
    if !dtype.is_complex() {
        return floats.into_iter().map(|x| Value::Float(x).cast(dtype)).collect();
    }
    let second = floats.iter().cycle().skip(7);
    floats.iter().chain(&floats).zip(second).map(|(&re, &im)| Value::Complex(re, im).cast(dtype)).collect()
}

fn random(dtype: DType, range: Range, rng: &mut Rng) -> Value {
    let ordinary = |rng: &mut Rng| {
        let x = (rng.below(2_400_001) as f64 + 100_000.0) / 1e6;
        if rng.below(2) == 0 { x } else { -x }
    };
    if dtype.is_complex() {
        return Value::Complex(ordinary(rng), ordinary(rng)).cast(dtype);
    }
    if range == Range::Shift {
        return Value::Int(i128::from(rng.below(u64::from(dtype.bits()) + 4)) - 1).cast(dtype);
    }
    if dtype.is_integer() {
        let shift = rng.below(u64::from(dtype.bits()));
        let i = i128::from(rng.next() as i64 >> shift.min(62));
        let small = if dtype.is_signed() { i % 11 } else { i & 7 };
        return Value::Int(if range == Range::Ordinary { small } else { i }).cast(dtype);
    }
    let any = match (range, rng.below(4)) {
        (Range::Ordinary, _) | (_, 0) => Value::Float(ordinary(rng)),
        (_, 1) => Value::Float(ordinary(rng) * 2f64.powi(rng.below(40) as i32 - 20)),
        // Many functions do all their work below 1.
        (_, 2) => Value::Float(ordinary(rng) / 2.5),
        _ => Value::from_bits(dtype, u128::from(rng.next())),
    };
    any.cast(dtype)
}

/// An operand of `ty`. Where two operands of one op have different `seat`s, their specials meet in all pairs.
pub fn operand(ty: &Type, range: Range, seat: usize, rng: &mut Rng) -> Array {
    let specials = if range == Range::All { specials(ty.dtype) } else { Vec::new() };
    let n = ty.elements() as usize;
    let pairs = specials.len() * specials.len();
    let values: Vec<Value> = (0..n)
        .map(|i| match seat {
            0 if i < pairs => specials[i % specials.len()],
            1 if i < pairs => specials[i / specials.len() % specials.len()],
            2 if i < specials.len() => specials[i],
            _ => random(ty.dtype, range, rng),
        })
        .collect();
    Array::new(ty, values)
}

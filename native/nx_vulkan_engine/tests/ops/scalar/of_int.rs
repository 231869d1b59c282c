//! Integer ops, casts and narrow storage on a device, against exact integer arithmetic on the host.
#![allow(clippy::type_complexity)]

use nx_vulkan_engine::DType;
use nx_vulkan_engine::program::{Binary, Elementwise, Unary};

use super::{Runner, storage_bytes};
use crate::common;

#[derive(Debug, Clone, Copy)]
enum Value {
    Int(i128),
    Float(f64),
}

/// Widths of exponent and mantissa of a float.
fn float_fields(dtype: DType) -> Option<(i32, i32)> {
    dtype.format().map(|format| (format.exponent as i32, format.mantissa as i32))
}

/// Whether its largest exponent holds numbers.
fn is_finite(dtype: DType) -> bool {
    dtype.format().is_some_and(|format| !format.infinite)
}

fn range(dtype: DType) -> (i128, i128) {
    let bits = dtype.bits();
    if dtype.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn wrap(dtype: DType, value: i128) -> i128 {
    let (low, high) = range(dtype);
    (value - low).rem_euclid(high - low + 1) + low
}

fn decode(dtype: DType, raw: u64) -> Value {
    if dtype.is_integer() {
        return Value::Int(wrap(dtype, i128::from(raw)));
    }
    let (exponent_bits, mantissa_bits) = float_fields(dtype).unwrap();
    let mantissa = raw & ((1 << mantissa_bits) - 1);
    let exponent = (raw >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let sign = if raw >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let top = (1 << exponent_bits) - 1;
    let magnitude = match (exponent, is_finite(dtype)) {
        (_, true) if exponent == top && mantissa == (1 << mantissa_bits) - 1 => f64::NAN,
        (_, true) | (0, _) => scaled(exponent, mantissa, mantissa_bits, bias),
        _ if exponent == top => {
            if mantissa == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => scaled(exponent, mantissa, mantissa_bits, bias),
    };
    Value::Float(sign * magnitude)
}

fn scaled(exponent: u64, mantissa: u64, mantissa_bits: i32, bias: i32) -> f64 {
    let (hidden, e) = if exponent == 0 { (0, 1) } else { (1u64 << mantissa_bits, exponent as i32) };
    power(e - bias - mantissa_bits, (hidden + mantissa) as f64)
}

/// x * 2^k without a denormal power in between.
fn power(k: i32, x: f64) -> f64 {
    let half = k / 2;
    x * 2f64.powi(half) * 2f64.powi(k - half)
}

/// The number with `mantissa_bits + 1` significant bits nearest to m, to even.
fn round_integer(m: u128, mantissa_bits: i32) -> f64 {
    let shift = (128 - m.leading_zeros() as i32 - 1 - mantissa_bits).max(0);
    let (kept, lost) = (m >> shift, m & ((1 << shift) - 1));
    let half = (1u128 << shift) >> 1;
    let up = shift > 0 && (lost > half || (lost == half && kept % 2 == 1));
    power(shift, (kept + u128::from(up)) as f64)
}

/// The raw bits of a value as an element of `dtype`: integers wrap; floats to integers truncate, clamp and take NaN to
/// 0.
fn encode(dtype: DType, value: Value) -> u64 {
    if dtype.is_integer() {
        let exact = match value {
            Value::Int(i) => wrap(dtype, i),
            Value::Float(f) => {
                let (low, high) = range(dtype);
                if f.is_nan() {
                    0
                } else if f >= high as f64 {
                    high
                } else if f <= low as f64 {
                    low
                } else {
                    f as i128
                }
            }
        };
        return exact as u64 & (u64::MAX >> (64 - dtype.bits()));
    }
    let (exponent_bits, mantissa_bits) = float_fields(dtype).unwrap();
    let (magnitude, negative) = match value {
        Value::Float(f) => (f.abs(), f.is_sign_negative()),
        Value::Int(i) => (round_integer(i.unsigned_abs(), mantissa_bits), i < 0),
    };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let top: u64 = (1 << exponent_bits) - 1;
    let sign = u64::from(negative) << (exponent_bits + mantissa_bits);
    if magnitude.is_nan() {
        return match is_finite(dtype) {
            true => (1 << (exponent_bits + mantissa_bits)) - 1,
            false => (top << mantissa_bits) | (1 << (mantissa_bits - 1)),
        };
    }
    let all: u64 = (1 << (exponent_bits + mantissa_bits)) - 1;
    let saturated = if is_finite(dtype) { all - 1 } else { top << mantissa_bits };
    if magnitude.is_infinite() {
        return sign | saturated;
    }
    if magnitude == 0.0 {
        return sign;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let exact = power(mantissa_bits - exponent, magnitude);
    let floor = exact.floor();
    let fraction = exact - floor;
    let up = fraction > 0.5 || (fraction == 0.5 && floor % 2.0 == 1.0);
    let steps = floor as u64 + u64::from(up);
    sign | ((((exponent + bias) as u64) << mantissa_bits) + steps - (1 << mantissa_bits)).min(saturated)
}

fn raw_values(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(storage_bytes(dtype))
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect()
}

fn to_bytes(dtype: DType, raw: &[u64]) -> Vec<u8> {
    raw.iter().flat_map(|v| v.to_le_bytes()[..storage_bytes(dtype)].to_vec()).collect()
}

/// Raw elements that meet edges, ties and the whole range.
fn samples(dtype: DType, seed: u64) -> Vec<u64> {
    let bits = dtype.bits();
    let mask = u64::MAX >> (64 - bits);
    if bits <= 16 && seed == 0 {
        return (0..=mask).collect();
    }
    let mut rng = common::Rng(0x9e37_79b9 + seed);
    let mut values: Vec<u64> = (0..8_000)
        .map(|i| {
            let (r, s) = (rng.next(), rng.next() >> 40);
            let shift = s % u64::from(bits);
            match (i % 4, dtype.is_integer()) {
                (0, true) => r & mask,
                // small numbers of both signs
                (1, true) => (r & mask) >> shift,
                (2, true) => ((r & mask) >> shift).wrapping_neg() & mask,
                // few bits set: ties
                (_, true) => ((r & 0xfff) << shift).wrapping_add(s % 3).wrapping_sub(1) & mask,
                (0, false) => r & mask,
                (1, false) => encode(dtype, Value::Float((r as i64 as f64) * 2f64.powi(-(shift as i32)))),
                (2, false) => {
                    // halfway between narrow floats, or next to it
                    let high = r & mask & !(mask >> 12);
                    high.wrapping_add(s % 3).wrapping_sub(1) & mask
                }
                _ => encode(dtype, Value::Float((r % 140_000) as f64 / 2.0 - 35_000.0)),
            }
        })
        .collect();
    values.extend([0, 1, 2, mask, mask - 1, mask >> 1, (mask >> 1) + 1, (mask >> 1) + 2]);
    values
}

const INTEGERS: [DType; 12] = [
    DType::S2,
    DType::S4,
    DType::S8,
    DType::S16,
    DType::S32,
    DType::S64,
    DType::U2,
    DType::U4,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

const FLOATS: [DType; 6] = [DType::F8E5M2, DType::F8E4M3Fn, DType::F16, DType::Bf16, DType::F32, DType::F64];

#[test]
fn casts_are_exact() {
    let runner = Runner::new();
    let types = INTEGERS.into_iter().chain(FLOATS);
    for from in types.clone() {
        let raw = samples(from, 0);
        let bytes = to_bytes(from, &raw);
        for to in types.clone().filter(|&to| to != from) {
            let got = raw_values(to, &runner.run(Elementwise::AsType, &[(from, &bytes)], to));
            for (i, &r) in raw.iter().enumerate() {
                let value = decode(from, r);
                let want = match (to, value) {
                    (DType::F64, Value::Float(f)) => f.to_bits(),
                    (DType::F64, Value::Int(n)) => (n as f64).to_bits(),
                    _ => encode(to, value),
                };
                let both_nan = !to.is_integer()
                    && matches!(decode(to, got[i]), Value::Float(f) if f.is_nan())
                    && matches!(value, Value::Float(f) if f.is_nan());
                let mask = u64::MAX >> (64 - to.bits());
                assert!(got[i] & mask == want || both_nan, "{from} {value:?} to {to}: {:#x}, not {want:#x}", got[i]);
            }
        }
    }
    runner.assert_valid();
}

/// What each op does in whole numbers; wrapping to the type comes after.
fn whole(op: Binary, a: i128, b: i128, bits: i128) -> i128 {
    match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a.wrapping_mul(b),
        Binary::Quotient => {
            if b == 0 {
                -1
            } else {
                a / b
            }
        }
        Binary::Remainder => {
            if b == 0 {
                a
            } else {
                a % b
            }
        }
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::BitwiseAnd => a & b,
        Binary::BitwiseOr => a | b,
        Binary::BitwiseXor => a ^ b,
        Binary::LeftShift => {
            if (0..bits).contains(&b) {
                a << b
            } else {
                0
            }
        }
        Binary::RightShift => {
            if (0..bits).contains(&b) {
                a >> b
            } else if a < 0 {
                -1
            } else {
                0
            }
        }
        Binary::Equal => i128::from(a == b),
        Binary::NotEqual => i128::from(a != b),
        Binary::Less => i128::from(a < b),
        Binary::LessEqual => i128::from(a <= b),
        Binary::Greater => i128::from(a > b),
        Binary::GreaterEqual => i128::from(a >= b),
        Binary::LogicalAnd => i128::from(a != 0 && b != 0),
        Binary::LogicalOr => i128::from(a != 0 || b != 0),
        Binary::LogicalXor => i128::from((a != 0) != (b != 0)),
        Binary::Pow if b < 0 => match a {
            1 => 1,
            -1 => 1 - 2 * (b & 1),
            _ => 0,
        },
        Binary::Pow => {
            let (mut result, mut base, mut exponent) = (1u64, a as u64, b);
            while exponent != 0 {
                if exponent & 1 == 1 {
                    result = result.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exponent >>= 1;
            }
            i128::from(result)
        }
        Binary::Divide | Binary::Atan2 => unreachable!("float ops"),
    }
}

#[test]
fn binary_ops_are_exact() {
    let runner = Runner::new();
    for dtype in INTEGERS {
        let (a, b) = (samples(dtype, 1), samples(dtype, 2));
        let shifts: Vec<u64> = b.iter().map(|s| s % (u64::from(dtype.bits()) + 3)).collect();
        let mask = u64::MAX >> (64 - dtype.bits());
        for &op in Binary::ALL.iter().filter(|op| !matches!(op, Binary::Divide | Binary::Atan2)) {
            let shift = matches!(op, Binary::LeftShift | Binary::RightShift);
            let b: Vec<u64> = if shift { shifts.iter().map(|s| s & mask).collect() } else { b.clone() };
            let out = if op.is_predicate() { DType::U8 } else { dtype };
            let inputs = (to_bytes(dtype, &a), to_bytes(dtype, &b));
            let got =
                raw_values(out, &runner.run(Elementwise::Binary(op), &[(dtype, &inputs.0), (dtype, &inputs.1)], out));
            for i in 0..a.len() {
                let (Value::Int(x), Value::Int(y)) = (decode(dtype, a[i]), decode(dtype, b[i])) else { unreachable!() };
                let want = encode(out, Value::Int(whole(op, x, y, i128::from(dtype.bits()))));
                let mask = u64::MAX >> (64 - out.bits());
                assert_eq!(got[i] & mask, want, "{}({x}, {y}) of {dtype}", op.name());
            }
        }
    }
    runner.assert_valid();
}

#[test]
fn unary_ops_are_exact() {
    let runner = Runner::new();
    let table: [(Unary, fn(i128, u64, u32) -> i128); 6] = [
        (Unary::Abs, |x, _, _| x.abs()),
        (Unary::Negate, |x, _, _| -x),
        (Unary::Sign, |x, _, _| x.signum()),
        (Unary::BitwiseNot, |x, _, _| !x),
        (Unary::CountLeadingZeros, |_, raw, bits| i128::from(raw.leading_zeros() + bits) - 64),
        (Unary::PopulationCount, |_, raw, _| i128::from(raw.count_ones())),
    ];
    for dtype in INTEGERS {
        let raw = samples(dtype, 0);
        let mask = u64::MAX >> (64 - dtype.bits());
        for (op, reference) in table {
            let got = raw_values(dtype, &runner.run(Elementwise::Unary(op), &[(dtype, &to_bytes(dtype, &raw))], dtype));
            for (i, &r) in raw.iter().enumerate() {
                let Value::Int(x) = decode(dtype, r) else { unreachable!() };
                let want = encode(dtype, Value::Int(reference(x, r, dtype.bits())));
                assert_eq!(got[i] & mask, want, "{}({x}) of {dtype}", op.name());
            }
        }
    }
    runner.assert_valid();
}

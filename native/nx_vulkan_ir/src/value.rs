//! Elements as numbers on the host: how a number becomes an element of each dtype, and its bits.

use half::{bf16, f16};

use crate::dtype::Format;
use crate::program::attribute::Scalar;
use crate::{DType, float8};

/// An element. Canonical for a dtype when it is one of the dtype's values: then its kind is the dtype's kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A whole number.
    Int(i128),
    /// A real number.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
}

/// The format of a float of at most 32 bits, or of such parts.
fn format(dtype: DType) -> Option<Format> {
    dtype.format().filter(|format| format.mantissa <= 23)
}

/// Lowest and highest value of an integer type.
pub fn range(dtype: DType) -> (i128, i128) {
    let bits = dtype.bits();
    if dtype.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The value modulo the width of an integer type.
pub fn wrap(dtype: DType, value: i128) -> i128 {
    let unused = 128 - dtype.bits();
    if dtype.is_signed() { (value << unused) >> unused } else { (((value as u128) << unused) >> unused) as i128 }
}

/// The nearest number of a float type, ties to even. Parts of complex types are rounded likewise.
pub fn round(dtype: DType, x: f64) -> f64 {
    let Some(format) = format(dtype) else { return x };
    if x == 0.0 || x.is_nan() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(format.least_exponent());
    let ulp = 2f64.powi(exponent - format.mantissa as i32);
    let rounded = (x / ulp).round_ties_even() * ulp;
    let max = format.max();
    if rounded.abs() <= max {
        return rounded;
    }
    let overflow = if format.infinite { f64::INFINITY } else { max };
    overflow.copysign(x)
}

/// Devices may take these as zeros.
pub fn is_denormal(value: Value, dtype: DType) -> bool {
    let least = if dtype == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
    matches!(value, Value::Float(x) if x != 0.0 && x.abs() < least)
}

/// An integer as a float that rounds to every narrower format as the integer itself does: to odd.
fn sticky(i: i128) -> f64 {
    let magnitude = i.unsigned_abs();
    let shift = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> shift;
    let odd = kept | u128::from(kept << shift != magnitude);
    let x = odd as f64 * 2f64.powi(shift as i32);
    if i < 0 { -x } else { x }
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Value {
        match scalar {
            Scalar::Int(i) => Value::Int(i),
            Scalar::Float(x) => Value::Float(x),
            Scalar::Complex(re, im) => Value::Complex(re, im),
        }
    }
}

impl From<Value> for Scalar {
    fn from(value: Value) -> Scalar {
        match value {
            Value::Int(i) => Scalar::Int(i),
            Value::Float(x) => Scalar::Float(x),
            Value::Complex(re, im) => Scalar::Complex(re, im),
        }
    }
}

impl Value {
    /// Whether the value counts as true: everything but zero, NaN too.
    pub fn truthy(self) -> bool {
        match self {
            Value::Int(i) => i != 0,
            Value::Float(x) => x != 0.0,
            Value::Complex(re, im) => re != 0.0 || im != 0.0,
        }
    }

    /// 1 or 0.
    pub fn bool(value: bool) -> Value {
        Value::Int(i128::from(value))
    }

    /// The real part; an integer to within the last bit of f64.
    pub fn real(self) -> f64 {
        match self {
            Value::Int(i) => i as f64,
            Value::Float(x) | Value::Complex(x, _) => x,
        }
    }

    /// The imaginary part, 0 of real numbers.
    pub fn imag(self) -> f64 {
        if let Value::Complex(_, im) = self { im } else { 0.0 }
    }

    /// The element of `dtype` that `Nx.as_type/2` makes of the value: integers wrap; floats to integers drop the
    /// fraction, clamp, and take NaN to 0; complex numbers to others lose the imaginary part.
    pub fn cast(self, dtype: DType) -> Value {
        if dtype.is_integer() {
            let (low, high) = range(dtype);
            return Value::Int(match self {
                Value::Int(i) => wrap(dtype, i),
                // Rust's conversion truncates, saturates at i128 and takes NaN to 0.
                Value::Float(x) | Value::Complex(x, _) => (x as i128).clamp(low, high),
            });
        }
        let real = match self {
            Value::Int(i) if format(dtype).is_some() => sticky(i),
            other => other.real(),
        };
        let real = round(dtype, real);
        if dtype.is_complex() { Value::Complex(real, round(dtype, self.imag())) } else { Value::Float(real) }
    }

    /// The bits of a canonical value, in the low bits.
    pub fn to_bits(self, dtype: DType) -> u128 {
        let (re, im) = (self.real(), self.imag());
        match dtype {
            DType::Bf16 => bf16::from_f32(re as f32).to_bits().into(),
            DType::F16 => f16::from_f32(re as f32).to_bits().into(),
            DType::F32 => (re as f32).to_bits().into(),
            DType::F64 => re.to_bits().into(),
            DType::C64 => u128::from((re as f32).to_bits()) | u128::from((im as f32).to_bits()) << 32,
            DType::C128 => u128::from(re.to_bits()) | u128::from(im.to_bits()) << 64,
            _ => match (self, dtype.format()) {
                (_, Some(format)) => float8::from_f64(format, re).into(),
                (Value::Int(i), None) => i as u128 & (u128::MAX >> (128 - dtype.bits())),
                (Value::Float(_) | Value::Complex(..), None) => 0,
            },
        }
    }

    /// The value that an element with these bits has.
    pub fn from_bits(dtype: DType, bits: u128) -> Value {
        let f32_at = |shift: u32| f64::from(f32::from_bits((bits >> shift) as u32));
        let f64_at = |shift: u32| f64::from_bits((bits >> shift) as u64);
        match dtype {
            DType::Bf16 => Value::Float(bf16::from_bits(bits as u16).to_f64()),
            DType::F16 => Value::Float(f16::from_bits(bits as u16).to_f64()),
            DType::F32 => Value::Float(f32_at(0)),
            DType::F64 => Value::Float(f64_at(0)),
            DType::C64 => Value::Complex(f32_at(0), f32_at(32)),
            DType::C128 => Value::Complex(f64_at(0), f64_at(64)),
            _ => match dtype.format() {
                Some(format) => Value::Float(float8::to_f64(format, bits as u8)),
                None => Value::Int(wrap(dtype, bits as i128)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_numbers_come_back_from_their_bits() {
        for (t, format) in DType::ALL.into_iter().filter(|t| t.is_float()).filter_map(|t| Some((t, t.format()?))) {
            let max = format.max();
            assert_eq!(Value::from_bits(t, Value::Float(-max).to_bits(t)).real(), -max, "{t}");
        }
    }

    #[test]
    fn all_narrow_elements_round_trip_and_are_canonical() {
        for dtype in DType::ALL.into_iter().filter(|t| t.bits() <= 16) {
            for bits in 0..1u128 << dtype.bits() {
                let value = Value::from_bits(dtype, bits);
                if value.real().is_nan() {
                    assert!(Value::from_bits(dtype, value.cast(dtype).to_bits(dtype)).real().is_nan());
                    continue;
                }
                assert_eq!(value.cast(dtype), value, "{dtype} {bits:#x}");
                assert_eq!(value.to_bits(dtype), bits, "{dtype}");
            }
        }
    }

    #[test]
    fn rounding_agrees_with_the_host() {
        let mut bits = 1u64;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let x = f64::from_bits(bits);
            for x in [x, (bits >> 33) as f64 * 2f64.powi((bits % 400) as i32 - 250)] {
                let host = f64::from(x as f32);
                assert!(round(DType::F32, x) == host || host.is_nan(), "{x:e}");
            }
        }
        assert_eq!(round(DType::F16, 65_519.99), 65_504.0);
        assert_eq!(round(DType::F16, 65_520.0), f64::INFINITY);
        assert_eq!(round(DType::F8E4M3Fn, -1e9), -448.0);
        assert_eq!(round(DType::Bf16, 1.0 + 2f64.powi(-8)), 1.0);
        assert_eq!(round(DType::Bf16, 1.0 + 2f64.powi(-8) + 2f64.powi(-50)), 1.0 + 2f64.powi(-7));
    }

    #[test]
    fn integers_round_once() {
        for i in [i128::from(u64::MAX), (1 << 62) + (1 << 38) + 1, -(1i128 << 63) + 1, (1 << 54) + (1 << 30) + 1] {
            assert_eq!(Value::Int(i).cast(DType::F32), Value::Float(f64::from(i as f32)), "{i}");
        }
        assert_eq!(Value::Int((1 << 53) + (1 << 44) + 1).cast(DType::Bf16), Value::Float(2f64.powi(53)));
        assert_eq!(Value::Int(-129).cast(DType::S8), Value::Int(127));
        assert_eq!(Value::Int(-1).cast(DType::U4), Value::Int(15));
        assert_eq!(Value::Float(-1e30).cast(DType::S64), Value::Int(i64::MIN.into()));
        assert_eq!(Value::Float(f64::NAN).cast(DType::S8), Value::Int(0));
    }
}

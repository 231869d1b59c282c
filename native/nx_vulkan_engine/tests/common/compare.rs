//! How far a result may be from the reference's.

use nx_vulkan_engine::program::{Binary, Elementwise, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{CType, DType, Value};

/// Elementary functions in f32 err by less than 0.65 ulp (guides/numerics.md): after rounding, at most one step from
/// the rounded reference. Narrower floats are rounded from those.
pub const F32_STEPS: u64 = 1;

/// In f64 they err by less than 0.91 ulp, and the host's own by less than 1, three operations deep in some.
pub const F64_STEPS: u64 = 3;

/// Complex functions err by less than 2 ulp of the larger part (guides/numerics.md); `pow` by more.
pub const COMPLEX_ULP: f64 = 4.0;

/// The reference's formulas in c128 cancel, at most by the factor that numbers of ordinary size allow.
pub const C128_REFERENCE_ULP: f64 = 256.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The same bits, but for which NaN.
    Exact,
    /// The same numbers: zeros of both signs are one.
    Equal,
    /// Representable numbers apart.
    Steps(u64),
    /// |difference| <= relative * |expected| + absolute, for complex numbers by their size.
    Norm { relative: f64, absolute: f64 },
}

/// Half a unit in the last place of 1.
pub fn epsilon(dtype: DType) -> f64 {
    2f64.powi(-1 - dtype.format().map_or(23, |format| format.mantissa as i32))
}

/// The bound of an elementwise op.
pub fn bound(op: Elementwise, operands: &[DType], out: DType) -> Bound {
    // lavapipe drops additions of a constant zero, here the imaginary part of a real operand.
    let real = out.is_complex() && operands.iter().any(|t| !t.is_complex());
    if real && matches!(op, Elementwise::Binary(Binary::Add | Binary::Subtract)) {
        return Bound::Equal;
    }
    let exact = match op {
        // The root of a sum of squares, which the host rounds more than once.
        Elementwise::Unary(Unary::Abs) if operands[0].is_complex() => false,
        Elementwise::Unary(op) => matches!(
            op,
            Unary::Abs
                | Unary::BitwiseNot
                | Unary::Ceil
                | Unary::Conjugate
                | Unary::CountLeadingZeros
                | Unary::Floor
                | Unary::Imag
                | Unary::IsInfinity
                | Unary::IsNan
                | Unary::Negate
                | Unary::PopulationCount
                | Unary::Real
                | Unary::Round
                | Unary::Sign
                | Unary::Sqrt
        ),
        Elementwise::Binary(op) => !matches!(op, Binary::Pow | Binary::Atan2),
        Elementwise::Select | Elementwise::Clip | Elementwise::AsType | Elementwise::Bitcast => true,
    };
    let plain = matches!(
        op,
        Elementwise::Select
            | Elementwise::AsType
            | Elementwise::Unary(Unary::Negate | Unary::Conjugate)
            | Elementwise::Binary(Binary::Add | Binary::Subtract)
    );
    if out.is_integer() || (exact && !out.is_complex()) || plain {
        return Bound::Exact;
    }
    match out {
        DType::F64 => Bound::Steps(F64_STEPS),
        DType::C64 => Bound::Norm { relative: COMPLEX_ULP * 2.0 * epsilon(out), absolute: 0.0 },
        DType::C128 => Bound::Norm { relative: C128_REFERENCE_ULP * 2.0 * epsilon(out), absolute: 0.0 },
        _ => Bound::Steps(F32_STEPS),
    }
}

/// Whether the op uses the device's own additions and multiplications, which may take denormals as zeros.
pub fn flushes(op: Elementwise) -> bool {
    matches!(op, Elementwise::Binary(Binary::Add | Binary::Subtract | Binary::Multiply))
}

/// The value with denormals of its compute type as zeros.
pub fn flush(value: Value, dtype: DType) -> Value {
    let least = match dtype.ctype() {
        CType::F64 | CType::C128 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let part = |x: f64| if x.abs() < least { 0f64.copysign(x) } else { x };
    match value {
        Value::Int(i) => Value::Int(i),
        Value::Float(x) => Value::Float(part(x)),
        Value::Complex(re, im) => Value::Complex(part(re), part(im)),
    }
}

/// The place of a real number among those of its type.
fn rank(value: Value, dtype: DType) -> i128 {
    let bits = value.to_bits(dtype) as i128;
    let sign = 1i128 << (dtype.bits() - 1);
    if bits & sign != 0 { -(bits - sign) } else { bits }
}

fn same(a: Value, b: Value, dtype: DType) -> bool {
    let part = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    if dtype.is_integer() { a == b } else { part(a.real(), b.real()) && part(a.imag(), b.imag()) }
}

pub fn agrees(got: Value, want: Value, dtype: DType, bound: Bound) -> bool {
    if same(got, want, dtype) {
        return true;
    }
    let special = |v: Value| !v.real().is_finite() || !v.imag().is_finite();
    match bound {
        Bound::Exact => false,
        Bound::Equal => {
            let part = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
            part(got.real(), want.real()) && part(got.imag(), want.imag())
        }
        // The reference and the device may fall on either side of the largest number.
        Bound::Steps(steps) => {
            let nan = got.real().is_nan() || want.real().is_nan();
            let zero_sign = got.real() == 0.0 && want.real() == 0.0;
            !nan && !zero_sign && rank(got, dtype).abs_diff(rank(want, dtype)) <= steps.into()
        }
        Bound::Norm { relative, absolute } => {
            let difference = (got.real() - want.real()).hypot(got.imag() - want.imag());
            let size = want.real().hypot(want.imag());
            !special(got) && !special(want) && difference <= relative * size + absolute
        }
    }
}

/// The first element that none of the accepted arrays allows, and how many there are.
pub fn mismatch(got: &Array, accepted: &[Array], bound: Bound) -> Option<(usize, usize)> {
    let dtype = got.ty.dtype;
    let fits = |i: usize, value: Value| {
        // A narrow float that is an f32 denormal was rounded twice.
        let bound = match bound {
            Bound::Exact if dtype == DType::Bf16 && value.real().abs() < f64::from(f32::MIN_POSITIVE) => {
                Bound::Steps(1)
            }
            other => other,
        };
        accepted.iter().any(|want| agrees(value, want.values[i], dtype, bound))
    };
    let mut wrong = got.values.iter().enumerate().filter(|&(i, &value)| !fits(i, value)).map(|(i, _)| i);
    wrong.next().map(|first| (first, 1 + wrong.count()))
}

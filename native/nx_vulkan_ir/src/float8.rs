//! Floats of 8 bits on the host, by their format.

use crate::dtype::Format;

/// Rounds to the nearest number, ties to even. What is too large becomes infinity, or the largest number of a format
/// without one.
pub(crate) fn from_f64(format: Format, x: f64) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = if x.is_nan() {
        format.nan_bits()
    } else if x.is_infinite() {
        format.largest_bits()
    } else {
        round(format, x.abs()).min(format.largest_bits())
    };
    sign | magnitude as u8
}

/// The bits of a magnitude, which may exceed the largest finite value by rounding up.
fn round(format: Format, magnitude: f64) -> u64 {
    let Format { mantissa, .. } = format;
    if magnitude == 0.0 {
        return 0;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(format.least_exponent());
    // In units of the last place of that binade; subnormals share the lowest one.
    let ulp = 2f64.powi(exponent - mantissa as i32);
    let units = (magnitude / ulp).round_ties_even() as u64;
    let base = ((exponent - format.least_exponent()) as u64) << mantissa;
    base + units
}

/// The number that an element with these bits is.
pub fn to_f64(format: Format, bits: u8) -> f64 {
    let Format { mantissa, .. } = format;
    let magnitude = u64::from(bits & 0x7f);
    let (exponent, fraction) = (magnitude >> mantissa, magnitude & ((1 << mantissa) - 1));
    let unit = format.least_exponent() - mantissa as i32;
    let value = if magnitude > format.largest_bits() {
        f64::NAN
    } else if format.infinite && magnitude == format.largest_bits() {
        f64::INFINITY
    } else if exponent == 0 {
        fraction as f64 * 2f64.powi(unit)
    } else {
        ((1 << mantissa) + fraction) as f64 * 2f64.powi(exponent as i32 - 1 + unit)
    };
    if bits & 0x80 != 0 { -value } else { value }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn every_value_round_trips_and_midpoints_go_to_even() {
        let [e5m2, e4m3fn] = [DType::F8E5M2, DType::F8E4M3Fn].map(|t| t.format().unwrap());
        for bits in 0..=255u8 {
            let (a, b) = (to_f64(e5m2, bits), to_f64(e4m3fn, bits));
            if !a.is_nan() {
                assert_eq!(from_f64(e5m2, a), bits);
            }
            if !b.is_nan() {
                assert_eq!(from_f64(e4m3fn, b), bits);
            }
        }
        for bits in 0..0x7bu8 {
            let mid = (to_f64(e5m2, bits) + to_f64(e5m2, bits + 1)) / 2.0;
            assert_eq!(from_f64(e5m2, mid) & 1, 0, "{bits}");
            assert_eq!(from_f64(e5m2, mid * (1.0 + 1e-9)), bits + 1);
        }
        assert_eq!(from_f64(e4m3fn, 448.0), 0x7e);
        assert_eq!(from_f64(e4m3fn, 464.0), 0x7e);
        assert_eq!(from_f64(e4m3fn, 465.0), 0x7e);
        assert_eq!(from_f64(e4m3fn, f64::NEG_INFINITY), 0xfe);
        assert_eq!(from_f64(e5m2, f64::INFINITY), 0x7c);
        assert_eq!(from_f64(e5m2, 61440.0), 0x7c);
        assert_eq!(from_f64(e5m2, -0.0), 0x80);
    }
}

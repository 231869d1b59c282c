//! The 8-bit float formats of Nx on the host: e5m2 with infinities, e4m3fn without.

/// Rounds to nearest even to a format with `mantissa` explicit bits and exponent bias `bias`. Returns the magnitude's
/// bits, which may exceed the largest finite value by rounding up.
fn round(x: f64, mantissa: u32, bias: i32) -> u32 {
    let magnitude = x.abs();
    if magnitude == 0.0 {
        return 0;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    // In units of the last place of that binade; subnormals share the lowest one.
    let ulp = 2f64.powi(exponent - mantissa as i32);
    let units = (magnitude / ulp).round_ties_even() as u32;
    let base = ((exponent + bias - 1) as u32) << mantissa;
    base + units
}

pub(crate) fn e5m2_from_f64(x: f64) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7e;
    }
    if x.abs() >= 65536.0 {
        return sign | 0x7c;
    }
    sign | round(x, 2, 15).min(0x7c) as u8
}

/// There is no infinity: what is too large becomes the largest number, 448.
pub(crate) fn e4m3fn_from_f64(x: f64) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7f;
    }
    if x.abs() >= 448.0 {
        return sign | 0x7e;
    }
    sign | round(x, 3, 7) as u8
}

pub fn e5m2_to_f64(bits: u8) -> f64 {
    decode(bits, 2, 15, (bits & 0x7f) >= 0x7c, if bits & 3 == 0 { f64::INFINITY } else { f64::NAN })
}

pub fn e4m3fn_to_f64(bits: u8) -> f64 {
    decode(bits, 3, 7, (bits & 0x7f) == 0x7f, f64::NAN)
}

fn decode(bits: u8, mantissa: u32, bias: i32, is_special: bool, special: f64) -> f64 {
    let magnitude = u32::from(bits & 0x7f);
    let (exponent, fraction) = (magnitude >> mantissa, magnitude & ((1 << mantissa) - 1));
    let value = if is_special {
        special
    } else if exponent == 0 {
        f64::from(fraction) * 2f64.powi(1 - bias - mantissa as i32)
    } else {
        f64::from((1 << mantissa) + fraction) * 2f64.powi(exponent as i32 - bias - mantissa as i32)
    };
    if bits & 0x80 != 0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_round_trips_and_midpoints_go_to_even() {
        for bits in 0..=255u8 {
            let (a, b) = (e5m2_to_f64(bits), e4m3fn_to_f64(bits));
            if !a.is_nan() {
                assert_eq!(e5m2_from_f64(a), bits);
            }
            if !b.is_nan() {
                assert_eq!(e4m3fn_from_f64(b), bits);
            }
        }
        for bits in 0..0x7bu8 {
            let mid = (e5m2_to_f64(bits) + e5m2_to_f64(bits + 1)) / 2.0;
            assert_eq!(e5m2_from_f64(mid) & 1, 0, "{bits}");
            assert_eq!(e5m2_from_f64(mid * (1.0 + 1e-9)), bits + 1);
        }
        assert_eq!(e4m3fn_from_f64(448.0), 0x7e);
        assert_eq!(e4m3fn_from_f64(464.0), 0x7e);
        assert_eq!(e4m3fn_from_f64(465.0), 0x7e);
        assert_eq!(e4m3fn_from_f64(f64::NEG_INFINITY), 0xfe);
        assert_eq!(e5m2_from_f64(f64::INFINITY), 0x7c);
        assert_eq!(e5m2_from_f64(61440.0), 0x7c);
        assert_eq!(e5m2_from_f64(-0.0), 0x80);
    }
}

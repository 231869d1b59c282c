//! Functions of real numbers in f64, by the host's library and libm.

use std::f64::consts::LN_2;

pub fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        let e = x.exp();
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + (-x).exp())
    }
}

pub fn acosh(x: f64) -> f64 {
    match x {
        _ if x < 1.0 => f64::NAN,
        _ if x > 2f64.powi(28) => x.ln() + LN_2,
        _ => libm::acosh(x),
    }
}

pub fn asinh(x: f64) -> f64 {
    libm::asinh(x)
}

pub fn atanh(x: f64) -> f64 {
    libm::atanh(x)
}

/// Half away from zero; a zero result is positive.
pub fn round(x: f64) -> f64 {
    x.round() + 0.0
}

/// NaN and both zeros are themselves.
pub fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { 1f64.copysign(x) }
}

/// The solution x of erf(x) = y, by Halley's method.
pub fn erf_inv(y: f64) -> f64 {
    let magnitude = y.abs();
    if magnitude >= 1.0 || y.is_nan() {
        return if magnitude == 1.0 { f64::INFINITY.copysign(y) } else { f64::NAN };
    }
    // sqrt(pi) / 2
    let slope = 0.886_226_925_452_758;
    if magnitude < 1e-8 {
        return y * slope;
    }
    // Winitzki's approximation is good to 2e-3.
    let l = (-magnitude * magnitude).ln_1p();
    let t = 2.0 / (std::f64::consts::PI * 0.147) + l / 2.0;
    let mut x = ((t * t - l / 0.147).sqrt() - t).sqrt();
    for _ in 0..4 {
        // Of the two, the difference that loses no digits.
        let residual = if magnitude < 0.5 { libm::erf(x) - magnitude } else { 1.0 - magnitude - libm::erfc(x) };
        let step = residual * slope * (x * x).exp();
        x -= step / (1.0 + x * step);
    }
    x.copysign(y)
}

/// The larger number, or the smaller one if `flip`; NaN if either is. Of equal ones the first.
pub fn extreme(a: f64, b: f64, flip: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let second = if flip { b < a } else { b > a };
    if second { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_inv_inverts_erf() {
        for i in 1..400 {
            let x = f64::from(i) / 100.0;
            let y = libm::erf(x);
            // How far the rounding of y moves the solution.
            let blur = f64::EPSILON * y / (1.128 * (-x * x).exp());
            assert!((erf_inv(y) - x).abs() <= 8.0 * f64::EPSILON * x + blur, "{x}");
            assert_eq!(erf_inv(-y), -erf_inv(y));
        }
        // The first terms of its series.
        let y = 1e-4f64;
        let series = 0.886_226_925_452_758 * (y + std::f64::consts::PI / 12.0 * y * y * y);
        assert!((erf_inv(y) / series - 1.0).abs() < 1e-15);
        assert_eq!(erf_inv(1.0), f64::INFINITY);
        assert!(erf_inv(1.5).is_nan());
        assert!(erf_inv(-0.0).is_sign_negative());
    }
}

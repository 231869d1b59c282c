//! Functions of real numbers in f64, by the host's library and libm.

use std::f64::consts::LN_2;

pub fn sigmoid(x: f64) -> f64 {
    if x < -700.0 { x.exp() } else { 1.0 / (1.0 + (-x).exp()) }
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

/// Both zeros are themselves, and NaN counts as positive.
pub fn sign(x: f64) -> f64 {
    match x {
        _ if x == 0.0 => x,
        _ if x.is_nan() => 1.0,
        _ => 1f64.copysign(x),
    }
}

/// The approximation of M. Giles that `Nx.BinaryBackend` computes; past its domain the inverse itself.
pub fn erf_inv(y: f64) -> f64 {
    const CENTRAL: [f64; 9] = [
        2.81022636e-08,
        3.43273939e-07,
        -3.5233877e-06,
        -4.39150654e-06,
        0.00021858087,
        -0.00125372503,
        -0.00417768164,
        0.246640727,
        1.50140941,
    ];
    const TAIL: [f64; 9] = [
        -0.000200214257,
        0.000100950558,
        0.00134934322,
        -0.00367342844,
        0.00573950773,
        -0.0076224613,
        0.00943887047,
        1.00167406,
        2.83297682,
    ];
    if y.is_nan() || y.abs() >= 1.0 {
        return if y.abs() == 1.0 { f64::INFINITY.copysign(y) } else { f64::NAN };
    }
    let w = -((1.0 - y) * (1.0 + y)).ln();
    let horner = |c: [f64; 9], w: f64| c.into_iter().fold(0.0, |p, c| p * w + c);
    match w {
        _ if y == 0.0 => 0.0,
        _ if w < 5.0 => horner(CENTRAL, w - 2.5) * y,
        _ if w <= 16.0 => horner(TAIL, w.sqrt() - 3.0) * y,
        _ => inverse_erf(y),
    }
}

/// The solution x of erf(x) = y for 0.9 < |y| < 1, by Halley's method from Winitzki's approximation.
fn inverse_erf(y: f64) -> f64 {
    let magnitude = y.abs();
    // sqrt(pi) / 2
    let slope = 0.886_226_925_452_758;
    let l = (-magnitude * magnitude).ln_1p();
    let t = 2.0 / (std::f64::consts::PI * 0.147) + l / 2.0;
    let mut x = ((t * t - l / 0.147).sqrt() - t).sqrt();
    for _ in 0..4 {
        let step = (1.0 - magnitude - libm::erfc(x)) * slope * (x * x).exp();
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
        for i in 1..560 {
            let x = f64::from(i) / 100.0;
            let y = libm::erf(x);
            // How far the rounding of y moves the solution.
            let blur = f64::EPSILON * y / (1.128 * (-x * x).exp());
            assert!((erf_inv(y) - x).abs() <= 3e-7 * x + blur, "{x}");
            assert_eq!(erf_inv(-y), -erf_inv(y));
        }
        // Digits that Nx prints.
        assert_eq!([0.1, 0.5, 0.9].map(erf_inv), [0.08885598780483887, 0.47693629334671295, 1.1630871013750377]);
        assert_eq!(erf_inv(1.0), f64::INFINITY);
        assert!(erf_inv(1.5).is_nan());
        assert!(erf_inv(-0.0).is_sign_positive());
    }
}

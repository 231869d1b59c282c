//! Functions of f64 numbers to about 95 bits, in pairs of doubles: unevaluated sums with |low| <= ulp(high) / 2.

use std::ops::{Add, Div, Mul, Neg, Sub};

#[derive(Debug, Clone, Copy)]
pub struct Double(pub f64, pub f64);

const LN_2: Double = Double(std::f64::consts::LN_2, 2.3190468138462996e-17);
/// The rest of ln 2.
const LN_2_REST: f64 = 5.707708438416212e-34;
const HALF_PI: [f64; 4] =
    [std::f64::consts::FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591698e-33, 5.562271104316826e-50];
const TWO_OVER_ROOT_PI: Double = Double(std::f64::consts::FRAC_2_SQRT_PI, 1.533545961316588e-17);
const ONE: Double = Double(1.0, 0.0);

fn two_sum(a: f64, b: f64) -> Double {
    let s = a + b;
    let t = s - a;
    Double(s, (a - (s - t)) + (b - t))
}

fn fast_two_sum(a: f64, b: f64) -> Double {
    let s = a + b;
    Double(s, b - (s - a))
}

/// Veltkamp's and Dekker's product; |a| and |b| below 2^990.
fn two_product(a: f64, b: f64) -> Double {
    let split = |x: f64| {
        let c = 134_217_729.0 * x;
        let high = c - (c - x);
        (high, x - high)
    };
    let p = a * b;
    let ((ah, al), (bh, bl)) = (split(a), split(b));
    Double(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl)
}

impl From<f64> for Double {
    fn from(x: f64) -> Double {
        Double(x, 0.0)
    }
}

impl Add for Double {
    type Output = Double;
    fn add(self, b: Double) -> Double {
        let s = two_sum(self.0, b.0);
        let t = two_sum(self.1, b.1);
        let u = fast_two_sum(s.0, s.1 + t.0);
        fast_two_sum(u.0, u.1 + t.1)
    }
}

impl Neg for Double {
    type Output = Double;
    fn neg(self) -> Double {
        Double(-self.0, -self.1)
    }
}

impl Sub for Double {
    type Output = Double;
    fn sub(self, b: Double) -> Double {
        self + -b
    }
}

impl Mul for Double {
    type Output = Double;
    fn mul(self, b: Double) -> Double {
        let p = two_product(self.0, b.0);
        fast_two_sum(p.0, p.1 + (self.0 * b.1 + self.1 * b.0))
    }
}

impl Div for Double {
    type Output = Double;
    fn div(self, b: Double) -> Double {
        let q = self.0 / b.0;
        let r = self - b * q.into();
        let s = r.0 / b.0;
        let t = (r - b * s.into()).0 / b.0;
        let u = fast_two_sum(q, s);
        fast_two_sum(u.0, u.1 + t)
    }
}

impl Double {
    /// Times a power of two; denormal results are cut off, not rounded.
    fn scale(self, factor: f64) -> Double {
        Double(self.0 * factor, self.1 * factor)
    }

    fn abs(self) -> Double {
        if self.0 < 0.0 { -self } else { self }
    }

    pub fn sqrt(self) -> Double {
        if self.0 == 0.0 {
            return self;
        }
        let s = self.0.sqrt();
        fast_two_sum(s, (self - two_product(s, s)).0 / (2.0 * s))
    }
}

/// exp(x) - 1 as (k, p): exp(x) = 2^k (1 + p), for |x| < 800.
fn exp_parts(x: Double) -> (i32, Double) {
    let k = (x.0 / LN_2.0).round();
    let r = x - LN_2 * k.into() - Double(LN_2_REST * k, 0.0);
    // the series at r / 256, and eight times exp(2 x) - 1 = (exp(x) - 1)^2 + 2 (exp(x) - 1)
    let r = r.scale(1.0 / 256.0);
    let mut p = ONE;
    for n in (2..=11).rev() {
        p = ONE + p * r / Double::from(f64::from(n));
    }
    p = p * r;
    for _ in 0..8 {
        p = p.scale(2.0) + p * p;
    }
    (k as i32, p)
}

/// 2^k for -1022 <= k <= 1023.
fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((k + 1023) as u64) << 52)
}

pub fn exp(x: Double) -> Double {
    let (k, p) = exp_parts(x);
    let k = k.clamp(-1900, 1900);
    (ONE + p).scale(power_of_two(k / 2)).scale(power_of_two(k - k / 2))
}

pub fn expm1(x: Double) -> Double {
    let (k, p) = exp_parts(x);
    if k == 0 { p } else { exp(x) - ONE }
}

/// log(1 + u) for u > -1 of moderate size: a step of Newton's method.
fn log1p_near(u: Double) -> Double {
    let y = u.0.ln_1p();
    let d = (u - expm1(y.into())) / exp(y.into());
    Double::from(y) + (d - (d * d).scale(0.5))
}

/// log(x) of a positive number.
pub fn log(x: Double) -> Double {
    let (x, shift) = if x.0 < 1e-290 { (x.scale(power_of_two(200)), -200) } else { (x, 0) };
    let k = ((x.0 / std::f64::consts::FRAC_1_SQRT_2).to_bits() >> 52) as i32 - 1023;
    let (a, b) = (power_of_two(-(k / 2)), power_of_two(-(k - k / 2)));
    let m = x.scale(a).scale(b);
    let k = f64::from(k + shift);
    LN_2 * k.into() + log1p_near(m - ONE) + Double(LN_2_REST * k, 0.0)
}

pub fn log1p(u: Double) -> Double {
    if u.0 > -0.3 && u.0 < 0.4 { log1p_near(u) } else { log(ONE + u) }
}

pub fn sigmoid(x: f64) -> Double {
    if x < 0.0 {
        let e = exp(x.into());
        return e / (ONE + e);
    }
    ONE / (ONE + exp((-x).into()))
}

pub fn sinh(x: f64) -> Double {
    let a = x.abs();
    let r = if a > 40.0 {
        exp((a - 40.0).into()) * exp(40.0.into()).scale(0.5)
    } else {
        let t = expm1(a.into());
        (t + t / (t + ONE)).scale(0.5)
    };
    if x < 0.0 { -r } else { r }
}

pub fn cosh(x: f64) -> Double {
    let a = x.abs();
    if a > 40.0 {
        return exp((a - 40.0).into()) * exp(40.0.into()).scale(0.5);
    }
    let e = exp(a.into());
    (e + ONE / e).scale(0.5)
}

pub fn tanh(x: f64) -> Double {
    let t = expm1(Double::from(x.clamp(-50.0, 50.0)).scale(2.0));
    t / (t + ONE.scale(2.0))
}

pub fn asinh(x: f64) -> Double {
    let a = Double::from(x.abs());
    let r = if a.0 > 1e20 {
        log(a) + LN_2
    } else {
        let square = a * a;
        log1p(a + square / (ONE + (ONE + square).sqrt()))
    };
    if x < 0.0 { -r } else { r }
}

pub fn acosh(x: f64) -> Double {
    if x > 1e20 {
        return log(x.into()) + LN_2;
    }
    let t = two_sum(x, -1.0);
    log1p(t + (t * two_sum(x, 1.0)).sqrt())
}

pub fn atanh(x: f64) -> Double {
    let a = x.abs();
    let r = log1p(Double(2.0 * a, 0.0) / two_sum(1.0, -a)).scale(0.5);
    if x < 0.0 { -r } else { r }
}

/// Sine and cosine for |x| < 2^30.
pub fn sin_cos(x: Double) -> (Double, Double) {
    let k = (x.0 / HALF_PI[0]).round();
    let mut r = x;
    for part in HALF_PI {
        r = r - two_product(k, part);
    }
    let square = r * r;
    let (mut s, mut c) = (ONE, ONE);
    for n in (1..=14).rev() {
        let n = f64::from(2 * n);
        c = ONE - c * square / Double::from(n * (n - 1.0));
        s = ONE - s * square / Double::from(n * (n + 1.0));
    }
    let s = s * r;
    match k.rem_euclid(4.0) as u32 {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

pub fn tan(x: f64) -> Double {
    let (s, c) = sin_cos(x.into());
    s / c
}

pub fn atan(x: Double) -> Double {
    if x.0.abs() > 1.0 {
        let half = if x.0 < 0.0 { -Double(HALF_PI[0], HALF_PI[1]) } else { Double(HALF_PI[0], HALF_PI[1]) };
        return if x.0.is_infinite() { half } else { half - atan(ONE / x) };
    }
    let y = x.0.atan();
    let (s, c) = sin_cos(y.into());
    // the tangent of the rest of the angle, below 2^-52
    Double::from(y) + (x * c - s) / (c + x * s)
}

pub fn asin(x: f64) -> Double {
    let cosine = (two_sum(1.0, -x) * two_sum(1.0, x)).sqrt();
    if cosine.0 == 0.0 { Double(HALF_PI[0], HALF_PI[1]).scale(x) } else { atan(Double::from(x) / cosine) }
}

pub fn acos(x: f64) -> Double {
    let d = two_sum(1.0, x);
    if d.0 == 0.0 { Double(HALF_PI[0], HALF_PI[1]).scale(2.0) } else { atan((two_sum(1.0, -x) / d).sqrt()).scale(2.0) }
}

pub fn rsqrt(x: f64) -> Double {
    ONE / Double::from(x).sqrt()
}

pub fn cbrt(x: f64) -> Double {
    let y = x.cbrt();
    let square = two_product(y, y);
    Double::from(y) + (Double::from(x) - square * y.into()) / (square * 3.0.into())
}

/// erf(x) for |x| < 3, by a series of positive terms.
fn erf_series(x: f64) -> Double {
    let square = two_product(x, x);
    let (mut term, mut sum, mut n) = (Double::from(x), Double::from(x), 1.0);
    while term.0.abs() > sum.0.abs() * 1e-33 {
        n += 2.0;
        term = term * square.scale(2.0) / n.into();
        sum = sum + term;
    }
    sum * exp(-square) * TWO_OVER_ROOT_PI
}

/// erfc(x) for x >= 2.5, by its continued fraction.
fn erfc_fraction(x: f64) -> Double {
    let terms = if x < 4.0 { 220 } else { 90 };
    let x = Double::from(x);
    let mut f = x;
    for n in (1..=terms).rev() {
        f = x + Double::from(0.5 * f64::from(n)) / f;
    }
    exp(-(x * x)) / f * TWO_OVER_ROOT_PI.scale(0.5)
}

pub fn erf(x: f64) -> Double {
    if x.abs() < 2.5 {
        return erf_series(x);
    }
    let r = ONE - erfc_fraction(x.abs().min(7.0));
    if x < 0.0 { -r } else { r }
}

pub fn erfc(x: f64) -> Double {
    if x < 2.5 { ONE - erf(x) } else { erfc_fraction(x) }
}

/// What `Nx.BinaryBackend` computes as the inverse of erf, and the inverse where 1 - |x| is below 2^-24.
pub fn erf_inv(x: f64) -> Double {
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
    const OUTER: [f64; 9] = [
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
    let w = -log1p(-(Double::from(x) * x.into()));
    let horner = |c: [f64; 9], w: Double| c.into_iter().fold(Double(0.0, 0.0), |p, c| p * w + c.into()) * x.into();
    if w.0 < 5.0 {
        return horner(CENTRAL, w - 2.5.into());
    }
    if w.0 <= 16.0 {
        return horner(OUTER, w.sqrt() - 3.0.into());
    }
    let rest = two_sum(1.0, -x.abs());
    // a start from the outer polynomial, then Newton's steps
    let mut y = horner(OUTER, w.sqrt() - 3.0.into()).abs().0;
    let step = |y: f64| (erfc_fraction(y) - rest) * exp(Double::from(y) * y.into()) / TWO_OVER_ROOT_PI;
    for _ in 0..30 {
        let d = step(y).0;
        y += d;
        if d.abs() < 1e-9 {
            break;
        }
    }
    let d = step(y);
    // the next term of the inverse's series
    let r = Double::from(y) + d + d * d * y.into();
    if x < 0.0 { -r } else { r }
}

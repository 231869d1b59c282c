//! Complex arithmetic and functions on pairs of f64, by the formulas of the Elixir library `complex`.

/// Real and imaginary part.
pub type Pair = (f64, f64);

const I: Pair = (0.0, 1.0);
const ONE: Pair = (1.0, 0.0);

pub fn add(a: Pair, b: Pair) -> Pair {
    (a.0 + b.0, a.1 + b.1)
}

pub fn subtract(a: Pair, b: Pair) -> Pair {
    (a.0 - b.0, a.1 - b.1)
}

pub fn negate(z: Pair) -> Pair {
    (-z.0, -z.1)
}

pub fn multiply(a: Pair, b: Pair) -> Pair {
    (a.0 * b.0 - a.1 * b.1, a.1 * b.0 + a.0 * b.1)
}

pub fn scale(z: Pair, by: f64) -> Pair {
    (z.0 * by, z.1 * by)
}

pub fn divide(a: Pair, b: Pair) -> Pair {
    let d = b.0 * b.0 + b.1 * b.1;
    ((a.0 * b.0 + a.1 * b.1) / d, (a.1 * b.0 - a.0 * b.1) / d)
}

/// NaN only where both parts are; infinite where one is.
pub fn abs(z: Pair) -> f64 {
    match (z.0.is_nan(), z.1.is_nan()) {
        (true, true) => f64::NAN,
        (false, false) => z.0.hypot(z.1),
        _ => f64::INFINITY,
    }
}

pub fn exp(z: Pair) -> Pair {
    let r = z.0.exp();
    (r * z.1.cos(), r * z.1.sin())
}

pub fn expm1(z: Pair) -> Pair {
    let half = (z.1 / 2.0).sin();
    (z.0.exp_m1() * z.1.cos() - 2.0 * half * half, z.0.exp() * z.1.sin())
}

pub fn log(z: Pair) -> Pair {
    (abs(z).ln(), z.1.atan2(z.0))
}

pub fn log1p(z: Pair) -> Pair {
    ((z.0 * (z.0 + 2.0) + z.1 * z.1).ln_1p() / 2.0, z.1.atan2(1.0 + z.0))
}

pub fn sigmoid(z: Pair) -> Pair {
    divide(ONE, add(ONE, exp(negate(z))))
}

pub fn sin(z: Pair) -> Pair {
    (z.0.sin() * z.1.cosh(), z.0.cos() * z.1.sinh())
}

pub fn cos(z: Pair) -> Pair {
    (z.0.cos() * z.1.cosh(), -z.0.sin() * z.1.sinh())
}

pub fn tan(z: Pair) -> Pair {
    divide(sin(z), cos(z))
}

pub fn sinh(z: Pair) -> Pair {
    (z.0.sinh() * z.1.cos(), z.0.cosh() * z.1.sin())
}

pub fn cosh(z: Pair) -> Pair {
    (z.0.cosh() * z.1.cos(), z.0.sinh() * z.1.sin())
}

pub fn tanh(z: Pair) -> Pair {
    divide(sinh(z), cosh(z))
}

/// The principal root, which has no negative real part.
pub fn sqrt(z: Pair) -> Pair {
    if z.0 == 0.0 && z.1 == 0.0 {
        return z;
    }
    let w = ((z.0.abs() + abs(z)) / 2.0).sqrt();
    if z.0 >= 0.0 {
        return (w, z.1 / (2.0 * w));
    }
    let im = if z.1 >= 0.0 { w } else { -w };
    (z.1 / (2.0 * im), im)
}

pub fn rsqrt(z: Pair) -> Pair {
    divide(ONE, sqrt(z))
}

pub fn cbrt(z: Pair) -> Pair {
    let (r, angle) = (abs(z).cbrt(), z.1.atan2(z.0) / 3.0);
    (r * angle.cos(), r * angle.sin())
}

/// i z
fn turn(z: Pair) -> Pair {
    multiply(I, z)
}

/// -i log(w)
fn angle_of(w: Pair) -> Pair {
    let l = log(w);
    (l.1, -l.0)
}

pub fn asin(z: Pair) -> Pair {
    angle_of(add(turn(z), sqrt(subtract(ONE, multiply(z, z)))))
}

pub fn acos(z: Pair) -> Pair {
    angle_of(add(z, sqrt(subtract(multiply(z, z), ONE))))
}

pub fn atan(z: Pair) -> Pair {
    let difference = subtract(log(subtract(ONE, turn(z))), log(add(ONE, turn(z))));
    scale(turn(difference), 0.5)
}

pub fn asinh(z: Pair) -> Pair {
    log(add(z, sqrt(add(multiply(z, z), ONE))))
}

pub fn acosh(z: Pair) -> Pair {
    log(add(z, sqrt(subtract(multiply(z, z), ONE))))
}

pub fn atanh(z: Pair) -> Pair {
    scale(log(divide(add(ONE, z), subtract(ONE, z))), 0.5)
}

/// exp(b log a). A base 0 gives 0, or 1 where the exponent is 0 too.
pub fn pow(a: Pair, b: Pair) -> Pair {
    if a == (0.0, 0.0) {
        return if b == (0.0, 0.0) { ONE } else { (0.0, 0.0) };
    }
    exp(multiply(b, log(a)))
}

/// z / |z|; zero stays.
pub fn sign(z: Pair) -> Pair {
    if z == (0.0, 0.0) { z } else { scale(z, 1.0 / abs(z)) }
}

/// Of real numbers; others have none.
pub fn atan2(y: Pair, x: Pair) -> Pair {
    if y.1 == 0.0 && x.1 == 0.0 { (y.0.atan2(x.0), 0.0) } else { (f64::NAN, f64::NAN) }
}

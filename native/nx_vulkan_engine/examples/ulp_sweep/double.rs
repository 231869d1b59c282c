//! f64 functions over chosen inputs, against double-double arithmetic on the host.

use std::sync::Arc;

use nx_vulkan_engine::program::{Op, Unary};
use nx_vulkan_engine::{Compile, DType, Engine, Error, Tensor, Type, eager};

use crate::double_double::{self as dd, Double};

/// The reference, and the inputs to be chosen from: the domain, as far as both parts of the reference are normal
/// numbers.
pub struct Function {
    pub op: Unary,
    pub reference: fn(f64) -> Double,
    pub domain: (f64, f64),
}

const fn function(op: Unary, reference: fn(f64) -> Double, low: f64, high: f64) -> Function {
    Function { op, reference, domain: (low, high) }
}

pub const FUNCTIONS: [Function; 23] = [
    function(Unary::Exp, |x| dd::exp(x.into()), -660.0, 709.7),
    function(Unary::Expm1, |x| dd::expm1(x.into()), -60.0, 709.7),
    function(Unary::Log, |x| dd::log(x.into()), 2.3e-308, 1.7e308),
    function(Unary::Log1p, |x| dd::log1p(x.into()), -0.999_999_999_999_999_9, 1e300),
    function(Unary::Sigmoid, dd::sigmoid, -660.0, 60.0),
    function(Unary::Cos, |x| dd::sin_cos(x.into()).1, -1e9, 1e9),
    function(Unary::Sin, |x| dd::sin_cos(x.into()).0, -1e9, 1e9),
    function(Unary::Tan, dd::tan, -1e9, 1e9),
    function(Unary::Cosh, dd::cosh, -709.0, 709.0),
    function(Unary::Sinh, dd::sinh, -709.0, 709.0),
    function(Unary::Tanh, dd::tanh, -30.0, 30.0),
    function(Unary::Acos, dd::acos, -1.0, 1.0),
    function(Unary::Asin, dd::asin, -1.0, 1.0),
    function(Unary::Atan, |x| dd::atan(x.into()), -1e300, 1e300),
    function(Unary::Acosh, dd::acosh, 1.0, 1e300),
    function(Unary::Asinh, dd::asinh, -1e300, 1e300),
    function(Unary::Atanh, dd::atanh, -0.999_999_999_999_999_9, 0.999_999_999_999_999_9),
    function(Unary::Sqrt, |x| Double::from(x).sqrt(), 1e-290, 1e300),
    function(Unary::Rsqrt, dd::rsqrt, 1e-290, 1e300),
    function(Unary::Cbrt, dd::cbrt, -1e290, 1e290),
    function(Unary::Erf, dd::erf, -6.5, 6.5),
    function(Unary::Erfc, dd::erfc, -6.5, 25.5),
    function(Unary::ErfInv, dd::erf_inv, -0.999_999_999_999_999_9, 0.999_999_999_999_999_9),
];

/// Where functions change their method or their sign, and limits of results.
const POINTS: [f64; 16] = [
    0.25,
    0.34,
    0.41421356,
    0.5,
    std::f64::consts::LN_2,
    std::f64::consts::FRAC_PI_4,
    1.0,
    1.25,
    std::f64::consts::FRAC_PI_2,
    2.0,
    2.5,
    2.857142857,
    std::f64::consts::PI,
    5.0,
    22.0,
    26.0,
];

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / 2f64.powi(53)
    }
}

/// A third spread over the domain or its part around 1, a third over all sizes, a third near points of interest.
fn choose(rng: &mut Rng, (low, high): (f64, f64)) -> f64 {
    loop {
        let sign = if rng.next().is_multiple_of(2) { 1.0 } else { -1.0 };
        let x = match rng.next() % 6 {
            0 => low.max(-1e9) + rng.fraction() * (high.min(1e9) - low.max(-1e9)),
            1 => low.max(-4.0) + rng.fraction() * (high.min(4.0) - low.max(-4.0)),
            2 => sign * (rng.fraction() * 1380.0 - 690.0).exp(),
            3 => sign * (rng.fraction() * 40.0 - 36.0).exp(),
            4 => sign * POINTS[rng.next() as usize % POINTS.len()] * (1.0 + (rng.fraction() - 0.5) * 1e-3),
            _ => {
                let end = [low, high, 1.0, -1.0][rng.next() as usize % 4];
                end * (1.0 - sign * (-36.0 * rng.fraction()).exp())
            }
        };
        if x >= low && x <= high && x != 0.0 {
            return x;
        }
    }
}

/// The largest error in ulp over `n` inputs, and where.
pub fn sweep(engine: &Arc<Engine>, function: &Function, n: u64, seed: u64) -> Result<(f64, f64), Error> {
    let mut rng = Rng(seed);
    let (mut worst, mut done) = ((0.0, 0.0), 0);
    while done < n {
        let count = (n - done).min(1 << 20);
        let inputs: Vec<f64> = (0..count).map(|_| choose(&mut rng, function.domain)).collect();
        let got = run(engine, function.op, &inputs)?;
        let found = largest(&inputs, &got, function.reference);
        worst = if found.0 > worst.0 { found } else { worst };
        done += count;
    }
    Ok(worst)
}

fn run(engine: &Arc<Engine>, op: Unary, inputs: &[f64]) -> Result<Vec<f64>, Error> {
    let ty = Type::new(DType::F64, &[inputs.len() as u64]);
    let x = Tensor::uninitialized(engine, &ty)?;
    let bytes: Vec<u8> = inputs.iter().flat_map(|x| x.to_le_bytes()).collect();
    engine.upload(x.buffer(), 0, &bytes)?;
    let y = eager::run(engine, &Op::Unary(op), &[x], &ty, Compile::Allowed)?;
    let mut bytes = vec![0; bytes.len()];
    engine.download(y.buffer(), y.view().offset_bytes(), &mut bytes)?;
    Ok(bytes.chunks_exact(8).map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).collect())
}

fn largest(inputs: &[f64], got: &[f64], reference: fn(f64) -> Double) -> (f64, f64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = inputs.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = inputs
            .chunks(part)
            .zip(got.chunks(part))
            .map(|(x, y)| {
                scope.spawn(move || {
                    x.iter().zip(y).map(|(&x, &y)| (error_ulp(y, reference(x)), x)).fold((0.0, 0.0), larger)
                })
            })
            .collect();
        workers.into_iter().filter_map(|w| w.join().ok()).fold((0.0, 0.0), larger)
    })
}

fn larger(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    if b.0 > a.0 { b } else { a }
}

/// |got - want| in units of the last place of want, a normal number.
pub fn error_ulp(got: f64, want: Double) -> f64 {
    if !got.is_finite() || !want.0.is_finite() {
        return f64::INFINITY;
    }
    let exponent = ((want.0.to_bits() >> 52) & 0x7ff) as i32 - 1023 - 52;
    let (a, b) = (exponent / 2, exponent - exponent / 2);
    ((got - want.0) - want.1).abs() * 2f64.powi(-a) * 2f64.powi(-b)
}

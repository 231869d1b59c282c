//! The leapfrog chains of all families.

use std::sync::Arc;

use nx_vulkan_engine::{Buffer, Engine};

use super::Real::{F32, F64};
use super::{Real, Shader, push, values};
use crate::common::{Rng, assert_valid, engine};

/// One chain family: its parameters, and log density and gradient of one element in f64.
struct Family {
    name: &'static str,
    parameters: &'static [f64],
    logp: fn(f64, &[f64]) -> f64,
    grad: fn(f64, &[f64]) -> f64,
}

fn softplus(q: f64) -> f64 {
    q.max(0.0) + (-q.abs()).exp().ln_1p()
}

const HALF_LOG_TWO_PI: f64 = 0.918_938_533_204_672_8;

const NORMAL_LOGP: fn(f64, &[f64]) -> f64 = |q, p| -0.5 * ((q - p[0]) / p[1]).powi(2) - p[1].ln() - HALF_LOG_TWO_PI;
const NORMAL_GRAD: fn(f64, &[f64]) -> f64 = |q, p| -(q - p[0]) / (p[1] * p[1]);

const FAMILIES: [Family; 10] = [
    Family { name: "normal", parameters: &[0.5, 1.5], logp: NORMAL_LOGP, grad: NORMAL_GRAD },
    Family { name: "lognormal", parameters: &[-0.25, 0.75], logp: NORMAL_LOGP, grad: NORMAL_GRAD },
    Family {
        name: "cauchy",
        parameters: &[0.5, 2.0, -1.75],
        logp: |q, p| p[2] - ((q - p[0]) / p[1]).powi(2).ln_1p(),
        grad: |q, p| -2.0 * (q - p[0]) / (p[1] * p[1] + (q - p[0]).powi(2)),
    },
    Family {
        name: "halfcauchy",
        parameters: &[2.0, -1.25],
        logp: |q, p| q + p[1] - (q.exp() / p[0]).powi(2).ln_1p(),
        grad: |q, p| {
            let w = (q.exp() / p[0]).powi(2);
            1.0 - 2.0 * w / (1.0 + w)
        },
    },
    Family {
        name: "exponential",
        parameters: &[1.5],
        logp: |q, p| p[0].ln() + q - p[0] * q.exp(),
        grad: |q, p| 1.0 - p[0] * q.exp(),
    },
    Family {
        name: "halfnormal",
        parameters: &[1.5, -0.75],
        logp: |q, p| q + p[1] - 0.5 * (q.exp() / p[0]).powi(2),
        grad: |q, p| 1.0 - (q.exp() / p[0]).powi(2),
    },
    Family {
        name: "studentt",
        parameters: &[4.0, 0.5, 1.5, -1.25],
        logp: |q, p| p[3] - 0.5 * (p[0] + 1.0) * (((q - p[1]) / p[2]).powi(2) / p[0]).ln_1p(),
        grad: |q, p| {
            let z = (q - p[1]) / p[2];
            -(p[0] + 1.0) * z / (p[2] * (p[0] + z * z))
        },
    },
    Family {
        name: "weibull",
        parameters: &[1.5, 2.0, 0.25],
        logp: |q, p| p[0] * (q - p[1].ln()) - (q.exp() / p[1]).powf(p[0]) + p[2],
        grad: |q, p| p[0] * (1.0 - (q.exp() / p[1]).powf(p[0])),
    },
    Family {
        name: "gamma",
        parameters: &[2.5, 1.5, 0.75],
        logp: |q, p| p[0] * q - p[1] * q.exp() + p[2],
        grad: |q, p| p[0] - p[1] * q.exp(),
    },
    Family {
        name: "beta",
        parameters: &[2.5, 1.5, 1.25],
        logp: |q, p| -p[0] * softplus(-q) - p[1] * softplus(q) + p[2],
        grad: |q, p| p[0] - (p[0] + p[1]) / (1.0 + (-q).exp()),
    },
];

/// What a chain returns: q, p, grad `[K, n]`, logp `[K]`.
type Chain = [Vec<f64>; 4];

impl Family {
    /// The leapfrog chain in f64.
    fn reference(&self, q: &[f64], p: &[f64], inv_mass: &[f64], steps: usize, eps: f64) -> Chain {
        let n = q.len();
        let mut chain: Chain = [vec![0.0; steps * n], vec![0.0; steps * n], vec![0.0; steps * n], vec![0.0; steps]];
        for i in 0..n {
            let (mut q, mut p) = (q[i], p[i]);
            for k in 0..steps {
                p += 0.5 * eps * (self.grad)(q, self.parameters);
                q += eps * inv_mass[i] * p;
                let grad = (self.grad)(q, self.parameters);
                p += 0.5 * eps * grad;
                for (part, value) in chain.iter_mut().zip([q, p, grad]) {
                    part[k * n + i] = value;
                }
                chain[3][k] += (self.logp)(q, self.parameters);
            }
        }
        chain
    }

    fn run(&self, engine: &Engine, real: Real, inputs: [&[f64]; 3], steps: usize, eps: f64) -> Chain {
        let shader = Shader::load(&real.name(&format!("leapfrog_chain_{}", self.name)));
        let n = inputs[0].len();
        let mut words = push(&[n, steps]);
        words.extend(real.encode(&[&[eps], self.parameters].concat()));
        let buffers: Vec<Arc<Buffer>> = inputs.iter().map(|x| real.upload(engine, x)).collect();
        let outputs: Vec<Arc<Buffer>> =
            [steps * n, steps * n, steps * n, steps].map(|len| real.guarded(engine, len)).into();
        let all: Vec<&Arc<Buffer>> = buffers.iter().chain(&outputs).collect();
        shader.run(engine, None, &all, &words, shader.groups(n));
        let chain: Vec<Vec<f64>> = outputs.iter().map(|out| real.download(engine, out)).collect();
        chain.try_into().unwrap()
    }
}

#[test]
fn chain_gradients_are_the_derivatives_of_their_log_densities() {
    for family in &FAMILIES {
        for q in [-2.0, -0.5, 0.1, 1.0, 2.0] {
            let h = 1e-6;
            let slope = ((family.logp)(q + h, family.parameters) - (family.logp)(q - h, family.parameters)) / (2.0 * h);
            let grad = (family.grad)(q, family.parameters);
            assert!((slope - grad).abs() < 1e-7 * (1.0 + grad.abs()), "{}: {slope} {grad}", family.name);
        }
    }
}

#[test]
fn chains_follow_the_leapfrog_equations() {
    let engine = engine();
    for real in [F32, F64] {
        for family in &FAMILIES {
            for n in [1, 8, 256, 600] {
                let mut rng = Rng(11);
                let mut draw = |low: f64, high: f64| -> Vec<f64> {
                    let unit = |r: u64| r as f64 / 1e6;
                    (0..n).map(|_| real.round(low + (high - low) * unit(rng.below(1_000_000)))).collect()
                };
                let (q, p, inv_mass) = (draw(-1.5, 1.5), draw(-1.0, 1.0), draw(0.5, 2.0));
                let (steps, eps) = (9, 0.0625);
                let got = family.run(&engine, real, [&q, &p, &inv_mass], steps, eps);
                let expected = family.reference(&q, &p, &inv_mass, steps, eps);
                for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                        // Rounding errors of nine steps, for values of order 1 to 30; logp is a sum over n.
                        let order = if part == 3 { 4.0 * n as f64 } else { 4.0 + expected.abs() };
                        let error = (got - expected).abs();
                        let allowed = real.tolerance(order, 40.0);
                        let what = format!("{} {n}, part {part} at {i}", real.name(family.name));
                        assert!(error <= allowed, "{what}: got {got}, expected {expected}");
                    }
                }
            }
        }
    }
    assert_valid(&engine);
}

#[test]
fn chains_are_deterministic_and_a_shorter_one_is_a_prefix() {
    let engine = engine();
    let (q, p, inv_mass) = (values(F64, 300, 12), values(F64, 300, 13), vec![1.0; 300]);
    let inputs = [&q[16..], &p[16..], &inv_mass[16..]];
    for family in &FAMILIES {
        let n = inputs[0].len();
        let long = family.run(&engine, F64, inputs, 7, 0.03125);
        assert_eq!(long, family.run(&engine, F64, inputs, 7, 0.03125), "{}", family.name);
        let short = family.run(&engine, F64, inputs, 3, 0.03125);
        for (part, (long, short)) in long.iter().zip(&short).enumerate() {
            let row = if part == 3 { 1 } else { n };
            assert_eq!(long[..3 * row], *short, "{} part {part}", family.name);
        }
    }
    assert_valid(&engine);
}

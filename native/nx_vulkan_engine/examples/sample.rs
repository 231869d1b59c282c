//! Draws from a posterior by Hamiltonian Monte Carlo, whose leapfrog steps run on the device: `cargo run --release
//! --example sample`. The posterior, of a straight line through noisy points, is known exactly; it exits with 1 where
//! the draws disagree with it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use nx_vulkan_engine::chain::log_density::{LogDensityChain, Mass, Start};
use nx_vulkan_engine::program::{Builder, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Result, Tensor};

const POINTS: u64 = 100;
const CHAINS: u64 = 64;
/// Draws of each chain, those before they count, and steps between two draws.
const DRAWS: usize = 500;
const WARM_UP: usize = 100;
const STEPS: u32 = 8;
const STEP_SIZE: f32 = 0.025;
/// How far the mean of the draws may be from the exact one, in standard deviations of the posterior.
const FAR: f64 = 0.05;

/// The log-density of offset and slope, and its gradient: y ~ normal(offset + slope x, 1), both ~ normal(0, 10).
fn line() -> Result<Program> {
    let b = Builder::new();
    let q = b.input(DType::F32, &[2]);
    let (x, y) = (b.input(DType::F32, &[POINTS]), b.input(DType::F32, &[POINTS]));
    let error = b.subtract(y, b.add(b.at(q, 0), b.multiply(x, b.at(q, 1))));
    let likelihood = b.multiply(b.sum(b.multiply(error, error), &[0]), -0.5);
    let prior = b.multiply(b.sum(b.multiply(q, q), &[0]), -0.005);
    let of = |sum| b.reshape(sum, &[1]);
    let by_line = b.concatenate(&[of(b.sum(error, &[0])), of(b.sum(b.multiply(error, x), &[0]))], 0);
    let gradient = b.subtract(by_line, b.multiply(q, 0.01));
    let log_density = b.add(likelihood, prior);
    b.finish(&[log_density, gradient])
}

/// Random numbers: xorshift64*.
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// The exact mean and standard deviation of offset and slope.
fn exact(x: &[f32], y: &[f32]) -> [[f64; 2]; 2] {
    let sum = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(y).map(|(&x, &y)| f(x.into(), y.into())).sum::<f64>();
    let [a, b, d] = [POINTS as f64 + 0.01, sum(&|x, _| x), sum(&|x, _| x * x) + 0.01];
    let [y, xy] = [sum(&|_, y| y), sum(&|x, y| x * y)];
    let determinant = a * d - b * b;
    let mean = [(d * y - b * xy) / determinant, (a * xy - b * y) / determinant];
    [mean, [(d / determinant).sqrt(), (a / determinant).sqrt()]]
}

fn main() -> std::result::Result<ExitCode, Box<dyn Error>> {
    let engine = Engine::open(None)?;
    let mut random = Random(2026);
    let x: Vec<f32> = (0..POINTS).map(|i| i as f32 / POINTS as f32 * 4.0 - 2.0).collect();
    let y: Vec<f32> = x.iter().map(|&x| 1.5 - 0.7 * x + random.normal() as f32).collect();
    let captured = [Tensor::from_slice(&engine, &[POINTS], &x)?, Tensor::from_slice(&engine, &[POINTS], &y)?];
    let chain = LogDensityChain::compile(&engine, &line()?, Mass::Diagonal, None)?;
    println!("{}: {CHAINS} chains in the form {:?}", engine.info().name, chain.form());

    let inverse_mass = Tensor::from_slice(&engine, &[2], &[1f32, 1.0])?;
    let step_size = Tensor::from_slice(&engine, &[CHAINS], &[STEP_SIZE; CHAINS as usize])?;
    let mut q = vec![0f32; 2 * CHAINS as usize];
    let mut energies = vec![f64::INFINITY; CHAINS as usize];
    let (mut sums, mut accepted, mut count) = ([0f64; 2], 0, 0);
    let start = Instant::now();
    for draw in 0..WARM_UP + DRAWS {
        let p: Vec<f32> = (0..q.len()).map(|_| random.normal() as f32).collect();
        let tensors = [Tensor::from_slice(&engine, &[CHAINS, 2], &q)?, Tensor::from_slice(&engine, &[CHAINS, 2], &p)?];
        let begin = Start {
            q: &tensors[0],
            p: &tensors[1],
            inverse_mass: &inverse_mass,
            step_size: &step_size,
            captured: &captured,
            steps: STEPS,
        };
        let trace = chain.run(&engine, &begin, Compile::Allowed)?;
        let ends = trace.q.to_vec::<f32>(&engine)?;
        let log_densities = trace.log_density.to_vec::<f32>(&engine)?;
        let end_energies = trace.energy.to_vec::<f32>(&engine)?;
        for c in 0..CHAINS as usize {
            let last = (c + 1) * STEPS as usize - 1;
            let momentum: f64 = p[2 * c..2 * c + 2].iter().map(|&p| 0.5 * f64::from(p) * f64::from(p)).sum();
            // `energies` has the potential energy of where the chain is: at first that of nowhere, which is left.
            let before = energies[c] + momentum;
            if random.uniform().ln() < before - f64::from(end_energies[last]) {
                q[2 * c..2 * c + 2].copy_from_slice(&ends[2 * last..2 * last + 2]);
                energies[c] = -f64::from(log_densities[last]);
                accepted += 1;
            }
            if draw >= WARM_UP {
                count += 1;
                for (sum, &q) in sums.iter_mut().zip(&q[2 * c..2 * c + 2]) {
                    *sum += f64::from(q);
                }
            }
        }
    }
    let share = f64::from(accepted) / (CHAINS as f64 * (WARM_UP + DRAWS) as f64);
    println!("{count} draws in {:.1?}, {:.0} % accepted", start.elapsed(), 100.0 * share);

    let [mean, deviation] = exact(&x, &y);
    let mut far = false;
    for (i, name) in ["offset", "slope"].into_iter().enumerate() {
        let drawn = sums[i] / f64::from(count);
        println!("{name}: {drawn:.4}, exactly {:.4} with a standard deviation of {:.4}", mean[i], deviation[i]);
        far |= ((drawn - mean[i]) / deviation[i]).abs() > FAR;
    }
    if far {
        eprintln!("the draws are far from the posterior");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

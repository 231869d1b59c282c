//! Fused kernels at the speed of memory: `cargo run --release --example fused`. Prints bytes that must move over the
//! time that it took, fused and op by op.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Builder, Program, Reduction};
use nx_vulkan_engine::{DType, Engine, Result, Tensor, eager};

/// Times that each program is measured, and runs in each.
const MEASUREMENTS: usize = 7;
const RUNS: usize = 10;

fn softmax(rows: u64, columns: u64) -> Result<Program> {
    let b = Builder::new();
    let x = b.input(DType::F32, &[rows, columns]);
    let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true)));
    let result = b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true));
    b.finish(&[result])
}

fn layer_norm(rows: u64, columns: u64) -> Result<Program> {
    let b = Builder::new();
    let x = b.input(DType::F32, &[rows, columns]);
    let (gain, bias) = (b.input(DType::F32, &[columns]), b.input(DType::F32, &[columns]));
    let mean = |a| b.multiply(b.reduce(Reduction::Sum, a, &[1], true), 1.0 / columns as f64);
    let centered = b.subtract(x, mean(x));
    let variance = mean(b.multiply(centered, centered));
    let scaled = b.multiply(centered, b.rsqrt(b.add(variance, 1e-5)));
    let result = b.add(b.multiply(scaled, gain), bias);
    b.finish(&[result])
}

fn gelu(rows: u64, columns: u64) -> Result<Program> {
    let b = Builder::new();
    let x = b.input(DType::F32, &[rows, columns]);
    let cdf = b.add(b.erf(b.multiply(x, std::f64::consts::FRAC_1_SQRT_2)), 1.0);
    let result = b.multiply(x, b.multiply(cdf, 0.5));
    b.finish(&[result])
}

fn bias_relu(rows: u64, columns: u64) -> Result<Program> {
    let b = Builder::new();
    let (x, bias) = (b.input(DType::F32, &[rows, columns]), b.input(DType::F32, &[columns]));
    let result = b.max(b.add(x, bias), 0.0);
    b.finish(&[result])
}

/// Median milliseconds of a run.
fn time(engine: &Arc<Engine>, program: &Program, inputs: &[Tensor]) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..=MEASUREMENTS {
        engine.wait()?;
        let start = Instant::now();
        for _ in 0..RUNS {
            eager::run_program(engine, program, inputs)?;
        }
        engine.wait()?;
        times.push(start.elapsed().as_secs_f64() * 1e3 / RUNS as f64);
    }
    // The first compiles.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<()> {
    let engine = Engine::open(None)?;
    let small = std::env::args().any(|arg| arg == "--small");
    let side = |n: u64| if small { n / 64 } else { n };
    let cases = [
        ("softmax 4096^2", softmax(side(4096), side(4096))?, side(4096)),
        ("softmax 16384^2", softmax(side(16384), side(16384))?, side(16384)),
        ("layer norm 4096^2", layer_norm(side(4096), side(4096))?, side(4096)),
        ("gelu 8192^2", gelu(side(8192), side(8192))?, side(8192)),
        ("bias and relu 8192^2", bias_relu(side(8192), side(8192))?, side(8192)),
    ];
    for (name, program, side) in cases {
        let inputs = program
            .inputs
            .iter()
            .map(|ty| {
                let bytes: Vec<u8> =
                    (0..ty.elements()).flat_map(|i| ((i * 7919 % 4001) as f32 / 500.0 - 4.0).to_ne_bytes()).collect();
                Tensor::from_nx_bytes(&engine, ty, &bytes)
            })
            .collect::<Result<Vec<_>>>()?;
        let fused = optimize(program.clone(), &engine.target())?;
        let [ms, single] = [&fused, &program].map(|p| time(&engine, p, &inputs));
        let (ms, single) = (ms?, single?);
        let gigabytes = (side * side * 8) as f64 * 1e-9;
        println!(
            "{name}: {} instructions, {:.1} us, {:.0} GB/s; op by op {:.1} us",
            fused.instructions.len(),
            ms * 1e3,
            gigabytes / (ms * 1e-3),
            single * 1e3
        );
    }
    Ok(())
}

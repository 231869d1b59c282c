//! What reads a tensor and gives a few numbers, or one for each row or column: `cargo run --release --example
//! statistics [name]`. Prints the launches of each function, what they move, and the time of a call.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::program::{Builder, Operand, Program, Reduction};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Result, Tensor};

/// Times that each program is measured, and runs in each.
const MEASUREMENTS: usize = 15;
const RUNS: usize = 8;

fn of(shape: &[u64], function: impl FnOnce(&Builder, Operand) -> Vec<Operand>) -> Result<Program> {
    let b = Builder::new();
    let x = b.input(DType::F32, shape);
    let outputs = function(&b, x);
    b.finish(&outputs)
}

fn mean_and_variance(shape: &[u64], axes: &[usize]) -> Result<Program> {
    of(shape, |b, x| {
        let (mean, square) = (b.mean(x, axes), b.mean(b.multiply(x, x), axes));
        vec![mean, b.subtract(square, b.multiply(mean, mean))]
    })
}

fn sum_and_max(shape: &[u64], axes: &[usize]) -> Result<Program> {
    of(shape, |b, x| vec![b.sum(x, axes), b.reduce_max(x, axes)])
}

fn log_sum_exp(shape: &[u64]) -> Result<Program> {
    of(shape, |b, x| {
        let max = b.reduce_max(x, &[0, 1]);
        vec![b.add(b.log(b.sum(b.exp(b.subtract(x, max)), &[0, 1])), max)]
    })
}

fn cross_entropy(shape: &[u64]) -> Result<Program> {
    of(shape, |b, x| {
        let labels = b.input(DType::F32, shape);
        let max = b.reduce(Reduction::Max, x, &[1], true);
        let shifted = b.subtract(x, max);
        let log = b.log(b.reduce(Reduction::Sum, b.exp(shifted), &[1], true));
        let losses = b.negate(b.sum(b.multiply(labels, b.subtract(shifted, log)), &[1]));
        vec![b.mean(losses, &[0])]
    })
}

fn softmax(shape: &[u64]) -> Result<Program> {
    of(shape, |b, x| {
        let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true)));
        vec![b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true))]
    })
}

fn layer_norm(shape: &[u64]) -> Result<Program> {
    of(shape, |b, x| {
        let mean = |a| b.multiply(b.reduce(Reduction::Sum, a, &[1], true), 1.0 / shape[1] as f64);
        let centered = b.subtract(x, mean(x));
        vec![b.multiply(centered, b.rsqrt(b.add(mean(b.multiply(centered, centered)), 1e-5)))]
    })
}

fn standardized(shape: &[u64]) -> Result<Program> {
    of(shape, |b, x| {
        let (mean, square) = (b.mean(x, &[0, 1]), b.mean(b.multiply(x, x), &[0, 1]));
        let deviation = b.sqrt(b.subtract(square, b.multiply(mean, mean)));
        vec![b.divide(b.subtract(x, mean), deviation)]
    })
}

fn moments(shape: &[u64]) -> Result<Program> {
    of(shape, |b, x| {
        let y = b.input(DType::F32, shape);
        let error = b.subtract(x, y);
        let squares = b.mean(b.multiply(error, error), &[0, 1]);
        vec![b.sqrt(squares), b.mean(b.abs(error), &[0, 1]), b.reduce_max(b.abs(error), &[0, 1])]
    })
}

fn cases() -> Result<Vec<(&'static str, Program)>> {
    let square = [2048, 2048];
    Ok(vec![
        ("mean and variance", mean_and_variance(&square, &[0, 1])?),
        ("mean and variance of columns", mean_and_variance(&square, &[0])?),
        ("mean and variance of 128 rows of 32768", mean_and_variance(&[128, 32768], &[1])?),
        ("mean and variance of rows of 256", mean_and_variance(&[16384, 256], &[1])?),
        ("mean and variance of rows of 2048", mean_and_variance(&square, &[1])?),
        ("log-sum-exp", log_sum_exp(&square)?),
        ("norm", of(&square, |b, x| vec![b.sqrt(b.sum(b.multiply(x, x), &[0, 1]))])?),
        ("mean", of(&square, |b, x| vec![b.mean(x, &[0, 1])])?),
        ("mean of 64 x 64", of(&[64, 64], |b, x| vec![b.mean(x, &[0, 1])])?),
        ("mean of columns", of(&square, |b, x| vec![b.mean(x, &[0])])?),
        ("mean of rows of 2048", of(&square, |b, x| vec![b.mean(x, &[1])])?),
        ("cross-entropy", cross_entropy(&[4096, 1000])?),
        ("sum and max", sum_and_max(&square, &[0, 1])?),
        ("sum and max of columns", sum_and_max(&square, &[0])?),
        ("standardized", standardized(&square)?),
        ("errors", moments(&square)?),
        ("softmax of rows of 100", softmax(&[40960, 100])?),
        ("softmax of rows of 1000", softmax(&[4096, 1000])?),
        ("layer norm of rows of 512", layer_norm(&[8192, 512])?),
        ("sum", of(&square, |b, x| vec![b.sum(x, &[0, 1])])?),
        ("sum of columns", of(&square, |b, x| vec![b.sum(x, &[0])])?),
    ])
}

/// Median and least microseconds of a call.
fn time(engine: &Arc<Engine>, executable: &Executable, inputs: &[Tensor]) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..=MEASUREMENTS {
        engine.wait()?;
        let start = Instant::now();
        for _ in 0..RUNS {
            executable.run(inputs, Compile::Allowed)?;
        }
        engine.wait()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / RUNS as f64);
    }
    // The first compiles.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

fn main() -> Result<()> {
    let engine = Engine::open(None)?;
    let only = std::env::args().nth(1);
    for (name, program) in cases()? {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let inputs = program
            .inputs
            .iter()
            .map(|ty| {
                let bytes: Vec<u8> =
                    (0..ty.elements()).flat_map(|i| ((i * 7919 % 4001) as f32 / 500.0 - 4.0).to_ne_bytes()).collect();
                Tensor::from_nx_bytes(&engine, ty, &bytes)
            })
            .collect::<Result<Vec<_>>>()?;
        let executable = Executable::compile(&engine, program)?;
        let launches: Vec<_> = executable
            .describe()
            .into_iter()
            .filter_map(|d| if let Described::Launch(launched) = d { Some(launched) } else { None })
            .collect();
        let moved: u64 = launches.iter().map(|l| l.work.read_bytes + l.work.written_bytes).sum();
        let (median, least) = time(&engine, &executable, &inputs)?;
        let megabytes = moved as f64 / f64::from(1 << 20);
        println!("{name}: {} launches, {megabytes:.1} MiB, {median:.0} us, at best {least:.0}", launches.len());
        for launched in launches {
            println!("    {} {:?}", launched.kernel, launched.groups);
        }
    }
    Ok(())
}

//! A program from Rust alone: build, compile, run, read, save, load. `cargo run --release --example session`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Instant;

use nx_vulkan_engine::program::{Builder, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor};

const POINTS: u64 = 1 << 16;

/// Least squares by 200 steps of gradient descent, on the device: `y` near `a x + b`.
fn descent() -> nx_vulkan_engine::Result<Program> {
    let b = Builder::new();
    let (x, y) = (b.input(DType::F32, &[POINTS]), b.input(DType::F32, &[POINTS]));
    let zero = b.number(DType::F32, 0.0);
    let start = [b.number(DType::S32, 0.0), zero, zero];
    let last = b.while_loop(
        &start,
        &[x, y],
        |b, v| b.less(v[0], 200.0),
        |b, v| {
            let &[count, slope, offset, x, y] = v else { return vec![] };
            let error = b.subtract(b.add(b.multiply(x, slope), offset), y);
            let (by_slope, by_offset) = (b.mean(b.multiply(error, x), &[0]), b.mean(error, &[0]));
            let next = |at, gradient| b.subtract(at, b.multiply(gradient, 0.5));
            vec![b.add(count, 1.0), next(slope, by_slope), next(offset, by_offset)]
        },
    );
    b.finish(&last[1..])
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(None)?;
    println!("{}", engine.info().name);

    let program = descent()?;
    let path = std::env::temp_dir().join(format!("nx_vulkan_session_{}.json", std::process::id()));
    std::fs::write(&path, program.to_bytes()?)?;
    let loaded = Program::from_bytes(&std::fs::read(&path)?)?;
    std::fs::remove_file(&path)?;
    println!("{} instructions, the same from a file: {}", loaded.instructions.len(), loaded == program);

    let start = Instant::now();
    let executable = Executable::compile(&engine, loaded)?;
    println!("compiled in {:.1?}: {:?}", start.elapsed(), executable.summary());

    let x: Vec<f32> = (0..POINTS).map(|i| i as f32 / POINTS as f32 * 2.0 - 1.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 3.0 * x - 0.5).collect();
    let inputs = [Tensor::from_slice(&engine, &[POINTS], &x)?, Tensor::from_slice(&engine, &[POINTS], &y)?];
    let start = Instant::now();
    let outputs = executable.run(&inputs, Compile::Allowed)?;
    let (slope, offset) = (outputs[0].to_vec::<f32>(&engine)?, outputs[1].to_vec::<f32>(&engine)?);
    println!("y = {:.4} x {:+.4} in {:.1?}", slope[0], offset[0], start.elapsed());
    Ok(())
}

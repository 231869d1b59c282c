//! Runs a saved program: `cargo run --release --example saved_program [-- FILE]`.
//!
//! FILE is a recording, which has inputs and expected results as well, such as `mix nx_vulkan.record` writes of a
//! function of Nx; results are compared with those expected. Without one, this saves a recording of a program of its own
//! to a temporary file first. Exits with 1 where a result is not as expected.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use nx_vulkan_engine::program::{Builder, Recording, Reduction, Tolerance};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor};

/// Rows of a matrix divided by their sums, of small integers, which f32 computes exactly.
fn record(path: &Path) -> Result<(), Box<dyn Error>> {
    let b = Builder::new();
    let x = b.input(DType::F32, &[4, 8]);
    let shares = b.divide(x, b.reduce(Reduction::Sum, x, &[1], true));
    let program = b.finish(&[shares])?;
    // Sums of rows are 64.
    let row = [1f32, 2.0, 4.0, 8.0, 16.0, 32.0, 0.0, 1.0];
    let bytes = |scale: f32| row.iter().cycle().take(32).flat_map(|x| (x * scale).to_le_bytes()).collect::<Vec<u8>>();
    let recording = Recording {
        name: "shares of rows".to_string(),
        program,
        inputs: vec![bytes(1.0)],
        expected: vec![bytes(1.0 / 64.0)],
        tolerances: vec![Tolerance { absolute: 0.0, relative: 0.0 }],
    };
    Ok(std::fs::write(path, recording.to_bytes()?)?)
}

/// Whether elements are as expected, within a tolerance where they are f32 or f64.
fn near(dtype: DType, found: &[u8], expected: &[u8], tolerance: Tolerance) -> bool {
    let floats = |bytes: &[u8]| -> Option<Vec<f64>> {
        match dtype {
            DType::F32 => bytes.as_chunks().0.iter().map(|&x| Some(f32::from_ne_bytes(x).into())).collect(),
            DType::F64 => bytes.as_chunks().0.iter().map(|&x| Some(f64::from_ne_bytes(x))).collect(),
            _ => None,
        }
    };
    let (Some(a), Some(b)) = (floats(found), floats(expected)) else { return found == expected };
    let close = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance.absolute + tolerance.relative * b.abs()
    };
    a.len() == b.len() && a.iter().zip(&b).all(close)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (path, own) = match std::env::args_os().nth(1) {
        Some(path) => (PathBuf::from(path), false),
        None => (std::env::temp_dir().join(format!("nx_vulkan_saved_{}.nxp", std::process::id())), true),
    };
    if own {
        record(&path)?;
    }
    let recording = Recording::read(&path)?;
    if own {
        std::fs::remove_file(&path)?;
    }

    let engine = Engine::open(None)?;
    println!("{:?} on {}", recording.name, engine.info().name);
    let types = recording.program.inputs.iter();
    let inputs = types.zip(&recording.inputs).map(|(ty, bytes)| Tensor::from_nx_bytes(&engine, ty, bytes));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let executable = Executable::compile(&engine, recording.program)?;
    println!("{:?}", executable.summary());

    let start = Instant::now();
    let outputs = executable.run(&inputs, Compile::Allowed)?;
    let mut wrong = false;
    for (i, output) in outputs.iter().enumerate() {
        let found = output.to_nx_bytes(&engine, None)?;
        let same = near(output.view().dtype, &found, &recording.expected[i], recording.tolerances[i]);
        println!("result {i}, {} bytes: {}", found.len(), if same { "as expected" } else { "not as expected" });
        wrong |= !same;
    }
    println!("{} results in {:.1?}", outputs.len(), start.elapsed());
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

//! What the first call of a program costs: `first_calls PROGRAM`, a file as `Program::to_bytes` writes it. Inputs are
//! zeros. Prints milliseconds: to open the device with a first tiny program, to compile, to record the first run, until
//! its results are there, and the same of a second run.
//!
//! A process measures one call. With an empty `NX_VULKAN_CACHE_DIR` (and the driver's own cache switched off, as by
//! `__GL_SHADER_DISK_CACHE=0`) it is cold; the next one finds all that can be kept, or with `NX_VULKAN_KEEP_COMPILED=0`
//! the driver's pipelines alone.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use nx_vulkan_engine::program::{Builder, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Error, Executable, Result, Tensor, Type};

/// Milliseconds since then.
fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let bytes = std::fs::read(&path).map_err(|e| Error::Io { path, cause: e.to_string() })?;
    let program = Program::from_bytes(&bytes)?;

    let start = Instant::now();
    let engine = Engine::open(None)?;
    let b = Builder::new();
    let x = b.input(DType::F32, &[2]);
    let y = b.add(x, 1.0);
    let tiny = Executable::compile(&engine, b.finish(&[y])?)?;
    let two = Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[2]), &[0; 8])?;
    tiny.run(&[two], Compile::Allowed)?.iter().try_for_each(|out| out.to_nx_bytes(&engine, None).map(drop))?;
    let opened = ms(start);

    let largest = program.inputs.iter().map(Type::size_bytes).max().unwrap_or(0);
    let zeros = vec![0; usize::try_from(largest).unwrap_or(0)];
    let zero = |ty: &Type| Tensor::from_nx_bytes(&engine, ty, &zeros[..ty.size_bytes() as usize]);
    let inputs = program.inputs.iter().map(zero).collect::<Result<Vec<Tensor>>>()?;
    engine.wait()?;

    let start = Instant::now();
    let executable = Executable::compile(&engine, program)?;
    let compiled = ms(start);
    let mut runs = Vec::new();
    for _ in 0..2 {
        let start = Instant::now();
        let outputs = executable.run(&inputs, Compile::Allowed)?;
        runs.push(ms(start));
        engine.wait()?;
        runs.push(ms(start));
        drop(outputs);
    }
    let runs: Vec<String> = runs.iter().map(|ms| format!("{ms:.1}")).collect();
    println!("open {opened:.1} compile {compiled:.1} recorded/done, first and second run: {}", runs.join(" "));
    engine.save_pipelines();
    Ok(())
}

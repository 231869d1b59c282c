//! What types cost that a device lacks: `cargo run --release --example lowered`, with
//! `NX_VULKAN_WITHOUT=shaderFloat64,shaderInt64` and without. Prints milliseconds of the first run, in which the kernel
//! is compiled, and elements per second of later ones. `-- functions` compiles every function of f64 and says how long
//! each takes; `-- exp.f64` runs one case.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::program::{Binary, Builder, Elementwise, Operand, Reduction, Unary};
use nx_vulkan_engine::{DType, Engine, Options, Result, Tensor, Type, eager};
use nx_vulkan_ir::program::ops::Rule;

const ELEMENTS: u64 = 1 << 20;
/// Runs that are timed; the fastest counts.
const RUNS: usize = 5;

/// Elements of functions that are only compiled.
const FEW: u64 = 64;

type Build = fn(&Builder, Operand, Operand) -> Operand;

const CASES: [(&str, DType, Build); 18] = [
    ("add", DType::F64, |b, x, y| b.add(x, y)),
    ("multiply", DType::F64, |b, x, y| b.multiply(x, y)),
    ("divide", DType::F64, |b, x, y| b.divide(x, y)),
    ("sqrt", DType::F64, |b, x, _| b.sqrt(x)),
    ("exp", DType::F64, |b, x, _| b.exp(x)),
    ("log", DType::F64, |b, x, _| b.log(x)),
    ("sin", DType::F64, |b, x, _| b.sin(x)),
    ("tanh", DType::F64, |b, x, _| b.tanh(x)),
    ("pow", DType::F64, |b, x, y| b.pow(x, y)),
    ("sum", DType::F64, |b, x, _| b.reduce(Reduction::Sum, x, &[0], false)),
    ("add", DType::S64, |b, x, y| b.add(x, y)),
    ("multiply", DType::S64, |b, x, y| b.multiply(x, y)),
    ("remainder", DType::S64, |b, x, y| b.remainder(x, y)),
    ("pow", DType::S64, |b, x, y| b.pow(x, y)),
    ("add", DType::U8, |b, x, y| b.add(x, y)),
    ("add", DType::S16, |b, x, y| b.add(x, y)),
    ("add", DType::F16, |b, x, y| b.add(x, y)),
    ("add", DType::Bf16, |b, x, y| b.add(x, y)),
];

fn main() -> Result<()> {
    let engine = Engine::open_with(&Options { cache_dir: None, ..Options::from_env() })?;
    println!("{}, lacks: {:?}", engine.info().name, engine.caps().lacks());
    let only = std::env::args().nth(1);
    if only.as_deref() == Some("functions") {
        return functions(&engine);
    }
    for (name, dtype, build) in CASES {
        if only.as_deref().is_some_and(|only| only != format!("{name}.{dtype}")) {
            continue;
        }
        let b = Builder::new();
        let (x, y) = (b.input(dtype, &[ELEMENTS]), b.input(dtype, &[ELEMENTS]));
        let result = build(&b, x, y);
        let program = b.finish(&[result])?;
        // Patterns that are small positive numbers of every type, 0.5 to 2 of floats.
        let pattern: Vec<u8> = match dtype {
            DType::F64 => [0.75f64, 1.25, 0.5, 1.9].iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::S64 => [7i64, 3, 1 << 40, 5].iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => vec![0x3f; 8],
        };
        let size = ELEMENTS as usize * dtype.size_bytes() as usize;
        let bytes: Vec<u8> = pattern.iter().copied().cycle().take(size).collect();
        let x = Tensor::from_nx_bytes(&engine, &Type::new(dtype, &[ELEMENTS]), &bytes)?;
        let inputs = [x.clone(), x];
        let run = || -> Result<f64> {
            let start = Instant::now();
            eager::run_program(&engine, &program, &inputs)?;
            engine.wait()?;
            Ok(start.elapsed().as_secs_f64())
        };
        let first = run()?;
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            best = best.min(run()?);
        }
        println!("{name:>9}.{dtype:<4} first {:8.1} ms, then {:9.1} M/s", first * 1e3, ELEMENTS as f64 / best / 1e6);
    }
    Ok(())
}

/// Milliseconds of the first run of each function.
fn functions(engine: &Arc<Engine>) -> Result<()> {
    let float = |op: &Unary| matches!(op.rule(), Rule::Float | Rule::RealFloat);
    let unary = Unary::ALL.iter().copied().filter(float).map(Elementwise::Unary);
    let binary = [Binary::Pow, Binary::Atan2, Binary::Remainder, Binary::Divide].map(Elementwise::Binary);
    for op in unary.chain(binary) {
        let b = Builder::new();
        let (x, y) = (b.input(DType::F64, &[FEW]), b.input(DType::F64, &[FEW]));
        let result = match op {
            Elementwise::Unary(op) => b.unary(op, x),
            Elementwise::Binary(op) => b.binary(op, x, y),
            _ => x,
        };
        let program = b.finish(&[result])?;
        let bytes: Vec<u8> = (0..FEW).flat_map(|k| (k as f64 / FEW as f64).to_le_bytes()).collect();
        let x = Tensor::from_nx_bytes(engine, &Type::new(DType::F64, &[FEW]), &bytes)?;
        let start = Instant::now();
        eager::run_program(engine, &program, &[x.clone(), x])?;
        engine.wait()?;
        println!("{:>9}.f64  first {:8.1} ms", op.name(), start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

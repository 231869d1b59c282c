//! Products of f32 matrices as a CPU device runs them best, beside the engine's:
//! `cargo run --release --example cpu_products SIZE FILE:ROWS:VECTORS:STEPS ..` times kernels that `kernel.py` wrote and `glslangValidator --target-env vulkan1.2 -V -S comp` compiled.
#![allow(clippy::print_stdout)]

use std::env::args;
use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::program::Builder;
use nx_vulkan_engine::{
    Buffer, Compile, DType, Engine, Executable, Interface, Launch, Pipeline, PipelineKey, Tensor, Type,
};

/// Runs of each kernel, of which the fastest counts.
const RUNS: usize = 12;
/// Lanes of a vector.
const LANES: u32 = 8;

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Kernel {
    name: String,
    pipeline: Arc<Pipeline>,
    rows: u32,
    vectors: u32,
    steps: u32,
}

struct Product<'a> {
    engine: &'a Engine,
    size: u32,
    operands: [&'a Arc<Buffer>; 2],
}

impl Product<'_> {
    /// One dispatch for every block of rows and every run of steps. Those of one run of steps don't depend on each other.
    fn record(&self, kernel: &Kernel, result: &Arc<Buffer>) -> Outcome<()> {
        let n = self.size;
        let addresses = [self.operands[0].address(), self.operands[1].address(), result.address()];
        let addresses = addresses.map(|address| [address as u32, (address >> 32) as u32]);
        for first_step in (0..n).step_by(kernel.steps as usize) {
            for first_row in (0..n).step_by(kernel.rows as usize) {
                let mut params = addresses.as_flattened().to_vec();
                params.extend([n, n, n, first_step, first_row]);
                let waits = first_row == 0;
                self.engine.dispatch(&Launch {
                    pipeline: &kernel.pipeline,
                    params: &params,
                    table: None,
                    addresses: &[],
                    groups: [n / (LANES * kernel.vectors), 1, 1],
                    reads: if waits { &self.operands } else { &[] },
                    writes: if waits { std::slice::from_ref(&result) } else { &[] },
                    beside: false,
                    work: None,
                })?;
            }
        }
        Ok(())
    }
}

fn kernel(engine: &Engine, argument: &str) -> Outcome<Kernel> {
    let parts: Vec<&str> = argument.split(':').collect();
    let [file, rows, vectors, steps] = parts[..] else { return Err("FILE:ROWS:VECTORS:STEPS".into()) };
    let bytes = fs::read(file)?;
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let interface = Interface::Addresses { push_bytes: 128 };
    let pipeline = engine.pipeline(PipelineKey::new(&words, &[], interface), &words, &[], interface)?;
    Ok(Kernel {
        name: format!("{rows} rows, {vectors} vectors, {steps} steps"),
        pipeline,
        rows: rows.parse()?,
        vectors: vectors.parse()?,
        steps: steps.parse()?,
    })
}

/// Seconds of the fastest run.
fn fastest(engine: &Engine, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        engine.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> Outcome<()> {
    let mut args = args().skip(1);
    let size: u32 = args.next().ok_or("SIZE FILE:ROWS:VECTORS:STEPS ..")?.parse()?;
    let engine = Engine::open(None)?;
    let kernels = args.map(|argument| kernel(&engine, &argument)).collect::<Outcome<Vec<_>>>()?;
    let ty = Type::new(DType::F32, &[u64::from(size); 2]);
    let numbers = |factor: u64| (0..ty.elements()).map(|i| (i * factor % 4001) as f32 / 2000.0 - 1.0).collect();
    let values: [Vec<f32>; 2] = [numbers(7919), numbers(104_729)];
    let tensor = |values: &Vec<f32>| Tensor::from_nx_bytes(&engine, &ty, bytemuck::cast_slice(values));
    let operands = [tensor(&values[0])?, tensor(&values[1])?];
    let rate = |seconds: f64| 2e-9 * f64::from(size).powi(3) / seconds;

    let build = Builder::new();
    let (a, b) = (build.input(DType::F32, &ty.shape), build.input(DType::F32, &ty.shape));
    let product = build.dot(a, b);
    let executable = Executable::compile(&engine, build.finish(&[product])?)?;
    let seconds = fastest(&engine, || Ok(executable.run(&operands, Compile::Allowed).map(|_| ())?))?;
    println!("the engine's: {:.1} GFLOP/s", rate(seconds));

    let product = Product { engine: &engine, size, operands: [&operands[0].buffer, &operands[1].buffer] };
    for kernel in &kernels {
        let result = tensor(&vec![0.0; ty.elements() as usize])?;
        product.record(kernel, &result.buffer)?;
        // Most of the dispatches have told the stream of no buffer.
        engine.wait()?;
        let bytes = result.to_nx_bytes(&engine, None)?;
        let got: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let n = size as usize;
        let error = |(i, j): (usize, usize)| {
            let terms = (0..n).map(|k| f64::from(values[0][i * n + k]) * f64::from(values[1][k * n + j]));
            (terms.sum::<f64>() - f64::from(got[i * n + j])).abs()
        };
        let worst = (0..100).map(|s| error((s * 7919 % n, s * 104_729 % n))).fold(0.0, f64::max);
        let seconds = fastest(&engine, || product.record(kernel, &result.buffer))?;
        println!("{}: {:.1} GFLOP/s, largest error {worst:.1e}", kernel.name, rate(seconds));
    }
    Ok(())
}

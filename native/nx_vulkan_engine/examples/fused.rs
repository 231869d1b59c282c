//! Fused kernels at the speed of memory: `cargo run --release --example fused`. Prints bytes that must move over the time that it took,
//! fused and op by op.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::program::op::{Axes, Scalar};
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Instruction, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::{DType, Engine, Result, Tensor, Type, eager};
use smallvec::{SmallVec, smallvec};

/// Times that each program is measured, and runs in each.
const MEASUREMENTS: usize = 7;
const RUNS: usize = 10;

/// Programs of f32.
#[derive(Default)]
struct Build {
    program: Program,
}

impl Build {
    fn input(&mut self, shape: &[u64]) -> Operand {
        self.program.inputs.push(Type::new(DType::F32, shape));
        Operand::Input(self.program.inputs.len() as u32 - 1)
    }

    fn push(&mut self, op: Op, operands: &[Operand], shape: &[u64]) -> Operand {
        let outs = smallvec![Type::new(DType::F32, shape)];
        self.program.instructions.push(Instruction { op, operands: SmallVec::from_slice(operands), outs });
        Operand::Result(self.program.instructions.len() as u32 - 1)
    }

    fn number(&mut self, x: f64) -> Operand {
        self.push(Op::Constant(Scalar::Float(x)), &[], &[])
    }

    fn finish(mut self, output: Operand) -> Program {
        self.program.outputs = vec![output];
        self.program
    }
}

fn softmax(rows: u64, columns: u64) -> Program {
    let mut b = Build::default();
    let (full, row) = ([rows, columns], [rows, 1]);
    let reduce = |reduction| Op::Reduce { reduction, axes: Axes::from_slice(&[1]), tie_high: false };
    let x = b.input(&full);
    let max = b.push(reduce(Reduction::Max), &[x], &row);
    let shifted = b.push(Op::Binary(Binary::Subtract), &[x, max], &full);
    let exp = b.push(Op::Unary(Unary::Exp), &[shifted], &full);
    let sum = b.push(reduce(Reduction::Sum), &[exp], &row);
    let result = b.push(Op::Binary(Binary::Divide), &[exp, sum], &full);
    b.finish(result)
}

fn layer_norm(rows: u64, columns: u64) -> Program {
    let mut b = Build::default();
    let (full, row) = ([rows, columns], [rows, 1]);
    let x = b.input(&full);
    let (gain, bias) = (b.input(&[columns]), b.input(&[columns]));
    let share = b.number(1.0 / columns as f64);
    let mean = |b: &mut Build, a: Operand| {
        let op = Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[1]), tie_high: false };
        let sum = b.push(op, &[a], &row);
        b.push(Op::Binary(Binary::Multiply), &[sum, share], &row)
    };
    let average = mean(&mut b, x);
    let centered = b.push(Op::Binary(Binary::Subtract), &[x, average], &full);
    let squared = b.push(Op::Binary(Binary::Multiply), &[centered, centered], &full);
    let variance = mean(&mut b, squared);
    let eps = b.number(1e-5);
    let variance = b.push(Op::Binary(Binary::Add), &[variance, eps], &row);
    let scale = b.push(Op::Unary(Unary::Rsqrt), &[variance], &row);
    let scaled = b.push(Op::Binary(Binary::Multiply), &[centered, scale], &full);
    let scaled = b.push(Op::Binary(Binary::Multiply), &[scaled, gain], &full);
    let result = b.push(Op::Binary(Binary::Add), &[scaled, bias], &full);
    b.finish(result)
}

fn gelu(rows: u64, columns: u64) -> Program {
    let mut b = Build::default();
    let full = [rows, columns];
    let x = b.input(&full);
    let [root, one, half] = [std::f64::consts::FRAC_1_SQRT_2, 1.0, 0.5].map(|x| b.number(x));
    let scaled = b.push(Op::Binary(Binary::Multiply), &[x, root], &full);
    let erf = b.push(Op::Unary(Unary::Erf), &[scaled], &full);
    let cdf = b.push(Op::Binary(Binary::Add), &[erf, one], &full);
    let halved = b.push(Op::Binary(Binary::Multiply), &[cdf, half], &full);
    let result = b.push(Op::Binary(Binary::Multiply), &[x, halved], &full);
    b.finish(result)
}

fn bias_relu(rows: u64, columns: u64) -> Program {
    let mut b = Build::default();
    let full = [rows, columns];
    let (x, bias) = (b.input(&full), b.input(&[columns]));
    let zero = b.number(0.0);
    let sum = b.push(Op::Binary(Binary::Add), &[x, bias], &full);
    let result = b.push(Op::Binary(Binary::Max), &[sum, zero], &full);
    b.finish(result)
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
        ("softmax 4096^2", softmax(side(4096), side(4096)), side(4096)),
        ("softmax 16384^2", softmax(side(16384), side(16384)), side(16384)),
        ("layer norm 4096^2", layer_norm(side(4096), side(4096)), side(4096)),
        ("gelu 8192^2", gelu(side(8192), side(8192)), side(8192)),
        ("bias and relu 8192^2", bias_relu(side(8192), side(8192)), side(8192)),
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
        let fused = optimize(program.clone(), &Target::of(engine.caps()))?;
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

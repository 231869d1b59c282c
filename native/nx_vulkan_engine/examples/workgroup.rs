//! Times what one workgroup runs: a loop of small steps, log-densities with their gradients, chains of leapfrog steps.
//!
//!     cargo run --release --example workgroup

#[path = "../tests/common/models.rs"]
#[allow(clippy::unwrap_used)]
mod models;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nx_vulkan_engine::chain::log_density::{LogDensityChain, Mass, Start};
use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Loop, Op, Program, Unary};
use nx_vulkan_engine::{Compile, DType, Engine, Options, Tensor, Type, eager};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ITERATIONS: i64 = 1000;
const STEPS: u32 = 32;

fn main() -> Outcome {
    let engine = Engine::open_with(&Options::from_env())?;
    println!("one workgroup on {}", engine.info().name);
    for size in [1, 16, 256] {
        iterations(&engine, size)?;
    }
    let dtypes: &[DType] = if !engine.info().lacks.float64 { &[DType::F32, DType::F64] } else { &[DType::F32] };
    for &dtype in dtypes {
        let returns: Vec<f64> = (0..200).map(|i| (f64::from(i) * 0.7).sin() * 0.02).collect();
        let schools = vec![models::SCHOOL_EFFECTS.to_vec(), models::SCHOOL_ERRORS.to_vec()];
        density(&engine, "eight schools", &models::eight_schools(dtype), &schools)?;
        density(&engine, "regime", &models::regime(dtype, 200), std::slice::from_ref(&returns))?;
        for chains in [1, 16, 1024] {
            chain(&engine, "eight schools", &models::eight_schools(dtype), &schools, chains)?;
            chain(&engine, "regime", &models::regime(dtype, 200), std::slice::from_ref(&returns), chains)?;
        }
    }
    Ok(())
}

/// The median of the times that a call and the wait for its result take.
fn median(engine: &Engine, mut call: impl FnMut() -> Outcome<Tensor>) -> Outcome<(Duration, Duration)> {
    let start = Instant::now();
    call()?.to_nx_bytes(engine, Some(1))?;
    let first = start.elapsed();
    let mut times = vec![];
    for _ in 0..31 {
        let start = Instant::now();
        call()?.to_nx_bytes(engine, Some(1))?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok((first, times[times.len() / 2]))
}

/// `x = tanh(x * 0.99 + 0.01)` while a counter is below the captured limit, as an optimized program.
fn iterations(engine: &Arc<Engine>, size: u64) -> Outcome {
    let inputs = |m: &Builder| (m.input(DType::S32, &[]), m.input(DType::F32, &[size]), m.input(DType::S32, &[]));
    let condition = Builder::new();
    let (i, _, n) = inputs(&condition);
    let less = condition.binary(Binary::Less, i, n);
    let condition = condition.finish(&[less])?;
    let body = Builder::new();
    let (i, x, _) = inputs(&body);
    let one = body.push(Op::Constant(Scalar::Int(1)), &[], &Type::new(DType::S32, &[]));
    let next = body.add(i, one);
    let x = body.multiply(x, 0.99);
    let x = body.add(x, 0.01);
    let x = body.unary(Unary::Tanh, x);
    let body = body.finish(&[next, x])?;
    let whole = Builder::new();
    let x = whole.input(DType::F32, &[size]);
    let n = whole.input(DType::S32, &[]);
    let zero = whole.push(Op::Constant(Scalar::Int(0)), &[], &Type::new(DType::S32, &[]));
    let outs = [Type::new(DType::S32, &[]), Type::new(DType::F32, &[size])];
    let last = whole.push_all(Op::While(Box::new(Loop::new(condition, body))), &[zero, x, n], &outs);
    let program = optimize(whole.finish(&last[1..])?, &engine.target())?;
    let x = tensor(engine, DType::F32, &[size], &vec![0.5; size as usize])?;
    let n = Tensor::from_nx_bytes(engine, &Type::new(DType::S32, &[]), &(ITERATIONS as i32).to_ne_bytes())?;
    let run = || Ok(eager::run_program(engine, &program, &[x.clone(), n.clone()])?.remove(0));
    let (first, time) = median(engine, run)?;
    println!(
        "while of {ITERATIONS} steps, {size:4} elements: {time:9.1?}, {:.3} us per step; first {first:.1?}",
        time.as_secs_f64() * 1e6 / ITERATIONS as f64
    );
    Ok(())
}

fn density(engine: &Arc<Engine>, name: &str, model: &Program, data: &[Vec<f64>]) -> Outcome {
    let mut inputs = vec![];
    for (k, ty) in model.inputs.iter().enumerate() {
        let values = if k == 0 { vec![0.1; ty.elements() as usize] } else { data[k - 1].clone() };
        inputs.push(tensor(engine, ty.dtype, &ty.shape, &values)?);
    }
    let op = Op::Workgroup(Box::new(model.clone()));
    let outs: Vec<Type> = model.output_types().into_iter().cloned().collect();
    let one = || Ok(eager::run_all(engine, &op, &inputs, &outs, Compile::Allowed)?.remove(1));
    let (first, time) = median(engine, one)?;
    let each = || Ok(eager::run_program(engine, model, &inputs)?.remove(1));
    let (_, apart) = median(engine, each)?;
    println!(
        "{name} {}: value and gradient {time:.1?} with the wait, {apart:.1?} op by op; first {first:.1?}",
        outs[0].dtype
    );
    Ok(())
}

fn chain(engine: &Arc<Engine>, name: &str, model: &Program, data: &[Vec<f64>], chains: u64) -> Outcome {
    let (d, dtype) = (model.inputs[0].shape[0], model.inputs[0].dtype);
    let compiled = LogDensityChain::compile(engine, model, Mass::Diagonal, None)?;
    let values = |n: u64, scale: f64| (0..n).map(|i| (i as f64 * 0.37).sin() * scale).collect::<Vec<f64>>();
    let q = tensor(engine, dtype, &[chains, d], &values(chains * d, 0.2))?;
    let p = tensor(engine, dtype, &[chains, d], &values(chains * d, 1.0))?;
    let inverse_mass = tensor(engine, dtype, &[d], &vec![1.0; d as usize])?;
    let step_size = tensor(engine, dtype, &[chains], &vec![0.01; chains as usize])?;
    let types = &model.inputs[1..];
    let captured =
        types.iter().zip(data).map(|(ty, v)| tensor(engine, ty.dtype, &ty.shape, v)).collect::<Outcome<Vec<_>>>()?;
    let time_of = |steps: u32| {
        let start =
            Start { q: &q, p: &p, inverse_mass: &inverse_mass, step_size: &step_size, captured: &captured, steps };
        median(engine, || Ok(compiled.run(engine, &start, Compile::Allowed)?.log_density))
    };
    let (first, time) = time_of(STEPS)?;
    let (_, long) = time_of(8 * STEPS)?;
    println!(
        "{name} {dtype}: {chains:4} chains of {STEPS} steps {time:9.1?} with the wait, {:.2} us per step; {:.2} us for \
         each further step; first {first:.1?}",
        time.as_secs_f64() * 1e6 / f64::from(STEPS),
        (long.as_secs_f64() - time.as_secs_f64()) * 1e6 / f64::from(7 * STEPS)
    );
    Ok(())
}

fn tensor(engine: &Engine, dtype: DType, shape: &[u64], values: &[f64]) -> Outcome<Tensor> {
    let bytes: Vec<u8> = match dtype {
        DType::F64 => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        _ => values.iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect(),
    };
    Ok(Tensor::from_nx_bytes(engine, &Type::new(dtype, shape), &bytes)?)
}

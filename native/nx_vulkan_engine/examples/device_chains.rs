//! Times chains of logistic regressions, in both forms where one workgroup can run them, and with several at once.
//!
//!     cargo run --release --example device_chains

#[path = "../tests/common/models.rs"]
#[allow(clippy::unwrap_used)]
mod models;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::chain::Form;
use nx_vulkan_engine::chain::log_density::{LogDensityChain, Mass, Start};
use nx_vulkan_engine::{Compile, DType, Engine, Options, Tensor, Type};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const STEPS: u32 = 200;

fn main() -> Outcome {
    let engine = Engine::open_with(&Options::from_env())?;
    println!("chains of {STEPS} steps on {}", engine.info().name);
    let dtypes: &[DType] = if !engine.info().lacks.float64 { &[DType::F32, DType::F64] } else { &[DType::F32] };
    for &dtype in dtypes {
        logistic(&engine, dtype, [500, 21], Form::Workgroup)?;
        logistic(&engine, dtype, [500, 21], Form::Device)?;
        logistic(&engine, dtype, [5000, 300], Form::Device)?;
    }
    Ok(())
}

fn logistic(engine: &Arc<Engine>, dtype: DType, [n, d]: [u64; 2], form: Form) -> Outcome {
    let compiled = LogDensityChain::compile(engine, &models::logistic(dtype, n, d), Mass::Diagonal, Some(form))?;
    let values = |n: u64, scale: f64| (0..n).map(move |i| (i as f64 * 0.37).sin() * scale);
    let labels = (0..n).map(|i| f64::from(u8::from(i * 7 % 11 < 5)));
    let x = tensor(engine, dtype, &[n, d], values(n * d, 1.0))?;
    let captured = [x, tensor(engine, dtype, &[n], labels)?];
    let inverse_mass = tensor(engine, dtype, &[d], values(d, 0.0).map(|_| 1.0))?;
    for chains in [1, 16, 64] {
        let q = tensor(engine, dtype, &[chains, d], values(chains * d, 0.2))?;
        let p = tensor(engine, dtype, &[chains, d], values(chains * d, 1.0))?;
        let step_size = tensor(engine, dtype, &[chains], values(chains, 0.0).map(|_| 0.01))?;
        let start = Start {
            q: &q,
            p: &p,
            inverse_mass: &inverse_mass,
            step_size: &step_size,
            captured: &captured,
            steps: STEPS,
        };
        let (mut times, mut recorded, mut submissions) = (vec![], vec![], 0);
        for _ in 0..6 {
            engine.wait()?;
            let (before, begin) = (engine.stats(), Instant::now());
            let trace = compiled.run(engine, &start, Compile::Allowed)?;
            recorded.push(begin.elapsed());
            engine.wait()?;
            times.push(begin.elapsed());
            submissions = engine.stats().submissions - before.submissions;
            drop(trace);
        }
        // The first one compiles.
        times.remove(0);
        recorded.remove(0);
        times.sort();
        recorded.sort();
        println!(
            "{n} x {d} {dtype} {form:?}: {chains:2} chains {:.2} us per step of each, {:.2} us per step of all, \
             recorded in {:.1?}, {submissions} submissions",
            times[2].as_secs_f64() * 1e6 / (f64::from(STEPS) * chains as f64),
            times[2].as_secs_f64() * 1e6 / f64::from(STEPS),
            recorded[2],
        );
    }
    Ok(())
}

fn tensor(engine: &Engine, dtype: DType, shape: &[u64], values: impl Iterator<Item = f64>) -> Outcome<Tensor> {
    let bytes: Vec<u8> = match dtype {
        DType::F64 => values.flat_map(f64::to_ne_bytes).collect(),
        _ => values.flat_map(|x| (x as f32).to_ne_bytes()).collect(),
    };
    Ok(Tensor::from_nx_bytes(engine, &Type::new(dtype, shape), &bytes)?)
}

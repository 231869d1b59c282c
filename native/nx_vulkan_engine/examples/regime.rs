//! Times the leapfrog chain of the regime model (d = 8, 200 returns, K = 32) through the engine, and writes what it
//! leaves.
//!
//!     cargo run --release --example regime [-- FOLDER]
//!
//! With a folder, `regime.engine.out` and `regime_f64.engine.out` in it hold q, p, gradient and log density one after
//! the other, as `spike/vulkano_synth` writes and compares them.

#[path = "../../../spike/vulkano_synth/src/model.rs"]
#[allow(dead_code)]
mod model;

use model::{D, Inputs, PRIORS, Prior};
use nx_vulkan_engine::chain::{self, Chain, Real, Request};
use nx_vulkan_engine::nativev::{Call, Compile, Outcome, ShaderFiles};
use nx_vulkan_engine::{Engine, Options};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Calls timed, after one that compiles.
const TIMED: usize = 201;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let engine = Engine::open_with(&Options::from_env())?;
    println!("regime model on {}: d = {D}, 200 returns, 32 leapfrog steps in one dispatch", engine.info().name);
    let reals: &[Real] = if !engine.info().lacks.float64 { &[Real::F32, Real::F64] } else { &[Real::F32] };
    for &real in reals {
        let name = if real == Real::F64 { "regime_f64" } else { "regime" };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../priv/shaders/examples/{name}.spv"));
        let files = ShaderFiles::default();
        // SAFETY: the shader is one of the catalogue.
        let call = unsafe { Call::new(&engine, &files, &path, false, Compile::Allowed) };
        let inputs = Packed::new(&Inputs::benchmark(), real);

        let start = Instant::now();
        let left = inputs.run(&engine, &call, real)?;
        let first = start.elapsed();
        let mut times = Vec::with_capacity(TIMED);
        for _ in 0..TIMED {
            let start = Instant::now();
            let again = inputs.run(&engine, &call, real)?;
            times.push(start.elapsed());
            if again != left {
                return Err("two chains with the same inputs left different bytes".into());
            }
        }
        times.sort();
        let median: Duration = times[TIMED / 2];
        println!(
            "{name:>10}: bytes in to bytes out {median:.1?} = {:.2?} per leapfrog step; first call {first:.1?}",
            median / inputs.k_steps as u32
        );
        if let Some(folder) = &folder {
            std::fs::write(folder.join(format!("{name}.engine.out")), &left)?;
        }
    }
    Ok(())
}

/// The benchmark's inputs as bytes.
struct Packed {
    q: Vec<u8>,
    p: Vec<u8>,
    extras: Vec<u8>,
    push: Vec<u8>,
    k_steps: usize,
}

impl Packed {
    fn new(inputs: &Inputs, real: Real) -> Self {
        let bytes = |values: &[f64]| -> Vec<u8> {
            match real {
                Real::F32 => values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
                Real::F64 => values.iter().flat_map(|&x| x.to_le_bytes()).collect(),
            }
        };
        let mut floats = vec![inputs.eps];
        for prior in PRIORS {
            match prior {
                Prior::Normal { mean, sd } => floats.extend([mean, sd]),
                Prior::HalfCauchy { scale } => floats.push(scale),
            }
        }
        let words = [inputs.k_steps, inputs.returns.len(), D, 1].map(|word| (word as u32).to_le_bytes());
        Self {
            q: bytes(&inputs.q),
            p: bytes(&inputs.p),
            extras: bytes(&[&inputs.returns[..], &inputs.inv_mass].concat()),
            push: [words.concat(), bytes(&floats)].concat(),
            k_steps: inputs.k_steps,
        }
    }

    /// q, p, gradient and log density of every step, one after the other.
    fn run(&self, engine: &Engine, call: &Call<'_>, real: Real) -> Outcome<Vec<u8>> {
        let chain: Chain = chain::start(
            call,
            &Request {
                real,
                batched: false,
                q: &self.q,
                p: &self.p,
                extras: &self.extras,
                push: &self.push,
                k: self.k_steps as u64,
            },
        )?;
        let mut bytes = vec![0; chain.size_bytes() as usize];
        chain.download(engine, &mut bytes)?;
        let parts = chain.ranges().iter().map(|range| &bytes[range.start as usize..range.end as usize]);
        Ok(parts.collect::<Vec<_>>().concat())
    }
}

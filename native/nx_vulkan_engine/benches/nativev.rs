//! What a leapfrog chain and a supplied shader cost from call to result, with the modules of priv/shaders.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use nx_vulkan_engine::Engine;
use nx_vulkan_engine::chain::{self, Real, Request};
use nx_vulkan_engine::nativev::{self, Call, Compile, ShaderFiles};

/// Recorded dispatches between two waits, so that recording never runs into a full queue.
const BURST: u64 = 512;
/// The regime model's benchmark: steps, observations, dimensions.
const K: u32 = 32;
const N_OBS: u32 = 200;
const D: usize = 8;

fn shader(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders").join(format!("{name}.spv"))
}

fn reals(real: Real, values: &[f64]) -> Vec<u8> {
    match real {
        Real::F32 => values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        Real::F64 => values.iter().flat_map(|&x| x.to_le_bytes()).collect(),
    }
}

/// q, p, extras and push of `n` equal instances.
fn regime(real: Real, n: u32) -> [Vec<u8>; 4] {
    let q = [0.01, 0.05, 0.02, 0.05, 0.02, 0.05, 0.05, 0.05];
    let inv_mass = [1e-5, 0.02, 1e-5, 0.02, 0.02, 0.02, 0.1, 0.1];
    let returns = (0..N_OBS).map(|t| f64::from(t * 7919 % 1000) / 5e4 - 0.01);
    let extras: Vec<f64> = returns.chain(inv_mass).collect();
    let priors = [0.001, 0.01, 0.02, 0.0, 0.01, 0.02, 0.05, 0.5, 0.0, 1.0, 0.0, 1.0];
    let floats: Vec<f64> = [0.05].into_iter().chain(priors).collect();
    let mut push: Vec<u8> = [K, N_OBS, D as u32, n].iter().flat_map(|w| w.to_le_bytes()).collect();
    push.extend(reals(real, &floats));
    let n = n as usize;
    [reals(real, &q).repeat(n), reals(real, &[0.5; D]).repeat(n), reals(real, &extras).repeat(n), push]
}

fn call<'a>(engine: &'a Arc<Engine>, files: &'a ShaderFiles, path: &'a Path) -> Call<'a> {
    // SAFETY: the shaders are those of the catalogue.
    unsafe { Call::new(engine, files, path, false, Compile::Allowed) }
}

fn bench(c: &mut Criterion) {
    let engine = Engine::open(None).unwrap();
    println!("device: {}", engine.info());
    let files = ShaderFiles::default();

    for (real, name) in [(Real::F32, "examples/regime"), (Real::F64, "examples/regime_f64")] {
        let path = shader(name);
        for n in [1, 128] {
            let [q, p, extras, push] = regime(real, n);
            let request = Request { real, batched: true, q: &q, p: &p, extras: &extras, push: &push, k: u64::from(K) };
            c.bench_function(&format!("chain/{real:?}/{n}x{K}"), |b| {
                b.iter(|| {
                    let chain = chain::start(&call(&engine, &files, &path), &request).unwrap();
                    let mut out = vec![0; chain.size_bytes() as usize];
                    chain.download(&engine, &mut out).unwrap();
                    out
                });
            });
        }
    }

    let path = shader("elementwise_binary");
    let a = nativev::upload(&engine, &[0; 256]).unwrap();
    let out: Vec<_> = (0..8).map(|_| nativev::alloc_zeroed(&engine, 256).unwrap()).collect();
    let mut cached = call(&engine, &files, &path);
    cached.compile = Compile::Refused;
    nativev::binary(&call(&engine, &files, &path), &out[0], &a, &a, 64, 0).unwrap();
    c.bench_function("apply_binary/record", |b| {
        b.iter_custom(|n| {
            let mut recording = Duration::ZERO;
            for start in (0..n).step_by(BURST as usize) {
                let begun = Instant::now();
                for i in start..n.min(start + BURST) {
                    nativev::binary(&cached, &out[(i % 8) as usize], &a, &a, 64, 0).unwrap();
                }
                recording += begun.elapsed();
                engine.wait().unwrap();
            }
            recording
        });
    });
    assert_eq!(Arc::strong_count(&a), 1);
}

criterion_group!(benches, bench);
criterion_main!(benches);

//! Recorded workloads as executables: the time of a run and of reading its first output, and that of running alone.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/workloads.rs"]
mod workloads;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use nx_vulkan_engine::{Compile, Engine, Executable, Tensor};
use workloads::{WORKLOADS, workload};

/// Runs between two waits, so that recording never runs into a full queue.
const BURST: u64 = 64;

fn programs(criterion: &mut Criterion) {
    let engine = Engine::open(None).unwrap();
    for name in WORKLOADS {
        let recording = workload(name);
        let types = recording.program.inputs.iter().zip(&recording.inputs);
        let inputs: Vec<Tensor> = types.map(|(ty, bytes)| Tensor::from_nx_bytes(&engine, ty, bytes).unwrap()).collect();
        let executable = Executable::compile(&engine, recording.program.clone()).unwrap();
        let run = || executable.run(&inputs, Compile::Allowed).unwrap();
        criterion.bench_function(&format!("{name}, read"), |b| b.iter(|| run()[0].to_nx_bytes(&engine, None).unwrap()));
        criterion.bench_function(&format!("{name}, run"), |b| {
            b.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for burst in (0..iterations).step_by(BURST as usize).map(|done| BURST.min(iterations - done)) {
                    let start = Instant::now();
                    (0..burst).for_each(|_| drop(black_box(run())));
                    spent += start.elapsed();
                    engine.wait().unwrap();
                }
                spent
            });
        });
    }
}

criterion_group!(benches, programs);
criterion_main!(benches);

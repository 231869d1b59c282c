//! What the runtime costs without a kernel's own work: allocation, recording, and the way to the device and back.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use nx_vulkan_engine::{Buffer, Engine, Interface, Launch, Pipeline, PipelineKey};

/// Recorded dispatches between two waits, so that recording never runs into a full queue.
const BURST: u64 = 512;

struct Kernel {
    engine: Arc<Engine>,
    pipeline: Arc<Pipeline>,
}

impl Kernel {
    fn new(engine: &Arc<Engine>) -> Kernel {
        let spirv: Vec<u32> = include_bytes!("../../nx_vulkan_device/tests/data/axpb.spv")
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let interface = Interface::Addresses { push_bytes: 32 };
        let key = PipelineKey::new(&spirv, &[], interface);
        // SAFETY: the module is one of the tests, for this interface.
        let pipeline = unsafe { engine.pipeline(key, &spirv, &[], interface) }.unwrap();
        Kernel { pipeline, engine: Arc::clone(engine) }
    }

    fn run(&self, src: &Arc<Buffer>, dst: &Arc<Buffer>) {
        let (s, d) = (src.address(), dst.address());
        let params = [s as u32, (s >> 32) as u32, d as u32, (d >> 32) as u32, 64, 3, 1];
        // SAFETY: the parameters name these buffers, which have as many elements.
        unsafe {
            self.engine.dispatch(&Launch {
                pipeline: &self.pipeline,
                params: &params,
                table: None,
                addresses: &[],
                groups: [1, 1, 1],
                reads: &[src],
                writes: &[dst],
                waits: nx_vulkan_engine::Waits::All,
                work: None,
                in_place: &[],
                copied_bytes: None,
            })
        }
        .unwrap();
    }
}

/// Time of `iterations` calls of `record`, leaving out the waits in between.
fn record_only(engine: &Engine, iterations: u64, mut record: impl FnMut(u64)) -> Duration {
    let mut spent = Duration::ZERO;
    let mut done = 0;
    while done < iterations {
        let burst = BURST.min(iterations - done);
        let start = Instant::now();
        (0..burst).for_each(&mut record);
        spent += start.elapsed();
        engine.wait().unwrap();
        done += burst;
    }
    spent
}

fn stream(c: &mut Criterion) {
    let engine = Engine::open(None).unwrap();
    println!("device: {}", engine.info());
    let kernel = Kernel::new(&engine);
    let buffers: Vec<_> = (0..32).map(|_| engine.alloc(256).unwrap()).collect();
    let large = engine.alloc(64 << 20).unwrap();
    let staging = vec![1u8; 64 << 20];
    engine.fill(&large, 0, large.size_bytes(), 1).unwrap();
    buffers.iter().for_each(|b| engine.fill(b, 0, 256, 1).unwrap());
    engine.wait().unwrap();

    for (name, size) in [("256B", 256), ("1MiB", 1 << 20), ("256MiB", 256 << 20)] {
        c.bench_function(&format!("alloc_drop/{name}"), |b| {
            b.iter(|| black_box(engine.alloc(size).unwrap()));
        });
    }
    c.bench_function("record/independent", |b| {
        b.iter_custom(|n| {
            record_only(&engine, n, |i| {
                kernel.run(&buffers[0], &buffers[1 + (i % 31) as usize]);
            })
        });
    });
    c.bench_function("record/dependent", |b| {
        b.iter_custom(|n| {
            record_only(&engine, n, |i| {
                let i = i as usize;
                kernel.run(&buffers[i % 32], &buffers[(i + 1) % 32]);
            })
        });
    });
    c.bench_function("record/alloc_each", |b| {
        b.iter_custom(|n| {
            let mut last = Arc::clone(&buffers[0]);
            record_only(&engine, n, |_| {
                let next = engine.alloc(256).unwrap();
                kernel.run(&last, &next);
                last = next;
            })
        });
    });
    c.bench_function("execute/dependent", |b| {
        b.iter_custom(|n| {
            let start = Instant::now();
            for i in 0..n as usize {
                kernel.run(&buffers[i % 32], &buffers[(i + 1) % 32]);
            }
            engine.wait().unwrap();
            start.elapsed()
        });
    });
    c.bench_function("round_trip/dispatch_wait", |b| {
        b.iter(|| {
            kernel.run(&buffers[0], &buffers[1]);
            engine.wait().unwrap();
        });
    });
    c.bench_function("round_trip/dispatch_read_4B", |b| {
        let mut out = [0; 4];
        b.iter(|| {
            kernel.run(&buffers[0], &buffers[1]);
            engine.download(&buffers[1], 0, &mut out).unwrap();
        });
    });
    c.bench_function("round_trip/upload_dispatch_read_4B", |b| {
        let mut out = [0; 4];
        b.iter(|| {
            engine.upload(&buffers[2], 0, &[1, 0, 0, 0]).unwrap();
            kernel.run(&buffers[2], &buffers[3]);
            engine.download(&buffers[3], 0, &mut out).unwrap();
        });
    });
    c.bench_function("read/ready_4B", |b| {
        let mut out = [0; 4];
        b.iter(|| engine.download(&buffers[1], 0, &mut out).unwrap());
    });
    c.bench_function("transfer/upload_64MiB", |b| {
        b.iter(|| {
            engine.upload(&large, 0, &staging).unwrap();
            engine.wait().unwrap();
        });
    });
    c.bench_function("transfer/download_64MiB", |b| {
        let mut out = vec![0; 64 << 20];
        b.iter(|| engine.download(&large, 0, &mut out).unwrap());
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = stream
}
criterion_main!(benches);

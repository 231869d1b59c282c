//! Copies between host and device in GB/s: uploads of new tensors and downloads, of random bytes.
//!
//! `cargo run --release --example transfers [LARGEST MiB]`

use std::time::{Duration, Instant};

use nx_vulkan_engine::{Engine, Result, Tensor};

const MIB: usize = 1 << 20;
const REPEATS: usize = 7;

/// The least time of some runs, without that of the first.
fn least(mut run: impl FnMut() -> Result<Duration>) -> Result<f64> {
    run()?;
    let mut best = Duration::MAX;
    for _ in 0..REPEATS {
        best = best.min(run()?);
    }
    Ok(best.as_secs_f64())
}

fn random(len: usize) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len / 8).map(next).collect()
}

fn main() -> Result<()> {
    let engine = Engine::open(None)?;
    println!("device: {}", engine.info());
    let largest = std::env::args().nth(1).and_then(|mib| mib.parse().ok()).unwrap_or(1024);
    let data = random(largest * MIB);
    let data: &[u8] = bytemuck::cast_slice(&data);
    let mut out = vec![0u8; data.len()];

    println!("{:>10} {:>10} {:>12} {:>22}", "MiB", "up", "down, again", "down, new memory  GB/s");
    for mib in [1, 4, 16, 64, 256, 1024] {
        let size = mib * MIB;
        if mib > largest {
            break;
        }
        let data = &data[data.len() - size..];
        let up = least(|| {
            let start = Instant::now();
            let tensor = Tensor::from_slice(&engine, &[size as u64], data)?;
            engine.wait()?;
            let spent = start.elapsed();
            drop(tensor);
            Ok(spent)
        })?;
        let tensor = Tensor::from_slice(&engine, &[size as u64], data)?;
        let again = least(|| {
            let start = Instant::now();
            tensor.read_nx_bytes(&engine, None, &mut out[..size])?;
            Ok(start.elapsed())
        })?;
        assert!(out[..size] == *data, "{mib} MiB came back as something else");
        let new = least(|| {
            let start = Instant::now();
            // As the VM's binaries: memory that the system has not given yet.
            let mut out = vec![0u8; size];
            tensor.read_nx_bytes(&engine, None, &mut out)?;
            Ok(start.elapsed())
        })?;
        let rate = |seconds: f64| size as f64 / seconds / 1e9;
        println!("{mib:>10} {:>10.1} {:>12.1} {:>22.1}", rate(up), rate(again), rate(new));
    }

    // A batch of images.
    let batch = &data[..128 * 784];
    let up = least(|| {
        let start = Instant::now();
        for _ in 0..100 {
            Tensor::from_slice(&engine, &[128, 784], batch)?;
        }
        let spent = start.elapsed() / 100;
        engine.wait()?;
        Ok(spent)
    })?;
    println!("128 x 784 u8: {:.1} us until the upload returns", up * 1e6);
    Ok(())
}

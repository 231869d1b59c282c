//! What it takes to get memory from the driver and to give it back: for device memory and for the host's in its place, and
//! what a small allocation takes with and without an owner. Arguments: GiB of device memory to fill, and seconds of a
//! loop beside which the pool is looked after.
#![allow(clippy::unwrap_used)]

use std::error::Error;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nx_vulkan_engine::{Buffer, Engine, Options, Owner};

const GIB: u64 = 1 << 30;
const PIECE_BYTES: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let gib: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    small(&*Engine::open(None)?);
    filled(gib)?;
    looped(seconds)
}

/// Times of one small block that is taken and given back.
fn small(engine: &Engine) {
    println!("{}", engine.info());
    let owner = Arc::new(Owner::default());
    let one = || drop(engine.alloc(256).unwrap());
    for (what, owner) in [("nobody's", None), ("an owner's", Some(owner))] {
        let mut least = f64::INFINITY;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..10_000 {
                Owner::charged(owner.clone(), one);
            }
            least = least.min(start.elapsed().as_secs_f64() / 1e4);
        }
        println!("256 bytes, {what}: {:.0} ns", least * 1e9);
    }
}

/// Times of filling device memory and as much of the host's, and of giving all back.
fn filled(gib: u64) -> Result<(), Box<dyn Error>> {
    let options = Options { memory_limit_bytes: Some(gib * GIB), ..Options::from_env() };
    let engine = Engine::open_with(&options)?;
    let mut held: Vec<Arc<Buffer>> = Vec::new();
    let mut took = [(0u64, Duration::ZERO); 2];
    loop {
        let start = Instant::now();
        let Ok(buffer) = engine.alloc(PIECE_BYTES) else { break };
        let (bytes, time) = &mut took[usize::from(buffer.is_spilled())];
        *bytes += PIECE_BYTES;
        *time += start.elapsed();
        held.push(buffer);
    }
    for buffer in &held {
        engine.fill(buffer, 0, PIECE_BYTES, 1)?;
    }
    engine.wait()?;
    for (what, (bytes, time)) in ["device", "host"].iter().zip(took) {
        let each = time.as_secs_f64() * 1e3 / (bytes.max(1) as f64 / GIB as f64);
        println!("{what}: {} MiB taken, {each:.1} ms for each GiB", bytes >> 20);
    }
    let reserved = engine.stats().reserved_bytes;
    let start = Instant::now();
    held.clear();
    println!("dropped in {:.3} ms, {} MiB reserved", start.elapsed().as_secs_f64() * 1e3, reserved >> 20);
    let spilled = took[1].0;
    while spilled > 0 && engine.stats().reserved_bytes > reserved - spilled && start.elapsed().as_secs() < 30 {
        sleep(Duration::from_millis(1));
    }
    println!("{} MiB reserved after {:.2} s", engine.stats().reserved_bytes >> 20, start.elapsed().as_secs_f64());
    let start = Instant::now();
    let freed = engine.trim();
    let each = start.elapsed().as_secs_f64() * 1e3 / (freed.max(1) as f64 / GIB as f64);
    println!(
        "trimmed {} MiB, {each:.1} ms for each GiB, {} MiB left",
        freed >> 20,
        engine.stats().reserved_bytes >> 20
    );
    Ok(())
}

/// Steps of two sizes that take turns, for a time in which the pool is looked at often.
fn looped(seconds: u64) -> Result<(), Box<dyn Error>> {
    let options = Options { keeps_free: Duration::from_secs(3), ..Options::from_env() };
    let engine = Engine::open_with(&options)?;
    let step = |sizes: &[u64]| -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        for &size in sizes {
            engine.fill(&engine.alloc(size)?, 0, size.min(4096), 1)?;
        }
        engine.wait()?;
        Ok(start.elapsed())
    };
    let sizes: [&[u64]; 2] = [&[300 << 20, 4 << 20, 1000, 70_000], &[100 << 20, 200 << 20, 20 << 20]];
    for _ in 0..10 {
        step(sizes[0])?;
        step(sizes[1])?;
    }
    let (before, start) = (engine.stats().allocations, Instant::now());
    let mut times = Vec::new();
    while start.elapsed().as_secs() < seconds {
        times.push(step(sizes[times.len() % 2])?);
    }
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 1000].as_secs_f64() * 1e6;
    println!(
        "{} steps, {:.0} us, {:.0} us at 99.9 %, {:.0} us at most, {} allocations",
        times.len(),
        at(500),
        at(999),
        at(1000),
        engine.stats().allocations - before
    );
    let start = Instant::now();
    while engine.stats().reserved_bytes > 64 << 20 && start.elapsed().as_secs() < 10 {
        sleep(Duration::from_millis(10));
    }
    println!("{} MiB reserved {:.1} s later", engine.stats().reserved_bytes >> 20, start.elapsed().as_secs_f64());
    Ok(())
}

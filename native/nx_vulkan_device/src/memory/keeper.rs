//! A thread that gives memory back which the pool has had no use for lately.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::heap::LOOKS;
use super::{DevicePool, MemoryKind};
use crate::stream::Stream;

/// What was spilled is looked at so many times as often as the rest.
const SPILL_LOOKS: u32 = 20;

/// It looks no more often than this, however short memory is kept.
const LEAST_STEP: Duration = Duration::from_millis(1);

/// All kinds but the spilled one.
const OTHERS: [MemoryKind; MemoryKind::COUNT - 1] =
    [MemoryKind::Device, MemoryKind::Small, MemoryKind::Upload, MemoryKind::Readback, MemoryKind::Arguments];

/// Looks after the pool of a device until it is dropped.
#[derive(Debug)]
pub struct Keeper {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Begins to look after a pool, whose free memory is kept for `keeps_free`. Where there can be no more threads, what
    /// is free stays until memory runs out or somebody trims the pool.
    pub fn start(pool: Arc<DevicePool>, stream: Arc<Stream>, keeps_free: Duration) -> Keeper {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let look = move || {
            pool.wake_where_spilled(thread::current());
            look_after(&pool, &stream, steps(keeps_free), &told);
        };
        let thread = thread::Builder::new().name("nx_vulkan_memory".to_string()).spawn(look).ok();
        Keeper { ends, thread }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of it leaves memory with the pool.
            let _ = thread.join();
        }
    }
}

/// The times between looks, and between those at what was spilled.
fn steps(keeps_free: Duration) -> (Duration, Duration) {
    let step = keeps_free / LOOKS as u32;
    (step.max(LEAST_STEP), (step / SPILL_LOOKS).max(LEAST_STEP))
}

fn look_after(pool: &DevicePool, stream: &Stream, (step, spill_step): (Duration, Duration), ends: &AtomicBool) {
    let (mut next, mut next_spill) = (Instant::now() + step, Instant::now() + spill_step);
    while !ends.load(Ordering::Acquire) {
        let now = Instant::now();
        let spills = pool.reserved_bytes_of(MemoryKind::Spill) > 0;
        if spills && now >= next_spill {
            tidy(pool, stream, &[MemoryKind::Spill]);
            next_spill = now + spill_step;
        }
        if now >= next {
            tidy(pool, stream, &OTHERS);
            next = now + step;
        }
        let wakes = if spills { next.min(next_spill) } else { next };
        thread::park_timeout(wakes.saturating_duration_since(Instant::now()));
    }
}

fn tidy(pool: &DevicePool, stream: &Stream, kinds: &[MemoryKind]) {
    let completed = stream.look();
    let mut waits = false;
    for &kind in kinds {
        waits |= pool.tidy(kind, completed).1;
    }
    // What is recorded may be all that uses it, and nobody may ask for a result of that. An error is told to the next
    // who asks for anything.
    if waits {
        let _ = stream.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_hardly_kept_leaves_time_between_looks() {
        assert_eq!(steps(Duration::from_secs(30)), (Duration::from_secs(10), Duration::from_millis(500)));
        for keeps_free in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(3)] {
            assert_eq!(steps(keeps_free), (LEAST_STEP, LEAST_STEP));
        }
        let (step, _) = steps(Duration::MAX);
        assert!(Instant::now().checked_add(step).is_some());
    }
}

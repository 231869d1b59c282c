//! The pool on a fake backing: host memory with guard bytes around every region.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::block::{FreeBlock, Hazard, MemoryKind};
use super::class::GRANULE_BYTES;
use super::heap::LOOKS;
use super::pool::{AllocError, Backing, Chunk, DEDICATED_ABOVE_BYTES, Pool, PoolLimits};

const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;
/// Large regions are only numbers: nothing touches their memory.
const BACKED_BELOW_BYTES: u64 = 8 << 20;

#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    allocations: AtomicU64,
    next_address: AtomicU64,
}

struct Fake {
    counts: Arc<Counts>,
    capacity_bytes: u64,
}

struct FakeMemory {
    bytes: Vec<u8>,
    size_bytes: u64,
    counts: Arc<Counts>,
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.counts.bytes.fetch_sub(self.size_bytes, SeqCst);
        if let Some(end) = self.bytes.len().checked_sub(GUARD_BYTES) {
            assert!(self.bytes[..GUARD_BYTES].iter().all(|&b| b == GUARD));
            assert!(self.bytes[end..].iter().all(|&b| b == GUARD));
        }
    }
}

impl Backing for Fake {
    type Memory = FakeMemory;

    fn allocate(&self, _kind: MemoryKind, size_bytes: u64) -> Result<Chunk<FakeMemory>, AllocError> {
        if self.counts.bytes.load(SeqCst) + size_bytes > self.capacity_bytes {
            return Err(AllocError::OutOfMemory);
        }
        self.counts.bytes.fetch_add(size_bytes, SeqCst);
        self.counts.allocations.fetch_add(1, SeqCst);
        let len = match size_bytes < BACKED_BELOW_BYTES {
            true => size_bytes as usize + 2 * GUARD_BYTES,
            false => 0,
        };
        let mut bytes = vec![GUARD; len];
        let mapped = match len {
            0 => std::ptr::null_mut(),
            _ => bytes[GUARD_BYTES..].as_mut_ptr(),
        };
        let address = self.counts.next_address.fetch_add(size_bytes.next_multiple_of(1 << 30) + (1 << 30), SeqCst);
        Ok(Chunk {
            memory: FakeMemory { bytes, size_bytes, counts: Arc::clone(&self.counts) },
            handle: ash::vk::Buffer::null(),
            address,
            mapped,
        })
    }
}

fn pool(capacity_bytes: u64) -> (Pool<Fake>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let backing = Fake { counts: Arc::clone(&counts), capacity_bytes };
    let limits = PoolLimits {
        max_buffer_bytes: 1 << 40,
        budget_bytes: [u64::MAX; MemoryKind::COUNT],
        region_bytes: [(1 << 20, 4 << 20); MemoryKind::COUNT],
        direct_read_bytes: [u64::MAX; MemoryKind::COUNT],
    };
    (Pool::new(backing, limits), counts)
}

fn fill(free: &FreeBlock, len: u64, byte: u8) {
    if !free.block.mapped.is_null() {
        // SAFETY: the block owns at least `len` bytes of the fake's memory.
        unsafe { std::ptr::write_bytes(free.block.mapped, byte, len as usize) };
    }
}

fn holds(free: &FreeBlock, len: u64, byte: u8) -> bool {
    if free.block.mapped.is_null() {
        return true;
    }
    // SAFETY: the block owns at least `len` bytes of the fake's memory, all written by `fill`.
    let bytes = unsafe { std::slice::from_raw_parts(free.block.mapped, len as usize) };
    bytes.iter().all(|&b| b == byte)
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn random_blocks_never_overlap() {
    // Miri takes a thousand times as long.
    let (seeds, steps, magnitudes) = if cfg!(miri) { (1, 200, 9) } else { (5, 4000, 20) };
    for seed in 1..=seeds {
        let (pool, counts) = pool(1 << 40);
        let mut state = seed;
        let mut live: Vec<(FreeBlock, u64, u8)> = Vec::new();
        for step in 0..steps {
            if random(&mut state) % 5 < 3 || live.is_empty() {
                // Sizes of every magnitude, up to 512 KiB.
                let bits = random(&mut state) % magnitudes;
                let size = random(&mut state) % (1 << bits) + 1;
                let block = pool.alloc(MemoryKind::Device, size, step).unwrap();
                assert!(block.block.size_bytes >= size.next_multiple_of(16));
                assert!(block.block.address.is_multiple_of(GRANULE_BYTES));
                let (len, byte) = (block.block.size_bytes, step as u8);
                fill(&block, len, byte);
                live.push((block, len, byte));
                if random(&mut state).is_multiple_of(16) {
                    let sizes: Vec<u64> =
                        (0..2 + random(&mut state) % 4).map(|_| random(&mut state) % 20_000 + 1).collect();
                    for part in pool.alloc_parts(MemoryKind::Device, &sizes, step).unwrap() {
                        let len = part.block.size_bytes;
                        fill(&part, len, byte);
                        live.push((part, len, byte));
                    }
                }
            } else {
                let index = random(&mut state) as usize % live.len();
                let (block, len, byte) = live.swap_remove(index);
                assert!(holds(&block, len, byte), "seed {seed}, step {step}");
                pool.free(block);
            }
            if step % 1000 == 999 {
                pool.trim(step);
            }
            if step % 70 == 69 {
                pool.tidy(MemoryKind::Device, step);
            }
            let in_use: u64 = live.iter().map(|l| l.1).sum();
            assert_eq!(pool.in_use_bytes(), in_use);
        }
        for (block, len, byte) in live.drain(..) {
            assert!(holds(&block, len, byte));
            pool.free(block);
        }
        assert!(pool.trim(u64::MAX) > 0);
        assert_eq!(pool.reserved_bytes(), 0);
        assert_eq!(counts.bytes.load(SeqCst), 0, "everything went back");
    }
}

#[test]
fn a_steady_state_allocates_nothing() {
    let (pool, counts) = pool(1 << 40);
    let sizes = [1u64, 300, 5000, 70_000, 3 << 20, 65 << 20, 200 << 20, 5 << 30];
    let round = || {
        let blocks: Vec<_> = sizes.iter().map(|&s| pool.alloc(MemoryKind::Device, s, 0).unwrap()).collect();
        blocks.into_iter().for_each(|b| pool.free(b));
    };
    round();
    let allocations = counts.allocations.load(SeqCst);
    for _ in 0..100 {
        round();
    }
    assert_eq!(counts.allocations.load(SeqCst), allocations);
}

#[test]
fn hazards_stay_with_the_memory() {
    let (pool, _) = pool(1 << 40);
    for size in [256, 100_000, DEDICATED_ABOVE_BYTES + 1] {
        let mut seen = HashSet::new();
        let mut block = pool.alloc(MemoryKind::Device, size, 0).unwrap();
        assert_eq!(block.hazard, Hazard::default());
        block.hazard.use_serial = 9;
        block.hazard.write_epoch = 4;
        let address = block.block.address;
        pool.free(block);
        // The oldest free block comes first, so the marked one comes back after the rest of its class.
        let mut held = Vec::new();
        let again = loop {
            let block = pool.alloc(MemoryKind::Device, size, 0).unwrap();
            assert!(seen.insert(block.block.address));
            if block.block.address == address {
                break block;
            }
            assert_eq!(block.hazard, Hazard::default());
            held.push(block);
        };
        assert_eq!((again.hazard.use_serial, again.hazard.write_epoch), (9, 4));
        held.push(again);
        held.into_iter().for_each(|b| pool.free(b));
    }
}

#[test]
fn memory_in_flight_is_not_given_back() {
    let (pool, counts) = pool(1 << 40);
    for size in [1000, DEDICATED_ABOVE_BYTES + 1] {
        let mut block = pool.alloc(MemoryKind::Device, size, 0).unwrap();
        block.hazard.use_serial = 7;
        pool.free(block);
        assert_eq!(pool.trim(6), 0);
        assert!(counts.bytes.load(SeqCst) > 0);
        assert!(pool.trim(7) >= size);
        assert_eq!(counts.bytes.load(SeqCst), 0);
    }
}

/// Looks until what was is no longer lately. Answers the bytes that they freed, and whether more waits.
fn looks(pool: &Pool<Fake>, kind: MemoryKind, completed: u64) -> (u64, bool) {
    (0..=LOOKS).map(|_| pool.tidy(kind, completed)).fold((0, false), |(freed, _), (more, waits)| (freed + more, waits))
}

#[test]
fn what_was_spilled_goes_back_once_nobody_has_it_and_the_device_is_done() {
    let (pool, counts) = pool(1 << 40);
    let sizes = [100, 300_000, 3 << 20, DEDICATED_ABOVE_BYTES + 1, 1 << 30];
    let mut held: Vec<FreeBlock> = sizes.map(|size| pool.alloc(MemoryKind::Spill, size, 0).unwrap()).into();
    held.extend(pool.alloc_parts(MemoryKind::Spill, &[70 << 20, 1000, 5 << 20], 0).unwrap());
    looks(&pool, MemoryKind::Spill, 0);
    let reserved = pool.reserved_bytes_of(MemoryKind::Spill);
    assert_eq!(looks(&pool, MemoryKind::Spill, 0), (0, false), "all of it is in use");
    for mut block in held {
        block.hazard.use_serial = 7;
        fill(&block, block.block.size_bytes.min(100), 3);
        pool.free(block);
    }
    let small_regions = 2 << 20;
    assert!(pool.tidy(MemoryKind::Spill, 7).0 <= small_regions, "it was in use lately");
    assert_eq!(looks(&pool, MemoryKind::Spill, 6), (0, true), "a submission uses it");
    assert!(pool.reserved_bytes() >= reserved - small_regions);
    assert!(!pool.tidy(MemoryKind::Spill, 7).1);
    assert_eq!((pool.reserved_bytes(), counts.bytes.load(SeqCst)), (0, 0));
    // It may be had again.
    let again = pool.alloc(MemoryKind::Spill, 1000, 0).unwrap();
    pool.free(again);
}

#[test]
fn a_loop_keeps_what_it_uses_and_half_of_what_others_used_before() {
    let (pool, counts) = pool(1 << 40);
    let many: Vec<_> = (0..20).map(|_| pool.alloc(MemoryKind::Device, 200 << 20, 0).unwrap()).collect();
    let held = pool.alloc(MemoryKind::Device, 100, 0).unwrap();
    many.into_iter().for_each(|block| pool.free(block));
    // Steps of other sizes take turns; none needs more than what it found the last time.
    let step = |sizes: &[u64]| {
        let blocks: Vec<_> = sizes.iter().map(|&size| pool.alloc(MemoryKind::Device, size, 0).unwrap()).collect();
        blocks.into_iter().for_each(|block| pool.free(block));
    };
    let steps = || {
        step(&[400 << 20, 70_000, 5 << 20]);
        step(&[300 << 20, 2 << 20, 100 << 20]);
    };
    steps();
    assert!(pool.reserved_bytes() > 4000 << 20);
    for _ in 0..=LOOKS {
        steps();
        pool.tidy(MemoryKind::Device, 0);
    }
    let (reserved, allocations) = (pool.reserved_bytes(), counts.allocations.load(SeqCst));
    assert!(reserved <= 2 * (410 << 20), "{reserved} bytes are kept");
    for _ in 0..100 {
        steps();
        assert_eq!(pool.tidy(MemoryKind::Device, 0), (0, false));
    }
    assert_eq!(counts.allocations.load(SeqCst), allocations);
    // Once nobody asks, what nobody has goes back.
    assert!(looks(&pool, MemoryKind::Device, 0).0 > 0);
    assert!(pool.reserved_bytes() <= 4 << 20, "the region of the one that is held stays");
    pool.free(held);
    looks(&pool, MemoryKind::Device, 0);
    assert_eq!((pool.reserved_bytes(), counts.bytes.load(SeqCst)), (0, 0));
}

#[test]
fn a_full_device_says_so_and_recovers() {
    let capacity = 10u64 << 20;
    let (pool, _) = pool(capacity);
    let mut held = Vec::new();
    let error = loop {
        match pool.alloc(MemoryKind::Device, 200_000, 0) {
            Ok(block) => held.push(block),
            Err(e) => break e,
        }
    };
    assert_eq!(error, AllocError::OutOfMemory);
    assert!(held.len() as u64 * 229_376 > capacity * 8 / 10, "{} blocks", held.len());
    held.drain(..).for_each(|b| pool.free(b));
    // Other sizes fit into what those blocks leave, joined, without a trim.
    let big = pool.alloc(MemoryKind::Device, 900_000, 0).unwrap();
    pool.free(big);
    pool.trim(0);
    assert!(pool.alloc(MemoryKind::Device, 7 << 20, 0).is_ok());
}

#[test]
fn budgets_and_limits_hold() {
    let (mut pool, counts) = pool(1 << 40);
    pool.limits.budget_bytes[MemoryKind::Device as usize] = 3 << 20;
    pool.limits.budget_bytes[MemoryKind::Spill as usize] = 0;
    pool.limits.max_buffer_bytes = 1 << 30;
    assert!(pool.alloc(MemoryKind::Device, 1 << 20, 0).is_ok());
    assert_eq!(pool.alloc(MemoryKind::Device, 4 << 20, 0).err(), Some(AllocError::OutOfMemory));
    assert_eq!(pool.alloc(MemoryKind::Spill, 1, 0).err(), Some(AllocError::OutOfMemory));
    assert_eq!(
        pool.alloc(MemoryKind::Device, (1 << 30) + 1, 0).err(),
        Some(AllocError::TooLarge { limit_bytes: 1 << 30 })
    );
    assert!(counts.bytes.load(SeqCst) <= 3 << 20);
}

#[test]
fn growth_by_large_blocks_is_told_once() {
    let (pool, _) = pool(1 << 40);
    let small = pool.alloc(MemoryKind::Device, 1 << 20, 0).unwrap();
    assert!(!pool.take_growth(), "a small block");
    let large = pool.alloc(MemoryKind::Device, 100 << 20, 0).unwrap();
    assert_eq!([pool.take_growth(), pool.take_growth()], [true, false]);
    pool.free(large);
    let again = pool.alloc(MemoryKind::Device, 100 << 20, 0).unwrap();
    assert!(!pool.take_growth(), "a free block served");
    [small, again].into_iter().for_each(|block| pool.free(block));
}

#[test]
fn idle_dedicated_memory_is_bounded() {
    let (mut pool, counts) = pool(1 << 40);
    pool.limits.budget_bytes[MemoryKind::Device as usize] = 4 << 30;
    // Each size is too large for the free regions before it, so nothing is reused.
    let mut size = 100u64 << 20;
    while size < 1 << 30 {
        let block = pool.alloc(MemoryKind::Device, size, 0).unwrap();
        pool.free(block);
        size += size / 3;
    }
    let kept = counts.bytes.load(SeqCst);
    assert!(kept <= (1 << 30) + size, "{kept} bytes kept");
}

#[test]
fn parts_lie_behind_each_other_and_wait_for_all_of_them() {
    let (pool, counts) = pool(40 << 20);
    let sizes = [3 << 20, 1000, 5 << 20];
    let parts = pool.alloc_parts(MemoryKind::Device, &sizes, 0).unwrap();
    let begins: Vec<u64> = parts.iter().map(|part| part.block.address - parts[0].block.address).collect();
    assert_eq!(begins, [0, 3 << 20, (3 << 20) + 1024]);
    assert!(parts.iter().all(|part| part.block.region == parts[0].block.region));
    assert_eq!(pool.in_use_bytes(), (8 << 20) + 1024);
    let [first, second, third] = <[FreeBlock; 3]>::try_from(parts).unwrap();
    let (region, address) = (first.block.region, first.block.address);
    let used = |mut part: FreeBlock, use_serial: u64| {
        part.hazard = Hazard { use_serial, ..Hazard::default() };
        pool.free(part);
    };
    used(first, 5);
    used(third, 6);
    assert_eq!(pool.in_use_bytes(), 1024);
    // The one in the middle is still there.
    let others = pool.alloc_parts(MemoryKind::Device, &sizes, 10).unwrap();
    assert_ne!(others[0].block.region, region);
    used(second, 4);
    let again = pool.alloc_parts(MemoryKind::Device, &sizes, 0).unwrap();
    assert_eq!(again[0].block.address, address);
    // The next owner inherits what was last done to any of them.
    assert!(again.iter().all(|part| part.hazard.use_serial == 6));
    assert_eq!(counts.allocations.load(SeqCst), 2);
    again.into_iter().chain(others).for_each(|part| pool.free(part));
    assert!(pool.trim(u64::MAX) > 0);
    assert_eq!((pool.reserved_bytes(), counts.bytes.load(SeqCst)), (0, 0));
}

#[test]
fn what_is_free_between_parts_serves_where_there_is_nothing_else() {
    let (pool, counts) = pool(17 << 20);
    let sizes = [8 << 20, 8 << 20];
    let [first, second] = <[FreeBlock; 2]>::try_from(pool.alloc_parts(MemoryKind::Device, &sizes, 0).unwrap()).unwrap();
    let (region, address) = (first.block.region, first.block.address);
    pool.free(first);
    let small = pool.alloc(MemoryKind::Device, 4 << 20, 0).unwrap();
    assert_eq!((small.block.region, counts.allocations.load(SeqCst)), (region, 1));
    pool.free(second);
    assert_eq!(pool.alloc(MemoryKind::Device, 20 << 20, 0).err(), Some(AllocError::OutOfMemory));
    pool.free(small);
    assert_eq!(pool.alloc_parts(MemoryKind::Device, &sizes, 0).unwrap()[0].block.address, address);
    let most = pool.alloc_parts(MemoryKind::Device, &[1 << 40, 1], 0);
    assert_eq!(most.err(), Some(AllocError::TooLarge { limit_bytes: 1 << 40 }));
}

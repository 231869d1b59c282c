//! The pool, whose blocks threads take and give back.

#[path = "../../src/memory/block.rs"]
mod block;
#[path = "../../src/memory/class.rs"]
mod class;
#[path = "../../src/memory/heap.rs"]
mod heap;
#[path = "../../src/memory/pool.rs"]
mod pool;
#[path = "../../src/memory/ranges.rs"]
mod ranges;

use std::collections::BTreeMap;

use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use super::orders::in_many_orders;
use block::{FreeBlock, MemoryKind};
use pool::{AllocError, Backing, Chunk, DEDICATED_ABOVE_BYTES, Pool, PoolLimits};

/// Memory that is numbers alone.
#[derive(Default)]
struct Numbers {
    next_address: AtomicU64,
    bytes: Arc<AtomicU64>,
}

struct Counted {
    size_bytes: u64,
    bytes: Arc<AtomicU64>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.size_bytes, SeqCst);
    }
}

impl Backing for Numbers {
    type Memory = Counted;

    fn allocate(&self, _kind: MemoryKind, size_bytes: u64) -> Result<Chunk<Counted>, AllocError> {
        self.bytes.fetch_add(size_bytes, SeqCst);
        Ok(Chunk {
            memory: Counted { size_bytes, bytes: Arc::clone(&self.bytes) },
            handle: ash::vk::Buffer::null(),
            address: self.next_address.fetch_add(size_bytes, SeqCst),
            mapped: std::ptr::null_mut(),
        })
    }
}

const BUDGET_BYTES: u64 = 3 * DEDICATED_ABOVE_BYTES;

fn pool() -> Arc<Pool<Numbers>> {
    let limits = PoolLimits {
        max_buffer_bytes: 1 << 40,
        budget_bytes: [BUDGET_BYTES; MemoryKind::COUNT],
        region_bytes: [(1 << 20, 4 << 20); MemoryKind::COUNT],
        direct_read_bytes: [u64::MAX; MemoryKind::COUNT],
    };
    Arc::new(Pool::new(Numbers::default(), limits))
}

/// Blocks that somebody holds, by their addresses.
type Held = Mutex<BTreeMap<u64, u64>>;

/// Takes a block that nobody else has; none where there is no memory.
fn take(pool: &Pool<Numbers>, held: &Held, kind: MemoryKind, size_bytes: u64) -> Option<FreeBlock> {
    let free = match pool.alloc(kind, size_bytes, 0) {
        Ok(free) => free,
        Err(error) => {
            assert_eq!(error, AllocError::OutOfMemory);
            return None;
        }
    };
    let (start, end) = (free.block.address, free.block.address + free.block.size_bytes);
    assert!(free.block.size_bytes >= size_bytes);
    let mut held = held.lock().unwrap();
    let before = held.range(..end).next_back();
    assert!(before.is_none_or(|(_, &other)| other <= start), "two hold the same memory");
    held.insert(start, end);
    Some(free)
}

fn give(pool: &Pool<Numbers>, held: &Held, free: FreeBlock) {
    held.lock().unwrap().remove(&free.block.address);
    pool.free(free);
}

#[test]
fn no_block_has_two_holders_whoever_takes_gives_and_trims() {
    in_many_orders(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let sizes = [[100, 300, 5000], [100, 70_000, 100], [3 << 20, 100, DEDICATED_ABOVE_BYTES + 1]];
        let threads = sizes.map(|sizes| {
            let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
            thread::spawn(move || {
                let kept: Vec<FreeBlock> =
                    sizes.iter().filter_map(|&size| take(&pool, &held, MemoryKind::Device, size)).collect();
                kept.into_iter().for_each(|free| give(&pool, &held, free));
                let again = take(&pool, &held, MemoryKind::Device, sizes[0]).unwrap();
                give(&pool, &held, again);
            })
        });
        let trims = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || (pool.trim(u64::MAX), pool.trim(u64::MAX)))
        };
        let looks = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || (0..4).map(|_| pool.tidy(MemoryKind::Device, u64::MAX).0).sum::<u64>())
        };
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        trims.join().unwrap();
        looks.join().unwrap();
        assert!(held.lock().unwrap().is_empty());
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.peak_bytes() > 0 && pool.reserved_bytes() <= BUDGET_BYTES);
        assert_eq!(pool.reserved_bytes(), pool.backing().bytes.load(SeqCst));
        pool.trim(u64::MAX);
        assert_eq!((pool.reserved_bytes(), pool.backing().bytes.load(SeqCst)), (0, 0));
    });
}

#[test]
fn counters_are_exact_when_kinds_are_used_at_once() {
    in_many_orders(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let threads = [MemoryKind::Device, MemoryKind::Small, MemoryKind::Device].map(|kind| {
            let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
            thread::spawn(move || take(&pool, &held, kind, 256).unwrap())
        });
        let blocks = threads.map(|thread| thread.join().unwrap());
        assert_eq!((pool.in_use_bytes(), pool.peak_bytes()), (3 * 256, 3 * 256));
        blocks.into_iter().for_each(|free| give(&pool, &held, free));
        assert_eq!((pool.in_use_bytes(), pool.peak_bytes()), (0, 3 * 256));
    });
}

//! The pool: free blocks by size class in front of regions that the backing allocated.

use std::collections::VecDeque;
use std::sync::OnceLock;

use nx_vulkan_ir::Error;

use super::block::{Block, FreeBlock, Hazard, MemoryKind};
use super::class::{GRANULE_BYTES, class_of};
use super::heap::{Heap, Region};
use super::ranges::FreeRanges;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Larger blocks get a region of their own.
pub(crate) const DEDICATED_ABOVE_BYTES: u64 = 64 << 20;
/// A dedicated region's size is a multiple of this.
const DEDICATED_STEP_BYTES: u64 = 64 << 10;
/// One refill of an empty class cuts blocks worth this much, so that small blocks rotate among many: reusing a block
/// that the device touched since the last barrier costs a barrier.
const REFILL_BYTES: u64 = 64 << 10;
/// Free dedicated regions beyond this share of the budget go back to the driver as soon as they are idle.
const DEDICATED_CACHE_SHARE: u64 = 4;
/// A free dedicated region serves a request of at least 4/5 of its size.
const DEDICATED_FIT: (u64, u64) = (4, 5);

/// Where regions come from: Vulkan, or a fake in tests.
pub trait Backing: Send + Sync {
    /// One allocation; dropping it frees the memory.
    type Memory: Send;

    fn allocate(&self, kind: MemoryKind, size_bytes: u64) -> Result<Chunk<Self::Memory>, AllocError>;
}

/// Memory fresh from the backing.
#[derive(Debug)]
pub struct Chunk<M> {
    pub memory: M,
    pub handle: ash::vk::Buffer,
    pub address: u64,
    pub mapped: *mut u8,
}

/// Why there is no memory.
#[derive(Debug, Clone, PartialEq)]
pub enum AllocError {
    /// Not now: trimming or waiting may help.
    OutOfMemory,
    /// Never.
    TooLarge {
        /// The largest block that can be had.
        limit_bytes: u64,
    },
    /// The driver failed otherwise.
    Failed(Error),
}

#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    pub max_buffer_bytes: u64,
    /// Most bytes to reserve from the backing, by kind. 0 switches a kind off.
    pub budget_bytes: [u64; MemoryKind::COUNT],
    /// Regions start at the first size and double up to the second.
    pub region_bytes: [(u64, u64); MemoryKind::COUNT],
    /// Most bytes that the host reads straight from mapped memory of a kind.
    pub direct_read_bytes: [u64; MemoryKind::COUNT],
}

/// The bytes that a buffer takes where no free block is larger than it needs.
pub fn reserved_bytes(size_bytes: u64) -> u64 {
    if size_bytes > DEDICATED_ABOVE_BYTES {
        return size_bytes.checked_next_multiple_of(DEDICATED_STEP_BYTES).unwrap_or(u64::MAX);
    }
    class_of(size_bytes).1
}

/// The bytes of a block that lies behind others.
pub fn part_bytes(size_bytes: u64) -> u64 {
    size_bytes.max(1).checked_next_multiple_of(GRANULE_BYTES).unwrap_or(u64::MAX)
}

/// Blocks of memory by size classes, which are given out again once the device has done with them.
pub struct Pool<B: Backing> {
    heaps: [Mutex<Heap<B::Memory>>; MemoryKind::COUNT],
    /// By kind, each written under its heap's lock.
    in_use_bytes: [AtomicU64; MemoryKind::COUNT],
    /// The most that was in use at once.
    peak_bytes: AtomicU64,
    /// How often the backing allocated.
    allocations: AtomicU64,
    /// Whether the backing gave a dedicated region since somebody asked.
    grew: AtomicBool,
    /// Its bounds.
    pub limits: PoolLimits,
    /// Memory that no buffer holds any more, by the last submission that uses it.
    retired: Mutex<Vec<(u64, B::Memory)>>,
    waked: OnceLock<std::thread::Thread>,
    backing: B,
}

impl<B: Backing> std::fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("in_use_bytes", &self.in_use_bytes())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<B: Backing> Pool<B> {
    /// An empty pool.
    pub fn new(backing: B, limits: PoolLimits) -> Pool<B> {
        Pool {
            heaps: std::array::from_fn(|_| Mutex::default()),
            in_use_bytes: [const { AtomicU64::new(0) }; MemoryKind::COUNT],
            peak_bytes: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            grew: AtomicBool::new(false),
            limits,
            retired: Mutex::default(),
            waked: OnceLock::new(),
            backing,
        }
    }

    /// Bytes of blocks that buffers hold, tensors only.
    pub fn in_use_bytes(&self) -> u64 {
        [MemoryKind::Device, MemoryKind::Small, MemoryKind::Spill]
            .map(|kind| self.in_use_bytes[kind as usize].load(Relaxed))
            .iter()
            .sum()
    }

    /// The most bytes that were in use at once so far.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Relaxed)
    }

    /// Bytes taken from the backing, of every kind.
    pub fn reserved_bytes(&self) -> u64 {
        (0..MemoryKind::COUNT).map(|k| lock(&self.heaps[k]).reserved_bytes).sum()
    }

    /// How often memory was taken from the backing.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Relaxed)
    }

    /// Whether a large block was taken from the backing since the last time that this was asked.
    pub fn take_growth(&self) -> bool {
        self.grew.load(Relaxed) && self.grew.swap(false, Relaxed)
    }

    /// The most bytes that one tensor can ever have.
    pub fn largest_bytes(&self) -> u64 {
        let budget_bytes = |kind: MemoryKind| self.limits.budget_bytes[kind as usize];
        budget_bytes(MemoryKind::Device).max(budget_bytes(MemoryKind::Spill)).min(self.limits.max_buffer_bytes)
    }

    /// A block of at least `size_bytes`, aligned to 256 bytes, with undefined contents. Whoever takes one gives it back
    /// to this pool: outside this module only buffers do, which hold the pool that they are of.
    pub(super) fn alloc(&self, kind: MemoryKind, size_bytes: u64, completed: u64) -> Result<FreeBlock, AllocError> {
        if size_bytes > self.limits.max_buffer_bytes {
            return Err(AllocError::TooLarge { limit_bytes: self.limits.max_buffer_bytes });
        }
        let mut heap = self.heap(kind);
        let free = if size_bytes > DEDICATED_ABOVE_BYTES {
            self.alloc_dedicated(&mut heap, kind, size_bytes, completed)?
        } else {
            let (class, bytes) = class_of(size_bytes);
            match heap.classes.get_mut(class).and_then(VecDeque::pop_front) {
                Some(free) => {
                    heap.class_bytes -= bytes;
                    free
                }
                None => self.refill(&mut heap, kind, class, bytes)?,
            }
        };
        self.note_taken(&mut heap, kind, free.block.region, free.block.size_bytes);
        Ok(free)
    }

    /// Blocks of at least these sizes, one behind the other in a region of their own, each at a multiple of 256 bytes,
    /// with undefined contents.
    pub(super) fn alloc_parts(
        &self,
        kind: MemoryKind,
        sizes: &[u64],
        completed: u64,
    ) -> Result<Vec<FreeBlock>, AllocError> {
        let all_bytes = sizes.iter().fold(0, |sum: u64, &size| sum.saturating_add(part_bytes(size)));
        if all_bytes > self.limits.max_buffer_bytes {
            return Err(AllocError::TooLarge { limit_bytes: self.limits.max_buffer_bytes });
        }
        let mut heap = self.heap(kind);
        let whole = self.alloc_dedicated(&mut heap, kind, all_bytes, completed)?;
        let region = whole.block.region as usize;
        let mut offset = 0;
        let parts = sizes.iter().map(|&size_bytes| {
            let bytes = part_bytes(size_bytes);
            let part = heap.block(kind, region, offset, bytes, whole.hazard);
            offset += bytes;
            part
        });
        let parts: Vec<FreeBlock> = parts.collect::<Option<_>>().ok_or(AllocError::OutOfMemory)?;
        if let Some(Some(region)) = heap.regions.get_mut(region) {
            region.has_parts = true;
            region.free = FreeRanges::default();
            let rest = region.size_bytes.saturating_sub(offset);
            if rest > 0 {
                region.free.give(offset, rest, whole.hazard);
            }
        }
        self.note_taken(&mut heap, kind, whole.block.region, all_bytes);
        Ok(parts)
    }

    /// Counts bytes that buffers hold from now on, under the lock of their heap.
    fn note_taken(&self, heap: &mut Heap<B::Memory>, kind: MemoryKind, region: u32, size_bytes: u64) {
        let in_use = &self.in_use_bytes[kind as usize];
        let in_use_bytes = in_use.load(Relaxed) + size_bytes;
        in_use.store(in_use_bytes, Relaxed);
        heap.note_taken(region, size_bytes, in_use_bytes);
        self.peak_bytes.fetch_max(self.in_use_bytes(), Relaxed);
    }

    /// Takes back a block from its buffer.
    pub(super) fn free(&self, free: FreeBlock) {
        let Block { kind, region, size_bytes, .. } = free.block;
        let mut heap = self.heap(kind);
        heap.note_given(region, size_bytes);
        let in_use = &self.in_use_bytes[kind as usize];
        in_use.store(in_use.load(Relaxed) - size_bytes, Relaxed);
        if heap.has_parts(&free) {
            if let Some(whole) = heap.push_part(free) {
                heap.dedicated_bytes += whole.block.size_bytes;
                heap.dedicated.push(whole);
            }
        } else if size_bytes > DEDICATED_ABOVE_BYTES {
            heap.dedicated_bytes += size_bytes;
            heap.dedicated.push(free);
        } else {
            heap.push_class(free);
        }
    }

    /// Where its memory comes from.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Frees memory that is not the pool's once no submission uses it any more, at the latest when the pool is dropped.
    pub(crate) fn retire(&self, memory: B::Memory, use_serial: u64) {
        lock(&self.retired).push((use_serial, memory));
    }

    /// Frees retired memory that no submission after `completed` uses.
    pub fn free_retired(&self, completed: u64) {
        lock(&self.retired).retain(|&(serial, _)| serial > completed);
    }

    /// Gives every region back to the backing that is wholly free and that no submission after `completed` uses.
    /// Returns the bytes freed.
    pub fn trim(&self, completed: u64) -> u64 {
        self.free_retired(completed);
        self.heaps.iter().map(|heap| lock(heap).give_back(completed, 0)).sum()
    }

    /// Gives regions of a kind back that are more than what was in use lately calls for, as [`Pool::trim`] does.
    /// Somebody calls it from time to time: lately is since the last `LOOKS` calls (heap.rs). Answers the bytes freed,
    /// and whether more is to be freed once submissions are complete.
    pub fn tidy(&self, kind: MemoryKind, completed: u64) -> (u64, bool) {
        self.free_retired(completed);
        let mut heap = self.heap(kind);
        let keep = heap.bytes_to_keep(self.in_use_bytes_of(kind));
        (heap.give_back(completed, keep), heap.has_more_than(keep))
    }

    /// Bytes taken from the backing for a kind.
    pub fn reserved_bytes_of(&self, kind: MemoryKind) -> u64 {
        self.heap(kind).reserved_bytes
    }

    /// Bytes of a kind that buffers hold.
    pub fn in_use_bytes_of(&self, kind: MemoryKind) -> u64 {
        self.in_use_bytes[kind as usize].load(Relaxed)
    }

    /// Who is woken where tensors begin to be spilled, to look after what was.
    pub fn wake_where_spilled(&self, thread: std::thread::Thread) {
        // One thread looks after a pool.
        let _ = self.waked.set(thread);
    }

    fn heap(&self, kind: MemoryKind) -> MutexGuard<'_, Heap<B::Memory>> {
        lock(&self.heaps[kind as usize])
    }

    fn alloc_dedicated(
        &self,
        heap: &mut Heap<B::Memory>,
        kind: MemoryKind,
        size_bytes: u64,
        completed: u64,
    ) -> Result<FreeBlock, AllocError> {
        let (num, den) = DEDICATED_FIT;
        let best = heap
            .dedicated
            .iter()
            .enumerate()
            .map(|(i, free)| (i, free.block.size_bytes))
            .filter(|&(_, size)| size >= size_bytes && size_bytes >= size / den * num)
            .min_by_key(|&(_, size)| size)
            .map(|(i, _)| i);
        if let Some(index) = best {
            let free = heap.dedicated.remove(index);
            heap.dedicated_bytes -= free.block.size_bytes;
            return Ok(free);
        }
        let keep = self.limits.budget_bytes[kind as usize] / DEDICATED_CACHE_SHARE;
        heap.drop_dedicated(completed, keep);
        let bytes = size_bytes.next_multiple_of(DEDICATED_STEP_BYTES).min(self.limits.max_buffer_bytes);
        let region = self.add_region(heap, kind, bytes, FreeRanges::default())?;
        self.grew.store(true, Relaxed);
        heap.block(kind, region, 0, bytes, Hazard::default()).ok_or(AllocError::OutOfMemory)
    }

    fn refill(
        &self,
        heap: &mut Heap<B::Memory>,
        kind: MemoryKind,
        class: usize,
        bytes: u64,
    ) -> Result<FreeBlock, AllocError> {
        if heap.classes.len() <= class {
            heap.classes.resize_with(class + 1, VecDeque::new);
        }
        let count = (REFILL_BYTES / bytes).max(1);
        for _ in 0..count {
            let Some((region, offset, hazard)) = heap.cut(bytes) else {
                break;
            };
            if let Some(block) = heap.block(kind, region, offset, bytes, hazard) {
                heap.push_class(block);
            }
        }
        if let Some(free) = heap.pop_class(class) {
            return Ok(free);
        }
        // Free blocks of other classes may join to what is needed; worth it when much is idle.
        let mut cut = None;
        if heap.class_bytes >= heap.reserved_bytes / 4 && heap.class_bytes >= bytes {
            heap.consolidate();
            cut = heap.cut(bytes);
        }
        if cut.is_none() {
            cut = match self.grow(heap, kind, bytes) {
                Ok(()) => heap.cut(bytes),
                Err(AllocError::OutOfMemory) => heap.cut_of_parts(bytes),
                Err(e) => return Err(e),
            };
        }
        cut.and_then(|(region, offset, hazard)| heap.block(kind, region, offset, bytes, hazard))
            .ok_or(AllocError::OutOfMemory)
    }

    /// Adds a region for blocks of `bytes`: as large as the growth rule says, smaller where that does not fit.
    fn grow(&self, heap: &mut Heap<B::Memory>, kind: MemoryKind, bytes: u64) -> Result<(), AllocError> {
        let (first, last) = self.limits.region_bytes[kind as usize];
        let mut size = heap
            .reserved_bytes
            .clamp(first, last)
            .next_power_of_two()
            .max(bytes.next_power_of_two())
            .min(self.limits.max_buffer_bytes.max(bytes));
        loop {
            match self.add_region(heap, kind, size, FreeRanges::whole(size)) {
                Ok(_) => return Ok(()),
                Err(AllocError::OutOfMemory) if size > bytes => size = (size / 2).max(bytes),
                Err(e) => return Err(e),
            }
        }
    }

    fn add_region(
        &self,
        heap: &mut Heap<B::Memory>,
        kind: MemoryKind,
        size_bytes: u64,
        free: FreeRanges,
    ) -> Result<usize, AllocError> {
        if heap.reserved_bytes + size_bytes > self.limits.budget_bytes[kind as usize] {
            return Err(AllocError::OutOfMemory);
        }
        let chunk = self.backing.allocate(kind, size_bytes)?;
        self.allocations.fetch_add(1, Relaxed);
        if kind == MemoryKind::Spill
            && heap.reserved_bytes == 0
            && let Some(thread) = self.waked.get()
        {
            thread.unpark();
        }
        heap.reserved_bytes += size_bytes;
        let region = Region::new(chunk, size_bytes, free);
        let index = match heap.regions.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                heap.regions.push(None);
                heap.regions.len() - 1
            }
        };
        heap.regions[index] = Some(region);
        Ok(index)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Memory of the engine: from the pool, and what is tried where there is none.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;
use std::thread::LocalKey;

use nx_vulkan_device::memory::{
    AllocError, Buffer, DevicePool, MemoryKind, Owner, imported_buffer, part_bytes, reserved_bytes, shared_buffer,
};

use smallvec::SmallVec;

use super::Engine;
use crate::{Error, Result};

thread_local! {
    /// Whether this thread may wait for the device until memory is free.
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };

    /// Whether this thread's caller gives up what it holds no longer before memory is spilled.
    static ASKS_TO_SPILL: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, a cell of its thread has another value.
struct Set {
    cell: &'static LocalKey<Cell<bool>>,
    before: bool,
}

impl Set {
    fn to(cell: &'static LocalKey<Cell<bool>>, value: bool) -> Set {
        Set { cell, before: cell.replace(value) }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        self.cell.set(self.before);
    }
}

/// Blocks in use that are passed over for one that is not.
const MOST_BUSY: usize = 8;

/// The part of a device's memory that results of one run may take in one piece.
const TOGETHER_PART: u64 = 8;

impl Engine {
    /// A buffer with undefined contents. Zero bytes work. Makes no Vulkan call when the pool has a free block.
    ///
    /// # Errors
    /// `TooLarge` when it can never fit; `OutOfMemory` when it does not fit after trimming, waiting and spilling to
    /// host memory; `OverLimit` when the [`Owner`] of this thread may not have so much.
    #[cfg_attr(feature = "testing", visibility::make(pub))]
    pub(crate) fn alloc(&self, size_bytes: u64) -> Result<Arc<Buffer>> {
        if let Some(capture) = &self.capture {
            return capture.alloc(size_bytes, &self.core.pool);
        }
        let most_bytes = self.core.model.transfers.small_bytes;
        self.alloc_first_of(size_bytes, most_bytes, || self.of_pool(MemoryKind::Small, size_bytes))
    }

    /// A buffer that the host is about to write all of, where it can do so at once if that is fast.
    ///
    /// # Errors
    /// Those of [`Engine::alloc`].
    pub(crate) fn alloc_for_upload(&self, size_bytes: u64) -> Result<Arc<Buffer>> {
        if self.capture.is_some() {
            return self.alloc(size_bytes);
        }
        let most_bytes = self.core.model.transfers.written_bytes;
        self.alloc_first_of(size_bytes, most_bytes, || self.idle_buffer(size_bytes))
    }

    /// Memory that the host writes and that nothing in flight uses, if there is any that was not used of late.
    fn idle_buffer(&self, size_bytes: u64) -> Result<Buffer, AllocError> {
        let mut busy = SmallVec::<[Buffer; MOST_BUSY]>::new();
        loop {
            let buffer = self.of_pool(MemoryKind::Small, size_bytes)?;
            if busy.len() == MOST_BUSY || self.core.stream.is_idle(&buffer) {
                return Ok(buffer);
            }
            busy.push(buffer);
        }
    }

    fn of_pool(&self, kind: MemoryKind, size_bytes: u64) -> Result<Buffer, AllocError> {
        match kind {
            MemoryKind::Small if self.core.pool.limits.budget_bytes[kind as usize] == 0 => Err(AllocError::OutOfMemory),
            kind => Buffer::of_pool(&self.core.pool, kind, size_bytes, self.core.stream.completed()),
        }
    }

    /// The buffer that `first` has where it takes so many bytes, or else one of device memory, or else of the host's.
    fn alloc_first_of(
        &self,
        size_bytes: u64,
        most_bytes: u64,
        first: impl FnOnce() -> Result<Buffer, AllocError>,
    ) -> Result<Arc<Buffer>> {
        check_limit(reserved_bytes(size_bytes))?;
        let first = match (size_bytes <= most_bytes).then(first) {
            Some(Ok(buffer)) => Ok(buffer),
            Some(Err(_)) | None => self.of_pool(MemoryKind::Device, size_bytes),
        };
        match first {
            Ok(buffer) => Ok(Arc::new(buffer)),
            Err(AllocError::OutOfMemory) => self.alloc_under_pressure(size_bytes).map(Arc::new),
            Err(e) => Err(self.alloc_error(e, size_bytes)),
        }
    }

    /// Buffers with undefined contents that lie one behind the other, each at the next multiple of 256 bytes. Their
    /// memory serves others of this kind once all of them are gone.
    ///
    /// # Errors
    /// Those of [`Engine::alloc`].
    pub(crate) fn alloc_together(&self, sizes: &[u64]) -> Result<Vec<Arc<Buffer>>> {
        let pool = &self.core.pool;
        let all_bytes = sizes.iter().fold(0, |sum: u64, &size| sum.saturating_add(part_bytes(size)));
        check_limit(all_bytes)?;
        let attempt = |kind: MemoryKind| Buffer::parts_of_pool(pool, kind, sizes, self.core.stream.completed());
        let buffers = match self.with_more_memory(all_bytes, || attempt(MemoryKind::Device))? {
            Some(buffers) => buffers,
            None => attempt(MemoryKind::Spill).map_err(|e| self.alloc_error(e, all_bytes))?,
        };
        Ok(buffers.into_iter().map(Arc::new).collect())
    }

    /// The most bytes of buffers that may lie one behind the other: of larger pieces of memory there may be none.
    pub(crate) fn most_together_bytes(&self) -> u64 {
        self.core.pool.limits.max_buffer_bytes.min(self.budget_bytes() / TOGETHER_PART)
    }

    /// The most bytes that one tensor can ever have.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.core.pool.largest_bytes()
    }

    /// Whether other processes can map memory of this device.
    pub(crate) fn shares_memory(&self) -> bool {
        self.core.pool.backing().shares_memory()
    }

    /// A buffer with undefined contents that other processes can map.
    pub(crate) fn alloc_shared(&self, size_bytes: u64) -> Result<Arc<Buffer>> {
        self.core.pool.free_retired(self.core.stream.completed());
        let buffer = self.with_more_memory(size_bytes, || shared_buffer(&self.core.pool, size_bytes))?;
        buffer.map(Arc::new).ok_or_else(|| self.alloc_error(AllocError::OutOfMemory, size_bytes))
    }

    /// The buffer behind a descriptor of another process's memory.
    ///
    /// # Safety
    /// That of [`imported_buffer`].
    pub(crate) unsafe fn import_shared(
        &self,
        file: File,
        size_bytes: u64,
        memory_type: u32,
        allocation_bytes: u64,
    ) -> Result<Arc<Buffer>> {
        self.core.pool.free_retired(self.core.stream.completed());
        let buffer = self.with_more_memory(size_bytes, || {
            let failed = |e: std::io::Error| {
                AllocError::Failed(Error::Io { path: "a descriptor".to_string(), cause: e.to_string() })
            };
            let file = file.try_clone().map_err(failed)?;
            // SAFETY: the caller's duty.
            unsafe { imported_buffer(&self.core.pool, file, size_bytes, memory_type, allocation_bytes) }
        })?;
        // The memory is there already. NVIDIA's driver says this of a descriptor that is none of its memory.
        buffer.map(Arc::new).ok_or_else(|| Error::InvalidArgument {
            what: "handle",
            expected: "memory that is still shared".to_string(),
            got: "a descriptor that the driver finds no memory for".to_string(),
        })
    }

    /// The first success of `attempt` as it is, after the pool gave back what is free, and after the device came to
    /// rest; none where memory is short even so.
    pub(super) fn with_more_memory<T>(
        &self,
        size_bytes: u64,
        mut attempt: impl FnMut() -> std::result::Result<T, AllocError>,
    ) -> Result<Option<T>> {
        let mut check = || match attempt() {
            Ok(found) => Ok(Some(found)),
            Err(AllocError::OutOfMemory) => Ok(None),
            Err(e) => Err(self.alloc_error(e, size_bytes)),
        };
        if let Some(found) = check()? {
            return Ok(Some(found));
        }
        self.forget_copies();
        self.core.pool.trim(self.core.stream.completed());
        if let Some(found) = check()? {
            return Ok(Some(found));
        }
        if !MAY_WAIT.get() {
            return Err(Error::NeedsCompile);
        }
        self.core.stream.wait()?;
        self.core.pool.trim(self.core.stream.completed());
        check()
    }

    /// Runs `f` on a thread that must not wait: what would have to, for memory, is `NeedsCompile` instead.
    pub fn without_waiting<T>(f: impl FnOnce() -> T) -> T {
        let _set = Set::to(&MAY_WAIT, false);
        f()
    }

    fn alloc_under_pressure(&self, size_bytes: u64) -> Result<Buffer> {
        let pool = &self.core.pool;
        let attempt = |kind: MemoryKind| Buffer::of_pool(pool, kind, size_bytes, self.core.stream.completed());
        if let Some(buffer) = self.with_more_memory(size_bytes, || attempt(MemoryKind::Device))? {
            return Ok(buffer);
        }
        match may_spill(size_bytes) {
            true => attempt(MemoryKind::Spill).map_err(|e| self.alloc_error(e, size_bytes)),
            false => Err(self.alloc_error(AllocError::OutOfMemory, size_bytes)),
        }
    }

    /// Runs `f` for a caller who can give up what it holds no longer: memory is spilled only with leave of its
    /// [`Owner`], and is `OutOfMemory` without.
    pub fn asking_to_spill<T>(f: impl FnOnce() -> T) -> T {
        let _set = Set::to(&ASKS_TO_SPILL, true);
        f()
    }

    /// Lets an owner spill as much as owners allocate between two collections. Answers whether anything can be spilled
    /// on this device.
    pub fn allow_spill(&self, owner: &Owner) -> bool {
        owner.allow_spill(self.garbage_step_bytes());
        self.core.pool.limits.budget_bytes[MemoryKind::Spill as usize] > 0
    }

    pub(super) fn alloc_error(&self, error: AllocError, size_bytes: u64) -> Error {
        let largest_bytes = self.core.pool.largest_bytes();
        match error {
            AllocError::OutOfMemory | AllocError::TooLarge { .. } if size_bytes > largest_bytes => {
                Error::TooLarge { size_bytes, limit_bytes: largest_bytes }
            }
            AllocError::OutOfMemory => Error::OutOfMemory {
                size_bytes,
                in_use_bytes: self.core.pool.in_use_bytes(),
                budget_bytes: self.budget_bytes(),
            },
            AllocError::TooLarge { limit_bytes } => Error::TooLarge { size_bytes, limit_bytes },
            AllocError::Failed(e) => e,
        }
    }

    pub(crate) fn pool(&self) -> &DevicePool {
        &self.core.pool
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.core.pool.limits.budget_bytes[MemoryKind::Device as usize]
    }

    /// Gives idle memory back to the driver. Returns the bytes freed.
    pub fn trim(&self) -> u64 {
        self.core.pool.trim(self.core.stream.completed())
    }

    pub(crate) fn check_owner(&self, buffer: &Buffer) -> Result<()> {
        match buffer.belongs_to(&self.core.pool) {
            true => Ok(()),
            false => Err(Error::InvalidArgument {
                what: "buffer",
                expected: "a buffer of this device".into(),
                got: "a buffer of another one".into(),
            }),
        }
    }
}

/// Whether this thread may spill so many bytes. A call that may begin with that may go on.
fn may_spill(size_bytes: u64) -> bool {
    let may = !ASKS_TO_SPILL.get() || Owner::takes_leave_to_spill(size_bytes);
    if may {
        ASKS_TO_SPILL.set(false);
    }
    may
}

/// Whether the owner of this thread may take so many bytes more.
fn check_limit(size_bytes: u64) -> Result<()> {
    match Owner::exceeded_by(size_bytes) {
        None => Ok(()),
        Some((held_bytes, limit_bytes)) => Err(Error::OverLimit { size_bytes, held_bytes, limit_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_leaves_a_thread_as_it_was() {
        let panics = |run: fn(&dyn Fn())| {
            let raise = || std::panic::resume_unwind(Box::new("no"));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&raise))).is_err()
        };
        assert!(panics(|raise| Engine::without_waiting(raise)));
        assert!(panics(|raise| Engine::asking_to_spill(raise)));
        assert!(MAY_WAIT.get() && !ASKS_TO_SPILL.get());
        assert!(!Engine::without_waiting(|| MAY_WAIT.get()) && Engine::asking_to_spill(|| ASKS_TO_SPILL.get()));
    }

    #[test]
    fn what_does_not_fit_is_tried_again_after_trimming_and_waiting() {
        let engine = Engine::open(None).expect("a Vulkan device");
        drop(engine.alloc(1 << 20).expect("memory"));
        assert!(engine.stats().reserved_bytes > 0);
        let mut attempts = 0;
        let found = engine.with_more_memory(1, || {
            attempts += 1;
            if engine.stats().reserved_bytes > 0 { Err(AllocError::OutOfMemory) } else { Ok(()) }
        });
        assert_eq!((found, attempts), (Ok(Some(())), 2));
        let mut never = || {
            attempts += 1;
            Err::<(), _>(AllocError::OutOfMemory)
        };
        assert_eq!(engine.with_more_memory(1, &mut never), Ok(None));
        assert_eq!(Engine::without_waiting(|| engine.with_more_memory(1, &mut never)), Err(Error::NeedsCompile));
        assert_eq!(attempts, 2 + 3 + 2);
        assert!(engine.alloc(1 << 20).is_ok());
    }
}

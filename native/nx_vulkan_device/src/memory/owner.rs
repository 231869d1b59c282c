//! Who has memory: an owner is named for a thread, and buffers of tensors that the thread takes are the owner's.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::MemoryKind;

thread_local! {
    /// Whose the buffers are that this thread takes.
    static CURRENT: RefCell<Option<Arc<Owner>>> = const { RefCell::new(None) };
}

/// What somebody has of the memory of a pool, and how much that may be.
#[derive(Debug)]
pub struct Owner {
    bytes: AtomicU64,
    limit_bytes: AtomicU64,
    /// Bytes that it may spill where it asks for that.
    spill_leave_bytes: AtomicU64,
}

impl Default for Owner {
    /// One who has nothing, and no limit.
    fn default() -> Owner {
        Owner { bytes: AtomicU64::new(0), limit_bytes: AtomicU64::new(u64::MAX), spill_leave_bytes: AtomicU64::new(0) }
    }
}

impl Owner {
    /// Runs `f`, where the buffers of tensors that this thread takes are this owner's, or nobody's.
    pub fn charged<T>(owner: Option<Arc<Owner>>, f: impl FnOnce() -> T) -> T {
        /// Puts back who was there before, also where `f` panics.
        struct Before(Option<Arc<Owner>>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.replace(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(owner));
        f()
    }

    /// Bytes of the buffers that are its own.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The most that it may have; `u64::MAX` where nothing bounds it.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Relaxed)
    }

    /// Sets what it may have from now on. What it has already it keeps.
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Relaxed);
    }

    /// What the owner of this thread has and may have, where so many bytes more would be too much.
    pub fn exceeded_by(size_bytes: u64) -> Option<(u64, u64)> {
        CURRENT.with_borrow(|owner| {
            let owner = owner.as_deref()?;
            let (bytes, limit_bytes) = (owner.bytes(), owner.limit_bytes());
            (bytes.saturating_add(size_bytes) > limit_bytes).then_some((bytes, limit_bytes))
        })
    }

    /// Lets it spill so many bytes, the last of which may be more than is left.
    pub fn allow_spill(&self, leave_bytes: u64) {
        self.spill_leave_bytes.store(leave_bytes, Relaxed);
    }

    /// Whether the owner of this thread may spill, if it has one, which has so much less leave then.
    pub fn takes_leave_to_spill(size_bytes: u64) -> bool {
        let left = |left: u64| (left > 0).then(|| left.saturating_sub(size_bytes));
        CURRENT.with_borrow(|owner| match owner {
            Some(owner) => owner.spill_leave_bytes.fetch_update(Relaxed, Relaxed, left).is_ok(),
            None => true,
        })
    }

    /// Whose a new buffer of so many bytes is.
    pub(super) fn of_new(kind: MemoryKind, size_bytes: u64) -> Option<Arc<Owner>> {
        match kind {
            MemoryKind::Device | MemoryKind::Small | MemoryKind::Spill => {}
            // Of the stream, for all.
            MemoryKind::Upload | MemoryKind::Readback | MemoryKind::Arguments => return None,
        }
        CURRENT.with_borrow(|owner| {
            let owner = Arc::clone(owner.as_ref()?);
            owner.bytes.fetch_add(size_bytes, Relaxed);
            Some(owner)
        })
    }

    pub(super) fn give(&self, size_bytes: u64) {
        self.bytes.fetch_sub(size_bytes, Relaxed);
    }
}

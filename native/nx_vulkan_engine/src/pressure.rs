//! When owners of tensors had better give up what they hold no longer, since a language with a garbage collector does
//! not see how much memory that is, and copies of tensors that are kept while memory is not short.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use nx_vulkan_device::memory::{Buffer, Copies, CopyBuffers, CopyForm, Owner};

use crate::Engine;

/// Share of the budget in use, in percent, from which [`Engine::pressure`] asks the owners of tensors to collect.
const PRESSURE_PERCENT: u64 = 75;

/// Share of the budget in use, in percent, up to which copies are kept.
const KEPT_PERCENT: u64 = 50;

/// The share of the budget that is allocated, while memory is short, between two requests to collect garbage.
const GARBAGE_STEP: u64 = 64;

/// The share of the memory in use that may be garbage.
const GARBAGE_SHARE: u64 = 4;

/// What is too little to ask for a collection: the BEAM takes some 50 us for one of a process with little on its heap,
/// which it makes small, so that some more follow, and a GPU twice as long to write as many bytes. Nor is a small share
/// of the budget missed.
const LITTLE_GARBAGE_BYTES: u64 = 128 << 20;
const LITTLE_GARBAGE_SHARE: u64 = 256;

/// What holds the copies of each buffer that has some.
#[derive(Debug, Default)]
struct AllCopies(Mutex<Vec<Weak<Copies>>>);

impl Engine {
    /// Memory for a copy of a buffer in another form that is to be kept with it, of which the parts have these sizes;
    /// none where memory is not for that, or where others may write the buffer.
    pub(crate) fn room_for_copy(&self, of: &Arc<Buffer>, sizes: &[u64]) -> Option<CopyBuffers> {
        let in_use_bytes = sizes.iter().fold(self.pool().in_use_bytes(), |sum, size| sum.saturating_add(*size));
        // Those who know a buffer by its address have weak references.
        let is_own = of.as_external().is_none() && Arc::weak_count(of) == 0;
        let has_room = in_use_bytes / KEPT_PERCENT < self.budget_bytes() / 100;
        if !is_own || !has_room {
            return None;
        }
        // A copy serves all, and goes with the buffer.
        let alloc = || sizes.iter().map(|&size| self.alloc(size).ok()).collect();
        let buffers: Option<CopyBuffers> = Owner::charged(None, alloc);
        buffers.filter(|buffers| !buffers.iter().any(|buffer| buffer.is_spilled()))
    }

    /// The copy of a buffer's elements from an offset on that was kept, if what made it was not lost.
    pub(crate) fn kept_copy(&self, of: &Buffer, offset_bytes: u64, form: &str) -> Option<CopyBuffers> {
        let found = of.copy_as(offset_bytes, form)?;
        self.stream().check_contents(found.iter().map(|buffer| &**buffer)).is_ok().then_some(found)
    }

    /// Keeps a copy of what a buffer's elements were at a version until something writes these, the buffer is gone, or
    /// memory is short.
    pub(crate) fn keep_copy(&self, of: &Buffer, version: u64, form: CopyForm, buffers: CopyBuffers) {
        let mut all = self.state::<AllCopies>().0.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = of.keep_copy(version, form, buffers);
        if Arc::weak_count(copies) == 0 {
            if all.len() == all.capacity() {
                all.retain(|copies| copies.strong_count() > 0);
            }
            all.push(Arc::downgrade(copies));
        }
    }

    /// Bytes of all copies that are kept.
    pub(crate) fn copies_bytes(&self) -> u64 {
        let all = self.state::<AllCopies>().0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).map(|copies| copies.reserved_bytes()).sum()
    }

    /// Gives up all copies that are kept.
    pub(crate) fn forget_copies(&self) {
        let mut all = self.state::<AllCopies>().0.lock().unwrap_or_else(PoisonError::into_inner);
        all.drain(..).filter_map(|copies| copies.upgrade()).for_each(|copies| copies.clear());
    }

    /// Whether so much device memory is in use that owners of unused tensors should be collected.
    pub fn pressure(&self) -> bool {
        self.pool().in_use_bytes() / PRESSURE_PERCENT >= self.budget_bytes() / 100
    }

    /// Bytes that owners of tensors allocate, while memory is short, between two collections.
    pub fn garbage_step_bytes(&self) -> u64 {
        self.budget_bytes() / GARBAGE_STEP
    }

    /// Bytes of results after which owners had better collect what they hold no longer, whether memory is short or not.
    pub fn garbage_bytes(&self) -> u64 {
        let most = self.garbage_step_bytes();
        let little = LITTLE_GARBAGE_BYTES.max(self.budget_bytes() / LITTLE_GARBAGE_SHARE);
        (self.pool().in_use_bytes() / GARBAGE_SHARE).clamp(little.min(most), most)
    }

    /// Whether the driver had to give memory for a large tensor since the last time that this was asked: unused ones
    /// that owners know may have served, which is faster, and leaves memory to others.
    pub fn take_growth(&self) -> bool {
        self.pool().take_growth()
    }
}

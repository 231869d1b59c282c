//! Copies of a buffer's elements in other layouts and types, which are kept with it while nothing writes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::Buffer;

/// What a copy is of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyForm {
    /// Where the copied elements begin in it.
    pub offset_bytes: u64,
    /// All else that the copy depends on: types, sizes, strides, what is added.
    pub form: String,
}

/// The buffers of one copy.
pub type CopyBuffers = SmallVec<[Arc<Buffer>; 2]>;

/// The copies of one buffer.
#[derive(Debug, Default)]
pub struct Copies(Mutex<Vec<(CopyForm, CopyBuffers)>>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, Vec<(CopyForm, CopyBuffers)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of a form, if there is one.
    pub(super) fn get(&self, offset_bytes: u64, form: &str) -> Option<CopyBuffers> {
        let copies = self.lock();
        let mut found = copies.iter().filter(|(own, _)| own.offset_bytes == offset_bytes && own.form == form);
        found.next().map(|(_, buffers)| buffers.clone())
    }

    /// Keeps a copy, in the place of one of the same form, if `is_current` once nobody can give up what is kept.
    pub(super) fn set(&self, form: CopyForm, buffers: CopyBuffers, is_current: impl FnOnce() -> bool) {
        let mut copies = self.lock();
        if !is_current() {
            return;
        }
        copies.retain(|(own, _)| *own != form);
        copies.push((form, buffers));
    }

    /// Bytes of device memory that all of them take.
    pub fn reserved_bytes(&self) -> u64 {
        self.lock().iter().flat_map(|(_, buffers)| buffers).map(|buffer| buffer.reserved_bytes()).sum()
    }

    /// Gives all of them up.
    pub fn clear(&self) {
        drop(std::mem::take(&mut *self.lock()));
    }
}

//! When owners of tensors had better give up what they hold no longer: a language with a garbage collector does not see
//! how much memory that is.

use crate::Engine;

/// Share of the budget in use, in percent, from which [`Engine::pressure`] asks the owners of tensors to collect.
const PRESSURE_PERCENT: u64 = 75;

/// The share of the budget that is allocated, while memory is short, between two requests to collect garbage.
const GARBAGE_STEP: u64 = 64;

/// The share of the memory in use that may be garbage, and bytes that are too little to ask for a collection: the BEAM
/// takes some 50 us for one of a process with little on its heap, and a GPU twice as long to write as much.
const GARBAGE_SHARE: u64 = 4;
const LITTLE_GARBAGE_BYTES: u64 = 128 << 20;

impl Engine {
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
        (self.pool().in_use_bytes() / GARBAGE_SHARE).clamp(LITTLE_GARBAGE_BYTES.min(most), most)
    }

    /// Whether the driver had to give memory for a large tensor since the last time that this was asked: unused ones
    /// that owners know may have served, which is faster, and leaves memory to others.
    pub fn take_growth(&self) -> bool {
        self.pool().take_growth()
    }
}

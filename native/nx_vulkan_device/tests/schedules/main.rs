//! Where threads meet, under many orders of their steps: sources of the crate with locks and atomics of shuttle, which
//! chooses at each of them which thread goes on. The orders come from seeds, so that a failure comes again.
#![allow(clippy::unwrap_used, dead_code, reason = "what the crate does with these sources is more than these tests do")]

mod memory;
mod once;
mod orders;

use shuttle::sync;

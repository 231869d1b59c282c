//! Work that is held back until all of it is recorded, and how much of it a submission takes at most.

use std::cell::Cell;

use super::queries::MAX_MARKS;
use super::replay::CHUNK_COMMANDS;
use super::{Recorder, Stream};

/// Commands of a submission, of any device: drivers keep some hundred bytes of each, and each may wait for the one
/// before.
pub const MAX_HELD_COMMANDS: u64 = 1 << 15;

/// Time of a submission, as [`crate::work::Rates`] estimate it: some systems stop programs whose submissions take two
/// seconds.
pub const MAX_HELD_NS: u64 = 250_000_000;

thread_local! {
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, its thread's operations make no submission.
struct Held {
    before: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDS.set(self.before);
    }
}

impl Stream {
    /// Runs `f`, during which this thread's operations make a submission only where as much has gathered as one takes.
    /// What others record or wait for does, too.
    pub fn hold<T>(f: impl FnOnce() -> T) -> T {
        let _held = Held { before: HOLDS.replace(true) };
        f()
    }

    /// Whether this thread holds operations back.
    pub fn holds() -> bool {
        HOLDS.get()
    }

    /// Whether as much is recorded as a submission takes, whoever recorded it.
    pub(super) fn is_full(&self, recorder: &Recorder) -> bool {
        let most = match self.profiler.is_on() {
            // What is recorded at once must find room.
            true => u64::from(MAX_MARKS) - CHUNK_COMMANDS as u64,
            false => MAX_HELD_COMMANDS,
        };
        u64::from(recorder.ops) >= most || recorder.ns >= MAX_HELD_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_held_after_a_panic_or_an_error() {
        assert!(
            std::panic::catch_unwind(|| Stream::hold(|| -> () { std::panic::resume_unwind(Box::new("no")) })).is_err()
        );
        assert!(!Stream::holds());
        let inner = Stream::hold(|| {
            let failed: Result<(), ()> = Stream::hold(|| Err(()));
            (failed, Stream::holds())
        });
        assert_eq!(inner, (Err(()), true));
        assert!(!Stream::holds());
    }
}

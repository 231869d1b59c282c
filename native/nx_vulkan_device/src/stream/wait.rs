//! Waiting for submissions: poll first, then block, never under the recorder's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nx_vulkan_ir::{Error, Result};

use super::slot::Slot;
use super::{Stream, nanoseconds};
use crate::memory::Buffer;

/// A blocked thread looks for a sticky error this often.
pub(super) const BLOCK: Duration = Duration::from_secs(1);
/// With a time limit it looks so many times within that whether the device has completed anything: the wait may end so
/// much later.
pub(super) const LOOKS: u32 = 8;

impl Stream {
    /// Waits until the submission `serial` is complete, submitting it first if it is still being recorded.
    pub fn wait_serial(&self, serial: u64) -> Result<()> {
        self.wait_or_poll(serial, true).map(|_| ())
    }

    /// As [`Stream::wait_serial`] for a thread that must not block: polls for a while only. Answers whether the
    /// submission is complete.
    pub(crate) fn poll_serial(&self, serial: u64) -> Result<bool> {
        self.wait_or_poll(serial, false)
    }

    fn wait_or_poll(&self, serial: u64, blocks: bool) -> Result<bool> {
        self.check()?;
        if self.completed() >= serial {
            return Ok(true);
        }
        let (serial, slot) = {
            let mut recorder = self.lock();
            self.check()?;
            if serial >= recorder.serial {
                self.submit(&mut recorder)?;
            }
            // A submission that was lost has none after it at times: what came before it is waited for, and once that
            // is complete what the lost one held is free.
            if !recorder.pending.iter().any(|p| p.serial >= serial) {
                self.reap(&mut recorder)?;
            }
            let pending = &recorder.pending;
            let slot = match pending.iter().find(|p| p.serial >= serial).or(pending.back()) {
                None => return Ok(true),
                Some(pending) => {
                    pending.slot.add_waiter();
                    (pending.serial, Arc::clone(&pending.slot))
                }
            };
            // What is recorded next finds a command buffer that has begun while the device was at work.
            let _ = self.begin_free(&mut recorder);
            slot
        };
        let result = self.wait_slot(&slot, serial, blocks);
        slot.remove_waiter();
        match result {
            Ok(complete) => {
                if complete {
                    self.completed.fetch_max(serial, Ordering::AcqRel);
                }
                Ok(complete)
            }
            // The submission goes on: whoever asks next waits anew.
            Err(e @ Error::TimedOut { .. }) => Err(e),
            Err(e) => Err(self.fail(e)),
        }
    }

    /// The last serial that is complete, asking the device.
    pub(crate) fn look(&self) -> u64 {
        // An error is told to whoever waits.
        let _ = self.reap(&mut self.lock());
        self.completed()
    }

    /// Whether nothing in flight uses a buffer, asking the device if that is not known.
    pub fn is_idle(&self, buffer: &Buffer) -> bool {
        self.is_complete(buffer.use_serial())
    }

    /// Whether the submission `serial` is complete, asking the device if that is not known.
    pub fn is_complete(&self, serial: u64) -> bool {
        if self.completed() >= serial {
            return true;
        }
        let mut recorder = self.lock();
        if serial >= recorder.serial || self.reap(&mut recorder).is_err() {
            return false;
        }
        self.completed() >= serial
    }

    fn wait_slot(&self, slot: &Slot, serial: u64, blocks: bool) -> Result<bool> {
        let device = &self.open.device;
        let start = Instant::now();
        loop {
            if self.completed() >= serial || slot.is_signalled(device)? {
                return Ok(true);
            }
            if start.elapsed() >= self.submissions.polls {
                break;
            }
            std::hint::spin_loop();
        }
        if !blocks {
            return Ok(false);
        }
        let step = self.time_limit.map_or(BLOCK, |limit| BLOCK.min(limit / LOOKS));
        let mut progress = (self.completed(), start);
        while !slot.block(device, nanoseconds(step))? {
            self.check()?;
            let Some(limit) = self.time_limit else { continue };
            if self.is_complete(serial) {
                break;
            }
            let completed = self.completed();
            if completed > progress.0 {
                progress = (completed, Instant::now());
            } else if progress.1.elapsed() >= limit {
                return Err(Error::TimedOut { limit });
            }
        }
        Ok(true)
    }
}

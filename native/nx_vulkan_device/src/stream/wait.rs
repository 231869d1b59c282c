//! Waiting for submissions: poll first, then block, never under the recorder's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nx_vulkan_ir::Result;

use super::Stream;
use super::slot::Slot;

/// A blocked thread looks for a sticky error this often.
const BLOCK_NS: u64 = 1_000_000_000;

impl Stream {
    /// Waits until the submission `serial` is complete, submitting it first if it is still being recorded.
    pub fn wait_serial(&self, serial: u64) -> Result<()> {
        self.wait_or_poll(serial, true).map(|_| ())
    }

    /// The same for a thread that must not block: polls for a while only. Answers whether the submission is complete.
    pub fn poll_serial(&self, serial: u64) -> Result<bool> {
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
            let slot = match recorder.pending.iter().find(|p| p.serial >= serial) {
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
            Err(e) => Err(self.fail(e)),
        }
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
            if start.elapsed() >= self.spin {
                break;
            }
            std::hint::spin_loop();
        }
        while blocks && !slot.block(device, BLOCK_NS)? {
            self.check()?;
        }
        Ok(blocks)
    }
}

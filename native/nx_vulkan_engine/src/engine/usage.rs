//! What the memory of a device is taken for.

use nx_vulkan_device::memory::MemoryKind;

use super::Engine;

/// Bytes of a device's memory, and of the host's that stands in for it, by what they are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// What tensors may take of the device's memory.
    pub budget_bytes: u64,
    /// The most that was in use at once.
    pub peak_bytes: u64,
    /// What the pool has of the driver, all that follows included.
    pub reserved_bytes: u64,
    /// What buffers of tensors hold, kept copies and what runs hold on their way included.
    pub in_use_bytes: u64,
    /// Of what is in use, what lies in the host's memory because the device's was full.
    pub spilled_bytes: u64,
    /// Of what is in use, copies of weights in kernels' layouts, which are given up where memory is short.
    pub copies_bytes: u64,
    /// Rings and tables through which the host writes and reads.
    pub staging_bytes: u64,
}

impl Engine {
    /// What the memory is taken for. Numbers of a moment in which others take and give memory need not add up.
    pub fn usage(&self) -> Usage {
        let pool = self.pool();
        let staging = [MemoryKind::Upload, MemoryKind::Readback, MemoryKind::Arguments];
        Usage {
            budget_bytes: self.budget_bytes(),
            peak_bytes: pool.peak_bytes(),
            reserved_bytes: pool.reserved_bytes(),
            in_use_bytes: pool.in_use_bytes(),
            spilled_bytes: pool.in_use_bytes_of(MemoryKind::Spill),
            copies_bytes: self.copies_bytes(),
            staging_bytes: staging.iter().map(|&kind| pool.in_use_bytes_of(kind)).sum(),
        }
    }
}

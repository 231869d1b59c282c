//! A piece of device memory and what the GPU last did with it.

use ash::vk;

/// When the GPU last touched a piece of memory.
///
/// Epochs count barriers of the stream, serials count submissions; 0 is never. They stay with the memory when a buffer
/// is dropped and its block serves another, so that the new owner's first write waits for the old owner's last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hazard {
    pub write_epoch: u64,
    pub read_epoch: u64,
    pub write_serial: u64,
    pub use_serial: u64,
}

impl Hazard {
    /// The later of each: the hazards of two pieces taken as one.
    pub fn max(self, other: Hazard) -> Hazard {
        Hazard {
            write_epoch: self.write_epoch.max(other.write_epoch),
            read_epoch: self.read_epoch.max(other.read_epoch),
            write_serial: self.write_serial.max(other.write_serial),
            use_serial: self.use_serial.max(other.use_serial),
        }
    }
}

/// What a block is for, which decides the memory type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryKind {
    /// Tensors: device-local; mapped as well where the host shares the memory.
    Device,
    /// Small tensors on a discrete GPU: device-local memory that the host writes over the bus, without a copy on the
    /// GPU.
    Small,
    /// Tensors that device-local memory has no room for: host memory that the GPU reads over the bus.
    Spill,
    /// Written by the host, copied from by the GPU.
    Upload,
    /// Written by the GPU, read by the host: cached.
    Readback,
    /// Small tables written by the host and read by kernels: device-local and host-visible where that exists.
    Arguments,
}

impl MemoryKind {
    /// How many kinds there are.
    pub const COUNT: usize = 6;
}

/// A piece of a region. It may be copied as a description; the memory belongs to one buffer, or to the pool.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub kind: MemoryKind,
    /// Index of the region in its heap.
    pub region: u32,
    pub offset: u64,
    pub size_bytes: u64,
    /// The Vulkan buffer of the region.
    pub handle: vk::Buffer,
    /// Device address of the first byte.
    pub address: u64,
    /// Host address of the first byte, null when the memory is not mapped.
    pub mapped: *mut u8,
}

/// A block that nobody owns, with the hazards that its next owner inherits. There is one for each piece of memory, so
/// that none has two owners.
#[derive(Debug)]
pub struct FreeBlock {
    /// What is free.
    pub(crate) block: Block,
    /// What was last done to it.
    pub(crate) hazard: Hazard,
}

// SAFETY: `mapped` points into memory that lives as long as the pool; the block's owner alone reads and writes through
// it.
unsafe impl Send for Block {}
// SAFETY: a shared block gives out copies of its fields only; access through `mapped` is ordered by the stream.
unsafe impl Sync for Block {}

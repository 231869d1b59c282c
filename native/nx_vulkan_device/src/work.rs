//! What launches move and compute, about how long that takes, and in what portions a device is given it.

use std::time::Duration;

/// What one launch moves and computes, counted from the sizes of its operands.
///
/// - Bytes: of each operand once, the elements that its view has in the launch; where a launch does not state a view,
///   from the operand's first element to the end of its buffer. Data that is read twice from memory counts once, so
///   that bytes are what must move.
/// - Operations: as [`nx_vulkan_ir::program::Op::flops`] counts them. `None` where they depend on values, and for
///   factorizations and solvers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Operations on numbers.
    pub flops: Option<u64>,
    /// About the instructions of one workgroup, where that takes long by itself however little there is to do in all:
    /// kernels of whole programs, factorizations and solvers. 0 for others.
    pub longest: u64,
}

/// How fast a device is at least: for how much may be submitted at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Bytes read and written.
    pub bytes_per_ns: f64,
    /// Operations on numbers.
    pub flops_per_ns: f64,
    /// Of [`Work::longest`].
    pub instructions_per_ns: f64,
    /// What each command takes beside its work.
    pub command_ns: u64,
    /// What waiting for the commands before takes.
    pub barrier_ns: u64,
}

/// In what portions a device is given its work, and how a thread waits for the end of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submissions {
    /// Recorded operations that make a submission while the device is idle, so that it starts early.
    pub first_ops: u32,
    /// Submissions in flight up to which each doubles these.
    pub doublings: usize,
    /// Bytes of the buffers that recorded operations write that make a submission while the device is idle. What is
    /// read says less about the work: it is often a small part of a large buffer.
    pub first_bytes: u64,
    /// Those that do while it is busy.
    pub busy_bytes: u64,
    /// Time of recorded programs, as [`Rates`] estimate it, that makes a submission in any case: what a submission costs
    /// is nothing beside it, and the device may be idle before anybody waits.
    pub long_ns: u64,
    /// How long a waiting thread polls before it blocks.
    pub polls: Duration,
}

/// In what portions many bytes are copied between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// Bytes from which on a copy is one for several threads.
    pub least_bytes: u64,
    /// Bytes of a portion.
    pub chunk_bytes: u64,
    /// Threads that copy at once, of all copies.
    pub threads: usize,
}

impl Rates {
    /// Nanoseconds that a command takes about, and on most devices less.
    pub fn ns(&self, work: Option<Work>) -> u64 {
        let work = work.unwrap_or_default();
        let bytes = work.read_bytes.saturating_add(work.written_bytes) as f64 / self.bytes_per_ns;
        let flops = work.flops.unwrap_or(0) as f64 / self.flops_per_ns;
        self.command_ns + (bytes + flops + self.longest_ns(work.longest) as f64) as u64
    }

    /// Nanoseconds that so many instructions of one workgroup take about, and on most devices less.
    pub fn longest_ns(&self, instructions: u64) -> u64 {
        (instructions as f64 / self.instructions_per_ns) as u64
    }
}

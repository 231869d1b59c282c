//! What launches move and compute, and about how long that takes.

use crate::device::DeviceKind;

/// What one launch moves and computes, counted from the sizes of its operands.
///
/// - Bytes: of each operand once, the elements that its view has in the launch; where a launch does not state a view, from the operand's
///   first element to the end of its buffer. Data that is read twice from memory counts once, so that bytes are what must move.
/// - Operations: as [`nx_vulkan_ir::program::Op::flops`] counts them. `None` where they depend on values, and for factorizations and solvers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Operations on numbers.
    pub flops: Option<u64>,
    /// About the instructions of one workgroup, where that takes long by itself however little there is to do in all: kernels of whole
    /// programs, factorizations and solvers. 0 for others.
    pub longest: u64,
}

/// How fast a device is at least, of its kind: for how much may be submitted at once, before anything was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    bytes_per_ns: f64,
    flops_per_ns: f64,
    /// Of [`Work::longest`].
    instructions_per_ns: f64,
    /// What each command takes beside its work.
    command_ns: u64,
    /// What waiting for the commands before takes.
    pub barrier_ns: u64,
}

/// GPUs read all of their memory in 30 to 100 ms; those that share it with the host take longer.
const GPU_MEMORY_NS: f64 = 1e8;
const SHARED_BYTES_PER_NS: f64 = 20.0;
const CPU_BYTES_PER_NS: f64 = 4.0;
/// Few, since f64 runs at a 32nd or 64th of the rate of f32 on GPUs that are made for games.
const FLOPS_PER_BYTE: f64 = 2.0;
/// An H200 does 30 for one workgroup of f32; of f64 such GPUs do 4.
const GPU_INSTRUCTIONS_PER_NS: f64 = 8.0;
const CPU_INSTRUCTIONS_PER_NS: f64 = 1.0;
/// An H200 takes 190 ns for an independent dispatch and 2.1 us for one that waits; lavapipe 4 and some 20 us.
const GPU_COMMAND_NS: [u64; 2] = [200, 4_000];
const CPU_COMMAND_NS: [u64; 2] = [4_000, 20_000];

impl Rates {
    pub fn of(kind: DeviceKind, memory_bytes: u64) -> Rates {
        let (bytes_per_ns, instructions_per_ns) = match kind {
            DeviceKind::Cpu => (CPU_BYTES_PER_NS, CPU_INSTRUCTIONS_PER_NS),
            DeviceKind::Integrated => (SHARED_BYTES_PER_NS, GPU_INSTRUCTIONS_PER_NS),
            DeviceKind::Discrete | DeviceKind::Virtual | DeviceKind::Other => {
                ((memory_bytes as f64 / GPU_MEMORY_NS).max(SHARED_BYTES_PER_NS), GPU_INSTRUCTIONS_PER_NS)
            }
        };
        let [command_ns, barrier_ns] = if kind == DeviceKind::Cpu { CPU_COMMAND_NS } else { GPU_COMMAND_NS };
        let flops_per_ns = bytes_per_ns * FLOPS_PER_BYTE;
        Rates { bytes_per_ns, flops_per_ns, instructions_per_ns, command_ns, barrier_ns }
    }

    /// Nanoseconds that a command takes about, and on most devices less.
    pub fn ns(&self, work: Option<Work>) -> u64 {
        let work = work.unwrap_or_default();
        let bytes = work.read_bytes.saturating_add(work.written_bytes) as f64 / self.bytes_per_ns;
        let flops = work.flops.unwrap_or(0) as f64 / self.flops_per_ns;
        self.command_ns + (bytes + flops + self.longest_ns(work.longest) as f64) as u64
    }

    /// The same of instructions of one workgroup.
    pub fn longest_ns(&self, instructions: u64) -> u64 {
        (instructions as f64 / self.instructions_per_ns) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_workgroup_does_takes_time_however_little_it_moves() {
        const GIB: u64 = 1 << 30;
        let work = Work { read_bytes: 1000, written_bytes: 1000, flops: None, longest: 8_000_000 };
        let [large, small, shared, cpu] = [
            (DeviceKind::Discrete, 140),
            (DeviceKind::Discrete, 1),
            (DeviceKind::Integrated, 64),
            (DeviceKind::Cpu, 64),
        ]
        .map(|(kind, gib)| Rates::of(kind, gib * GIB));
        for rates in [large, small, shared] {
            assert!((1_000_000..1_001_000).contains(&rates.ns(Some(work))), "{rates:?}");
        }
        assert!(cpu.ns(Some(work)) >= 8_000_000);
        assert!(large.ns(None) > 0);
        let moves = Some(Work { read_bytes: GIB, ..Work::default() });
        assert!(large.ns(moves) < 1_000_000 && small.ns(moves) == shared.ns(moves));
        let computes = Some(Work { flops: Some(GIB), ..Work::default() });
        assert!(large.ns(computes) < large.ns(moves) && cpu.ns(computes) > 100_000_000);
    }
}

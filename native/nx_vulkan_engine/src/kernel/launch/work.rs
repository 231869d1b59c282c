//! What launches move and compute.

use super::{Arguments, KernelSpec, Place};
use crate::codegen::elementwise::Step;
use crate::codegen::linalg::LinalgSpec;
use crate::codegen::workgroup::{Mode, is_open, work_repeated};
use crate::device::DeviceKind;
use crate::program::flops::{of_elementwise, of_transform, product};
use crate::program::fused::{Computed, Made};
use crate::program::passes::{PHASE_WORK, max_work};

/// What one launch moves and computes, counted from the sizes of its operands.
///
/// - Bytes: of each operand once, the elements that its view has in the launch; where a launch does not state a view, from the operand's
///   first element to the end of its buffer. Data that is read twice from memory counts once, so that bytes are what must move.
/// - Operations: as [`crate::program::Op::flops`] counts them. `None` where they depend on values, and for factorizations and solvers.
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
pub(crate) struct Rates {
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

fn flops_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| of_elementwise(step.op)).sum()
}

/// How often a workgroup runs its program.
fn runs(mode: Mode, arguments: &Arguments<'_>) -> u64 {
    match (mode, arguments.extra) {
        (Mode::Steps { pauses: true, .. }, &[_, _, _, _, units, ..]) => units.into(),
        (Mode::Steps { .. }, &[_, _, from, to, ..]) => u64::from(to.saturating_sub(from)),
        _ => 1,
    }
}

impl KernelSpec {
    /// The work of one launch on a device of a kind.
    pub(super) fn work(&self, kind: DeviceKind, arguments: &Arguments<'_>, first_output: usize, groups: u64) -> Work {
        if matches!(self, KernelSpec::Dot(spec) if spec.is_fallback()) {
            return Work { read_bytes: 8, flops: Some(0), ..Work::default() };
        }
        let (reads, writes) = arguments.places.split_at(first_output.min(arguments.places.len()));
        let sum = |places: &[Place<'_>], first: usize| -> u64 {
            // Operands that a kernel does not use are given a buffer of another.
            let is_first = |k: usize, place: &Place<'_>| places[..k].iter().all(|p| p.address != place.address);
            let places = places.iter().enumerate().filter(|(k, place)| is_first(*k, place));
            places.map(|(k, place)| self.bytes(first + k, place, arguments)).sum()
        };
        let written_bytes = sum(writes, first_output);
        let read_bytes = match self {
            // Indices choose what is read of the first operand: as much as is written.
            KernelSpec::Gather(_) | KernelSpec::Take(_) => written_bytes + sum(reads.get(1..).unwrap_or_default(), 1),
            _ => sum(reads, 0),
        };
        let longest = match self {
            KernelSpec::Workgroup(spec) => {
                let program = &*spec.program.program;
                // Loops that end nobody knows when stop where they have done so much.
                let pauses = matches!(spec.mode, Mode::Steps { pauses: true, .. });
                let least = if is_open(program) && !pauses { max_work(kind) } else { 0 };
                work_repeated(program, PHASE_WORK).max(least).saturating_mul(runs(spec.mode, arguments))
            }
            KernelSpec::Linalg(spec) => self.of_matrices(spec, arguments, groups),
            _ => 0,
        };
        Work { read_bytes, written_bytes, flops: self.flops(arguments, groups), longest }
    }

    /// What one workgroup does at most of a factorization or a solver: for a matrix of n^2 elements some n^3, of which sweeps are several.
    fn of_matrices(&self, spec: &LinalgSpec, arguments: &Arguments<'_>, groups: u64) -> u64 {
        const PER_PRODUCT: f64 = 32.0;
        let elements = |(k, place): (usize, &Place<'_>)| {
            let size_bytes = spec.operands.get(k).map_or(1, |dtype| dtype.size_bytes());
            self.bytes(k, place, arguments) / size_bytes
        };
        let elements = arguments.places.iter().enumerate().map(elements).max().unwrap_or(0);
        (PER_PRODUCT * (elements as f64 / groups.max(1) as f64).powf(1.5)) as u64
    }

    /// The bytes of operand `k`.
    fn bytes(&self, k: usize, place: &Place<'_>, arguments: &Arguments<'_>) -> u64 {
        let rest = place.buffer.size_bytes().saturating_sub(place.address.saturating_sub(place.buffer.address()));
        let element_bytes = match (self, k) {
            (KernelSpec::Dot(spec), 0) => spec.a.size_bytes(),
            (KernelSpec::Dot(spec), 1) => spec.b.size_bytes(),
            (KernelSpec::Split(spec), 0) => spec.dtype.size_bytes(),
            _ => place.element_bytes,
        };
        if element_bytes == 0 || place.strides.is_empty() {
            return rest;
        }
        let moving = place.strides.iter().zip(arguments.sizes).filter(|(stride, _)| **stride != 0);
        let elements = moving.fold(1u64, |n, (_, &size)| n.saturating_mul(size));
        elements.saturating_mul(element_bytes).min(place.buffer.size_bytes())
    }

    /// The operations of one launch. What `extra` means is said where each family is launched.
    fn flops(&self, arguments: &Arguments<'_>, groups: u64) -> Option<u64> {
        let count = u64::from(arguments.count);
        let extra = |k: usize| arguments.extra.get(k).map(|&word| u64::from(word));
        match self {
            KernelSpec::Map(spec) => product(&[count, flops_of(&spec.steps)]),
            KernelSpec::Reduce { spec, .. } => {
                let producer = spec.producer.as_ref().map_or(0, |producer| flops_of(&producer.steps));
                let epilogue = spec.epilogue.as_ref().map_or(0, |epilogue| flops_of(&epilogue.steps));
                let each = spec.reducers.len() as u64 + u64::from(spec.times.is_some()) + producer;
                product(&[count, extra(0)?, each])?.checked_add(product(&[count, epilogue])?)
            }
            KernelSpec::Rows(spec) => {
                let (rows, elements) = (count, product(&[count, extra(0)?])?);
                let of = |value: &Computed| match &value.made {
                    Made::Step(step) => of_elementwise(step.op) * if value.row { rows } else { elements },
                    Made::Reduction { .. } => elements,
                };
                Some(spec.values.iter().map(of).sum())
            }
            KernelSpec::Fold(spec) => product(&[count, extra(0)?, spec.function.steps.len() as u64]),
            KernelSpec::Dot(spec) => {
                let [rows, columns, depth, batches] = [extra(0)?, extra(1)?, extra(2)?, extra(3)?];
                let results = product(&[rows, columns, batches])?;
                let epilogue = spec.epilogue.as_ref().map_or(0, |epilogue| flops_of(&epilogue.steps));
                let [a, b] = spec.prologues.each_ref().map(|p| p.as_ref().map_or(0, |p| flops_of(&p.steps)));
                let of_a = product(&[rows, depth, batches, a])?;
                let of_b = product(&[columns, depth, batches, b])?;
                let all = [product(&[2, results, depth])?, product(&[results, epilogue])?, of_a, of_b];
                all.into_iter().try_fold(0u64, u64::checked_add)
            }
            KernelSpec::Scan { .. } => product(&[extra(0)?, extra(1)?]),
            KernelSpec::Scatter(spec) => product(&[count, extra(0)?, spec.add.is_some().into()]),
            KernelSpec::SegmentAdd(_) | KernelSpec::WindowScatter(_) => product(&[count, extra(0)?]),
            KernelSpec::Fft { .. } => product(&[extra(0)?, of_transform(extra(1)?)]),
            KernelSpec::Workgroup(spec) => {
                product(&[spec.program.program.flops()?, runs(spec.mode, arguments), groups])
            }
            KernelSpec::Gather(_)
            | KernelSpec::Take(_)
            | KernelSpec::Shift(_)
            | KernelSpec::Targets(_)
            | KernelSpec::SegmentPut(_)
            | KernelSpec::Sort(_)
            | KernelSpec::Split(_)
            | KernelSpec::Transpose(_) => Some(0),
            KernelSpec::Linalg(_) => None,
        }
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

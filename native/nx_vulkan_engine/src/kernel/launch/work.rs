//! What launches move and compute.

use super::{Arguments, KernelSpec, Place};
use crate::codegen::elementwise::Step;
use crate::codegen::workgroup::Mode;
use crate::program::flops::{of_elementwise, of_transform, product};
use crate::program::fused::{Computed, Made};

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
}

fn flops_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| of_elementwise(step.op)).sum()
}

impl KernelSpec {
    /// The work of one launch.
    pub(super) fn work(&self, arguments: &Arguments<'_>, first_output: usize, groups: u64) -> Work {
        if matches!(self, KernelSpec::Dot(spec) if spec.is_fallback()) {
            return Work { read_bytes: 8, written_bytes: 0, flops: Some(0) };
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
        Work { read_bytes, written_bytes, flops: self.flops(arguments, groups) }
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
                product(&[count, extra(0)?, 1 + u64::from(spec.times.is_some()) + producer])
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
                product(&[2, results, depth])?.checked_add(product(&[results, epilogue])?)
            }
            KernelSpec::Scan { .. } => product(&[extra(0)?, extra(1)?]),
            KernelSpec::Scatter(spec) => product(&[count, extra(0)?, spec.add.is_some().into()]),
            KernelSpec::SegmentAdd(_) | KernelSpec::WindowScatter(_) => product(&[count, extra(0)?]),
            KernelSpec::Fft { .. } => product(&[extra(0)?, of_transform(extra(1)?)]),
            KernelSpec::Workgroup(spec) => {
                let runs = match spec.mode {
                    Mode::Once => 1,
                    Mode::Steps { .. } => extra(0)? + 1,
                };
                product(&[spec.program.program.flops()?, runs, groups])
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

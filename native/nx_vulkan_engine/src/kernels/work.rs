//! What launches move and compute.

use nx_vulkan_device::work::Work;
use nx_vulkan_ir::program::step::Step;
use nx_vulkan_ir::program::workgroup::{PHASE_WORK, is_open, work_repeated};
use nx_vulkan_spirv::linalg::LinalgSpec;
use nx_vulkan_spirv::workgroup::Mode;

use super::{Arguments, KernelSpec, Place};
use crate::program::fused::{Computed, Made};
use crate::program::ops::{flops_of_transform, multiplied};

fn flops_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| step.op.flops()).sum()
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
    /// The work of one launch on a device that ends loops after `max_work`.
    pub(super) fn work(&self, max_work: u64, arguments: &Arguments<'_>, first_output: usize, groups: u64) -> Work {
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
                let least = if is_open(program) && !pauses { max_work } else { 0 };
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
            KernelSpec::Map(spec) => multiplied(&[count, flops_of(&spec.steps)]),
            KernelSpec::Reduce { spec, .. } => {
                let producer = spec.producer.as_ref().map_or(0, |producer| flops_of(&producer.steps));
                let epilogue = spec.epilogue.as_ref().map_or(0, |epilogue| flops_of(&epilogue.steps));
                let each = spec.reducers.len() as u64 + u64::from(spec.times.is_some()) + producer;
                multiplied(&[count, extra(0)?, each])?.checked_add(multiplied(&[count, epilogue])?)
            }
            KernelSpec::Rows(spec) => {
                let (rows, elements) = (count, multiplied(&[count, extra(0)?])?);
                let of = |value: &Computed| match &value.made {
                    Made::Step(step) => step.op.flops() * if value.row { rows } else { elements },
                    Made::Reduction { .. } => elements,
                };
                Some(spec.values.iter().map(of).sum())
            }
            KernelSpec::Fold(spec) => multiplied(&[count, extra(0)?, spec.function.steps.len() as u64]),
            KernelSpec::Dot(spec) => {
                let [rows, columns, depth, batches] = [extra(0)?, extra(1)?, extra(2)?, extra(3)?];
                let results = multiplied(&[rows, columns, batches])?;
                let epilogue = spec.epilogue.as_ref().map_or(0, |epilogue| flops_of(&epilogue.steps));
                let [a, b] = spec.prologues.each_ref().map(|p| p.as_ref().map_or(0, |p| flops_of(&p.steps)));
                let of_a = multiplied(&[rows, depth, batches, a])?;
                let of_b = multiplied(&[columns, depth, batches, b])?;
                let all = [multiplied(&[2, results, depth])?, multiplied(&[results, epilogue])?, of_a, of_b];
                all.into_iter().try_fold(0u64, u64::checked_add)
            }
            KernelSpec::Scan { .. } => multiplied(&[extra(0)?, extra(1)?]),
            KernelSpec::Scatter(spec) => multiplied(&[count, extra(0)?, spec.add.is_some().into()]),
            KernelSpec::SegmentAdd(_) | KernelSpec::WindowScatter(_) => multiplied(&[count, extra(0)?]),
            KernelSpec::Fft { .. } => multiplied(&[extra(0)?, flops_of_transform(extra(1)?)]),
            KernelSpec::Workgroup(spec) => {
                multiplied(&[spec.program.program.flops()?, runs(spec.mode, arguments), groups])
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

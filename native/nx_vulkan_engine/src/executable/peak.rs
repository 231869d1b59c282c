//! How much memory a run takes.

use std::collections::HashSet;

use nx_vulkan_device::memory::{part_bytes, reserved_bytes};

use super::control::LOOKS;
use super::{Advance, Executable, Step, Value, Work};
use crate::Type;

/// What ops that wait take at most, in operands and results: singular values of 16x16 to 128x128 and 64x16 matrices, 4
/// MB of each, took 2.4 to 3.3 times these.
const WORKSPACE: (u64, u64) = (10, 3);

/// What buffers of these types take.
pub(super) fn bytes_of<'t>(types: impl IntoIterator<Item = &'t Type>) -> u64 {
    types.into_iter().fold(0, |sum, ty| sum.saturating_add(reserved_bytes(ty.size_bytes())))
}

impl Executable {
    /// The most bytes that a run takes from the pool besides its inputs, where results have the memory of donated ones:
    /// what it allocates, results of what waits, and the arena of a batch or what one of the programs that the host
    /// drives takes.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes_without(&self.donations.iter().map(|donation| donation.own).collect())
    }

    /// The most bytes that a run takes from the pool without some of the memory that it binds, by its numbers.
    fn peak_bytes_without(&self, given: &HashSet<u32>) -> u64 {
        let together: HashSet<u32> = self.together.iter().flatten().copied().collect();
        let own = |at: usize| {
            let alive = (0..).zip(&self.own).filter(|(_, own)| own.life.first <= at && at <= own.life.last);
            alive.filter(|(i, _)| !given.contains(i)).fold(0u64, |sum, (i, own)| {
                sum.saturating_add(match together.contains(&i) {
                    true => part_bytes(own.size_bytes),
                    false => reserved_bytes(own.size_bytes),
                })
            })
        };
        // Results of steps before, and the last step that reads each.
        let mut results: Vec<(u64, Option<usize>)> = Vec::new();
        let mut read_last = self.read_last.iter().skip(self.inputs.len());
        let mut most = own(self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            results.retain(|(_, last)| last.is_none_or(|last| last >= at));
            let kept = results.iter().fold(own(at), |sum, (bytes, _)| sum.saturating_add(*bytes));
            match step {
                Step::Batch(batch) => {
                    let arena =
                        Some(batch.schedule.places.arena_bytes).filter(|&bytes| bytes > 0).map_or(0, reserved_bytes);
                    most = most.max(kept.saturating_add(arena));
                }
                Step::Wait { work, operands } => {
                    let operands: Vec<Type> = operands.iter().map(|value| value.view.ty()).collect();
                    most = most.max(kept.saturating_add(work.peak_bytes(&operands)));
                    let made = work.result_bytes();
                    results.extend(made.into_iter().zip(read_last.by_ref().copied()));
                }
            }
        }
        let left = results.iter().filter(|(_, last)| last.is_none());
        most.max(left.fold(own(self.steps.len()), |sum, (bytes, _)| sum.saturating_add(*bytes)))
    }

    /// What donated inputs take whose memory results have.
    fn donated_reserved_bytes(&self) -> u64 {
        // A state that the body gives as a view of something else is copied, and then nobody's alone.
        let is_whole = |value: &Value| value.view.is_contiguous() && value.view.offset == 0;
        let given = self.donations.iter().filter(|d| self.outputs.get(d.input as usize).is_some_and(is_whole));
        let own = given.filter_map(|donation| self.own.get(donation.own as usize));
        own.fold(0, |sum, own| sum.saturating_add(reserved_bytes(own.size_bytes)))
    }

    fn output_bytes(&self) -> u64 {
        bytes_of(&self.outputs.iter().map(|value| value.view.ty()).collect::<Vec<Type>>())
    }
}

impl Work {
    /// What each result takes.
    fn result_bytes(&self) -> Vec<u64> {
        let bytes = |ty: &Type| reserved_bytes(ty.size_bytes());
        match self {
            Work::Op { outs, .. } => outs.iter().map(bytes).collect(),
            Work::Cond { on_true, .. } => on_true.outputs.iter().map(|value| bytes(&value.view.ty())).collect(),
            Work::While { body, state, .. } => body.inputs.iter().take(*state).map(bytes).collect(),
        }
    }

    fn peak_bytes(&self, operands: &[Type]) -> u64 {
        let all = |executable: &Executable| executable.peak_bytes_without(&HashSet::new());
        match self {
            Work::Op { outs, .. } => {
                let (times, by) = WORKSPACE;
                bytes_of(outs).saturating_add(bytes_of(operands)).saturating_mul(times) / by
            }
            Work::Cond { on_true, on_false } => all(on_true).max(all(on_false)),
            // An iteration reads the state that the one before it left, and writes some of the next one to its memory;
            // values that the host has not looked at stay.
            Work::While { condition, body, advance, .. } => {
                let looks = match advance {
                    Advance::Blocks | Advance::Times(_) => LOOKS.saturating_mul(reserved_bytes(1)),
                    Advance::Checked => reserved_bytes(1),
                };
                let iteration = all(body).max(all(condition));
                let state = body.output_bytes().saturating_sub(body.donated_reserved_bytes());
                state.saturating_add(looks).saturating_add(iteration)
            }
        }
    }
}

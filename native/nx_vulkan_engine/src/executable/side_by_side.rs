//! Several runs of one executable side by side: between two barriers lie the commands of all, so that they overlap on
//! the device.

use std::sync::Arc;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_device::stream::{Replay, Slots, table_words};

use super::{Executable, Memory, Step};
use crate::{Error, Result};

/// Where one of the runs finds its inputs and leaves its outputs, in the program's order: memory, and the first byte in
/// it, a multiple of 16.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    pub inputs: Vec<(&'a Buffer, u64)>,
    pub outputs: Vec<(&'a Buffer, u64)>,
}

/// What one run takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    pub commands: u64,
    /// Nanoseconds that its commands take one after the other, as the device's rates estimate it.
    pub ns: u64,
    /// Nanoseconds that barriers between them take, which runs side by side share.
    pub barriers_ns: u64,
    /// Bytes of tables in memory for the arguments of its kernels.
    pub table_bytes: u64,
    /// Memory for intermediate results.
    pub arena_bytes: u64,
}

impl Executable {
    /// What a run takes, without what waits.
    pub(crate) fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        let rates = self.engine.stream().rates();
        for step in &self.steps {
            let Step::Batch(batch) = step else { continue };
            cost.arena_bytes = cost.arena_bytes.max(batch.schedule.places.arena_bytes);
            cost.barriers_ns +=
                rates.barrier_ns * (1 + batch.schedule.barriers.iter().filter(|&&waits| waits).count() as u64);
            for command in &batch.schedule.commands {
                cost.commands += 1;
                cost.ns = cost.ns.saturating_add(rates.ns(command.work));
                cost.table_bytes += 4 * table_words(command) as u64;
            }
        }
        cost
    }

    /// Records a run for each lane. `reads` and `writes` are the memory of all lanes. Of `arena` each lane
    /// takes the bytes that [`Executable::cost`] says.
    ///
    /// # Errors
    /// `InvalidProgram` for an executable that waits or was not compiled for this, and for lanes that lack something.
    pub(crate) fn run_side_by_side<'a>(
        &'a self,
        arena: Option<&'a Arc<Buffer>>,
        lanes: &'a [Lane<'a>],
        reads: &[&Buffer],
        writes: &[&Buffer],
    ) -> Result<()> {
        let batch = match &self.steps[..] {
            [] => return Ok(()),
            [Step::Batch(batch)] => batch,
            _ => return Err(invalid("waits".to_string())),
        };
        let is_own = |memory: &Memory, own: u32| matches!(memory, Memory::Own(i) if *i == own);
        let mut runs: Vec<Slots<'_>> = Vec::with_capacity(lanes.len());
        for (lane, begin) in lanes.iter().zip((0..).step_by(batch.schedule.places.arena_bytes.max(1) as usize)) {
            let place = |memory: &'a Memory| {
                let output = |own: u32| {
                    let output = self.outputs.iter().position(|value| is_own(&value.memory, own));
                    output.and_then(|k| lane.outputs.get(k)).copied()
                };
                let found = match memory {
                    Memory::Bound(i) => lane.inputs.get(*i as usize).copied(),
                    Memory::Own(own) => output(*own),
                    Memory::Within(own, within) => output(*own).map(|(buffer, begin)| (buffer, begin + within)),
                    Memory::Arena(at) => arena.map(|arena| (&**arena, begin + at)),
                    Memory::Real(buffer) => Some((&**buffer, 0)),
                };
                found.ok_or_else(|| invalid(format!("{memory:?} is not there")))
            };
            runs.push(batch.slots.iter().map(place).collect::<Result<Slots<'_>>>()?);
        }
        let constants = batch.constants.iter().map(|buffer| &**buffer);
        self.engine.replay(&Replay {
            commands: &batch.schedule.commands,
            chosen: None,
            barriers: &batch.schedule.barriers,
            runs: &runs.iter().map(|slots| &slots[..]).collect::<Vec<_>>(),
            reads: &reads.iter().copied().chain(constants).collect::<Vec<&Buffer>>(),
            writes: &writes.iter().copied().chain(arena.map(|arena| &**arena)).collect::<Vec<&Buffer>>(),
        })
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidProgram { op: "program".to_string(), reason }
}

//! Recording of what was prepared before: many commands under one lock, with barriers that are known already.

use std::sync::Arc;

use ash::vk;
use nx_vulkan_ir::Result;
use smallvec::SmallVec;

use super::barriers::{COUNTING_ACCESS, COUNTING_STAGES, DEVICE_ACCESS, DEVICE_STAGES};
use super::{Recorder, RecorderGuard, Stream};
use crate::capture::{Action, Command, Gate};
use crate::memory::Buffer;
use crate::profile::Measured;

/// Commands recorded under one lock, and words of their tables: others get their turn in between.
pub(super) const CHUNK_COMMANDS: usize = 256;
const CHUNK_TABLE_WORDS: usize = 32 << 10;
/// Time that they take: a submission may be full behind them.
const CHUNK_NS: u64 = super::MAX_HELD_NS / 8;

/// Where the buffers of a run lie, by their numbers in the commands: memory and offset in bytes. Those of most programs
/// take no allocation, which are a tenth of what a step of training takes the host where they are longer than 1 KiB.
pub type Slots<'a> = SmallVec<[(&'a Buffer, u64); 64]>;

/// A batch of commands, and where its buffers lie in each of the runs that are recorded side by side.
#[derive(Debug)]
pub struct Replay<'a> {
    /// In the order in which they are recorded.
    pub commands: &'a [Command],
    /// The places of those that are recorded; `None` for all.
    pub chosen: Option<&'a [u32]>,
    /// Whether a barrier comes before each command that is recorded.
    pub barriers: &'a [bool],
    /// No run touches what another writes.
    pub runs: &'a [&'a [(&'a Buffer, u64)]],
    /// All buffers that they read.
    pub reads: &'a [&'a Buffer],
    /// All buffers that they write.
    pub writes: &'a [&'a Buffer],
}

impl<'a> Replay<'a> {
    /// How many commands are recorded for each run.
    fn len(&self) -> usize {
        self.barriers.len().min(self.chosen.map_or(self.commands.len(), <[u32]>::len))
    }

    /// The command that is recorded at this place.
    fn command(&self, at: usize) -> &'a Command {
        &self.commands[self.chosen.map_or(at, |places| places[at] as usize)]
    }

    /// The commands that are recorded, and whether a barrier comes before each.
    fn recorded(&self) -> impl ExactSizeIterator<Item = (&'a Command, bool)> {
        (0..self.len()).map(|at| (self.command(at), self.barriers[at]))
    }
}

/// A command of a run, and what comes before it.
#[derive(Clone, Copy)]
struct Item<'a> {
    command: &'a Command,
    /// Whether a barrier does, and whether that is for words or counts that decide about launches, too.
    waits: bool,
    decides: bool,
    slots: &'a [(&'a Buffer, u64)],
}

/// Commands that are recorded under one lock.
#[derive(Default)]
struct Chunk {
    length: usize,
    /// The time that they take.
    ns: u64,
    /// Words of their tables.
    table_words: usize,
}

/// A word that decides whether what is recorded runs.
type Condition = (vk::Buffer, u64);

impl Stream {
    /// Records a batch, ordered after everything recorded before.
    ///
    /// # Safety
    /// Each command accesses elements of the batch's `reads` and `writes` alone, and barriers stand where commands pass
    /// data to one another.
    pub unsafe fn replay(&self, replay: &Replay<'_>) -> Result<()> {
        let deciding = deciding(replay.recorded());
        // Each command for all runs: between two barriers nothing depends on anything else.
        let runs = replay.runs.len();
        let item = |n: usize| {
            let (at, run) = if runs == 1 { (n, 0) } else { (n / runs, n % runs) };
            Item {
                command: replay.command(at),
                waits: run == 0 && replay.barriers[at],
                decides: deciding.get(at) == Some(&true),
                slots: replay.runs[run],
            }
        };
        let count = replay.len() * runs;
        let mut next = 0;
        while next < count {
            let Chunk { length, ns, table_words } = self.chunk((next..count).map(item));
            let chunk = (next..next + length).map(item);
            let (mut recorder, mut table_address) = match table_words {
                0 => (self.acquire()?, 0),
                _ => {
                    let mut tables = Vec::with_capacity(table_words);
                    chunk.clone().for_each(|item| push_table(&mut tables, item.command, item.slots));
                    self.acquire_with_table(&tables)?
                }
            };
            // Another thread may have lost what was recorded of it.
            self.check_contents(replay.reads.iter().chain(replay.writes).copied())?;
            if next == 0 {
                self.prepare(&mut recorder, replay.reads.iter().copied(), replay.writes.iter().copied())?;
            }
            let mut condition = None;
            for item in chunk {
                self.record(&mut recorder, item, &mut condition, &mut table_address)?;
            }
            self.change_condition(&mut recorder, &mut condition, None);
            recorder.ops += length as u32 - 1;
            recorder.ns = recorder.ns.saturating_add(ns);
            self.finish(&mut recorder, replay.reads.iter().copied(), replay.writes.iter().copied())?;
            next += length;
        }
        Ok(())
    }

    /// The next commands that are recorded at once: at least one.
    fn chunk<'a>(&self, items: impl Iterator<Item = Item<'a>>) -> Chunk {
        let mut chunk = Chunk::default();
        for Item { command, waits, slots, .. } in items.take(CHUNK_COMMANDS) {
            let work = if is_nothing(command, slots) { 0 } else { self.rates.ns(command.work) };
            let ns = chunk.ns.saturating_add(work).saturating_add(if waits { self.rates.barrier_ns } else { 0 });
            let table_words = chunk.table_words + table_words(command);
            if chunk.length > 0 && (table_words > CHUNK_TABLE_WORDS || ns > CHUNK_NS) {
                break;
            }
            chunk = Chunk { length: chunk.length + 1, ns, table_words };
        }
        chunk
    }

    /// Records a command. A `condition` is that of what was recorded before.
    fn record(
        &self,
        recorder: &mut RecorderGuard<'_>,
        Item { command, waits, decides, slots }: Item<'_>,
        condition: &mut Option<Condition>,
        table_address: &mut u64,
    ) -> Result<()> {
        let cmd = self.prepare(recorder, std::iter::empty(), std::iter::empty())?;
        if waits {
            self.wait_before(recorder, cmd, condition, decides);
        }
        match &command.action {
            Action::Launch { .. } if is_nothing(command, slots) => {
                *table_address += 4 * table_words(command) as u64;
            }
            Action::Launch { .. } => self.replay_launch(recorder, cmd, (command, slots), condition, table_address),
            Action::Fill { .. } => self.replay_fill(recorder, cmd, command, slots),
            Action::Copy { .. } => self.replay_copy(recorder, cmd, command, slots),
        }
        Ok(())
    }

    /// Records a barrier. Launches behind it may be ones about which memory `decides`.
    fn wait_before(
        &self,
        recorder: &mut RecorderGuard<'_>,
        cmd: vk::CommandBuffer,
        condition: &mut Option<Condition>,
        decides: bool,
    ) {
        // Drivers may ask a word before each launch.
        recorder.asked_words |= condition.is_some();
        let (mut stages, mut access) = (DEVICE_STAGES, DEVICE_ACCESS);
        if decides {
            (stages, access) = (stages | COUNTING_STAGES, access | COUNTING_ACCESS);
            if self.open.caps.conditional_rendering {
                stages |= vk::PipelineStageFlags::CONDITIONAL_RENDERING_EXT;
                access |= vk::AccessFlags::CONDITIONAL_RENDERING_READ_EXT;
            }
            self.change_condition(recorder, condition, None);
        }
        self.barrier_before(recorder, cmd, stages, access);
    }

    fn replay_launch(
        &self,
        recorder: &mut RecorderGuard<'_>,
        cmd: vk::CommandBuffer,
        (command, slots): (&Command, &[(&Buffer, u64)]),
        condition: &mut Option<Condition>,
        table_address: &mut u64,
    ) {
        let Action::Launch { pipeline, words, is_table, groups, gate, .. } = &command.action else { return };
        let in_memory = |buffer: u32, offset_bytes: u64| {
            slots.get(buffer as usize).map(|(buffer, at)| {
                let block = buffer.block();
                (block.handle, block.offset + at + offset_bytes)
            })
        };
        let (asked, counts) = match *gate {
            Gate::Open | Gate::Always => (None, None),
            Gate::Word { buffer, offset_bytes } => match in_memory(buffer, offset_bytes) {
                Some(word) => (Some(word), None),
                None => return,
            },
            Gate::Counts { buffer, offset_bytes } => match in_memory(buffer, offset_bytes) {
                Some(counts) => (None, Some(counts)),
                None => return,
            },
        };
        self.change_condition(recorder, condition, asked);
        self.bind(recorder, cmd, pipeline);
        let mut params = [0u32; super::MAX_PARAM_WORDS];
        let count = if *is_table { 2 } else { words.len().min(params.len()) };
        if *is_table {
            params[0] = *table_address as u32;
            params[1] = (*table_address >> 32) as u32;
            *table_address += words.len().next_multiple_of(4) as u64 * 4;
        } else {
            params[..count].copy_from_slice(&words[..count]);
            patch(&mut params[..count], command, slots);
        }
        let [x, y, z] = *groups;
        let fns = &self.open.device.fns().v1_0;
        let measures = self.begin_measure(recorder, cmd);
        // SAFETY: the command buffer is recording and the pipeline bound; push size and group counts were checked
        // against pipeline and device when the command was made (VUID-vkCmdPushConstants-offset-01795,
        // VUID-vkCmdDispatch-groupCountX-00386). Counts in memory are those or 0, written before a barrier, at a
        // multiple of 4 within a block made for it (VUID-vkCmdDispatchIndirect-buffer-02709, -offset-02710,
        // -offset-00407).
        unsafe {
            if count > 0 {
                (fns.cmd_push_constants)(
                    cmd,
                    pipeline.layout(),
                    vk::ShaderStageFlags::COMPUTE,
                    0,
                    (count * 4) as u32,
                    params.as_ptr().cast(),
                );
            }
            match counts {
                None => (fns.cmd_dispatch)(cmd, x, y, z),
                Some((buffer, offset)) => (fns.cmd_dispatch_indirect)(cmd, buffer, offset),
            }
        }
        if measures {
            self.end_measure(recorder, Measured::Kernel(Arc::clone(pipeline)), command.work);
        }
        recorder.counters.dispatches += 1;
    }

    fn replay_fill(
        &self,
        recorder: &mut RecorderGuard<'_>,
        cmd: vk::CommandBuffer,
        command: &Command,
        slots: &[(&Buffer, u64)],
    ) {
        let Action::Fill { offset_bytes, size_bytes, word } = &command.action else { return };
        let Some((buffer, at)) = place(slots, command.written()) else { return };
        let block = buffer.block();
        let fns = &self.open.device.fns().v1_0;
        let measures = self.begin_measure(recorder, cmd);
        // SAFETY: offset and size are multiples of 4 within the block (VUID-vkCmdFillBuffer-dstOffset-00024,
        // -size-00026, -00028).
        unsafe {
            (fns.cmd_fill_buffer)(cmd, block.handle, block.offset + at + offset_bytes, *size_bytes, *word);
        }
        if measures {
            self.end_measure(recorder, Measured::Fill, command.work);
        }
        recorder.counters.transfers += 1;
    }

    fn replay_copy(
        &self,
        recorder: &mut RecorderGuard<'_>,
        cmd: vk::CommandBuffer,
        command: &Command,
        slots: &[(&Buffer, u64)],
    ) {
        let Action::Copy { from_bytes, to_bytes, size_bytes } = &command.action else { return };
        let Some((to, to_at)) = place(slots, command.written()) else { return };
        let real = || command.real_read().map(|buffer| (&**buffer, 0));
        let Some((from, from_at)) = place(slots, command.read()).or_else(real) else { return };
        let (from, to) = (from.block(), to.block());
        let region = vk::BufferCopy {
            src_offset: from.offset + from_at + from_bytes,
            dst_offset: to.offset + to_at + to_bytes,
            size: *size_bytes,
        };
        let fns = &self.open.device.fns().v1_0;
        let measures = self.begin_measure(recorder, cmd);
        // SAFETY: both ranges lie within their buffers and don't overlap (VUID-vkCmdCopyBuffer-size-00115, -00116,
        // -pRegions-00117); the size is not 0.
        unsafe {
            (fns.cmd_copy_buffer)(cmd, from.handle, to.handle, 1, &region);
        }
        if measures {
            self.end_measure(recorder, Measured::Copy, command.work);
        }
        recorder.counters.transfers += 1;
    }

    /// Makes what is recorded from now on run where a word in memory is not 0, or always.
    fn change_condition(&self, recorder: &mut Recorder, condition: &mut Option<Condition>, wanted: Option<Condition>) {
        let Some(cmd) = recorder.current.as_ref().map(|slot| slot.cmd()).filter(|_| *condition != wanted) else {
            return;
        };
        let fns = &self.open.device.fns().ext_conditional_rendering;
        // SAFETY: the command buffer is recording, the extension enabled where a launch has a word, and one that began
        // ends in the same command buffer. The word lies at a multiple of 4 in a buffer that may have such words
        // (VUID-VkConditionalRenderingBeginInfoEXT-buffer-01982, -offset-01983, -offset-01984), and a barrier stands
        // before it.
        unsafe {
            if condition.is_some() {
                (fns.cmd_end_conditional_rendering_ext)(cmd);
                recorder.asked_words = true;
            }
            if let Some((buffer, offset)) = wanted {
                let begin = vk::ConditionalRenderingBeginInfoEXT::default().buffer(buffer).offset(offset);
                (fns.cmd_begin_conditional_rendering_ext)(cmd, &begin);
            }
        }
        *condition = wanted;
    }
}

/// The memory that a run has in the place of a buffer, and the byte in it where that begins.
fn place<'a>(slots: &[(&'a Buffer, u64)], buffer: Option<u32>) -> Option<(&'a Buffer, u64)> {
    slots.get(buffer? as usize).copied()
}

/// Whether a command copies something to where it is.
fn is_nothing(command: &Command, slots: &[(&Buffer, u64)]) -> bool {
    let address = |buffer: Option<u32>| place(slots, buffer).map(|(buffer, at)| buffer.address() + at);
    let places = address(command.read()).zip(address(command.written()));
    command.copies_in_place() && places.is_some_and(|(from, to)| from == to)
}

/// The barriers that launches stand behind about which a buffer decides that none before them has asked: for each
/// command, whether such a one comes before it; nothing where there are no such launches.
fn deciding<'a>(commands: impl ExactSizeIterator<Item = (&'a Command, bool)>) -> Vec<bool> {
    let count = commands.len();
    let mut deciding: Vec<bool> = Vec::new();
    let mut known: SmallVec<[u32; 4]> = SmallVec::new();
    let mut barrier = 0;
    for (i, (command, waits)) in commands.enumerate() {
        if waits {
            barrier = i;
        }
        if let Some(buffer) = command.decided_by().filter(|buffer| !known.contains(buffer)) {
            known.push(buffer);
            deciding.resize(count, false);
            deciding[barrier] = true;
        }
    }
    deciding
}

/// Words that a command takes of the tables in memory.
pub fn table_words(command: &Command) -> usize {
    match &command.action {
        Action::Launch { words, is_table: true, .. } => words.len().next_multiple_of(4),
        Action::Launch { is_table: false, .. } | Action::Fill { .. } | Action::Copy { .. } => 0,
    }
}

/// Appends the words of a launch's table, filled up to 16 bytes; none where it has none.
fn push_table(tables: &mut Vec<u32>, command: &Command, slots: &[(&Buffer, u64)]) {
    let Action::Launch { words, is_table: true, .. } = &command.action else { return };
    let begin = tables.len();
    tables.extend_from_slice(words);
    patch(&mut tables[begin..], command, slots);
    tables.resize(begin + table_words(command), 0);
}

/// Puts the addresses of this run into a launch's words.
fn patch(words: &mut [u32], command: &Command, slots: &[(&Buffer, u64)]) {
    let Action::Launch { patches, .. } = &command.action else { return };
    for patch in patches {
        let Some((buffer, at)) = slots.get(patch.buffer as usize) else { continue };
        let address = buffer.address() + at + patch.offset_bytes;
        if let Some([low, high]) = words.get_mut(patch.word as usize..patch.word as usize + 2) {
            *low = address as u32;
            *high = (address >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::device::{OpenDevice, Validation};
    use crate::kernel::{Interface, Pipeline, PipelineKey, Waits};

    #[test]
    fn barriers_are_for_words_that_nobody_has_asked() {
        let open = OpenDevice::shared(None, Validation::On, nx_vulkan_spirv::lower::Lacks::default(), false)
            .expect("a Vulkan device");
        let interface = Interface::Addresses { push_bytes: 32 };
        let pipeline = Arc::new(Pipeline::without_handle(&open, PipelineKey::new(&[], &[], interface), interface));
        let command = |gate: Gate| Command {
            action: Action::Launch {
                pipeline: Arc::clone(&pipeline),
                words: Vec::new(),
                is_table: false,
                groups: [1; 3],
                gate,
                patches: smallvec![],
            },
            work: None,
            reads: smallvec![],
            writes: smallvec![],
            waits: Waits::All,
            in_place: smallvec![],
            copied_bytes: None,
        };
        let word = |buffer: u32| command(Gate::Word { buffer, offset_bytes: 0 });
        let counts = |buffer: u32| command(Gate::Counts { buffer, offset_bytes: 0 });
        let found = |commands: &[Command], barriers: &[u8]| {
            let waits = barriers.iter().map(|&waits| waits == 1);
            deciding(commands.iter().zip(waits)).iter().map(|&decides| u8::from(decides)).collect::<Vec<u8>>()
        };
        let open = || command(Gate::Open);
        assert_eq!(found(&[open(), open()], &[0, 1]), [0u8; 0]);
        // The launch that asks is the last of its level, and those behind it ask again.
        assert_eq!(found(&[open(), open(), word(7), word(7)], &[0, 1, 0, 1]), [0, 1, 0, 0]);
        // Two words of one level, and one of a later one; counts likewise.
        assert_eq!(found(&[open(), word(1), word(2), open(), word(3)], &[0, 1, 0, 1, 1]), [0, 1, 0, 0, 1]);
        assert_eq!(found(&[open(), counts(1), word(2)], &[0, 1, 1]), [0, 1, 1]);
    }
}

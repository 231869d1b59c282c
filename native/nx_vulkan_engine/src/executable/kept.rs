//! Copies of inputs in other layouts and types, as matrix units and windows read them, which a program makes of the
//! same weights in every run: they are kept with the memory of an input that comes again while others change.
//!
//! They go with that memory, when something writes it, and when memory is short.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use nx_vulkan_device::capture::{Action, BufferRef, Command, CopyMade, Gate};
use nx_vulkan_device::memory::{Buffer, CopyBuffers, CopyForm};
use smallvec::SmallVec;

use super::zeros::fills_at_once;
use super::{Batch, Memory, Run};
use crate::Tensor;

/// A buffer of a copy.
#[derive(Debug, Clone, Copy)]
struct KeptBuffer {
    /// Its number in the commands.
    id: u32,
    size_bytes: u64,
    /// Whether it is zeros before the copy is made.
    is_zeroed: bool,
}

/// A copy that a batch makes of an input, which alone decides what is in it.
#[derive(Debug)]
pub(super) struct Kept {
    /// The number of the input.
    input: u32,
    form: CopyForm,
    parts: SmallVec<[KeptBuffer; 2]>,
    /// The places of the commands that make it.
    commands: Vec<u32>,
}

/// What is left of a batch where copies are there already.
#[derive(Debug)]
struct Left {
    /// Of each copy, whether it is.
    there: Vec<bool>,
    /// The places of the commands that run, and whether a barrier comes before each.
    commands: Vec<u32>,
    barriers: Vec<bool>,
}

/// The copies of a batch that may be kept.
#[derive(Debug, Default)]
pub(super) struct KeptCopies {
    all: Vec<Kept>,
    /// What the last run left.
    last: Mutex<Option<Arc<Left>>>,
}

/// Which inputs come again from run to run.
#[derive(Debug, Default)]
pub(super) struct Recurring(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// The numbers of the buffers of the run before, and where in these the inputs began.
    last: Vec<(u64, u64)>,
    again: Vec<bool>,
}

/// Where a run has the copies of a batch.
#[derive(Debug, Default)]
pub(super) struct KeptBuffers {
    /// By their numbers in the commands.
    buffers: Vec<Option<Arc<Buffer>>>,
    left: Option<Arc<Left>>,
    /// The places of those in the batch's list that the run makes, to be kept, with the versions of their inputs.
    made: Vec<(usize, u64, CopyBuffers)>,
}

impl KeptCopies {
    /// Of the copies that a program makes, those of a batch whose input alone decides what is in them. `commands` and
    /// `slots` are the batch's, `wholes` buffers in which others lie; `number` gives a buffer's number in them, and
    /// `input` that of an input that nothing writes.
    pub fn of(
        made: &[CopyMade],
        commands: &[Command],
        slots: &[Memory],
        (sizes, wholes): (&[u64], &HashSet<u32>),
        number: impl Fn(u32) -> Option<u32>,
        input: impl Fn(u32) -> Option<u32>,
    ) -> KeptCopies {
        let mut writers: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut readers: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, command) in commands.iter().enumerate() {
            command.writes.iter().filter_map(BufferRef::id).for_each(|id| writers.entry(id).or_default().push(at));
            command.reads.iter().filter_map(BufferRef::id).for_each(|id| readers.entry(id).or_default().push(at));
        }
        let fills = commands.iter().filter(|command| fills_at_once(command));
        let zeroed: HashSet<u32> = fills.flat_map(|command| &command.writes).filter_map(BufferRef::id).collect();
        let kept = |copy: &CopyMade| {
            let (source, input) = (number(copy.source)?, input(copy.source)?);
            let part = |&copied: &u32| {
                let (id, size_bytes) = (number(copied)?, *sizes.get(copied as usize)?);
                Some(KeptBuffer { id, size_bytes, is_zeroed: zeroed.contains(&id) })
            };
            let parts: SmallVec<[KeptBuffer; 2]> = copy.buffers.iter().map(part).collect::<Option<_>>()?;
            let own: SmallVec<[u32; 2]> = parts.iter().map(|part| part.id).collect();
            let is_own = |id: &u32| matches!(slots.get(*id as usize), Some(Memory::Arena(_) | Memory::Within(..)));
            let mut makers: Vec<usize> =
                own.iter().flat_map(|id| writers.get(id).into_iter().flatten()).copied().collect();
            makers.retain(|&at| !fills_at_once(&commands[at]));
            makers.sort_unstable();
            makers.dedup();
            let is_alone = |command: &Command| {
                let is_known = |place: &BufferRef| place.id().is_none_or(|id| id == source || own.contains(&id));
                runs_always(command)
                    && command.reads.iter().all(is_known)
                    && command.writes.iter().filter_map(BufferRef::id).all(|id| own.contains(&id))
            };
            // A part of something larger is read where that lies, by those who know nothing of it.
            let is_named = |id: &u32| readers.get(id).into_iter().flatten().all(|&at| names(&commands[at], *id));
            // Whoever reads it finds all of it.
            let is_made_before = own
                .iter()
                .flat_map(|id| readers.get(id).into_iter().flatten())
                .all(|at| makers.contains(at) || makers.last() < Some(at));
            let is_kept = !makers.is_empty()
                && !writers.contains_key(&source)
                && own.iter().all(is_own)
                && own.iter().all(is_named)
                && !copy.buffers.iter().any(|id| wholes.contains(id))
                && is_made_before
                && makers.iter().all(|&at| is_alone(&commands[at]));
            let commands = makers.into_iter().map(|at| at as u32).collect();
            is_kept.then(|| Kept { input, form: copy.form.clone(), parts, commands })
        };
        KeptCopies { all: made.iter().filter_map(kept).collect(), last: Mutex::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all of them.
    pub fn size_bytes(&self) -> u64 {
        self.all.iter().flat_map(|kept| &kept.parts).map(|part| part.size_bytes).sum()
    }

    /// What is left of a batch with these barriers.
    fn left(&self, there: Vec<bool>, barriers: &[bool]) -> Arc<Left> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = last.as_ref().filter(|left| left.there == there) {
            return Arc::clone(left);
        }
        let done = self.all.iter().zip(&there).filter(|(_, there)| **there);
        let done: HashSet<u32> = done.flat_map(|(kept, _)| &kept.commands).copied().collect();
        let mut left = Left { there, commands: Vec::new(), barriers: Vec::new() };
        let mut waits = false;
        for (at, &barrier) in (0..).zip(barriers) {
            waits |= barrier;
            if !done.contains(&at) {
                left.commands.push(at);
                left.barriers.push(std::mem::take(&mut waits));
            }
        }
        Arc::clone(last.insert(Arc::new(left)))
    }
}

impl Kept {
    /// Where in the memory of an input what is copied begins.
    fn offset_in(&self, input: &Tensor) -> u64 {
        input.view.offset_bytes() + self.form.offset_bytes
    }
}

impl KeptBuffers {
    /// Where a buffer of the commands lies, if it is of a copy that is there or is made to be kept.
    pub fn get(&self, id: u32) -> Option<&Arc<Buffer>> {
        self.buffers.get(id as usize)?.as_ref()
    }

    /// Those that the run writes.
    pub fn made(&self) -> impl Iterator<Item = &Arc<Buffer>> {
        self.made.iter().flat_map(|(_, _, buffers)| buffers)
    }

    /// Those that are there.
    pub fn found(&self) -> impl Iterator<Item = &Arc<Buffer>> {
        self.buffers.iter().flatten().filter(|buffer| !self.made().any(|made| Arc::ptr_eq(made, buffer)))
    }

    /// The places of the commands that are left to run, and whether a barrier comes before each; none where all are.
    pub fn left(&self) -> Option<(&[u32], &[bool])> {
        self.left.as_ref().map(|left| (&left.commands[..], &left.barriers[..]))
    }
}

/// Whether nothing decides about a command.
fn runs_always(command: &Command) -> bool {
    match &command.action {
        Action::Launch { gate, .. } => *gate == Gate::Open,
        Action::Fill { .. } | Action::Copy { .. } => true,
    }
}

/// Whether a command has the address of a buffer.
fn names(command: &Command, id: u32) -> bool {
    match &command.action {
        Action::Launch { patches, .. } => patches.iter().any(|patch| patch.buffer == id),
        Action::Fill { .. } => false,
        Action::Copy { .. } => command.read() == Some(id),
    }
}

impl Recurring {
    /// Notes the inputs of a run. Answers which of them are those of the run before, where others are not, or were when
    /// others changed last.
    pub fn note(&self, inputs: &[Option<Tensor>]) -> Vec<bool> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *seen;
        let now = |tensor: &Option<Tensor>| tensor.as_ref().map_or((0, 0), |t| (t.buffer.id(), t.view.offset_bytes()));
        if seen.last.len() != inputs.len() {
            seen.last = inputs.iter().map(now).collect();
            seen.again = vec![false; inputs.len()];
        } else if inputs.iter().zip(&seen.last).any(|(tensor, last)| now(tensor) != *last) {
            for ((tensor, last), again) in inputs.iter().zip(&mut seen.last).zip(&mut seen.again) {
                let now = now(tensor);
                *again = now == *last;
                *last = now;
            }
        }
        seen.again.clone()
    }
}

impl Run<'_> {
    /// The copies of a batch that are there, and memory for those that had better be from now on.
    pub(super) fn kept(&self, batch: &Batch) -> KeptBuffers {
        let mut kept = KeptBuffers { buffers: vec![None; batch.slots.len()], ..KeptBuffers::default() };
        let mut there = Vec::with_capacity(batch.kept.all.len());
        for (at, copy) in batch.kept.all.iter().enumerate() {
            let comes_again = self.recurring.get(copy.input as usize) == Some(&true);
            let input = self.bound.get(copy.input as usize).and_then(Option::as_ref).filter(|_| comes_again);
            let found =
                input.and_then(|input| self.engine.kept_copy(&input.buffer, copy.offset_in(input), &copy.form.form));
            there.push(found.is_some());
            let room = || {
                let sizes: SmallVec<[u64; 2]> = copy.parts.iter().map(|part| part.size_bytes).collect();
                let version = input?.buffer.version();
                let buffers = self.engine.room_for_copy(&input?.buffer, &sizes)?;
                let mut zeroed = copy.parts.iter().zip(&buffers).filter(|(part, _)| part.is_zeroed);
                zeroed.try_for_each(|(part, buffer)| self.engine.fill(buffer, 0, part.size_bytes, 0)).ok()?;
                kept.made.push((at, version, buffers.clone()));
                Some(buffers)
            };
            if let Some(buffers) = found.or_else(room) {
                for (part, buffer) in copy.parts.iter().zip(buffers) {
                    if let Some(place) = kept.buffers.get_mut(part.id as usize) {
                        *place = Some(buffer);
                    }
                }
            }
        }
        if there.contains(&true) {
            kept.left = Some(batch.kept.left(there, &batch.schedule.barriers));
        }
        kept
    }

    /// Keeps what a run has made.
    pub(super) fn keep(&self, batch: &Batch, kept: &KeptBuffers) {
        for (at, version, buffers) in &kept.made {
            let Some(copy) = batch.kept.all.get(*at) else { continue };
            if let Some(input) = self.bound.get(copy.input as usize).and_then(Option::as_ref) {
                let form = CopyForm { offset_bytes: copy.offset_in(input), ..copy.form.clone() };
                self.engine.keep_copy(&input.buffer, *version, form, buffers.clone());
            }
        }
    }
}

//! What ops record while a program is compiled: commands on buffers that have no memory yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nx_vulkan_ir::{Error, Result};
use smallvec::SmallVec;

use crate::kernel::{Launch, Pipeline, Waits};
use crate::memory::{Buffer, CopyForm, DevicePool};
use crate::work::Work;

/// Addresses of buffers without memory: above all that devices have, 2^40 bytes for each of 2^19 buffers.
const FIRST_ADDRESS: u64 = 1 << 63;
const BUFFER_SHIFT: u32 = 40;
const MAX_BUFFERS: usize = 1 << 19;

/// The number of the buffer without memory of an address, and where in it that is.
fn buffer_of(address: u64) -> Option<(u32, u64)> {
    let place = address.checked_sub(FIRST_ADDRESS)?;
    Some(((place >> BUFFER_SHIFT) as u32, place & ((1 << BUFFER_SHIFT) - 1)))
}

/// A buffer that a command touches: one without memory by its number, or memory that is there already.
#[derive(Debug, Clone)]
pub enum BufferRef {
    /// Of the capture, by number.
    Virtual(u32),
    /// One that exists.
    Real(Arc<Buffer>),
}

impl BufferRef {
    /// The place that stands for a buffer.
    pub fn of(buffer: &Arc<Buffer>) -> BufferRef {
        buffer.virtual_id().map_or_else(|| BufferRef::Real(Arc::clone(buffer)), BufferRef::Virtual)
    }

    /// Its number, if it is of the capture.
    pub fn id(&self) -> Option<u32> {
        match self {
            BufferRef::Virtual(id) => Some(*id),
            BufferRef::Real(_) => None,
        }
    }
}

/// Two words of a launch that are an address within a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// Which word of the parameters, of the two of an address the first.
    pub word: u32,
    /// The number of the buffer.
    pub buffer: u32,
    /// How far behind its beginning the address is.
    pub offset_bytes: u64,
}

/// What decides whether a launch runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Nothing yet: it runs, unless it becomes part of a branch.
    Open,
    /// Nothing, ever: it decides about others.
    Always,
    /// Its three group counts are in a buffer, and are 0 where it does not run.
    Counts {
        /// The number of the buffer.
        buffer: u32,
        /// Where in it they lie.
        offset_bytes: u64,
    },
    /// A word in a buffer, which is 0 where it does not run, on devices with `Caps::conditional_rendering`.
    Word {
        /// The number of the buffer.
        buffer: u32,
        /// Where in it the word lies, a multiple of 4.
        offset_bytes: u64,
    },
}

impl Gate {
    /// The number of the buffer that decides.
    pub fn buffer(&self) -> Option<u32> {
        match *self {
            Gate::Open | Gate::Always => None,
            Gate::Counts { buffer, .. } | Gate::Word { buffer, .. } => Some(buffer),
        }
    }
}

/// What is done.
#[derive(Debug, Clone)]
pub enum Action {
    /// A kernel runs.
    Launch {
        /// The compiled kernel.
        pipeline: Arc<Pipeline>,
        /// Push constants, or a table in memory.
        words: Vec<u32>,
        /// Whether parameters go through a table in memory.
        is_table: bool,
        /// Workgroups.
        groups: [u32; 3],
        /// What decides how many of them run.
        gate: Gate,
        /// Which words are addresses of buffers of the capture.
        patches: SmallVec<[Patch; 4]>,
    },
    /// Memory is filled with a word.
    Fill {
        /// Where it begins.
        offset_bytes: u64,
        /// How much.
        size_bytes: u64,
        /// The word.
        word: u32,
    },
    /// Memory is copied.
    Copy {
        /// Where it begins in the source.
        from_bytes: u64,
        /// Where it begins in the destination.
        to_bytes: u64,
        /// How much.
        size_bytes: u64,
    },
}

/// What is recorded at once. Fills and copies write the first place of `writes`, in which the others lie, copies read
/// the only one of `reads` besides.
#[derive(Debug, Clone)]
pub struct Command {
    /// What is done.
    pub action: Action,
    /// What it moves and computes, where that is counted.
    pub work: Option<Work>,
    /// Buffers that it reads.
    pub reads: SmallVec<[BufferRef; 4]>,
    /// Buffers that it writes.
    pub writes: SmallVec<[BufferRef; 2]>,
    /// What it waits for.
    pub waits: Waits,
    /// Buffers that it reads and writes of which the second may have the first one's memory, if nothing reads that
    /// later.
    pub in_place: SmallVec<[(u32, u32); 1]>,
    /// How many bytes it writes, where these are what it reads, in one order without gaps.
    pub copied_bytes: Option<u64>,
}

/// What a copy in another layout or form is of, and in which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyKey {
    /// Where the copied elements begin.
    pub address: u64,
    /// All else that it depends on: types, sizes, strides, what is added.
    pub form: String,
}

/// A copy that commands make of a buffer of the capture.
#[derive(Debug, Clone)]
pub struct CopyMade {
    /// The number of the buffer.
    pub source: u32,
    /// What the copy is of it.
    pub form: CopyForm,
    /// The numbers of the buffers that the copy has.
    pub buffers: SmallVec<[u32; 2]>,
}

#[derive(Debug)]
struct Copied {
    key: CopyKey,
    buffers: SmallVec<[Arc<Buffer>; 2]>,
    /// Commands before it.
    mark: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Sizes of the buffers in bytes.
    sizes: Vec<u64>,
    commands: Vec<Command>,
    /// Copies that later ops may read, too.
    copies: Vec<Copied>,
    /// All that were made of buffers of the capture.
    made: Vec<CopyMade>,
    /// Whether each op makes its own.
    is_unshared: bool,
}

/// The list of a capturing engine.
#[derive(Debug, Default)]
pub struct Capture(Mutex<State>);

impl Capture {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of the capture, of so many bytes: a number in the place of an address.
    pub fn alloc(&self, size_bytes: u64, pool: &Arc<DevicePool>) -> Result<Arc<Buffer>> {
        let mut state = self.lock();
        let id = state.sizes.len();
        let limit_bytes = pool.largest_bytes().min((1 << BUFFER_SHIFT) - 1);
        if size_bytes > limit_bytes {
            return Err(Error::TooLarge { size_bytes, limit_bytes });
        }
        if id >= MAX_BUFFERS {
            let reason = format!("more than {MAX_BUFFERS} intermediate results");
            return Err(Error::InvalidProgram { op: "program".to_string(), reason });
        }
        state.sizes.push(size_bytes);
        let address = FIRST_ADDRESS | (id as u64) << BUFFER_SHIFT;
        Ok(Arc::new(Buffer::without_memory(id as u32, address, size_bytes, Arc::clone(pool))))
    }

    /// Notes a launch.
    pub fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let words = launch.table.unwrap_or(launch.params).to_vec();
        let mut patches = SmallVec::new();
        for &word in launch.addresses {
            let pair = words.get(word as usize..word as usize + 2).unwrap_or_default();
            let [low, high] = *pair else { continue };
            let address = u64::from(low) | u64::from(high) << 32;
            let place = buffer_of(address);
            patches.extend(place.map(|(buffer, offset_bytes)| Patch { word, buffer, offset_bytes }));
        }
        let id = |place: usize| {
            let written = || launch.writes.get(place.checked_sub(launch.reads.len())?);
            launch.reads.get(place).or_else(written)?.virtual_id()
        };
        let in_place = launch.in_place.iter().filter_map(|&(read, written)| Some((id(read)?, id(written)?))).collect();
        self.lock().commands.push(Command {
            action: Action::Launch {
                pipeline: Arc::clone(launch.pipeline),
                words,
                is_table: launch.table.is_some(),
                groups: launch.groups,
                gate: Gate::Open,
                patches,
            },
            work: launch.work,
            reads: launch.reads.iter().map(|b| BufferRef::of(b)).collect(),
            writes: launch.writes.iter().map(|b| BufferRef::of(b)).collect(),
            waits: launch.waits,
            in_place,
            copied_bytes: launch.copied_bytes,
        });
        Ok(())
    }

    /// Notes a fill.
    pub fn fill(&self, dst: &Arc<Buffer>, offset_bytes: u64, size_bytes: u64, word: u32) -> Result<()> {
        if size_bytes > 0 {
            let action = Action::Fill { offset_bytes, size_bytes, word };
            let writes = SmallVec::from_iter([BufferRef::of(dst)]);
            let work = Work { written_bytes: size_bytes, flops: Some(0), ..Work::default() };
            self.lock().commands.push(Command {
                action,
                work: Some(work),
                reads: SmallVec::new(),
                writes,
                waits: Waits::All,
                in_place: SmallVec::new(),
                copied_bytes: None,
            });
        }
        Ok(())
    }

    /// Notes a copy.
    pub fn copy(
        &self,
        src: &Arc<Buffer>,
        from_bytes: u64,
        dst: &Arc<Buffer>,
        to_bytes: u64,
        size_bytes: u64,
    ) -> Result<()> {
        self.lock().commands.push(Command {
            action: Action::Copy { from_bytes, to_bytes, size_bytes },
            work: Some(Work { read_bytes: size_bytes, written_bytes: size_bytes, flops: Some(0), longest: 0 }),
            reads: SmallVec::from_iter([BufferRef::of(src)]),
            writes: SmallVec::from_iter([BufferRef::of(dst)]),
            waits: Waits::All,
            in_place: SmallVec::new(),
            copied_bytes: None,
        });
        Ok(())
    }

    /// The buffers of the copy that was noted for a key, if what it is of has not been written since.
    pub fn copied(&self, key: &CopyKey) -> Option<SmallVec<[Arc<Buffer>; 2]>> {
        let state = self.lock();
        let source = buffer_of(key.address).map(|(buffer, _)| buffer);
        let writes = |command: &Command| command.writes.iter().filter_map(BufferRef::id).any(|id| Some(id) == source);
        let is_current = |copied: &&Copied| !state.commands.iter().skip(copied.mark).any(writes);
        let mut of_key = state.copies.iter().rev().filter(|copied| copied.key == *key);
        of_key.next().filter(is_current).map(|copied| copied.buffers.clone())
    }

    /// Notes a copy that the commands from a mark on make.
    pub fn note_copy(&self, key: CopyKey, buffers: SmallVec<[Arc<Buffer>; 2]>, mark: usize) {
        let mut state = self.lock();
        if state.is_unshared {
            return;
        }
        if let Some((source, offset_bytes)) = buffer_of(key.address) {
            let form = CopyForm { offset_bytes, form: key.form.clone() };
            let numbers = buffers.iter().map(|buffer| buffer.virtual_id()).collect();
            state.made.extend(Option::map(numbers, |buffers| CopyMade { source, form, buffers }));
        }
        state.copies.push(Copied { key, buffers, mark });
    }

    /// The copies that were noted of some buffers.
    pub fn made_of(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<CopyMade> {
        self.lock().made.iter().filter(|made| is_wanted(made.source)).cloned().collect()
    }

    /// Lets each op make copies of its own, which lie in memory no longer than it takes.
    pub fn share_no_copies(&self) {
        self.lock().is_unshared = true;
    }

    /// Forgets the copies of a buffer: what follows makes copies of its own.
    pub fn forget_copies(&self, of: &Buffer) {
        let range = of.address()..of.address() + of.size_bytes();
        self.lock().copies.retain(|copied| !range.contains(&copied.key.address));
    }

    /// Lets the commands since a mark wait for these buffers, as if they read them.
    pub fn await_since(&self, mark: usize, places: &[BufferRef]) {
        self.lock().commands.iter_mut().skip(mark).for_each(|command| command.reads.extend(places.iter().cloned()));
    }

    /// The number of commands so far.
    pub fn mark(&self) -> usize {
        self.lock().commands.len()
    }

    /// Takes the commands since a mark. What follows them shares no copies of theirs: they may be those of a branch,
    /// which does not always run.
    pub fn take_since(&self, mark: usize) -> Vec<Command> {
        let mut state = self.lock();
        state.copies.retain(|copied| copied.mark < mark);
        let mark = mark.min(state.commands.len());
        state.commands.split_off(mark)
    }

    /// Puts commands at the end of the list.
    pub fn append(&self, commands: Vec<Command>) {
        self.lock().commands.extend(commands);
    }

    /// The commands since they were taken last.
    pub fn take(&self) -> Vec<Command> {
        let mut state = self.lock();
        state.copies.clear();
        std::mem::take(&mut state.commands)
    }

    /// The sizes of all buffers so far, by their numbers.
    pub fn sizes(&self) -> Vec<u64> {
        self.lock().sizes.clone()
    }
}

impl Command {
    /// The buffer without memory that a fill or copy writes.
    pub fn written(&self) -> Option<u32> {
        self.writes.first().and_then(BufferRef::id)
    }

    /// The buffer without memory that a copy reads.
    pub fn read(&self) -> Option<u32> {
        self.reads.first().and_then(BufferRef::id)
    }

    /// The memory that a copy reads.
    pub(crate) fn real_read(&self) -> Option<&Arc<Buffer>> {
        self.reads.first().and_then(|place| match place {
            BufferRef::Real(buffer) => Some(buffer),
            BufferRef::Virtual(_) => None,
        })
    }

    /// The number of the buffer that decides whether it runs.
    pub fn decided_by(&self) -> Option<u32> {
        match &self.action {
            Action::Launch { gate, .. } => gate.buffer(),
            Action::Fill { .. } | Action::Copy { .. } => None,
        }
    }

    /// Whether there is nothing to do where what it reads and what it writes have the same memory.
    pub fn copies_in_place(&self) -> bool {
        self.copied_bytes.is_some() && !self.in_place.is_empty()
    }

    /// The buffers without memory.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.reads.iter().chain(&self.writes).filter_map(BufferRef::id)
    }

    /// Gives the buffers without memory other numbers.
    pub fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        for place in self.reads.iter_mut().chain(&mut self.writes) {
            if let BufferRef::Virtual(id) = place {
                *id = number(*id);
            }
        }
        self.in_place.iter_mut().for_each(|(read, written)| (*read, *written) = (number(*read), number(*written)));
        if let Action::Launch { patches, gate, .. } = &mut self.action {
            patches.iter_mut().for_each(|patch| patch.buffer = number(patch.buffer));
            if let Gate::Counts { buffer, .. } | Gate::Word { buffer, .. } = gate {
                *buffer = number(*buffer);
            }
        }
    }
}

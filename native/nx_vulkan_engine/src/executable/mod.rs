//! A compiled program: its ops have run once on buffers without memory, and what they recorded is replayed by every
//! run, by any number of threads at once.
//!
//! A program is cut where the host must know values (loops and branches, sizes of convergence): between such *steps*,
//! all commands are one *batch*, whose intermediate results share an arena.

mod arena;
mod compile;
mod control;
mod describe;
mod donation;
mod ends;
mod kept;
mod parts;
mod peak;
mod schedule;
mod side_by_side;
mod zeros;

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use control::Looped;
pub use describe::{Described, Launched};
use donation::{Donation, Given};
use kept::{KeptBuffers, KeptCopies, Recurring};
use schedule::Schedule;
pub(crate) use side_by_side::{Cost, Lane};

use crate::eager::{self, Compile, is_true};
use crate::program::Op;
use crate::program::counted::Trips;
use crate::program::text::in_op;
use crate::{Engine, Error, Result, Tensor, Type, View};
use nx_vulkan_device::memory::Buffer;
use nx_vulkan_device::stream::{Replay, Slots};

/// Vector loads need addresses of this multiple.
pub(crate) const ALIGN_BYTES: u64 = 16;

/// Where a buffer of the program lies in a run.
#[derive(Debug, Clone)]
enum Memory {
    /// An input, or a result of a step.
    Bound(u32),
    /// Allocated by each run.
    Own(u32),
    /// At this offset of what a run allocates, before that has its own contents.
    Within(u32, u64),
    /// At this offset of the batch's arena.
    Arena(u64),
    /// Constants, which are there already.
    Real(Arc<Buffer>),
}

/// A tensor of the program.
#[derive(Debug, Clone)]
struct Value {
    memory: Memory,
    view: Arc<View>,
}

/// Commands that are recorded together.
#[derive(Debug)]
struct Batch {
    schedule: Schedule,
    /// Where the buffers lie, by their numbers in the commands.
    slots: Vec<Memory>,
    /// Of the memory that each run allocates, what the batch writes.
    written: Vec<u32>,
    constants: Vec<Arc<Buffer>>,
    /// Copies of inputs that are kept with these where they come again.
    kept: KeptCopies,
}

/// Whether a run is still wanted.
pub type GoesOn<'a> = &'a dyn Fn() -> bool;

#[derive(Debug)]
enum Work {
    Op { op: Op, outs: Vec<Type> },
    While { condition: Executable, body: Executable, state: usize, advance: Advance },
    Cond { on_true: Executable, on_false: Executable },
}

/// How the host drives a loop.
#[derive(Debug)]
enum Advance {
    /// So many times, or as often as start and end say, which are read once, or until the last state, which is read now
    /// and then, says that it is enough. The body gives the next state.
    Times(Trips),
    /// Several iterations between two looks at the condition. The body takes whether to go on after the state and gives
    /// the next state and that; where it is 0, the state stays as it is.
    Blocks,
    /// A look at the condition in each iteration. The body gives the next state and whether to go on.
    Checked,
}

#[derive(Debug)]
enum Step {
    Batch(Box<Batch>),
    /// What waits for values, with its operands. Its results are bound after those of earlier steps.
    Wait {
        work: Box<Work>,
        operands: Vec<Value>,
    },
}

/// What an executable does, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Kernel launches, fills and copies of one run; those of loops and branches are not counted.
    pub commands: u64,
    /// Barriers between them.
    pub barriers: u64,
    /// Times that the host waits for values, loops counted once.
    pub waits: u64,
    /// Memory of intermediate results.
    pub arena_bytes: u64,
    /// Memory that each run allocates besides: outputs, and what outlives a wait.
    pub own_bytes: u64,
    /// The most memory that a run takes at once besides its inputs, loops and branches that the host drives included,
    /// in blocks of the pool, where results have the memory of donated inputs.
    pub peak_bytes: u64,
    /// Of `own_bytes`, what has the memory of donated inputs that nobody else holds.
    pub donated_bytes: u64,
    /// Memory of copies of inputs in other layouts and types, which is taken besides where inputs come again from run
    /// to run while others change, and memory is not short.
    pub kept_bytes: u64,
}

/// Memory that a run allocates before a step and gives up after another.
#[derive(Debug, Clone, Copy)]
struct Own {
    size_bytes: u64,
    life: Life,
}

/// The first and the last step that need something; outputs live on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    first: usize,
    last: usize,
}

/// A program that is ready to run on one device.
#[derive(Debug)]
pub struct Executable {
    engine: Arc<Engine>,
    inputs: Vec<Type>,
    steps: Vec<Step>,
    own: Vec<Own>,
    /// Of `own`, what lies one behind the other in one piece of memory.
    together: Vec<Vec<u32>>,
    /// The last step that reads each of what runs bind, inputs and results of steps; none for outputs.
    read_last: Vec<Option<usize>>,
    /// Inputs that are donated, and what has their memory from the last step on.
    donations: Vec<Donation>,
    outputs: Vec<Value>,
    recurring: Recurring,
}

/// What a batch reads or writes.
type Buffers<'a> = SmallVec<[&'a Buffer; 64]>;

/// The memory of one run.
struct Run<'a> {
    engine: &'a Arc<Engine>,
    bound: Vec<Option<Tensor>>,
    own: Vec<Option<Arc<Buffer>>>,
    given: Given<'a>,
    /// Of each input, whether it was that of the run before; empty where that does not matter.
    recurring: Vec<bool>,
}

impl Executable {
    /// Counts what one run does.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            own_bytes: self.own.iter().map(|own| own.size_bytes).sum(),
            peak_bytes: self.peak_bytes(),
            donated_bytes: self.donated_bytes(),
            ..Summary::default()
        };
        for step in &self.steps {
            match step {
                Step::Wait { work, .. } => summary.waits += u64::from(work.reads()),
                Step::Batch(batch) => {
                    summary.commands += batch.schedule.commands.len() as u64;
                    summary.barriers += batch.schedule.barriers.iter().filter(|&&waits| waits).count() as u64;
                    summary.kept_bytes += batch.kept.size_bytes();
                    summary.arena_bytes = summary.arena_bytes.max(batch.schedule.places.arena_bytes);
                }
            }
        }
        summary
    }

    /// Whether a run may have to wait for the device, be it only because it records more than fits in the queue.
    pub fn waits(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Wait { .. }))
    }

    /// Runs the program and returns its outputs at once; the device fills them.
    ///
    /// # Errors
    /// `NeedsCompile` where the run has to wait for the device or for a kernel and `compile` refuses that.
    /// `InvalidProgram` for inputs of other types, `InvalidArgument` for those of another engine; else what the ops
    /// answer.
    pub fn run(&self, inputs: &[Tensor], compile: Compile) -> Result<Vec<Tensor>> {
        self.run_while(inputs, compile, &|| true)
    }

    /// Runs as [`Executable::run`] does for as long as `goes_on` is true: loops that the host drives ask it before each
    /// iteration.
    ///
    /// # Errors
    /// Those of [`Executable::run`], and `Stopped` where a loop was left.
    pub fn run_while(&self, inputs: &[Tensor], compile: Compile, goes_on: GoesOn<'_>) -> Result<Vec<Tensor>> {
        self.run_with(inputs, compile, goes_on, None)
    }

    /// Results have the memory of donated inputs where `spent` is there, which becomes true as soon as something may be
    /// written to that.
    fn run_with(
        &self,
        inputs: &[Tensor],
        compile: Compile,
        goes_on: GoesOn<'_>,
        spent: Option<&Cell<bool>>,
    ) -> Result<Vec<Tensor>> {
        if inputs.len() != self.inputs.len() || inputs.iter().zip(&self.inputs).any(|(t, ty)| !has_type(t, ty)) {
            let got: Vec<_> = inputs.iter().map(|t| t.view.ty()).collect();
            let reason = format!("inputs {got:?}, expected {:?}", self.inputs);
            return Err(Error::InvalidProgram { op: "program".to_string(), reason });
        }
        if compile == Compile::Refused && self.waits() {
            return Err(Error::NeedsCompile);
        }
        let engine = &self.engine;
        inputs.iter().try_for_each(|input| engine.check_owner(&input.buffer))?;
        let mut bound = Vec::with_capacity(inputs.len());
        for input in inputs {
            bound.push(Some(aligned(engine, input, compile)?));
        }
        let keeps = self.steps.iter().any(|step| matches!(step, Step::Batch(batch) if !batch.kept.is_empty()));
        let recurring = if keeps { self.recurring.note(&bound) } else { Vec::new() };
        let mut run = Run { engine, bound, own: vec![None; self.own.len()], given: Given::default(), recurring };
        if let Some(spent) = spent {
            run.give(self, inputs, spent);
        }
        for (at, step) in self.steps.iter().enumerate() {
            run.begin(self, at).map_err(|e| self.within(e))?;
            match step {
                Step::Batch(batch) => run.batch(batch).map_err(|e| self.within(e))?,
                Step::Wait { work, operands } => run.wait(work, operands, compile, goes_on)?,
            }
            run.end(self, at);
        }
        // What no step writes, as results without elements.
        run.begin(self, self.steps.len()).map_err(|e| self.within(e))?;
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for value in &self.outputs {
            outputs.push(run.tensor(value)?);
        }
        Ok(outputs)
    }
}

impl Executable {
    /// An error of the whole program's, with its types: memory that it needs is that of no op.
    fn within(&self, error: Error) -> Error {
        match error {
            Error::TooLarge { .. } | Error::OutOfMemory { .. } => Error::InOp {
                op: "program".to_string(),
                operands: self.inputs.clone(),
                outs: self.outputs.iter().map(|value| value.view.ty()).collect(),
                cause: Box::new(error),
            },
            other => other,
        }
    }
}

impl Run<'_> {
    /// Allocates what lives from a step on.
    fn begin(&mut self, executable: &Executable, at: usize) -> Result<()> {
        for members in &executable.together {
            let own: Vec<&Own> = members.iter().filter_map(|&i| executable.own.get(i as usize)).collect();
            if own.first().is_some_and(|own| own.life.first == at) {
                let sizes: Vec<u64> = own.iter().map(|own| own.size_bytes).collect();
                for (&i, buffer) in members.iter().zip(self.engine.alloc_together(&sizes)?) {
                    if let Some(memory) = self.own.get_mut(i as usize) {
                        *memory = Some(buffer);
                    }
                }
            }
        }
        for (memory, own) in self.own.iter_mut().zip(&executable.own) {
            if own.life.first == at && memory.is_none() {
                *memory = Some(self.engine.alloc(own.size_bytes)?);
            }
        }
        Ok(())
    }

    /// Gives up what nothing reads after a step.
    fn end(&mut self, executable: &Executable, at: usize) {
        for (memory, own) in self.own.iter_mut().zip(&executable.own) {
            if own.life.last == at {
                *memory = None;
            }
        }
        for (tensor, last) in self.bound.iter_mut().zip(&executable.read_last) {
            if last.is_some_and(|last| last <= at) {
                *tensor = None;
            }
        }
    }

    /// The memory of a buffer, and where in it the buffer begins.
    fn place<'r>(&'r self, memory: &'r Memory, arena: Option<&'r Arc<Buffer>>) -> Result<(&'r Arc<Buffer>, u64)> {
        let found = match memory {
            Memory::Bound(i) => {
                self.bound.get(*i as usize).and_then(Option::as_ref).map(|t| (&t.buffer, t.view.offset_bytes()))
            }
            Memory::Own(i) => self.own.get(*i as usize).and_then(Option::as_ref).map(|buffer| (buffer, 0)),
            Memory::Within(i, at) => self.own.get(*i as usize).and_then(Option::as_ref).map(|buffer| (buffer, *at)),
            Memory::Arena(at) => arena.map(|arena| (arena, *at)),
            Memory::Real(buffer) => Some((buffer, 0)),
        };
        found.ok_or_else(|| Error::InvalidProgram {
            op: "program".to_string(),
            reason: format!("{memory:?} is not there"),
        })
    }

    fn tensor(&self, value: &Value) -> Result<Tensor> {
        let (buffer, at) = self.place(&value.memory, None)?;
        let view = match at / value.view.dtype.size_bytes() {
            0 => Arc::clone(&value.view),
            elements => Arc::new(View { offset: value.view.offset + elements, ..View::clone(&value.view) }),
        };
        Ok(Tensor { buffer: Arc::clone(buffer), view })
    }

    fn batch(&self, batch: &Batch) -> Result<()> {
        let arena = match batch.schedule.places.arena_bytes {
            0 => None,
            size_bytes => Some(self.engine.alloc(size_bytes)?),
        };
        let kept = if self.recurring.contains(&true) { self.kept(batch) } else { KeptBuffers::default() };
        let mut slots = Slots::with_capacity(batch.slots.len());
        for (id, memory) in (0..).zip(&batch.slots) {
            let (buffer, at) = match kept.get(id) {
                Some(buffer) => (buffer, 0),
                None => self.place(memory, arena.as_ref())?,
            };
            slots.push((&**buffer, at));
        }
        let mut writes: Buffers<'_> = arena.iter().chain(kept.made()).map(|buffer| &**buffer).collect();
        writes.extend(batch.written.iter().filter_map(|&i| self.own.get(i as usize)?.as_deref()));
        let reads =
            batch.slots.iter().zip(&slots).filter(|(memory, _)| matches!(memory, Memory::Bound(_) | Memory::Own(_)));
        let reads = reads.map(|(_, (buffer, _))| *buffer).chain(batch.constants.iter().map(|buffer| &**buffer));
        let reads: Buffers<'_> = reads.chain(kept.found().map(|buffer| &**buffer)).collect();
        self.given.note_written(self.engine, batch)?;
        let (chosen, barriers) = match kept.left() {
            Some((chosen, barriers)) => (Some(chosen), barriers),
            None => (None, &batch.schedule.barriers[..]),
        };
        self.engine.replay(&Replay {
            commands: &batch.schedule.commands,
            chosen,
            barriers,
            runs: &[&slots],
            reads: &reads,
            writes: &writes,
        })?;
        self.keep(batch, &kept);
        Ok(())
    }

    fn wait(&mut self, work: &Work, operands: &[Value], compile: Compile, goes_on: GoesOn<'_>) -> Result<()> {
        let mut operands = operands.iter().map(|value| self.tensor(value)).collect::<Result<Vec<Tensor>>>()?;
        let results = match work {
            Work::Op { op, outs } => eager::run_all(self.engine, op, &operands, outs, compile)
                .map_err(|e| in_op(e, op, operands.iter().map(|t| t.view.ty()), outs))?
                .into_vec(),
            Work::Cond { on_true, on_false } => {
                let predicate = operands.remove(0);
                let chosen = if is_true(self.engine, &predicate)? { on_true } else { on_false };
                chosen.run_while(&operands, compile, goes_on)?
            }
            Work::While { condition, body, state, advance } => {
                let looped = Looped { engine: self.engine, condition, body, state: *state, compile, goes_on };
                looped.run(advance, &mut operands)?;
                operands.truncate(*state);
                operands
            }
        };
        for result in results {
            self.bound.push(Some(aligned(self.engine, &result, compile)?));
        }
        Ok(())
    }
}

fn has_type(tensor: &Tensor, ty: &Type) -> bool {
    tensor.view.dtype == ty.dtype && tensor.view.shape == ty.shape
}

/// The tensor itself if its elements lie in row-major order where vectors can be loaded, else a copy.
pub(crate) fn aligned(engine: &Arc<Engine>, tensor: &Tensor, compile: Compile) -> Result<Tensor> {
    if tensor.view.is_contiguous() && tensor.address().is_multiple_of(ALIGN_BYTES) {
        return Ok(tensor.clone());
    }
    let copy = Tensor::uninitialized(engine, &tensor.view.ty())?;
    eager::copy(engine, tensor, &copy, compile)?;
    Ok(copy)
}

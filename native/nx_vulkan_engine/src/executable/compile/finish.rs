//! From the steps of a builder to an executable: where buffers lie, and what each batch may do with them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nx_vulkan_device::capture::{BufferRef, Command, CopyMade};
use nx_vulkan_device::memory::Buffer;

use super::{Builder, Draft, missing};
use crate::eager::{self, Compile};
use crate::executable::arena::Role;
use crate::executable::kept::{KeptCopies, Recurring};
use crate::executable::schedule::{Room, Schedule, schedule};
use crate::executable::{ALIGN_BYTES, Batch, Donation, Executable, Life, Memory, Own, Step, Value};
use crate::program::Operand;
use crate::tuning::Short;
use crate::{Result, Tensor, Type, View};

/// An output that keeps more than so many times its own bytes is copied to memory of its own.
const MAX_KEPT: u64 = 2;

/// Bytes of an output of equal elements up to which each of them is stored: what reads it next wants them all.
const MAX_REPEATED_BYTES: u64 = 64 << 10;

impl Builder<'_> {
    /// The executable of what was built.
    pub fn finish(mut self, inputs: Vec<Type>, outputs: Vec<Tensor>) -> Result<Executable> {
        let mut own: Vec<Tensor> = Vec::with_capacity(outputs.len());
        for tensor in outputs {
            let output = self.output(tensor, &own)?;
            own.push(output);
        }
        let outputs = own;
        self.close_batch();
        let buffers = Buffers::of(&self, &outputs);
        let own = buffers.own_memory(self.drafts.len());
        let read_last: Vec<Option<usize>> = self.bound.iter().map(|&id| buffers.read_last(id)).collect();
        let together_bytes = if self.owns_outputs { 0 } else { self.engine.most_together_bytes() };
        let mut batches = Batches {
            buffers: &buffers,
            given: self.given(&read_last),
            copies: self.copies_kept(&buffers, inputs.len()),
            last: self.drafts.len().saturating_sub(1),
            room: Room { arena_bytes: self.enough_bytes, together_bytes },
            short: self.engine.model().short,
            donations: Vec::new(),
            together: Vec::new(),
        };
        let steps = self.drafts.into_iter().enumerate().map(|(at, draft)| match draft {
            Draft::Batch(commands) => Ok(Step::Batch(Box::new(batches.batch(at, commands)))),
            Draft::Wait { work, operands } => {
                Ok(Step::Wait { work, operands: operands.iter().map(|t| buffers.value(t)).collect::<Result<_>>()? })
            }
        });
        let steps = steps.collect::<Result<_>>()?;
        let Batches { donations, together, .. } = batches;
        Ok(Executable {
            engine: self.engine.uncaptured(),
            inputs,
            steps,
            own,
            together,
            read_last,
            donations,
            outputs: outputs.iter().map(|t| buffers.value(t)).collect::<Result<_>>()?,
            recurring: Recurring::default(),
        })
    }

    /// An output whose memory holds little else, and nothing else where outputs have memory of their own; `others` are
    /// other outputs.
    fn output(&self, tensor: Tensor, others: &[Tensor]) -> Result<Tensor> {
        let elements = if tensor.view.is_uniform() { 1 } else { tensor.view.elements() };
        let size_bytes = elements * tensor.view.dtype.size_bytes();
        let copied = |tensor: &Tensor| {
            let copy = Tensor::uninitialized(&self.capturing, &tensor.view.ty())?;
            eager::copy(&self.capturing, tensor, &copy, Compile::Allowed)?;
            Ok(copy)
        };
        if self.owns_outputs {
            let is_own = tensor.view.is_contiguous()
                && tensor.view.offset == 0
                && tensor.buffer.virtual_id().is_some_and(|id| !self.bound.contains(&id))
                && tensor.buffer.size_bytes() <= size_bytes.next_multiple_of(ALIGN_BYTES)
                && others.iter().all(|other| !Arc::ptr_eq(&other.buffer, &tensor.buffer));
            return if is_own { Ok(tensor) } else { copied(&tensor) };
        }
        let is_repeated = tensor.view.is_uniform() && tensor.view.elements() > 1;
        if is_repeated && tensor.view.elements() * tensor.view.dtype.size_bytes() <= MAX_REPEATED_BYTES {
            return copied(&tensor);
        }
        let is_part = tensor.buffer.virtual_id().is_some_and(|id| !self.bound.contains(&id))
            && tensor.buffer.size_bytes() > MAX_KEPT * size_bytes;
        if !is_part {
            return Ok(tensor);
        }
        if !tensor.view.is_uniform() {
            return copied(&tensor);
        }
        // One element stays one in memory.
        let element = View { offset: tensor.view.offset, ..View::contiguous(tensor.view.dtype, &[]) };
        let copy = copied(&tensor.with_view(element))?;
        Ok(copy.with_view(copy.view.broadcast_trailing(&tensor.view.shape)?))
    }

    /// Donated inputs that become no outputs as they are, and no results of steps, which may be their operands.
    fn given(&self, read_last: &[Option<usize>]) -> HashSet<u32> {
        let waits = self.drafts.iter().filter_map(|draft| match draft {
            Draft::Wait { operands, .. } => Some(operands),
            Draft::Batch(_) => None,
        });
        let kept: HashSet<u32> = waits.flatten().filter_map(|operand| operand.buffer.virtual_id()).collect();
        let inputs = self.bound.iter().zip(self.donated).zip(read_last);
        let given = inputs.filter(|((id, donated), last)| **donated && last.is_some() && !kept.contains(id));
        given.map(|((id, _), _)| *id).collect()
    }

    /// Copies of inputs that may be kept from run to run: of none of these whose memory a run may give away.
    fn copies_kept(&self, buffers: &Buffers, inputs: usize) -> Vec<CopyMade> {
        let is_kept = |id: u32| {
            let input = buffers.bound.get(&id).map(|&i| i as usize).filter(|&i| i < inputs);
            input.is_some_and(|i| self.donated.get(i) != Some(&true))
        };
        let copies = self.capturing.capture().filter(|_| self.keeps_copies);
        copies.map(|capture| capture.made_of(is_kept)).unwrap_or_default()
    }
}

/// The buffers of a builder.
struct Buffers {
    /// Bytes of each.
    sizes: Vec<u64>,
    /// The places among those that runs bind.
    bound: HashMap<u32, u32>,
    /// Those that runs allocate, in the order of their places, and these.
    outliving: Vec<u32>,
    own: HashMap<u32, u32>,
    lives: HashMap<u32, Life>,
}

impl Buffers {
    fn of(builder: &Builder<'_>, outputs: &[Tensor]) -> Buffers {
        let sizes = builder.capturing.capture().map(|capture| capture.sizes()).unwrap_or_default();
        let bound: HashMap<u32, u32> = builder.bound.iter().copied().zip(0..).collect();
        let outliving = outliving(&builder.drafts, outputs).into_iter();
        let outliving: Vec<u32> = outliving.filter(|id| !bound.contains_key(id)).collect();
        let own = outliving.iter().copied().zip(0..).collect();
        Buffers { sizes, bound, outliving, own, lives: lives(&builder.drafts, outputs) }
    }

    /// What a run of so many steps allocates.
    fn own_memory(&self, steps: usize) -> Vec<Own> {
        let own = self.outliving.iter().filter_map(|id| {
            let life = self.lives.get(id).copied().unwrap_or(Life { first: steps, last: usize::MAX });
            Some(Own { size_bytes: *self.sizes.get(*id as usize)?, life })
        });
        own.collect()
    }

    /// The last step that reads it; `None` where the caller does.
    fn read_last(&self, id: u32) -> Option<usize> {
        self.lives.get(&id).map_or(Some(0), |life| Some(life.last).filter(|&last| last != usize::MAX))
    }

    fn memory(&self, buffer: &Arc<Buffer>) -> Option<Memory> {
        match buffer.virtual_id() {
            None => Some(Memory::Real(Arc::clone(buffer))),
            Some(id) => {
                let bound = self.bound.get(&id).map(|&i| Memory::Bound(i));
                bound.or_else(|| self.own.get(&id).map(|&i| Memory::Own(i)))
            }
        }
    }

    fn value(&self, tensor: &Tensor) -> Result<Value> {
        let memory = self.memory(&tensor.buffer).ok_or_else(|| missing(&Operand::Result(0)))?;
        Ok(Value { memory, view: tensor.view.clone() })
    }
}

/// Batches that are planned one after the other, and what that finds.
struct Batches<'a> {
    buffers: &'a Buffers,
    /// Inputs whose memory results may have.
    given: HashSet<u32>,
    copies: Vec<CopyMade>,
    /// The last step.
    last: usize,
    room: Room,
    short: Short,
    donations: Vec<Donation>,
    /// Memory of runs that lies in one piece.
    together: Vec<Vec<u32>>,
}

impl Batches<'_> {
    /// The batch that is step `at`.
    fn batch(&mut self, at: usize, commands: Vec<Command>) -> Batch {
        let Buffers { sizes, bound, own, .. } = self.buffers;
        let roles: HashMap<u32, Role> =
            commands.iter().flat_map(Command::ids).map(|id| (id, self.role(id, at))).collect();
        let role = |id: u32| roles.get(&id).copied().unwrap_or(Role::Other);
        let schedule = schedule(commands, sizes, role, self.room, self.short);
        let donated = schedule.places.donated.iter();
        self.donations.extend(
            donated.filter_map(|(id, result)| Some(Donation { input: *bound.get(id)?, own: *own.get(result)? })),
        );
        let mut behind: Vec<(u64, u32)> = schedule.places.together.iter().map(|(id, &(_, at))| (at, *id)).collect();
        behind.sort_unstable();
        if !behind.is_empty() {
            self.together.push(behind.iter().filter_map(|(_, id)| own.get(id).copied()).collect());
        }
        self.placed(schedule)
    }

    /// What a buffer is to the batch that is step `at`.
    fn role(&self, id: u32, at: usize) -> Role {
        let Buffers { bound, own, lives, .. } = self.buffers;
        match (bound.contains_key(&id), own.get(&id)) {
            (false, None) => Role::Intermediate,
            (false, Some(_)) if lives.get(&id).is_some_and(|life| life.first == at) => Role::Result,
            (true, _) if at == self.last && self.given.contains(&id) => Role::Donated,
            _ => Role::Other,
        }
    }

    /// The batch of a schedule, whose commands number the buffers that they use.
    fn placed(&self, mut schedule: Schedule) -> Batch {
        let Buffers { sizes, bound, own, .. } = self.buffers;
        let mut slots: Vec<Memory> = Vec::new();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let mut written: Vec<u32> = Vec::new();
        let mut constants: HashMap<u64, Arc<Buffer>> = HashMap::new();
        for command in &schedule.commands {
            for id in command.ids() {
                numbers.entry(id).or_insert_with(|| {
                    let arena = || Memory::Arena(schedule.places.arena.get(&id).copied().unwrap_or(0));
                    let within = |&(result, at): &(u32, u64)| own.get(&result).map(|&i| Memory::Within(i, at));
                    let result = own.get(&id).map(|&i| Memory::Own(i));
                    let own = result.or_else(|| schedule.places.within.get(&id).and_then(within));
                    slots.push(bound.get(&id).map(|&i| Memory::Bound(i)).or(own).unwrap_or_else(arena));
                    slots.len() as u32 - 1
                });
            }
            let result = |id: u32| own.get(&schedule.places.within.get(&id).map_or(id, |&(result, _)| result));
            written.extend(command.writes.iter().filter_map(BufferRef::id).filter_map(result));
            for place in &command.reads {
                if let BufferRef::Real(buffer) = place {
                    constants.insert(buffer.address(), Arc::clone(buffer));
                }
            }
        }
        written.sort_unstable();
        written.dedup();
        for command in &mut schedule.commands {
            command.renumber(|id| numbers.get(&id).copied().unwrap_or(u32::MAX));
        }
        let (number, input) = (|id: u32| numbers.get(&id).copied(), |id: u32| bound.get(&id).copied());
        let kept = KeptCopies::of(&self.copies, &schedule.commands, &slots, (sizes, &schedule.wholes), number, input);
        Batch { schedule, slots, written, constants: constants.into_values().collect(), kept }
    }
}

/// Buffers that more than one batch uses, or something other than a batch, in the order of their numbers.
fn outliving(drafts: &[Draft], outputs: &[Tensor]) -> Vec<u32> {
    let mut seen: HashSet<u32> = HashSet::new();
    let mut outliving: HashSet<u32> = outputs.iter().filter_map(|t| t.buffer.virtual_id()).collect();
    for draft in drafts {
        match draft {
            Draft::Wait { operands, .. } => outliving.extend(operands.iter().filter_map(|t| t.buffer.virtual_id())),
            Draft::Batch(commands) => {
                let here: HashSet<u32> = commands.iter().flat_map(Command::ids).collect();
                outliving.extend(here.intersection(&seen));
                seen.extend(here);
            }
        }
    }
    let mut ids: Vec<u32> = outliving.into_iter().collect();
    ids.sort_unstable();
    ids
}

/// The steps between which buffers are needed.
fn lives(drafts: &[Draft], outputs: &[Tensor]) -> HashMap<u32, Life> {
    let mut lives: HashMap<u32, Life> = HashMap::new();
    let mut note = |id: u32, at: usize| lives.entry(id).or_insert(Life { first: at, last: at }).last = at;
    for (at, draft) in drafts.iter().enumerate() {
        match draft {
            Draft::Batch(commands) => commands.iter().flat_map(Command::ids).for_each(|id| note(id, at)),
            Draft::Wait { operands, .. } => {
                operands.iter().filter_map(|t| t.buffer.virtual_id()).for_each(|id| note(id, at));
            }
        }
    }
    for id in outputs.iter().filter_map(|t| t.buffer.virtual_id()) {
        lives.entry(id).or_insert(Life { first: drafts.len(), last: 0 }).last = usize::MAX;
    }
    lives
}

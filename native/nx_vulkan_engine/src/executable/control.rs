//! Loops and branches of executables: what is captured of them, and how the host drives the rest.
//!
//! A loop with few known iterations is captured iteration by iteration. Branches are captured both, behind gates: words
//! in memory, or group counts there, say whether launches run, and a kernel before them writes zeros for the branch
//! that is not taken. Of other loops an iteration is captured, gated likewise, which does nothing once the condition
//! has failed, so that the host looks at the condition now and then only. Where an op must read values, the host
//! decides.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nx_vulkan_device::capture::{Action, BufferRef, Command, Gate};
use nx_vulkan_device::work::Rates;
use nx_vulkan_ir::program::workgroup::supports;

use super::compile::{Builder, build, enough_bytes};
use super::{Advance, Executable, GoesOn, Step, Work};
use crate::eager::{self, Compile, is_true, read_number};
use crate::program::counted::{End, Trips};
use crate::program::{self, Branches, Loop, Op, Operand, Program};
use crate::tuning::Loops;
use crate::{DType, Engine, Error, Result, Tensor, Type, View};

/// Instructions that a loop may be captured as.
const MAX_UNROLLED: u64 = 512;

/// Elements of results that one workgroup chooses.
const SMALL: u64 = 1024;

/// Iterations between two looks at the condition, at most, of any device; [`Loops`] says how long they may take.
const MAX_BLOCK: u64 = 8;

/// Iterations that may be under way when the host looks whether those before them were to run, of any device: it has
/// work while the host finds out.
const MAX_AHEAD: u64 = 16;

/// Looks at conditions that may be under way at once.
pub(super) const LOOKS: u64 = MAX_AHEAD + MAX_BLOCK;

/// The part of a loop so far that iterations may take which turn out to be in vain.
const VAIN_PART: u32 = 20;

/// How long iterations take, from the first look on: before it, drivers compile.
#[derive(Debug)]
struct Pace {
    limits: Loops,
    /// What one takes at most that is in vain, where that is known.
    vain: Option<Duration>,
    first_look: Option<Instant>,
    /// Iterations since, and how long they took.
    iterations: u64,
    taken: Duration,
}

impl Pace {
    fn new(limits: Loops, vain: Option<Duration>) -> Pace {
        Pace { limits, vain, first_look: None, iterations: 0, taken: Duration::ZERO }
    }

    /// Notes that a look found so many iterations done.
    fn note(&mut self, iterations: u64) {
        match self.first_look {
            None => self.first_look = Some(Instant::now()),
            Some(first) => {
                self.iterations += iterations;
                self.taken = first.elapsed();
            }
        }
    }

    /// Iterations that may be in vain: none where nobody knows how long one takes.
    fn spare(&self) -> u64 {
        let Some(each) = self.each() else { return 0 };
        let vain = (self.taken / VAIN_PART).clamp(self.limits.least_vain, self.limits.most_vain);
        let spare = vain.as_nanos() / self.vain.map_or(each, |vain| vain.min(each)).as_nanos().max(1);
        spare.min(LOOKS.into()) as u64
    }

    /// Iterations that may be under way: one, which may be about to end, and as many as take the host's time.
    fn ahead(&self) -> u64 {
        let behind = |each: Duration| self.limits.ahead.as_nanos().div_ceil(each.as_nanos().max(1)).min(LOOKS.into());
        self.each().map_or(0, |each| 1 + behind(each) as u64)
    }

    fn each(&self) -> Option<Duration> {
        self.taken.checked_div(u32::try_from(self.iterations).unwrap_or(u32::MAX))
    }
}

/// Whether an op has to wait where nothing may.
fn refused<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::NeedsCompile))
}

impl Builder<'_> {
    /// A loop.
    pub fn repeat(&mut self, op: &Loop, mut operands: Vec<Tensor>, outs: &[Type]) -> Result<Vec<Tensor>> {
        let state = outs.len();
        if let Some(trips) = op.known_trips()
            && trips.saturating_mul(op.body.size() as u64) <= MAX_UNROLLED
        {
            for _ in 0..trips {
                let next = self.inline(&op.body, &operands)?;
                operands.splice(..state, next);
            }
            operands.truncate(state);
            return Ok(operands);
        }
        if self.must_not_wait {
            return Err(Error::NeedsCompile);
        }
        let condition = build(self.engine, &op.condition, &[])?;
        // The next state may have the memory of the one before it.
        let donated = vec![true; state];
        let (body, advance) = match op.trips {
            Some(trips) => (build(self.engine, &op.body, &donated)?, Advance::Times(trips)),
            None => match gated(self.engine, op, &donated) {
                Err(Error::NeedsCompile) => {
                    (build(self.engine, &with_condition(op, state), &donated)?, Advance::Checked)
                }
                body => (body?, Advance::Blocks),
            },
        };
        self.wait(Work::While { condition, body, state, advance }, operands, outs)
    }

    /// Branches, of which the first operand chooses one.
    pub fn choose(&mut self, op: &Branches, operands: Vec<Tensor>, outs: &[Type]) -> Result<Vec<Tensor>> {
        let mark = self.mark();
        let before = std::mem::replace(&mut self.must_not_wait, true);
        let both = self.both(op, &operands, outs);
        self.must_not_wait = before;
        if !refused(&both) {
            return both;
        }
        self.take_since(mark);
        let (on_true, on_false) = (build(self.engine, &op.on_true, &[])?, build(self.engine, &op.on_false, &[])?);
        self.wait(Work::Cond { on_true, on_false }, operands, outs)
    }

    /// Captures both branches, and a choice between their results.
    fn both(&mut self, op: &Branches, operands: &[Tensor], outs: &[Type]) -> Result<Vec<Tensor>> {
        let Some((predicate, captured)) = operands.split_first() else { return Err(Error::NeedsCompile) };
        let predicate = scalar(predicate);
        let mark = self.mark();
        let (on_true, mut if_true) = self.branch(&op.on_true, captured, &predicate, true)?;
        let (on_false, mut if_false) = self.branch(&op.on_false, captured, &predicate, false)?;
        debug_assert_eq!(self.mark(), mark);
        self.gate(&predicate, &mut if_true, &mut if_false)?;
        self.append(if_true);
        self.append(if_false);
        self.chosen(&predicate, on_true.into_iter().zip(on_false).collect(), outs)
    }

    /// For each pair of tensors the first where the predicate is not 0, else the second. Small ones are chosen by one
    /// kernel.
    fn chosen(&self, predicate: &Tensor, pairs: Vec<(Tensor, Tensor)>, outs: &[Type]) -> Result<Vec<Tensor>> {
        let is_same = |(a, b): &(Tensor, Tensor)| Arc::ptr_eq(&a.buffer, &b.buffer) && a.view == b.view;
        let is_small = |(pair, ty): (&(Tensor, Tensor), &Type)| !is_same(pair) && ty.elements() <= SMALL;
        let small: Vec<usize> = (0..pairs.len()).filter(|&i| is_small((&pairs[i], &outs[i]))).collect();
        let together = if small.len() > 1 { self.chosen_together(predicate, &pairs, outs, &small)? } else { None };
        let mut together = together.into_iter().flatten();
        let choose = |(i, pair): (usize, (Tensor, Tensor))| {
            if small.contains(&i)
                && let Some(chosen) = together.next()
            {
                return Ok(chosen);
            }
            if is_same(&pair) {
                return Ok(pair.0);
            }
            self.op(&Op::Select, &[predicate.clone(), pair.0, pair.1], &outs[i])
        };
        pairs.into_iter().enumerate().map(choose).collect()
    }

    /// The pairs of these numbers, chosen from by one workgroup; `None` where that has no kernel for their types.
    fn chosen_together(
        &self,
        predicate: &Tensor,
        pairs: &[(Tensor, Tensor)],
        outs: &[Type],
        numbers: &[usize],
    ) -> Result<Option<Vec<Tensor>>> {
        let b = program::Builder::new();
        let holds = b.input(predicate.view.dtype, &[]);
        let inputs: Vec<(Operand, Operand)> = numbers
            .iter()
            .map(|&i| (b.input(outs[i].dtype, &outs[i].shape), b.input(outs[i].dtype, &outs[i].shape)))
            .collect();
        let chosen: Vec<Operand> =
            inputs.iter().zip(numbers).map(|(&(x, y), &i)| b.push(Op::Select, &[holds, x, y], &outs[i])).collect();
        let program = b.finish(&chosen)?;
        if !supports(&program) {
            return Ok(None);
        }
        let both = numbers.iter().flat_map(|&i| [pairs[i].0.clone(), pairs[i].1.clone()]);
        let operands: Vec<Tensor> = std::iter::once(predicate.clone()).chain(both).collect();
        let outs: Vec<Type> = numbers.iter().map(|&i| outs[i].clone()).collect();
        let op = Op::Workgroup(Box::new(program));
        match eager::run_all(&self.capturing, &op, &operands, &outs, Compile::Allowed) {
            Err(e) if e.is_refused_kernel() => Ok(None),
            results => results.map(|results| Some(results.into_vec())),
        }
    }

    /// Captures what runs where the predicate is what it `has_to_be`. Answers the results and the commands.
    fn branch(
        &mut self,
        program: &Program,
        inputs: &[Tensor],
        predicate: &Tensor,
        has_to_be: bool,
    ) -> Result<(Vec<Tensor>, Vec<Command>)> {
        let mark = self.mark();
        self.gates.push((predicate.clone(), has_to_be));
        let results = self.inline(program, inputs);
        self.gates.pop();
        let commands = self.take_since(mark);
        Ok((results?, commands))
    }

    /// Makes launches ask memory whether they run: a word for each branch, or the group counts of each launch where the
    /// device has no such words. They are 0 where the predicate is not what they need, or where an outer branch is not
    /// taken: then nothing has computed the predicate.
    fn gate(&mut self, predicate: &Tensor, if_true: &mut [Command], if_false: &mut [Command]) -> Result<()> {
        let has_words = self.engine.caps().conditional_rendering;
        let counts = |commands: &[Command]| -> Vec<u32> {
            let groups = commands.iter().filter_map(open_groups);
            if has_words { groups.take(1).map(|_| 1).collect() } else { groups.flatten().collect() }
        };
        let (on_true, on_false) = (counts(if_true), counts(if_false));
        if on_true.is_empty() && on_false.is_empty() {
            return Ok(());
        }
        let zeros = |counts: &[u32]| vec![0; counts.len()];
        let ty = Type::new(DType::U32, &[(on_true.len() + on_false.len()) as u64]);
        let engine = self.engine.uncaptured();
        let table = |parts: [Vec<u32>; 2]| -> Result<Tensor> {
            let bytes: Vec<u8> = parts.concat().iter().flat_map(|word| word.to_ne_bytes()).collect();
            Tensor::from_nx_bytes(&engine, &ty, &bytes)
        };
        let (zeros_on_true, zeros_on_false) = (zeros(&on_true), zeros(&on_false));
        let taken = table([on_true, zeros_on_false])?;
        let not_taken = table([zeros_on_true, on_false])?;
        let none = Tensor::from_nx_bytes(&engine, &Type::new(DType::U32, &[]), &[0; 4])?;
        let none = none.with_view(none.view.broadcast_trailing(&ty.shape)?);
        let mark = self.mark();
        let mut counts = self.op(&Op::Select, &[predicate.clone(), taken, not_taken], &ty)?;
        for (outer, has_to_be) in self.gates.clone().iter().rev() {
            let (a, b) = if *has_to_be { (counts, none.clone()) } else { (none.clone(), counts) };
            counts = self.op(&Op::Select, &[outer.clone(), a, b], &ty)?;
        }
        let mut deciding = self.take_since(mark);
        for command in &mut deciding {
            if let Action::Launch { gate, .. } = &mut command.action {
                *gate = Gate::Always;
            }
        }
        self.append(deciding);
        let place = BufferRef::of(&counts.buffer);
        let Some(buffer) = place.id() else { return Err(Error::NeedsCompile) };
        let mut offset_bytes = counts.view.offset_bytes();
        for branch in [if_true, if_false] {
            let before = offset_bytes;
            for command in branch {
                if open_groups(command).is_some()
                    && let Action::Launch { gate, .. } = &mut command.action
                {
                    (*gate, offset_bytes) = match has_words {
                        true => (Gate::Word { buffer, offset_bytes: before }, before + 4),
                        false => (Gate::Counts { buffer, offset_bytes }, offset_bytes + 12),
                    };
                    command.reads.push(place.clone());
                }
            }
        }
        Ok(())
    }

    fn op(&self, op: &Op, operands: &[Tensor], out: &Type) -> Result<Tensor> {
        eager::run(&self.capturing, op, operands, out, Compile::Allowed)
    }
}

/// The groups of a launch about which nothing decides yet.
fn open_groups(command: &Command) -> Option<[u32; 3]> {
    match &command.action {
        Action::Launch { groups, gate: Gate::Open, .. } => Some(*groups),
        _ => None,
    }
}

/// A tensor of one element without axes.
fn scalar(tensor: &Tensor) -> Tensor {
    let view = View { offset: tensor.view.offset, ..View::contiguous(tensor.view.dtype, &[]) };
    tensor.with_view(view)
}

/// Whether the new state is the old one but for what launches write into it that an iteration does not run where it
/// must not: a copy of the old one that always runs, which is none at all where both have the same memory. A cache to
/// which each iteration adds a row is such a state.
fn keeps(commands: &mut [Command], old: &Tensor, new: &Tensor) -> bool {
    let (Some(from), Some(to)) = (old.buffer.virtual_id(), new.buffer.virtual_id()) else { return false };
    let writes = |command: &&mut Command| command.writes.iter().any(|place| place.id() == Some(to));
    let mut writers = commands.iter_mut().filter(writes);
    // All of it, at once.
    let size_bytes = Some(new.view.elements() * new.view.dtype.size_bytes());
    let is_whole = |first: &&mut Command| first.copied_bytes == size_bytes && first.in_place.contains(&(from, to));
    let Some(first) = writers.next().filter(is_whole) else { return false };
    let only_launches = writers.all(|other| matches!(other.action, Action::Launch { .. }));
    match &mut first.action {
        Action::Launch { gate, .. } if *gate == Gate::Open && only_launches && old.view == new.view => {
            *gate = Gate::Always;
            true
        }
        _ => false,
    }
}

/// An iteration behind a gate, which leaves the state as it is where it must not run. Takes and gives whether to go on
/// after the state.
fn gated(engine: &Arc<Engine>, op: &Loop, donated: &[bool]) -> Result<Executable> {
    let state = donated.len();
    let going_type = op.condition.output_types().first().map(|ty| Type::new(ty.dtype, &[]));
    let going_type = going_type.ok_or(Error::NeedsCompile)?;
    let mut types = op.body.inputs.clone();
    types.insert(state, going_type.clone());
    let body = with_condition(op, state);
    let mut builder = Builder::new(engine);
    builder.must_not_wait = true;
    builder.enough_bytes = enough_bytes(&body);
    builder.donated = donated;
    let mut inputs = types.iter().map(|ty| builder.bind(ty)).collect::<Result<Vec<Tensor>>>()?;
    let going = inputs.remove(state);
    let (mut next, mut commands) = builder.branch(&body, &inputs, &going, true)?;
    let goes_on = next.pop().map(|goes_on| scalar(&goes_on)).ok_or(Error::NeedsCompile)?;
    for (old, new) in inputs.iter_mut().zip(&next) {
        if keeps(&mut commands, old, new) {
            *old = new.clone();
        }
    }
    builder.gate(&going, &mut commands, &mut [])?;
    builder.append(commands);
    let mut pairs: Vec<(Tensor, Tensor)> = next.into_iter().zip(inputs).collect();
    let mut outs: Vec<Type> = op.body.inputs.iter().take(state).cloned().collect();
    // What an iteration that does not run leaves behind is any number.
    pairs.push((goes_on, going.clone()));
    outs.push(going_type);
    let outputs = builder.chosen(&going, pairs, &outs)?;
    builder.finish(types, outputs)
}

/// The body, which gives whether to go on after the next state.
fn with_condition(op: &Loop, state: usize) -> Program {
    let mut body = op.body.clone();
    let inputs = (0..body.inputs.len() as u32).map(Operand::Input);
    let next: Vec<Operand> = body.outputs.iter().copied().chain(inputs.skip(state)).collect();
    let going_on = body.append(&op.condition, &next);
    body.outputs.extend(going_on);
    body
}

impl Executable {
    /// What an iteration takes that does nothing: launches that don't run still stand in the queue, and others run.
    fn vain_ns(&self, rates: &Rates) -> u64 {
        let batches = self.steps.iter().filter_map(|step| match step {
            Step::Batch(batch) => Some(&batch.schedule),
            Step::Wait { .. } => None,
        });
        let command = |command: &Command| match command.decided_by().is_some() || command.copies_in_place() {
            true => rates.command_ns,
            false => rates.ns(command.work),
        };
        batches.fold(0, |sum: u64, schedule| {
            let barriers = schedule.barriers.iter().filter(|&&waits| waits).count() as u64 * rates.barrier_ns;
            schedule.commands.iter().map(command).fold(sum.saturating_add(barriers), u64::saturating_add)
        })
    }
}

impl Work {
    /// Whether the host reads values.
    pub(super) fn reads(&self) -> bool {
        match self {
            Work::While { body, advance: Advance::Times(Trips::Known(_)), .. } => body.summary().waits > 0,
            Work::Op { .. } | Work::Cond { .. } | Work::While { .. } => true,
        }
    }
}

/// A loop that the host drives.
pub(super) struct Looped<'a> {
    pub engine: &'a Engine,
    pub condition: &'a Executable,
    pub body: &'a Executable,
    pub state: usize,
    pub compile: Compile,
    pub goes_on: GoesOn<'a>,
}

impl Looped<'_> {
    /// Runs the loop; the first operands become the last state.
    pub fn run(&self, advance: &Advance, operands: &mut Vec<Tensor>) -> Result<()> {
        match advance {
            Advance::Times(Trips::Known(trips)) => self.times(*trips, operands),
            Advance::Times(Trips::Guarded) => {
                let ahead = if self.body.waits() { 0 } else { MAX_AHEAD };
                self.in_blocks(self.state, ahead, None, operands)
            }
            Advance::Times(Trips::Counted(counted)) => {
                let read = |i: u32| operands.get(i as usize).map(|t| read_number(self.engine, t)).transpose();
                let end = match counted.end {
                    End::Number(end) => Some(end),
                    End::Operand(i) => read(i)?.flatten(),
                };
                let trips = read(counted.start)?.flatten().zip(end).and_then(|(start, end)| counted.trips(start, end));
                match trips {
                    Some(trips) => self.times(trips, operands),
                    None => self.one_by_one(operands),
                }
            }
            Advance::Blocks => self.blocks(operands),
            Advance::Checked => self.checked(operands),
        }
    }

    fn times(&self, trips: u64, operands: &mut Vec<Tensor>) -> Result<()> {
        for _ in 0..trips {
            let next = self.iteration(operands)?;
            operands.splice(..self.state, next);
        }
        Ok(())
    }

    /// What the body gives, unless the run is no longer wanted.
    fn iteration(&self, operands: &[Tensor]) -> Result<Vec<Tensor>> {
        if !(self.goes_on)() {
            return Err(Error::Stopped);
        }
        self.body.run_donating(operands, self.compile, self.goes_on, &Cell::new(false))
    }

    /// Whether the condition holds for the operands.
    fn condition(&self, operands: &[Tensor]) -> Result<Tensor> {
        let missing = || Error::InvalidProgram { op: "while".to_string(), reason: "no condition".to_string() };
        self.condition.run_while(operands, self.compile, self.goes_on)?.pop().ok_or_else(missing)
    }

    fn one_by_one(&self, operands: &mut Vec<Tensor>) -> Result<()> {
        while is_true(self.engine, &self.condition(operands)?)? {
            self.times(1, operands)?;
        }
        Ok(())
    }

    fn blocks(&self, operands: &mut Vec<Tensor>) -> Result<()> {
        let going = scalar(&self.condition(operands)?);
        operands.insert(self.state, going);
        let vain_ns = self.body.vain_ns(&self.engine.model().rates);
        self.in_blocks(self.state + 1, MAX_AHEAD, Some(Duration::from_nanos(vain_ns)), operands)?;
        operands.remove(self.state);
        Ok(())
    }

    /// Iterations, which do nothing where the last one of `states` is 0, and then take no longer than `vain`. The host
    /// looks at a value of it while later iterations run: `ahead` at most, half as many as it knows that had to run,
    /// and no more than [`Pace`] says.
    fn in_blocks(&self, states: usize, ahead: u64, vain: Option<Duration>, operands: &mut Vec<Tensor>) -> Result<()> {
        if !is_true(self.engine, &operands[states - 1])? {
            return Ok(());
        }
        let (mut known, mut under_way) = (1, 0);
        let mut looks: VecDeque<(Tensor, u64)> = VecDeque::new();
        let mut pace = Pace::new(self.engine.model().loops, vain);
        loop {
            let spare = pace.spare();
            let ahead = ahead.min(known / 2).min((2 * spare).div_ceil(3)).min(pace.ahead());
            // What a block does behind the end is in vain, too.
            let block = (known / 4).min(spare - ahead + 1).min(pace.ahead()).clamp(1, MAX_BLOCK);
            for _ in 0..block {
                let next = self.iteration(operands)?;
                operands.splice(..states, next);
            }
            looks.push_back((operands[states - 1].clone(), block));
            under_way += block;
            while under_way > ahead
                && let Some((going, block)) = looks.pop_front()
            {
                if !is_true(self.engine, &going)? {
                    return Ok(());
                }
                pace.note(block);
                known += block;
                under_way -= block;
            }
        }
    }

    fn checked(&self, operands: &mut Vec<Tensor>) -> Result<()> {
        let mut going_on = self.condition(operands)?;
        while is_true(self.engine, &going_on)? {
            let mut next = self.iteration(operands)?;
            let Some(last) = next.pop() else { return Ok(()) };
            going_on = last;
            operands.splice(..self.state, next);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nx_vulkan_device::kernel::{Interface, Pipeline, PipelineKey, Waits};
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn the_device_has_work_while_the_host_finds_out() {
        let two = Duration::from_millis(2);
        let new = || Pace::new(Loops { ahead: two, most_vain: two, least_vain: two }, None);
        let ahead = |ms: f64| Pace { iterations: 10, taken: Duration::from_secs_f64(ms / 100.0), ..new() }.ahead();
        // Of iterations that take longer than the host, one more than that at which the device is.
        assert_eq!([0.5, 1.0, 1.9, 2.1, 50.0].map(ahead), [5, 3, 3, 2, 2]);
        assert_eq!(new().ahead(), 0);
        assert_eq!(ahead(1e-6), 1 + LOOKS);
    }

    #[test]
    fn states_are_kept_that_are_copied_whole_before_launches_write_them() {
        let engine = Engine::open(None).unwrap();
        let capturing = engine.capturing();
        let ty = Type::new(DType::F32, &[4, 16]);
        let [old, new] = [(); 2].map(|()| Tensor::uninitialized(&capturing, &ty).unwrap());
        let (from, to) = (old.buffer.virtual_id().unwrap(), new.buffer.virtual_id().unwrap());
        let interface = Interface::Addresses { push_bytes: 32 };
        let key = PipelineKey::new(&[], &[], interface);
        let pipeline = Arc::new(Pipeline::without_handle(engine.open_device(), key, interface));
        let launch = |reads: &[u32], copied_bytes: Option<u64>| Command {
            action: Action::Launch {
                pipeline: Arc::clone(&pipeline),
                words: Vec::new(),
                is_table: false,
                groups: [1; 3],
                gate: Gate::Open,
                patches: smallvec![],
            },
            work: None,
            reads: reads.iter().map(|&id| BufferRef::Virtual(id)).collect(),
            writes: smallvec![BufferRef::Virtual(to)],
            waits: Waits::All,
            in_place: if copied_bytes.is_some() { smallvec![(from, to)] } else { smallvec![] },
            copied_bytes,
        };
        let fill = || Command { action: Action::Fill { offset_bytes: 0, size_bytes: 4, word: 0 }, ..launch(&[], None) };
        let (whole, part) = (|| launch(&[from], Some(256)), || launch(&[from], Some(192)));
        let put = || launch(&[], None);
        let mut commands = [whole(), put()];
        assert!(keeps(&mut commands, &old, &new));
        let gates: Vec<bool> = commands.iter().map(|command| open_groups(command).is_some()).collect();
        assert_eq!(gates, [false, true], "the copy always runs, and what is put there is gated");
        for mut commands in [[part(), put()], [put(), whole()], [whole(), fill()], [put(), put()]] {
            assert!(!keeps(&mut commands, &old, &new));
            let is_open = |command: &Command| open_groups(command).is_some();
            assert!(commands.iter().all(|c| is_open(c) || matches!(c.action, Action::Fill { .. })));
        }
    }
}

//! Chains that have the whole device: a step is an executable, which is recorded again and again. Chains lie side by
//! side, each with memory of its own, so that they overlap on the device and their bits don't depend on each other.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_device::memory::Buffer;
use nx_vulkan_device::stream::{MAX_HELD_COMMANDS, MAX_HELD_NS, Stream};

use super::form::Stepping;
use super::run::{Parts, Position, Run, later, turn_ends};
use crate::executable::{ALIGN_BYTES, Cost, Lane, aligned};
use crate::kernels::Compile;
use crate::program::Program;
use crate::tuning::Chains;
use crate::{DType, Engine, Error, Executable, GoesOn, Result, Tensor, Type, View, eager};

/// Bytes of argument tables of a part.
const MAX_TABLE_BYTES: u64 = 16 << 20;

/// The share of the device's memory that chains which lie side by side take, besides results.
const MEMORY_SHARE: u64 = 16;

/// A compiled step and how it repeats.
#[derive(Debug)]
pub(super) struct Stepped {
    step: Executable,
    stepping: Stepping,
    /// Of every input but the counter, whether each chain has one.
    own: Vec<bool>,
    outputs: Vec<Type>,
}

/// How far a run is.
#[derive(Debug)]
pub(super) struct Progress {
    counters: Records,
    /// Chains that lie side by side.
    lanes: u64,
    /// Chains that are recorded.
    chains: u64,
    under_way: Option<UnderWay>,
}

/// Chains that are recorded in part.
#[derive(Debug)]
enum UnderWay {
    SideBySide(Group),
    /// One chain: the next run of its step, with the operands.
    Alone {
        next: u64,
        operands: Vec<Tensor>,
    },
}

/// Chains that lie side by side, and their memory.
#[derive(Debug)]
struct Group {
    chains: Range<u64>,
    inputs: Vec<Records>,
    /// What the beginning leaves.
    begun: Vec<Records>,
    kept: Vec<Records>,
    arena: Option<Arc<Buffer>>,
    /// The next run of the step.
    next: u64,
}

/// How many chains lie side by side, and how many runs of their steps are a part.
fn layout(cost: &Cost, memory_bytes: u64, lane_bytes: u64, spread: Chains, chains: u64) -> (u64, Parts) {
    let within = |commands: u64, ns: u64| {
        let limits = [(commands, cost.commands), (MAX_HELD_NS, ns), (MAX_TABLE_BYTES, cost.table_bytes)];
        limits.map(|(limit, each)| limit / each.max(1)).into_iter().min().unwrap_or(1).max(1)
    };
    let lanes = memory_bytes / MEMORY_SHARE / lane_bytes.max(1);
    let lanes = lanes.clamp(1, spread.most_lanes).min(within(MAX_HELD_COMMANDS, cost.ns)).min(chains);
    let ns = cost.ns.saturating_add(cost.barriers_ns / lanes);
    let all = within(MAX_HELD_COMMANDS, ns);
    let parts = match spread.begins_early {
        None => Parts { first: all, next: later(all), most: all },
        Some([first, next]) => {
            let next = within(next, ns);
            Parts { first: within(first, ns), next, most: next }
        }
    };
    (lanes, parts)
}

/// Memory for what a chain leaves, besides results: of what lies there as kernels need it, that is only what runs
/// before the first step leave.
fn rows_bytes(outputs: &[Type], begins: u64, steps: u64) -> u64 {
    let rows = |ty: &Type| pitch_bytes(ty) * (begins + if is_packed(ty) { 0 } else { steps });
    outputs.iter().map(rows).sum()
}

impl Stepped {
    /// Compiles a step, whose inputs are a counter (u32), `states` values and what stays the same; its first outputs
    /// are the next states.
    pub fn compile(engine: &Arc<Engine>, program: Program, stepping: Stepping, own: &[bool]) -> Result<Stepped> {
        let outputs = program.output_types().into_iter().cloned().collect();
        let step = Executable::compile_owning_outputs(engine, program)?;
        Ok(Stepped { step, stepping, own: own.to_vec(), outputs })
    }

    pub fn outputs(&self) -> &[Type] {
        &self.outputs
    }

    /// Begins a run of so many steps of so many chains.
    pub fn begin(&self, engine: &Arc<Engine>, [chains, steps]: [u64; 2]) -> Result<(Progress, Parts)> {
        let begins = u64::from(self.stepping.begins);
        let counters = Records::counters(engine, steps + begins)?;
        let cost = self.step.cost();
        let lane_bytes = cost.arena_bytes + rows_bytes(&self.outputs, begins, steps);
        let (lanes, parts) = layout(&cost, engine.stats().budget_bytes, lane_bytes, engine.model().chains, chains);
        let runs = parts.most.max(lanes).min(chains * (steps + begins));
        engine.stream().grow_arguments(cost.table_bytes * runs)?;
        Ok((Progress { counters, lanes, chains: 0, under_way: None }, parts))
    }

    /// Records so many runs of a step, or as many as are left. Where a step waits for the device, chains run one after
    /// the other, for as long as `goes_on` says so.
    pub fn advance(&self, run: &mut Run, size: u64, goes_on: GoesOn<'_>) -> Result<(u64, bool)> {
        let Run { engine, inputs, results, chains, count, place, .. } = run;
        let Position::Device(progress) = place else { return Ok((0, true)) };
        let part = Common { stepped: self, engine, inputs, results, chains: *chains, steps: *count };
        if self.step.waits() {
            return part.alone(progress, goes_on);
        }
        Stream::hold(|| part.side_by_side(progress, size))
    }
}

/// What a run and its parts have in common.
struct Common<'a> {
    stepped: &'a Stepped,
    engine: &'a Arc<Engine>,
    inputs: &'a [Tensor],
    results: &'a [Tensor],
    chains: u64,
    steps: u64,
}

impl Common<'_> {
    /// Runs of the step of each chain.
    fn runs(&self) -> u64 {
        self.steps + u64::from(self.stepped.stepping.begins)
    }

    /// Runs one chain after the other for a while, with the host between the parts of a step.
    fn alone(&self, progress: &mut Progress, goes_on: GoesOn<'_>) -> Result<(u64, bool)> {
        let Stepping { states, begins } = self.stepped.stepping;
        let (mut done, until) = (0, turn_ends());
        while progress.chains < self.chains {
            let chain = progress.chains;
            let (mut next, mut operands) = match progress.under_way.take() {
                Some(UnderWay::Alone { next, operands }) => (next, operands),
                _ => {
                    let own = self.stepped.own.iter();
                    let mine = |(tensor, &own): (&Tensor, &bool)| if own { row(tensor, chain) } else { tensor.clone() };
                    let mine = self.inputs.iter().zip(own).map(mine);
                    (0, std::iter::once(progress.counters.tensor(0)).chain(mine).collect())
                }
            };
            while next < self.runs() && (done == 0 || Instant::now() < until) {
                operands[0] = progress.counters.tensor(next);
                let left = self.stepped.step.run_while(&operands, Compile::Allowed, goes_on)?;
                operands[1..=states].clone_from_slice(&left[..states]);
                if let Some(place) = next.checked_sub(u64::from(begins)) {
                    for (from, to) in left.iter().zip(self.results) {
                        eager::copy(self.engine, from, &row(&row(to, chain), place), Compile::Allowed)?;
                    }
                }
                next += 1;
                done += 1;
            }
            if next < self.runs() {
                progress.under_way = Some(UnderWay::Alone { next, operands });
                return Ok((done, false));
            }
            progress.chains += 1;
        }
        Ok((done, true))
    }

    /// Records as many chains at once as memory allows.
    fn side_by_side(&self, progress: &mut Progress, size: u64) -> Result<(u64, bool)> {
        let mut done = 0;
        while progress.chains < self.chains {
            let mut group = match progress.under_way.take() {
                Some(UnderWay::SideBySide(group)) => group,
                _ => self.group(progress)?,
            };
            let lanes = group.chains.end - group.chains.start;
            let left = size.saturating_sub(done) / lanes;
            if left == 0 && done > 0 {
                progress.under_way = Some(UnderWay::SideBySide(group));
                return Ok((done, false));
            }
            let to = (group.next + left.max(1)).min(self.runs());
            done += lanes * (to - group.next);
            self.record(&mut group, &progress.counters, to)?;
            if to < self.runs() {
                progress.under_way = Some(UnderWay::SideBySide(group));
                return Ok((done, false));
            }
            let copies = group.kept.iter().zip(self.results);
            copies
                .into_iter()
                .try_for_each(|(rows, result)| rows.copy_to(self.engine, result, &group.chains, self.steps))?;
            progress.chains = group.chains.end;
        }
        Ok((done, true))
    }

    /// The next chains, with memory for fewer if there is too little.
    fn group(&self, progress: &mut Progress) -> Result<Group> {
        loop {
            let chains = progress.chains..(progress.chains + progress.lanes).min(self.chains);
            match self.group_of(chains) {
                Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) if progress.lanes > 1 => progress.lanes /= 2,
                group => return group,
            }
        }
    }

    fn group_of(&self, chains: Range<u64>) -> Result<Group> {
        let (engine, lanes) = (self.engine, chains.end - chains.start);
        let Stepped { step, stepping: Stepping { begins, .. }, own, outputs } = self.stepped;
        let inputs =
            self.inputs.iter().zip(own).map(|(tensor, &own)| Records::of(engine, tensor, own.then_some(&chains)));
        let inputs: Vec<Records> = inputs.collect::<Result<_>>()?;
        let begun = match begins {
            true => outputs.iter().map(|ty| Records::new(engine, ty, lanes)).collect::<Result<_>>()?,
            false => vec![],
        };
        let places = self.results.iter().zip(outputs);
        let kept = places.map(|(result, ty)| Records::within(engine, result, ty, &chains, self.steps));
        let kept: Vec<Records> = kept.collect::<Result<_>>()?;
        let arena_bytes = step.cost().arena_bytes;
        let arena = if arena_bytes > 0 { Some(engine.alloc(arena_bytes * lanes)?) } else { None };
        Ok(Group { chains, inputs, begun, kept, arena, next: 0 })
    }

    /// Records the runs up to before run `to` of a group.
    fn record(&self, group: &mut Group, counters: &Records, to: u64) -> Result<()> {
        let Stepped { step, stepping: Stepping { states, begins }, outputs, .. } = self.stepped;
        let Group { chains, inputs, begun, kept, arena, next } = group;
        let lanes = chains.end - chains.start;
        let reads: Vec<&Buffer> = inputs.iter().chain([counters]).map(|rows| &*rows.buffer).collect();
        let writes: Vec<&Buffer> = begun.iter().chain(&*kept).map(|rows| &*rows.buffer).collect();
        // Where a lane leaves output k of a run.
        let left = |run: u64, lane: u64, k: usize| match run.checked_sub(u64::from(*begins)) {
            None => begun[k].place(lane),
            Some(kept_step) => kept[k].place(lane * self.steps + kept_step),
        };
        for run in *next..to {
            let lane = |lane: u64| {
                let input = |k: usize| match run.checked_sub(1) {
                    Some(before) if k < *states => left(before, lane, k),
                    _ => inputs[k].place(lane),
                };
                Lane {
                    inputs: [counters.place(run)].into_iter().chain((0..inputs.len()).map(input)).collect(),
                    outputs: (0..outputs.len()).map(|k| left(run, lane, k)).collect(),
                }
            };
            step.run_side_by_side(arena.as_ref(), &(0..lanes).map(lane).collect::<Vec<Lane<'_>>>(), &reads, &writes)?;
        }
        *next = to;
        Ok(())
    }
}

/// Values of one type one after the other, each from a multiple of 16 bytes on, where kernels can load vectors.
#[derive(Debug)]
struct Records {
    buffer: Arc<Buffer>,
    ty: Type,
    begin_bytes: u64,
    /// 0 where there is one for all.
    pitch_bytes: u64,
}

fn pitch_bytes(ty: &Type) -> u64 {
    (ty.elements() * ty.dtype.size_bytes()).next_multiple_of(ALIGN_BYTES)
}

fn is_packed(ty: &Type) -> bool {
    pitch_bytes(ty) == ty.elements() * ty.dtype.size_bytes()
}

impl Records {
    fn new(engine: &Engine, ty: &Type, count: u64) -> Result<Records> {
        let pitch_bytes = pitch_bytes(ty);
        Ok(Records { buffer: engine.alloc(pitch_bytes * count)?, ty: ty.clone(), begin_bytes: 0, pitch_bytes })
    }

    /// The numbers 0 to `count` - 1.
    fn counters(engine: &Arc<Engine>, count: u64) -> Result<Records> {
        let rows = Records::new(engine, &Type::new(DType::U32, &[]), count)?;
        let words = (0..count as u32).flat_map(|i| [i, 0, 0, 0]);
        engine.upload(&rows.buffer, 0, &words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())?;
        Ok(rows)
    }

    /// Those of `chains`, which are the first axis of a tensor in row-major order; without chains the whole tensor, for
    /// all.
    fn of(engine: &Arc<Engine>, tensor: &Tensor, chains: Option<&Range<u64>>) -> Result<Records> {
        let Some(chains) = chains else {
            let tensor = aligned(engine, tensor, Compile::Allowed)?;
            let (begin_bytes, ty) = (tensor.view.offset_bytes(), tensor.view.ty());
            return Ok(Records { buffer: tensor.buffer, ty, begin_bytes, pitch_bytes: 0 });
        };
        let ty = Type::new(tensor.view.dtype, &tensor.view.shape[1..]);
        let first = row(tensor, chains.start);
        if is_packed(&ty) && first.address().is_multiple_of(ALIGN_BYTES) {
            let (begin_bytes, pitch_bytes) = (first.view.offset_bytes(), pitch_bytes(&ty));
            return Ok(Records { buffer: first.buffer, ty, begin_bytes, pitch_bytes });
        }
        let count = chains.end - chains.start;
        let rows = Records::new(engine, &ty, count)?;
        eager::copy(engine, &part(tensor, &ty, chains.start, count), &rows.all(count), Compile::Allowed)?;
        Ok(rows)
    }

    /// The places of `chains` in a result `[all chains, steps, ..]`, or memory for them where they don't begin at
    /// multiples of 16 bytes.
    fn within(engine: &Engine, result: &Tensor, ty: &Type, chains: &Range<u64>, steps: u64) -> Result<Records> {
        if !is_packed(ty) {
            return Records::new(engine, ty, (chains.end - chains.start) * steps);
        }
        let pitch_bytes = pitch_bytes(ty);
        let begin_bytes = result.view.offset_bytes() + chains.start * steps * pitch_bytes;
        Ok(Records { buffer: Arc::clone(&result.buffer), ty: ty.clone(), begin_bytes, pitch_bytes })
    }

    /// Puts the rows of `chains` into the result, unless they lie there.
    fn copy_to(&self, engine: &Engine, result: &Tensor, chains: &Range<u64>, steps: u64) -> Result<()> {
        if is_packed(&self.ty) {
            return Ok(());
        }
        let count = (chains.end - chains.start) * steps;
        let place = part(result, &self.ty, chains.start * steps, count);
        eager::copy(engine, &self.all(count), &place, Compile::Allowed)
    }

    fn place(&self, i: u64) -> (&Buffer, u64) {
        (&self.buffer, self.begin_bytes + i * self.pitch_bytes)
    }

    fn tensor(&self, i: u64) -> Tensor {
        let mut view = View::contiguous(self.ty.dtype, &self.ty.shape);
        view.offset = (self.begin_bytes + i * self.pitch_bytes) / self.ty.dtype.size_bytes();
        Tensor::at(Arc::clone(&self.buffer), view)
    }

    /// The first `count` rows as `[count, elements]`.
    fn all(&self, count: u64) -> Tensor {
        let size = self.ty.dtype.size_bytes();
        let mut view = View::contiguous(self.ty.dtype, &[count, self.ty.elements()]);
        view.strides[0] = (self.pitch_bytes / size) as i64;
        view.offset = self.begin_bytes / size;
        Tensor::at(Arc::clone(&self.buffer), view)
    }
}

/// `count` values of type `ty`, from the `first` on, of a tensor that holds them one after the other, as `[count,
/// elements]`.
fn part(tensor: &Tensor, ty: &Type, first: u64, count: u64) -> Tensor {
    let mut view = View::contiguous(ty.dtype, &[count, ty.elements()]);
    view.offset = tensor.view.offset + first * ty.elements();
    tensor.with_view(view)
}

/// Element `i` along the first axis.
fn row(tensor: &Tensor, i: u64) -> Tensor {
    element(tensor, 0, i)
}

/// Element `i` along an axis.
pub(super) fn element(tensor: &Tensor, axis: usize, i: u64) -> Tensor {
    let mut view = View::clone(&tensor.view);
    view.shape.remove(axis);
    let stride = view.strides.remove(axis);
    view.offset = view.offset.wrapping_add_signed(i as i64 * stride);
    tensor.with_view(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const EARLY: Option<[u64; 2]> = Some([1 << 11, 1 << 13]);
    fn spread(begins_early: Option<[u64; 2]>) -> Chains {
        Chains { side_by_side: None, most_lanes: 1024, most_work: 0, step_work: 0, begins_early, least_steps: 1 }
    }

    const COST: Cost = Cost { commands: 32, ns: 1000, barriers_ns: 16_000, table_bytes: 0, arena_bytes: 1000 };

    #[test]
    fn no_more_chains_lie_side_by_side_than_a_submission_takes() {
        for begins_early in [None, EARLY] {
            let lanes = |cost: Cost, lane_bytes: u64| layout(&cost, 16 * GIB, lane_bytes, spread(begins_early), 5000).0;
            assert_eq!(lanes(COST, 1000), 1024);
            assert_eq!(lanes(Cost { commands: 320, ..COST }, 1000), 102);
            assert_eq!(lanes(Cost { ns: MAX_HELD_NS / 7, ..COST }, 1000), 7);
            assert_eq!(lanes(Cost { table_bytes: 1 << 20, ..COST }, 1000), 16);
            assert_eq!(lanes(Cost { ns: u64::MAX, commands: u64::MAX, ..COST }, 1000), 1);
            assert_eq!(lanes(COST, GIB / 10), 10);
            assert_eq!(lanes(COST, u64::MAX), 1);
            assert_eq!(layout(&COST, 16 * GIB, 1000, spread(begins_early), 3).0, 3);
        }
    }

    #[test]
    fn what_lies_in_the_results_takes_no_memory_besides() {
        let (packed, single) = (Type::new(DType::F32, &[1000]), Type::new(DType::F64, &[]));
        assert_eq!(rows_bytes(std::slice::from_ref(&packed), 0, 500), 0);
        assert_eq!(rows_bytes(std::slice::from_ref(&packed), 1, 500), 4000);
        assert_eq!(rows_bytes(&[packed, single], 1, 500), 4000 + 501 * 16);
    }

    #[test]
    fn gpus_begin_early() {
        let parts = |begins_early, cost| layout(&cost, 16 * GIB, 1000, spread(begins_early), 16).1;
        assert_eq!(parts(None, COST), Parts { first: 1024, next: 256, most: 1024 });
        assert_eq!(parts(EARLY, COST), Parts { first: 64, next: 256, most: 256 });
        // Chains that lie side by side wait together.
        let slow = Cost { ns: MAX_HELD_NS / 200, barriers_ns: 16 * MAX_HELD_NS / 200, ..COST };
        assert_eq!(parts(EARLY, slow), Parts { first: 64, next: 100, most: 100 });
        let slower = Cost { ns: MAX_HELD_NS, ..COST };
        assert_eq!(parts(None, slower), Parts { first: 1, next: 1, most: 1 });
    }
}

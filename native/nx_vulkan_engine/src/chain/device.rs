//! Chains that have the whole device: a step is an executable, which is recorded again and again. Chains lie side by side, each with memory of
//! its own, so that they overlap on the device and their bits don't depend on each other.

use std::ops::Range;
use std::sync::Arc;

use super::form::Stepping;
use crate::executable::{ALIGN_BYTES, Lane, aligned};
use crate::kernel::launch::Compile;
use crate::memory::Buffer;
use crate::program::Program;
use crate::stream::Stream;
use crate::{DType, Engine, Error, Executable, Result, Tensor, Type, View, eager};

/// Commands of a submission: drivers keep some hundred bytes of each.
const MAX_COMMANDS: u64 = 1 << 17;

/// Operations on numbers that take a device as long as a byte of its memory, about. Besides, a submission moves no more bytes than the device has: what a
/// GPU does in 30 to 100 ms. Some systems stop programs whose submissions take seconds.
const FLOPS_PER_BYTE: u64 = 16;

/// Bytes of argument tables of a submission.
const MAX_TABLE_BYTES: u64 = 16 << 20;

/// Chains side by side: more don't keep a device busier.
const MAX_LANES: u64 = 1024;

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

impl Stepped {
    /// Compiles a step, whose inputs are a counter (u32), `states` values and what stays the same; its first outputs are the next states.
    pub fn compile(engine: &Arc<Engine>, program: Program, stepping: Stepping, own: &[bool]) -> Result<Stepped> {
        let outputs = program.output_types().into_iter().cloned().collect();
        let step = Executable::compile_owning_outputs(engine, program)?;
        Ok(Stepped { step, stepping, own: own.to_vec(), outputs })
    }

    /// Runs `steps` steps of every chain. `inputs` are all but the counter, in row-major order; what is a chain's own has the chains as its
    /// first axis. Answers the outputs of each step, `[chains, steps, ..]`. It is one submission as far as the limits above allow, unless a step
    /// waits for the device: then chains run one after the other.
    ///
    /// # Errors
    /// `NeedsCompile` where `compile` refuses to wait: to record many steps takes too long for those who do.
    pub fn run(
        &self,
        engine: &Arc<Engine>,
        inputs: &[Tensor],
        [chains, steps]: [u64; 2],
        compile: Compile,
    ) -> Result<Vec<Tensor>> {
        if compile == Compile::Refused {
            return Err(Error::NeedsCompile);
        }
        let results: Vec<Tensor> = self
            .outputs
            .iter()
            .map(|ty| Tensor::uninitialized(engine, &Type::new(ty.dtype, &[&[chains, steps], &ty.shape[..]].concat())))
            .collect::<Result<_>>()?;
        let counters = Rows::counters(engine, steps + u64::from(self.stepping.begins))?;
        let run = Run { stepped: self, engine, inputs, counters, results: &results, steps };
        if self.step.waits() {
            (0..chains).try_for_each(|chain| run.alone(chain))?;
        } else {
            run.side_by_side(chains)?;
        }
        Ok(results)
    }
}

/// A run of all chains.
struct Run<'a> {
    stepped: &'a Stepped,
    engine: &'a Arc<Engine>,
    inputs: &'a [Tensor],
    counters: Rows,
    results: &'a [Tensor],
    steps: u64,
}

impl Run<'_> {
    /// Runs one chain, with the host between the parts of a step.
    fn alone(&self, chain: u64) -> Result<()> {
        let Stepping { states, begins } = self.stepped.stepping;
        let mine = |(tensor, &own): (&Tensor, &bool)| if own { row(tensor, chain) } else { tensor.clone() };
        let mine = self.inputs.iter().zip(&self.stepped.own).map(mine);
        let mut operands: Vec<Tensor> = std::iter::once(self.counters.tensor(0)).chain(mine).collect();
        for step in 0..self.steps + u64::from(begins) {
            operands[0] = self.counters.tensor(step);
            let left = self.stepped.step.run(&operands, Compile::Allowed)?;
            operands[1..=states].clone_from_slice(&left[..states]);
            if let Some(place) = step.checked_sub(u64::from(begins)) {
                for (from, to) in left.iter().zip(self.results) {
                    eager::copy(self.engine, from, &row(&row(to, chain), place), Compile::Allowed)?;
                }
            }
        }
        Ok(())
    }

    /// Runs as many chains at once as memory allows, and submits as seldom as the limits allow.
    fn side_by_side(&self, chains: u64) -> Result<()> {
        let (cost, memory_bytes) = (self.stepped.step.cost(), self.engine.stats().budget_bytes);
        let runs = self.steps + u64::from(self.stepped.stepping.begins);
        let kept_bytes: u64 = self.stepped.outputs.iter().map(|ty| pitch_bytes(ty) * runs).sum();
        let moved_bytes = cost.moved_bytes + cost.flops / FLOPS_PER_BYTE;
        let most = [(MAX_COMMANDS, cost.commands), (memory_bytes, moved_bytes), (MAX_TABLE_BYTES, cost.table_bytes)];
        let most = most.map(|(limit, each)| limit / each.max(1)).into_iter().min().unwrap_or(1);
        let lanes = memory_bytes / MEMORY_SHARE / (cost.arena_bytes + kept_bytes).max(1);
        let mut lanes = lanes.clamp(1, MAX_LANES).min(most.max(1)).min(chains);
        self.engine.stream().grow_arguments(cost.table_bytes * most.min(chains * runs))?;

        let (mut first, mut submission) = (0, Submission { most, runs: 0 });
        while first < chains {
            match Stream::hold(|| self.group(first..(first + lanes).min(chains), &mut submission)) {
                Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) if lanes > 1 => lanes /= 2,
                done => {
                    done?;
                    first += lanes;
                }
            }
        }
        self.engine.flush()
    }

    /// Runs some chains at once.
    fn group(&self, chains: Range<u64>, submission: &mut Submission) -> Result<()> {
        let (engine, lanes) = (self.engine, chains.end - chains.start);
        let Stepped { step, stepping: Stepping { states, begins }, own, outputs } = self.stepped;
        let inputs = self.inputs.iter().zip(own).map(|(tensor, &own)| Rows::of(engine, tensor, own.then_some(&chains)));
        let inputs: Vec<Rows> = inputs.collect::<Result<_>>()?;
        let rows = |each: u64| outputs.iter().map(|ty| Rows::new(engine, ty, lanes * each)).collect::<Result<Vec<_>>>();
        let begun = if *begins { rows(1)? } else { vec![] };
        let places = self.results.iter().zip(outputs);
        let kept = places.map(|(result, ty)| Rows::within(engine, result, ty, &chains, self.steps));
        let kept: Vec<Rows> = kept.collect::<Result<_>>()?;
        let arena_bytes = step.cost().arena_bytes;
        let arena = if arena_bytes > 0 { Some(engine.alloc(arena_bytes * lanes)?) } else { None };

        let reads: Vec<&Buffer> = inputs.iter().chain([&self.counters]).map(|rows| &*rows.buffer).collect();
        let writes: Vec<&Buffer> = begun.iter().chain(&kept).map(|rows| &*rows.buffer).collect();
        // Where a lane leaves output k of a run.
        let left = |run: u64, lane: u64, k: usize| match run.checked_sub(u64::from(*begins)) {
            None => begun[k].place(lane),
            Some(kept_step) => kept[k].place(lane * self.steps + kept_step),
        };
        for run in 0..self.steps + u64::from(*begins) {
            let lane = |lane: u64| {
                let input = |k: usize| match run.checked_sub(1) {
                    Some(before) if k < *states => left(before, lane, k),
                    _ => inputs[k].place(lane),
                };
                Lane {
                    inputs: [self.counters.place(run)].into_iter().chain((0..inputs.len()).map(input)).collect(),
                    outputs: (0..outputs.len()).map(|k| left(run, lane, k)).collect(),
                }
            };
            submission.add(engine, lanes)?;
            step.run_side_by_side(arena.as_ref(), &(0..lanes).map(lane).collect::<Vec<Lane<'_>>>(), &reads, &writes)?;
        }
        kept.iter().zip(self.results).try_for_each(|(rows, result)| rows.copy_to(engine, result, &chains, self.steps))
    }
}

/// What is recorded for the next submission.
struct Submission {
    /// Runs of a step that it takes at most.
    most: u64,
    runs: u64,
}

impl Submission {
    /// Makes room for so many runs.
    fn add(&mut self, engine: &Engine, runs: u64) -> Result<()> {
        if self.runs > 0 && self.runs + runs > self.most {
            engine.flush()?;
            self.runs = 0;
        }
        self.runs += runs;
        Ok(())
    }
}

/// Values of one type one after the other, each from a multiple of 16 bytes on, where kernels can load vectors.
struct Rows {
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

impl Rows {
    fn new(engine: &Engine, ty: &Type, count: u64) -> Result<Rows> {
        let pitch_bytes = pitch_bytes(ty);
        Ok(Rows { buffer: engine.alloc(pitch_bytes * count)?, ty: ty.clone(), begin_bytes: 0, pitch_bytes })
    }

    /// The numbers 0 to `count` - 1.
    fn counters(engine: &Arc<Engine>, count: u64) -> Result<Rows> {
        let rows = Rows::new(engine, &Type::new(DType::U32, &[]), count)?;
        let words = (0..count as u32).flat_map(|i| [i, 0, 0, 0]);
        engine.upload(&rows.buffer, 0, &words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())?;
        Ok(rows)
    }

    /// Those of `chains`, which are the first axis of a tensor in row-major order; without chains the whole tensor, for all.
    fn of(engine: &Arc<Engine>, tensor: &Tensor, chains: Option<&Range<u64>>) -> Result<Rows> {
        let Some(chains) = chains else {
            let tensor = aligned(engine, tensor, Compile::Allowed)?;
            let (begin_bytes, ty) = (tensor.view.offset_bytes(), tensor.view.ty());
            return Ok(Rows { buffer: tensor.buffer, ty, begin_bytes, pitch_bytes: 0 });
        };
        let ty = Type::new(tensor.view.dtype, &tensor.view.shape[1..]);
        let first = row(tensor, chains.start);
        if is_packed(&ty) && first.address().is_multiple_of(ALIGN_BYTES) {
            let (begin_bytes, pitch_bytes) = (first.view.offset_bytes(), pitch_bytes(&ty));
            return Ok(Rows { buffer: first.buffer, ty, begin_bytes, pitch_bytes });
        }
        let count = chains.end - chains.start;
        let rows = Rows::new(engine, &ty, count)?;
        eager::copy(engine, &part(tensor, &ty, chains.start, count), &rows.all(count), Compile::Allowed)?;
        Ok(rows)
    }

    /// The places of `chains` in a result `[all chains, steps, ..]`, or memory for them where they don't begin at multiples of 16 bytes.
    fn within(engine: &Engine, result: &Tensor, ty: &Type, chains: &Range<u64>, steps: u64) -> Result<Rows> {
        if !is_packed(ty) {
            return Rows::new(engine, ty, (chains.end - chains.start) * steps);
        }
        let pitch_bytes = pitch_bytes(ty);
        let begin_bytes = result.view.offset_bytes() + chains.start * steps * pitch_bytes;
        Ok(Rows { buffer: Arc::clone(&result.buffer), ty: ty.clone(), begin_bytes, pitch_bytes })
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
        Tensor { buffer: Arc::clone(&self.buffer), view }
    }

    /// The first `count` rows as `[count, elements]`.
    fn all(&self, count: u64) -> Tensor {
        let size = self.ty.dtype.size_bytes();
        let mut view = View::contiguous(self.ty.dtype, &[count, self.ty.elements()]);
        view.strides[0] = (self.pitch_bytes / size) as i64;
        view.offset = self.begin_bytes / size;
        Tensor { buffer: Arc::clone(&self.buffer), view }
    }
}

/// `count` values of type `ty`, from the `first` on, of a tensor that holds them one after the other, as `[count, elements]`.
fn part(tensor: &Tensor, ty: &Type, first: u64, count: u64) -> Tensor {
    let mut view = View::contiguous(ty.dtype, &[count, ty.elements()]);
    view.offset = tensor.view.offset + first * ty.elements();
    Tensor { buffer: Arc::clone(&tensor.buffer), view }
}

/// Element `i` along the first axis.
fn row(tensor: &Tensor, i: u64) -> Tensor {
    let mut view = tensor.view.clone();
    view.shape.remove(0);
    let stride = view.strides.remove(0);
    view.offset = view.offset.wrapping_add_signed(i as i64 * stride);
    Tensor { buffer: Arc::clone(&tensor.buffer), view }
}

//! Chains each of which is a workgroup, and how their steps are spread over dispatches: over ranges of chains, over
//! steps, and over the iterations of a loop of which nobody knows how often it runs.
//!
//! The size of a part counts turns: a turn is a step of as many chains as the device runs side by side, or an iteration
//! of their loops.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nx_vulkan_device::stream::MAX_HELD_NS;
use nx_vulkan_ir::program::ops::PHASE_WORK;
use nx_vulkan_ir::program::workgroup::{has_one_open_loop, work_repeated};
use nx_vulkan_spirv::workgroup::{Mode, PROGRESS_WORDS, Port, WorkgroupSpec};

use super::device::element;
use super::form::Stepping;
use super::run::{PART, Parts, Position, Run, later};
use crate::kernels::workgroup::Repeat;
use crate::kernels::{Compile, Kernel, workgroup};
use crate::program::Program;
use crate::tuning::Chains;
use crate::{DType, Engine, Result, Tensor, Type, View, eager};

/// Time of the first part of the first run that pauses, as it is estimated: the second one is known better.
const FIRST_NS: u64 = MAX_HELD_NS / 16;

/// The share of its last measure by which a turn may seem slower with each part.
const SLOWER: u64 = 8;

/// Scratch memory of the chains of one dispatch.
const MAX_SCRATCH_BYTES: u64 = 256 << 20;

/// The kernel of a step.
#[derive(Debug)]
pub(super) struct Grouped {
    kernel: Arc<Kernel>,
    ports: Vec<Port>,
    stepping: Stepping,
    outputs: Vec<Type>,
    /// Whether dispatches leave off within a step.
    pauses: bool,
    /// Work of a turn of one chain, about the instructions of all invocations.
    work: u64,
    /// Chains that the device runs side by side.
    side_by_side: u64,
    /// Steps that a dispatch should take chains further, or else it takes fewer chains.
    least_steps: u64,
    /// What a turn takes, as far as parts have shown it, or 0.
    turn_ns: AtomicU64,
}

/// How far a run is.
#[derive(Debug)]
pub(super) struct Groups {
    /// The last one goes on first.
    waiting: Vec<Group>,
    /// What the last dispatch took further, where only its end tells how far.
    at_work: Option<Group>,
}

/// Chains that go on together.
#[derive(Debug)]
struct Group {
    chains: Range<u64>,
    /// The counter of their next step, where they don't pause.
    next: u64,
    /// Chains that have not done all steps.
    active: u64,
    left: Option<Left>,
}

/// What chains that pause leave.
#[derive(Debug)]
struct Left {
    /// `[chains, words]`
    scratch: Tensor,
    /// `[chains, PROGRESS_WORDS]`
    progress: Tensor,
}

/// Elements `range` along the first axis.
fn rows(tensor: &Tensor, range: Range<u64>) -> Tensor {
    let mut view = View::clone(&tensor.view);
    view.shape[0] = range.end - range.start;
    view.offset = view.offset.wrapping_add_signed(range.start as i64 * view.strides[0]);
    tensor.with_view(view)
}

impl Group {
    fn len(&self) -> u64 {
        self.chains.end - self.chains.start
    }

    /// A group of some of its chains, which are counted from its first one.
    fn part(&self, chains: Range<u64>, active: u64) -> Group {
        let left = self.left.as_ref().map(|left| Left {
            scratch: rows(&left.scratch, chains.clone()),
            progress: rows(&left.progress, chains.clone()),
        });
        let begin = self.chains.start;
        Group { chains: begin + chains.start..begin + chains.end, next: self.next, active, left }
    }
}

impl Grouped {
    /// Compiles a step, as [`super::form::Steps::compile`] has it.
    pub fn compile(engine: &Arc<Engine>, program: Program, stepping: Stepping, own: &[bool]) -> Result<Grouped> {
        let types = program.inputs.iter().skip(1);
        let ports = types.zip(own).map(|(ty, &own)| Port::contiguous(&ty.shape, own)).collect();
        let outputs = program.output_types().into_iter().cloned().collect();
        let pauses = !stepping.begins && has_one_open_loop(&program);
        let mode = Mode::Steps { states: stepping.states, begins: stepping.begins, pauses };
        let work = work_repeated(&program, PHASE_WORK).saturating_add(engine.model().chains.step_work);
        let spec: WorkgroupSpec = workgroup::spec_with(engine.model(), &Arc::new(program), ports, mode);
        let ports = spec.ports.clone();
        let kernel = engine.kernel(&spec, Compile::Allowed)?;
        // Of a CPU device's workgroups each takes a core.
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let Chains { side_by_side, least_steps, .. } = engine.model().chains;
        let side_by_side = side_by_side.unwrap_or_else(cores);
        let turn_ns = AtomicU64::new(0);
        Ok(Grouped { kernel, ports, stepping, outputs, pauses, work, side_by_side, least_steps, turn_ns })
    }

    pub fn outputs(&self) -> &[Type] {
        &self.outputs
    }

    /// Begins a run of so many chains and steps.
    ///
    /// # Errors
    /// `NeedsCompile` where it may be several parts and `compile` refuses to wait.
    pub fn begin(&self, engine: &Engine, [chains, steps]: [u64; 2], compile: Compile) -> Result<(Groups, Parts)> {
        let first = match self.turn_ns.load(Ordering::Relaxed) {
            0 => {
                (if self.pauses { FIRST_NS } else { MAX_HELD_NS })
                    / engine.stream().rates().longest_ns(self.work).max(1)
            }
            turn_ns => PART.as_nanos() as u64 / turn_ns,
        }
        .max(1);
        let turns = self.turns(chains).saturating_mul(steps + u64::from(self.stepping.begins));
        Run::refuse(compile, !self.pauses && first >= turns && chains <= self.most_chains())?;
        let all = Group { chains: 0..chains, next: 0, active: chains, left: None };
        Ok((Groups { waiting: vec![all], at_work: None }, Parts { first, next: later(first), most: u64::MAX }))
    }

    /// How often the device takes as many chains as run side by side until it had all.
    fn turns(&self, chains: u64) -> u64 {
        chains.div_ceil(self.side_by_side)
    }

    fn most_chains(&self) -> u64 {
        (MAX_SCRATCH_BYTES / u64::from(self.kernel.elements_per_group).max(1)).max(1)
    }

    /// The next chains, as many as go on far enough in `size` turns, of `all` steps. Others wait.
    fn take(&self, groups: &mut Groups, size: u64, all: u64) -> Option<Group> {
        let mut group = groups.waiting.pop()?;
        let way = if self.pauses { self.least_steps } else { self.least_steps.min(all - group.next) };
        let is_long = |group: &Group| match self.turns(group.active) {
            1 => false,
            turns => turns.saturating_mul(way) > size,
        };
        while group.len() > 1 && (is_long(&group) || group.len() > self.most_chains()) {
            let (len, middle) = (group.len(), group.len().div_ceil(2));
            let part = |chains: Range<u64>| {
                let active = group.active.min(chains.end - chains.start);
                group.part(chains, active)
            };
            let (first, rest) = (part(0..middle), part(middle..len));
            groups.waiting.push(rest);
            group = first;
        }
        Some(group)
    }

    /// Records a dispatch of about `size` turns, or as many as are left. Answers how many, and whether they are the
    /// last ones.
    pub fn advance(&self, run: &mut Run, size: u64) -> Result<(u64, bool)> {
        let (engine, begins) = (Arc::clone(&run.engine), u64::from(self.stepping.begins));
        let (Position::Workgroup(groups), all) = (&mut run.place, run.count + begins) else { return Ok((0, true)) };
        let Some(mut group) = self.take(groups, size, all) else { return Ok((0, true)) };
        let turns = self.turns(group.active);
        let chains = group.chains.clone();
        let results: Vec<Tensor> = run.results.iter().map(|result| rows(result, chains.clone())).collect();
        let of_group = |(tensor, port): (&Tensor, &Port)| match port.per_group {
            true => rows(tensor, chains.clone()),
            false => tensor.clone(),
        };
        let mut inputs: Vec<Tensor> = run.inputs.iter().zip(&self.ports).map(of_group).collect();
        let (count, kept) = (group.len() as u32, run.count as u32);
        if self.pauses {
            let units = (size / turns).clamp(1, u32::MAX.into());
            let from = u32::from(group.left.is_some());
            if group.left.is_none() {
                let words = u64::from(self.kernel.elements_per_group) / 4;
                let memory =
                    |words: u64| Tensor::uninitialized(&engine, &Type::new(DType::U32, &[count.into(), words]));
                group.left = Some(Left { scratch: memory(words)?, progress: memory(PROGRESS_WORDS)? });
            }
            let pause = group.left.as_ref().map(|left| (units as u32, &left.scratch, &left.progress));
            let repeat = Repeat { kept, from, to: all as u32, pause };
            workgroup::run_kernel(&engine, &self.kernel, &self.ports, (&inputs, &results), count, repeat)?;
            groups.at_work = Some(group);
            return Ok((units * turns, false));
        }
        // The first dispatch leaves a step that the second one goes on from.
        let (from, to) = (group.next, group.next.saturating_add((size / turns).max(1 + begins)).min(all));
        if from > 0 {
            for (state, results) in inputs.iter_mut().take(self.stepping.states).zip(&results) {
                *state = eager::contiguous(&engine, &element(results, 1, from - 1 - begins), Compile::Allowed)?;
            }
        }
        let repeat = Repeat { kept, from: from as u32, to: to as u32, pause: None };
        workgroup::run_kernel(&engine, &self.kernel, &self.ports, (&inputs, &results), count, repeat)?;
        if to < all {
            group.next = to;
            groups.waiting.push(group);
        }
        Ok(((to - from) * turns, groups.waiting.is_empty()))
    }

    pub fn pauses(&self) -> bool {
        self.pauses
    }

    /// Looks how far the last dispatch took chains that pause, and puts those back that are not at their end. Answers
    /// the turns that it took.
    pub fn look(&self, run: &mut Run) -> Result<Option<u64>> {
        let Position::Workgroup(groups) = &mut run.place else { return Ok(None) };
        let Some(group) = groups.at_work.take() else { return Ok(None) };
        let Some(left) = &group.left else { return Ok(None) };
        let bytes = left.progress.to_nx_bytes(&run.engine, None)?;
        let (words, _) = bytes.as_chunks::<4>();
        let (mut unfinished, mut longest, mut sum) = (vec![], 0, 0);
        for (chain, row) in (0..).zip(words.chunks_exact(PROGRESS_WORDS as usize)) {
            let [next, _, done] = [0, 1, 2].map(|k| u64::from(u32::from_ne_bytes(row[k])));
            if next < run.count {
                unfinished.push(chain);
            }
            longest = done.max(longest);
            sum += done;
        }
        if let (Some(&first), Some(&last)) = (unfinished.first(), unfinished.last()) {
            groups.waiting.push(group.part(first..last + 1, unfinished.len() as u64));
        }
        Ok(Some(longest.max(sum.div_ceil(self.side_by_side)).max(1)))
    }

    /// Notes what so many turns took, for how much the next run begins with.
    pub fn note(&self, took: Duration, turns: u64) {
        let turn_ns = (took.as_nanos() as u64 / turns.max(1)).max(1);
        // Of a short part much is the way to the device: that a turn takes less is sure, that it takes more may be
        // wrong.
        let most = match self.turn_ns.load(Ordering::Relaxed) {
            0 => turn_ns,
            before => before + before.div_ceil(SLOWER),
        };
        self.turn_ns.store(turn_ns.min(most), Ordering::Relaxed);
    }
}

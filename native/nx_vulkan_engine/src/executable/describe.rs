//! What a run does, launch by launch, for people.

use nx_vulkan_device::capture::{Action, Command};
use nx_vulkan_device::work::Work;

use super::schedule::Schedule;
use super::{Batch, Executable, Step, Work as Waiting};

/// A command of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// The kernel's name with the beginning of its hash, `fill` or `copy`.
    pub kernel: String,
    /// Workgroups in x, y, z; none for fills and copies.
    pub groups: [u32; 3],
    /// Whether it waits for the commands before it.
    pub barrier: bool,
    /// What it moves and computes.
    pub work: Work,
    /// What intermediate results take then, in the arena or in memory of outputs that are not written yet.
    pub live_bytes: u64,
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Described {
    /// One command.
    Launch(Launched),
    /// The host waits for values: what for, and the programs that it runs then, by name.
    Wait {
        /// The op's name.
        op: &'static str,
        /// `condition` and `body`, or `on_true` and `on_false`; none for other ops.
        parts: Vec<(&'static str, Vec<Described>)>,
    },
}

/// An intermediate result that is held while a part of a run holds most of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its memory.
    pub size_bytes: u64,
    /// The kernel that makes it, by name, and its place among the part's commands.
    pub made_by: (String, usize),
    /// The last kernel that reads it, and its place.
    pub read_by: (String, usize),
}

impl Executable {
    /// The intermediate results that are held where a run holds most of them between two steps of the host, the largest
    /// first. Those of loops and branches that the host drives are not among them, nor are inputs and outputs.
    pub fn held_at_peak(&self) -> Vec<Held> {
        let batches = self.steps.iter().filter_map(|step| match step {
            Step::Batch(batch) => Some(&**batch),
            Step::Wait { .. } => None,
        });
        let Some(batch) = batches.max_by_key(|batch| batch.schedule.places.arena_bytes) else { return Vec::new() };
        let command = |at: usize| (batch.schedule.commands.get(at).map(name_of).unwrap_or_default(), at);
        let held = batch.schedule.held.iter();
        let held = held.map(|held| Held {
            size_bytes: held.size_bytes,
            made_by: command(held.from),
            read_by: command(held.to),
        });
        held.collect()
    }

    /// What a run does, in order. Parts of loops and branches are described once, however often they run.
    ///
    /// # Examples
    /// ```
    /// use nx_vulkan_engine::executable::Described;
    /// use nx_vulkan_engine::program::Builder;
    /// use nx_vulkan_engine::{DType, Engine, Executable};
    ///
    /// # fn main() -> nx_vulkan_engine::Result<()> {
    /// # if nx_vulkan_engine::is_missing_for_examples()? { return Ok(()) }
    /// let engine = Engine::open(None)?;
    /// let b = Builder::new();
    /// let x = b.input(DType::F32, &[1000]);
    /// let y = b.tanh(b.multiply(x, 0.5));
    /// let executable = Executable::compile(&engine, b.finish(&[y])?)?;
    /// let [Described::Launch(only)] = &executable.describe()[..] else { panic!("one kernel") };
    /// assert!(only.kernel.starts_with("map.multiply_tanh.f32-"));
    /// // The factor is part of the kernel.
    /// assert_eq!((only.work.read_bytes, only.work.written_bytes, only.work.flops), (4000, 4000, Some(2000)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn describe(&self) -> Vec<Described> {
        let mut parts = Vec::new();
        for step in &self.steps {
            match step {
                Step::Batch(batch) => parts.extend(batch.describe().map(Described::Launch)),
                Step::Wait { work, .. } => parts.push(work.describe()),
            }
        }
        parts
    }
}

impl Batch {
    fn describe(&self) -> impl Iterator<Item = Launched> + '_ {
        let Schedule { commands, barriers, live_bytes, .. } = &self.schedule;
        commands.iter().zip(barriers).zip(live_bytes).map(|((command, &barrier), &live_bytes)| {
            let groups = match &command.action {
                Action::Launch { groups, .. } => *groups,
                Action::Fill { .. } | Action::Copy { .. } => [0; 3],
            };
            Launched { kernel: name_of(command), groups, barrier, work: command.work.unwrap_or_default(), live_bytes }
        })
    }
}

fn name_of(command: &Command) -> String {
    match &command.action {
        Action::Launch { pipeline, .. } => pipeline.name(),
        Action::Fill { .. } => "fill".to_string(),
        Action::Copy { .. } => "copy".to_string(),
    }
}

impl Waiting {
    fn describe(&self) -> Described {
        match self {
            Waiting::Op { op, .. } => Described::Wait { op: op.name(), parts: vec![] },
            Waiting::While { condition, body, .. } => Described::Wait {
                op: "while",
                parts: vec![("condition", condition.describe()), ("body", body.describe())],
            },
            Waiting::Cond { on_true, on_false } => Described::Wait {
                op: "cond",
                parts: vec![("on_true", on_true.describe()), ("on_false", on_false.describe())],
            },
        }
    }
}

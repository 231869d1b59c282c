//! Whole programs that one workgroup runs.
//!
//! Values that only neighbours in the same loop read stay in registers; what others read lies in shared memory. Values
//! of one element are computed by every invocation alike. `plan` decides which is which and in what phases loops run;
//! `phase` emits them, with barriers only where memory passes between invocations; `element` emits one element of a
//! value.

mod control;
mod element;
mod index;
mod memory;
mod node;
mod pause;
mod phase;
mod plan;
mod reduction;
mod steps;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use index::Key;
use memory::{Memory, WIDTHS};
use node::{Entry, Id, Source};
use nx_vulkan_ir::program::{Operand, Program, passes};
use nx_vulkan_ir::shape::{Dims, Strides, contiguous_strides};
use nx_vulkan_ir::{Error, Result};
use rspirv::spirv::Word;
use smallvec::SmallVec;

use super::generated::{Generated, arg};
use super::library::Library;
use super::link::{Code, Linker};
use super::modes::FloatModes;
use super::params::{Param, ParamLayout};

/// How an input lies in memory, from its lowest element on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    /// Of the axes, none negative.
    pub strides: Strides,
    /// Elements between the lowest element and the one with index 0.
    pub bias: u64,
    /// Each workgroup has one of its own, one after the other.
    pub per_group: bool,
}

impl Port {
    /// A port whose elements lie one after the other.
    pub fn contiguous(shape: &[u64], per_group: bool) -> Port {
        Port { strides: contiguous_strides(shape), bias: 0, per_group }
    }
}

/// A program as a key: equal where it reads the same.
#[derive(Debug, Clone)]
pub struct Keyed {
    /// The program.
    pub program: Arc<Program>,
    text: Arc<str>,
}

impl Keyed {
    /// The key of a program.
    pub fn new(program: Arc<Program>) -> Keyed {
        let text = format!("{program:?}").into();
        Keyed { program, text }
    }
}

impl PartialEq for Keyed {
    fn eq(&self, other: &Keyed) -> bool {
        self.text == other.text
    }
}

impl Eq for Keyed {}

impl Hash for Keyed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// What a kernel does with its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Runs it once.
    Once,
    /// Runs it with a counter from `Extra(2)` up to before `Extra(3)`. Its inputs are the counter (u32), `states`
    /// values and what stays the same; its first outputs are the next states. All outputs of each run are kept, in
    /// `Extra(0)` rows for each workgroup, but not those of run 0 where it `begins`.
    ///
    /// Where it `pauses`, a workgroup begins or goes on with its runs and does at most `Extra(4)` units of work: a unit
    /// is an iteration of the one loop of the program of which nobody knows how often it runs, or the beginning of a
    /// run. It then leaves where it is in its scratch memory and its row of progress ([`PROGRESS_WORDS`]), from which
    /// another dispatch goes on (`Extra(2)` is 0 in the first one and 1 in others), with the same bits.
    Steps {
        /// How many of its inputs are state.
        states: usize,
        /// Whether another program gives the first state.
        begins: bool,
        /// Whether it may stop between steps.
        pauses: bool,
    },
}

/// Words of what a workgroup that pauses leaves: its next run, whether that has begun, and the units of work that it
/// did in the last dispatch.
pub const PROGRESS_WORDS: u64 = 4;

/// The key under which a workgroup kernel is compiled once. Operands: the inputs (in `Steps` without the counter), the
/// outputs, the scratch buffer, and progress where it pauses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkgroupSpec {
    /// What it runs.
    pub program: Keyed,
    /// How its inputs lie in memory.
    pub ports: Vec<Port>,
    /// What it does with the program.
    pub mode: Mode,
    /// Invocations of the workgroup.
    pub local_size: u32,
    /// Bytes of shared memory that the kernel may use.
    pub shared_bytes: u32,
    /// Invocations that run in step.
    pub subgroup: u32,
}

/// Invocations of a workgroup, of powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSizes {
    /// At least: those that run in step.
    pub subgroup: u32,
    /// At most, of programs with loops.
    pub most_of_loops: u32,
    /// At most, of others.
    pub most: u32,
}

/// Some thousand values that are each an operand of the next; only what is used of it is memory.
const STACK_BYTES: usize = 256 << 20;

impl WorkgroupSpec {
    /// As many invocations as the program's longest loops over elements have use for, of the sizes for a device, but no
    /// more than it allows.
    pub fn local_size(program: &Program, mode: Mode, sizes: LocalSizes, max_invocations: u32) -> u32 {
        let has_loops = mode != Mode::Once || program.instructions.iter().any(|i| i.op.inside().next().is_some());
        let most = if has_loops { sizes.most_of_loops } else { sizes.most };
        let limit = 1u64 << u64::from(max_invocations.max(1)).ilog2();
        node::longest(program).next_power_of_two().clamp(sizes.subgroup.into(), most.into()).min(limit) as u32
    }

    /// Generates the kernel's SPIR-V. In place of the elements of a workgroup come the bytes of scratch memory that it
    /// needs.
    pub fn generate(&self, library: &Library, modes: FloatModes) -> Result<Generated> {
        let generate = || {
            let program = passes::for_workgroup((*self.program.program).clone())?;
            Generated::push_or_table(|table| self.generate_with(&program, library, modes, table))
        };
        // Values are emitted from their operands by recursion, for which the caller's stack may be too small.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, generate);
            let thread = thread.map_err(|e| invalid(format!("no thread: {e}")))?;
            thread.join().map_err(|_| invalid("the generator ended early".to_string()))?
        })
    }

    fn generate_with(&self, program: &Program, library: &Library, modes: FloatModes, table: bool) -> Result<Generated> {
        let mut linker = Linker::new(library, "workgroup", table, modes)?;
        linker.set_local_size(self.local_size);
        let mut params = ParamLayout::new(&[Param::Count, Param::Extra(0)]);
        let mut memory = Memory::new(self.shared_bytes);
        let operands = self.ports.len() + self.program.program.outputs.len() + 2;
        if operands > usize::from(u8::MAX) {
            return Err(invalid(format!("{operands} operands")));
        }
        linker.define("slot_run", |code, args| {
            let mut emitter = Emitter {
                spec: self,
                program,
                local_id: arg(args, 0)?,
                group: arg(args, 1)?,
                code,
                params: &mut params,
                memory: &mut memory,
                entries: vec![],
                frames: vec![Frame::default()],
                numbers: HashMap::new(),
                kept: vec![],
                pausing: None,
            };
            match self.mode {
                Mode::Once => emitter.once()?,
                Mode::Steps { states, begins, pauses } => emitter.steps(states, begins, pauses)?,
            }
            Ok(None)
        })?;
        for (width, array) in memory.arrays.into_iter().enumerate() {
            if let Some(array) = array {
                let uint = linker.type_uint(32);
                let element = if WIDTHS[width] == 1 { uint } else { linker.type_vector(uint, WIDTHS[width]) };
                linker.shared_array(array, element, memory.shared_elements(width).max(1));
            }
        }
        let scratch_bytes = memory.scratch_bytes();
        Ok(Generated { words: linker.finish()?, params, table, elements_per_group: scratch_bytes })
    }

    fn outputs(&self) -> usize {
        self.program.program.outputs.len()
    }
}

/// What is known in one block and those inside it.
#[derive(Debug, Default)]
struct Frame {
    elements: HashMap<(Id, Key), Word>,
    arithmetic: HashMap<(u32, Word, Word), Word>,
}

/// Where the value of an output goes.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// To whoever asked for the program.
    Keep,
    /// To operand `k`, from element `base` on.
    Operand { k: u8, base: Option<Word> },
}

struct Emitter<'a, 'c, 'l> {
    spec: &'a WorkgroupSpec,
    /// The spec's, as it is emitted.
    program: &'a Program,
    code: &'a mut Code<'c, 'l>,
    params: &'a mut ParamLayout,
    memory: &'a mut Memory,
    local_id: Word,
    group: Word,
    entries: Vec<Entry>,
    frames: Vec<Frame>,
    /// The values of constants.
    numbers: HashMap<Word, u32>,
    /// Memory of values that a program left to whoever asked for it.
    kept: Vec<memory::Region>,
    /// For the loop that may pause, until that is emitted.
    pausing: Option<pause::Pausing>,
}

impl Emitter<'_, '_, '_> {
    /// Entries for the inputs that operands give.
    fn inputs(&mut self, types: &[nx_vulkan_ir::Type]) -> Result<Vec<Id>> {
        let ports = &self.spec.ports;
        if types.len() != ports.len() {
            return Err(invalid(format!("{} inputs for {} operands", types.len(), ports.len())));
        }
        let entry = |(k, (ty, port)): (usize, (&nx_vulkan_ir::Type, &Port))| {
            Entry::new(ty.clone(), Source::Port { k: k as u8, port: port.clone() })
        };
        let entries: Vec<Entry> = types.iter().zip(ports).enumerate().map(entry).collect();
        // Addresses, and the word that zeros are made of, are loaded where everything can use them.
        self.code.param(self.params.word(super::params::Param::Count))?;
        for k in 0..ports.len() + self.spec.outputs() {
            let address = self.params.address(k as u8);
            self.code.param(address)?;
            self.code.param(address + 1)?;
        }
        Ok(entries.into_iter().map(|entry| self.add(entry)).collect())
    }

    fn add(&mut self, entry: Entry) -> Id {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    fn once(&mut self) -> Result<()> {
        let (spec, program) = (self.spec, self.program);
        let inputs = self.inputs(&program.inputs)?;
        let first = spec.ports.len();
        let targets: SmallVec<[Target; 4]> =
            (0..program.outputs.len()).map(|k| Target::Operand { k: (first + k) as u8, base: None }).collect();
        self.scope(program, &inputs, &targets)?;
        Ok(())
    }

    fn shape(&self, id: Id) -> Dims {
        self.entries[id].ty.shape.clone()
    }

    fn elements_of(&self, id: Id) -> u64 {
        self.entries[id].ty.elements()
    }

    /// Enters a block of which nothing is seen outside.
    fn enter(&mut self) {
        self.frames.push(Frame::default());
    }

    fn leave(&mut self) {
        self.frames.pop();
    }

    fn barrier(&mut self) {
        self.code.barrier();
        self.memory.settle();
    }

    /// Begins a loop over `i` from `start` to below `count` by `step`. Answers the loop, its variable and `i`.
    fn begin_for(&mut self, start: Word, count: u32, step: u32) -> (For, Word) {
        let uint = self.code.linker.type_uint(32);
        let boolean = self.code.linker.type_bool();
        let end = self.number(count);
        if count <= step {
            // No invocation has a second turn.
            let holds = self.code.ids(rspirv::spirv::Op::ULessThan, boolean, &[start, end]);
            let branch = self.code.begin_if(holds);
            self.enter();
            return (For::Once(branch), start);
        }
        let variable = self.code.variable(uint);
        self.code.set(variable, start);
        let repeat = self.code.begin_loop();
        let i = self.code.get(uint, variable);
        let holds = self.code.ids(rspirv::spirv::Op::ULessThan, boolean, &[i, end]);
        self.code.go_on(&repeat, holds);
        self.enter();
        (For::Loop { repeat, variable, i, step }, i)
    }

    fn end_for(&mut self, construct: For) {
        self.leave();
        match construct {
            For::Once(branch) => self.code.end_if(branch),
            For::Loop { repeat, variable, i, step } => {
                let step = self.number(step);
                let next = self.code.u32_op(rspirv::spirv::Op::IAdd, i, step);
                self.code.set(variable, next);
                self.code.end_loop(repeat);
            }
        }
    }

    /// The entry of an operand of a program.
    fn find(operand: Operand, inputs: &[Id], results: &[Id]) -> Result<Id> {
        let found = match operand {
            Operand::Input(k) => inputs.get(k as usize),
            Operand::Result(k) => results.get(k as usize),
        };
        found.copied().ok_or_else(|| invalid(format!("{operand:?} does not exist")))
    }
}

enum For {
    Once(super::structured::Branch),
    Loop { repeat: super::structured::Repeat, variable: Word, i: Word, step: u32 },
}

fn invalid(reason: String) -> Error {
    Error::InvalidProgram { op: "workgroup".to_string(), reason }
}

//! From a program to an executable.

mod finish;

use std::collections::HashMap;
use std::sync::Arc;

use nx_vulkan_device::capture::{BufferRef, Command};

use super::peak::bytes_of;
use super::{Executable, Work};
use crate::eager::{self, Compile};
use crate::program::passes::{Recompute, Saving, Target};
use crate::program::text::in_op;
use crate::program::{Instruction, Op, Operand, Program};
use crate::{Engine, Error, Result, Tensor, Type};

/// Fused kernels of a program from which small ones take their numbers from launches: steps that are written out often
/// differ in nothing else.
const MANY_KERNELS: usize = 16;

/// Arenas up to this take too little memory to be worth a launch more: devices have thousands of them.
const SMALL_ARENA_BYTES: u64 = 1 << 20;

/// The part of the device's memory that is left to gaps between tensors and to others.
const GAPS: u64 = 16;

/// Steps while their buffers have numbers only.
enum Draft {
    Batch(Vec<Command>),
    Wait { work: Box<Work>, operands: Vec<Tensor> },
}

/// A program whose ops run on a capturing engine.
pub(super) struct Builder<'a> {
    pub engine: &'a Arc<Engine>,
    pub capturing: Arc<Engine>,
    drafts: Vec<Draft>,
    /// Numbers of the buffers that runs bind, in the order in which they are bound.
    bound: Vec<u32>,
    /// The predicates of the branches around what is captured, the outermost first, and what they have to be.
    pub gates: Vec<(Tensor, bool)>,
    /// Whether what is captured must not have steps of the host.
    pub must_not_wait: bool,
    /// Whether each output has memory of its own, in row-major order from its beginning on.
    owns_outputs: bool,
    /// What is enough for every arena.
    pub enough_bytes: u64,
    /// Of the inputs those whose memory results may have; the others are behind the end or false.
    pub donated: &'a [bool],
    /// Whether copies of inputs may be kept for runs to come, which takes more memory than a run does.
    pub keeps_copies: bool,
    /// Whether ops share copies of their operands in other forms, which lie in memory from the first op to the last.
    pub shares_copies: bool,
}

impl Executable {
    /// Checks and optimizes a program, compiles its kernels and plans its memory.
    ///
    /// # Errors
    /// `InvalidProgram` for a program that breaks a rule; `Unsupported` for what the device can't do, with the op.
    pub fn compile(engine: &Arc<Engine>, program: Program) -> Result<Executable> {
        Executable::compile_donating(engine, program, &[])
    }

    /// Compiles a program whose inputs may become results where `donated` is true, see [`Executable::run_donating`].
    /// What takes more memory than the device has beside the inputs is compiled as [`Executable::compile_within`] does.
    ///
    /// # Errors
    /// Those of [`Executable::compile`], and `OverBudget` where no way fits into the device.
    pub fn compile_donating(engine: &Arc<Engine>, program: Program, donated: &[bool]) -> Result<Executable> {
        let device_bytes = engine.budget_bytes() - engine.budget_bytes() / GAPS;
        let left_bytes = device_bytes.saturating_sub(bytes_of(&program.inputs));
        let fastest = Executable::compile_fastest(engine, program.clone(), donated)?;
        if fastest.peak_bytes() <= left_bytes {
            return Ok(fastest);
        }
        match Executable::compile_within(engine, program, donated, left_bytes) {
            // What lies in the host's memory may do.
            Err(_) if fastest.summary().arena_bytes <= engine.largest_bytes() => Ok(fastest),
            other => other,
        }
    }

    fn compile_fastest(engine: &Arc<Engine>, program: Program, donated: &[bool]) -> Result<Executable> {
        let enough_bytes = enough_bytes(&program);
        let compiled = |program: Program, saving: Saving, shares_copies: bool| {
            let program = engine.optimized(program, &Target { saving, ..engine.target() })?;
            build_with(Builder { enough_bytes, donated, shares_copies, ..Builder::new(engine) }, &program)
        };
        // What ops need besides their results is not in it.
        let limit_bytes = enough_bytes.saturating_add(enough_bytes / 16);
        let arena_bytes = |executable: &Executable| executable.summary().arena_bytes;
        let mut best = match compiled(program.clone(), Saving::Nothing, true) {
            Err(error) if matches!(error.cause(), Error::TooLarge { .. }) => {
                // Kernels that reduce may leave others to store more than the program has to.
                return compiled(program, Saving::Reductions, false).map_err(|_| error);
            }
            other => other?,
        };
        for saving in [Saving::Nothing, Saving::Order, Saving::Kernels] {
            if arena_bytes(&best) <= limit_bytes {
                break;
            }
            // There is one that runs.
            let Ok(other) = compiled(program.clone(), saving, false) else { break };
            if arena_bytes(&other) < arena_bytes(&best) / 4 * 3 {
                best = other;
            }
        }
        Ok(best)
    }

    /// Compiles a program of which a run may take so many bytes besides its inputs: as little as that needs is computed
    /// again, and put in an order that takes less.
    ///
    /// # Errors
    /// Those of [`Executable::compile`], and `OverBudget` where no way takes as little.
    pub fn compile_within(
        engine: &Arc<Engine>,
        program: Program,
        donated: &[bool],
        memory_bytes: u64,
    ) -> Result<Executable> {
        let mut needed_bytes = u64::MAX;
        let mut too_large = None;
        for effort in efforts(engine.target().recompute) {
            let target = Target { saving: effort.saving, recompute: effort.recompute, ..engine.target() };
            let enough_bytes = if effort.one_by_one { 0 } else { enough_bytes(&program) };
            let program = engine.optimized(program.clone(), &target)?;
            // Memory that is donated may keep others from having that of a result.
            let ways: &[&[bool]] = if donated.contains(&true) { &[donated, &[]] } else { &[donated] };
            for donated in ways {
                let shares_copies = effort.shares_copies;
                let builder =
                    || Builder { enough_bytes, donated, shares_copies, keeps_copies: false, ..Builder::new(engine) };
                // Nothing is compiled before it is known to fit.
                let planned_bytes = match captured(builder().again(&engine.planning()), &program) {
                    Ok(planned) => planned.peak_bytes(),
                    Err(error) if matches!(error.cause(), Error::TooLarge { .. }) => {
                        too_large.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if planned_bytes <= memory_bytes {
                    return build_with(builder(), &program);
                }
                needed_bytes = needed_bytes.min(planned_bytes);
            }
        }
        Err(match too_large.filter(|_| needed_bytes == u64::MAX) {
            Some(error) => error,
            None => Error::OverBudget { needed_bytes, budget_bytes: memory_bytes },
        })
    }

    /// Compiles a program with memory of its own for each output, in row-major order from its beginning on: what
    /// [`Executable::run_side_by_side`] needs.
    pub(crate) fn compile_owning_outputs(engine: &Arc<Engine>, program: Program) -> Result<Executable> {
        let enough_bytes = enough_bytes(&program);
        let program = engine.optimized(program, &engine.target())?;
        build_with(Builder { owns_outputs: true, enough_bytes, ..Builder::new(engine) }, &program)
    }
}

/// What is done to take less memory.
struct Effort {
    saving: Saving,
    recompute: Recompute,
    /// Whether commands run one after the other where that takes less.
    one_by_one: bool,
    shares_copies: bool,
}

/// From the least to the most.
fn efforts(recompute: Recompute) -> impl Iterator<Item = Effort> {
    let least = Recompute { shares: 0, ..recompute };
    let again = |shares, most_per_byte| Recompute { shares, most_per_byte, ..recompute };
    let most = again(u64::MAX, u64::MAX);
    let recomputes = [least, again(1, 6), again(4, 32), most].map(|recompute| (Saving::Nothing, recompute, false));
    let savings = [Saving::Nothing, Saving::Kernels, Saving::Reductions];
    let orders = savings.map(|saving| (saving, most, true));
    let efforts = recomputes.into_iter().chain(orders);
    let effort =
        |(saving, recompute, one_by_one), shares_copies| Effort { saving, recompute, one_by_one, shares_copies };
    let first = effort((Saving::Nothing, least, false), true);
    std::iter::once(first).chain(efforts.map(move |kind| effort(kind, false)))
}

/// What arenas of a program may take: what its ops do one by one, or too little to be worth a launch more.
pub(super) fn enough_bytes(program: &Program) -> u64 {
    program.evaluated_bytes().max(SMALL_ARENA_BYTES)
}

/// The executable of a program whose `donated` inputs may become results.
pub(super) fn build(engine: &Arc<Engine>, program: &Program, donated: &[bool]) -> Result<Executable> {
    build_with(Builder { enough_bytes: enough_bytes(program), donated, ..Builder::new(engine) }, program)
}

/// Kernels that are not there are compiled together, once it is known which these are.
fn build_with(builder: Builder<'_>, program: &Program) -> Result<Executable> {
    if builder.engine.planned().is_some() {
        return captured(builder, program);
    }
    let planning = builder.engine.planning();
    let executable = captured(builder.again(&planning), program)?;
    match planning.planned().filter(|planned| !planned.is_empty()) {
        None => Ok(executable),
        Some(planned) => {
            drop(executable);
            let _kernels = builder.engine.compile_planned(planned);
            captured(builder, program)
        }
    }
}

fn captured(mut builder: Builder<'_>, program: &Program) -> Result<Executable> {
    let fused = program.instructions.iter().filter(|instruction| matches!(instruction.op, Op::Fused(_))).count();
    builder.capturing = builder.engine.capturing_sharing(fused >= MANY_KERNELS);
    if let Some(capture) = builder.capturing.capture().filter(|_| !builder.shares_copies) {
        capture.share_no_copies();
    }
    let inputs = program.inputs.iter().map(|ty| builder.bind(ty)).collect::<Result<Vec<Tensor>>>()?;
    let outputs = builder.inline(program, &inputs)?;
    builder.finish(program.inputs.clone(), outputs)
}

fn missing(operand: &Operand) -> Error {
    Error::InvalidProgram { op: "program".to_string(), reason: format!("{operand:?} does not exist") }
}

impl<'a> Builder<'a> {
    pub fn new(engine: &'a Arc<Engine>) -> Builder<'a> {
        let (drafts, bound, gates) = (Vec::new(), Vec::new(), Vec::new());
        let capturing = engine.capturing();
        let (must_not_wait, owns_outputs, enough_bytes, donated) = (false, false, u64::MAX, &[][..]);
        let (shares_copies, keeps_copies) = (true, engine.keeps_copies());
        Builder {
            engine,
            capturing,
            drafts,
            bound,
            gates,
            must_not_wait,
            owns_outputs,
            enough_bytes,
            donated,
            shares_copies,
            keeps_copies,
        }
    }

    /// A builder like this one that has built nothing.
    fn again<'e>(&self, engine: &'e Arc<Engine>) -> Builder<'e>
    where
        'a: 'e,
    {
        Builder {
            must_not_wait: self.must_not_wait,
            owns_outputs: self.owns_outputs,
            enough_bytes: self.enough_bytes,
            donated: self.donated,
            shares_copies: self.shares_copies,
            keeps_copies: self.keeps_copies,
            ..Builder::new(engine)
        }
    }

    /// A tensor whose memory a run binds.
    pub fn bind(&mut self, ty: &Type) -> Result<Tensor> {
        let tensor = Tensor::uninitialized(&self.capturing, ty)?;
        self.bound.extend(tensor.buffer.virtual_id());
        Ok(tensor)
    }

    /// Runs a program's ops. Answers its outputs.
    pub fn inline(&mut self, program: &Program, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut results: Vec<Tensor> = Vec::with_capacity(program.instructions.len());
        let find = |results: &[Tensor], operand: &Operand| {
            let found = match *operand {
                Operand::Input(i) => inputs.get(i as usize),
                Operand::Result(i) => results.get(i as usize),
            };
            found.cloned().ok_or_else(|| missing(operand))
        };
        // What is to be there before anything is computed of a result.
        let mut awaited: HashMap<Operand, Vec<BufferRef>> = HashMap::new();
        for instruction in &program.instructions {
            let operands = instruction.operands.iter().map(|o| find(&results, o)).collect::<Result<Vec<_>>>()?;
            let mut before: Vec<BufferRef> =
                instruction.operands.iter().filter_map(|o| awaited.get(o)).flatten().cloned().collect();
            if let (Op::After, [first, others @ ..]) = (&instruction.op, &operands[..]) {
                before.extend(
                    others.iter().map(|other| BufferRef::of(&other.buffer)).filter(|place| place.id().is_some()),
                );
                self.forget_copies(first);
            }
            if before.is_empty() {
                results.extend(self.instruction(instruction, operands)?);
                continue;
            }
            let (mark, buffers) =
                (self.mark(), operands.iter().map(|operand| Arc::clone(&operand.buffer)).collect::<Vec<_>>());
            for result in self.instruction(instruction, operands)? {
                // Views wait for what their operands do.
                if buffers.iter().any(|buffer| Arc::ptr_eq(buffer, &result.buffer)) {
                    awaited.insert(Operand::Result(results.len() as u32), before.clone());
                }
                results.push(result);
            }
            self.await_since(mark, &before);
        }
        program.outputs.iter().map(|o| find(&results, o)).collect()
    }

    fn instruction(&mut self, instruction: &Instruction, operands: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let Instruction { op, outs, .. } = instruction;
        match op {
            Op::While(op) => return self.repeat(op, operands, outs),
            Op::Cond(op) => return self.choose(op, operands, outs),
            _ => {}
        }
        let mark = self.mark();
        match eager::run_all(&self.capturing, op, &operands, outs, Compile::Allowed) {
            Err(Error::NeedsCompile) => {
                self.take_since(mark);
                self.wait(Work::Op { op: op.clone(), outs: outs.to_vec() }, operands, outs)
            }
            // What one kernel can't do for this driver, those of its ops may.
            Err(e) if e.is_refused_kernel() => match op {
                Op::Fused(body) | Op::Workgroup(body) => {
                    self.take_since(mark);
                    self.inline(body, &operands)
                }
                _ => Err(in_op(e, op, operands.iter().map(|t| t.view.ty()), outs)),
            },
            Ok(results) => Ok(results.into_vec()),
            Err(e) => Err(in_op(e, op, operands.iter().map(|t| t.view.ty()), outs)),
        }
    }

    /// A step of the host; `NeedsCompile` where there must be none.
    pub fn wait(&mut self, work: Work, operands: Vec<Tensor>, outs: &[Type]) -> Result<Vec<Tensor>> {
        if self.must_not_wait {
            return Err(Error::NeedsCompile);
        }
        self.close_batch();
        self.drafts.push(Draft::Wait { work: Box::new(work), operands });
        outs.iter().map(|ty| self.bind(ty)).collect()
    }

    /// The number of commands so far.
    pub fn mark(&self) -> usize {
        self.capturing.capture().map_or(0, |capture| capture.mark())
    }

    /// Takes the commands since a mark.
    pub fn take_since(&self, mark: usize) -> Vec<Command> {
        self.capturing.capture().map(|capture| capture.take_since(mark)).unwrap_or_default()
    }

    fn forget_copies(&self, of: &Tensor) {
        if let Some(capture) = self.capturing.capture() {
            capture.forget_copies(&of.buffer);
        }
    }

    fn await_since(&self, mark: usize, places: &[BufferRef]) {
        if let Some(capture) = self.capturing.capture() {
            capture.await_since(mark, places);
        }
    }

    pub fn append(&self, commands: Vec<Command>) {
        if let Some(capture) = self.capturing.capture() {
            capture.append(commands);
        }
    }

    fn close_batch(&mut self) {
        let commands = self.capturing.capture().map(|capture| capture.take()).unwrap_or_default();
        if !commands.is_empty() {
            self.drafts.push(Draft::Batch(commands));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::executable::{Batch, Step};
    use crate::kernels::refusal;
    use crate::program::file::Recording;
    use crate::program::passes::{Target, optimize};
    use crate::program::{Binary, Builder as Ops, Loop};
    use crate::{DType, DeviceKind};

    /// sin(x) + its sum in one kernel, and what a loop of four steps makes of that.
    fn program() -> Program {
        let (condition, body) = (Ops::new(), Ops::new());
        let (i, x) = (condition.input(DType::S32, &[]), condition.input(DType::F32, &[3]));
        let sum = condition.sum(x, &[0]);
        let less = condition.binary(
            Binary::Less,
            condition.add(i, condition.multiply(sum, 0.0)),
            condition.number(DType::S32, 4.0),
        );
        let (i, x) = (body.input(DType::S32, &[]), body.input(DType::F32, &[3]));
        let (i, x) = (body.add(i, 1.0), body.add(body.sin(x), body.sum(x, &[0])));
        let op = Loop::new(condition.finish(&[less]).unwrap(), body.finish(&[i, x]).unwrap());
        let whole = Ops::new();
        let x = whole.input(DType::F32, &[3]);
        let start = whole.add(whole.sin(x), whole.sum(x, &[0]));
        let types = [Type::new(DType::S32, &[]), Type::new(DType::F32, &[3])];
        let results = whole.push_all(Op::While(Box::new(op)), &[whole.number(DType::S32, 0.0), start], &types);
        whole.finish(&[start, results[1]]).unwrap()
    }

    #[test]
    fn ops_of_refused_kernels_run_one_by_one() {
        let bytes: Vec<u8> = [0.5f32, -1.25, 3.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
        // Engines of their own: what is compiled is not refused.
        let results = |names: &[&'static str], workgroups: bool| {
            let engine = Engine::open(None).unwrap();
            let x = Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[3]), &bytes).unwrap();
            let target = {
                let target = engine.target();
                let gpu =
                    crate::tuning::target::of(DeviceKind::Discrete, engine.caps().max_invocations, target.matrix_units);
                Target { workgroups, ..gpu }
            };
            let program = optimize(program(), &target).unwrap();
            let executable = refusal::of(names, || build(&engine, &program, &[])).map_err(|e| e.to_string())?;
            let results = executable.run(std::slice::from_ref(&x), Compile::Allowed).unwrap();
            let bits = results.iter().map(|t| t.to_nx_bytes(&engine, None).unwrap()).collect::<Vec<_>>();
            Ok::<_, String>((bits, executable.summary().commands))
        };
        for workgroups in [false, true] {
            let (expected, commands) = results(&[], workgroups).unwrap();
            let (got, more) = results(&["workgroup.", "rows."], workgroups).unwrap();
            assert_eq!(got, expected);
            assert!(more > commands, "{more} commands where {commands} had no refused kernel");
        }
        let all = results(&["workgroup.", "rows.", "map."], false).unwrap_err();
        assert!(all.contains("sin") && all.contains("refused"), "{all}");
    }

    #[test]
    fn kernels_that_are_not_there_are_compiled_before_they_are_captured() {
        let engine = Engine::open(None).unwrap();
        let program = optimize(program(), &engine.target()).unwrap();
        let is_missing_some = || {
            let planning = engine.planning();
            captured(Builder::new(&planning), &program).unwrap();
            !planning.planned().unwrap().is_empty()
        };
        // What is asked of the device itself has kernels of its own.
        engine.float_modes().unwrap();
        let before = engine.stats().pipelines;
        assert!(is_missing_some());
        assert_eq!(engine.stats().pipelines, before);
        let executable = build(&engine, &program, &[]).unwrap();
        assert!(!is_missing_some() && engine.stats().pipelines > before);
        let x = Tensor::from_slice(&engine, &[3], &[0.5f32, -1.25, 3.0]).unwrap();
        let start = executable.run(&[x], Compile::Allowed).unwrap()[0].to_vec::<f32>(&engine).unwrap();
        for (got, x) in start.iter().zip([0.5f32, -1.25, 3.0]) {
            assert!((got - (x.sin() + 2.25)).abs() < 1e-5, "{got}");
        }
    }

    /// All batches, those of loops and branches included.
    fn batches(executable: &Executable) -> Vec<&Batch> {
        let mut found = Vec::new();
        for step in &executable.steps {
            match step {
                Step::Batch(batch) => found.push(&**batch),
                Step::Wait { work, .. } => match &**work {
                    Work::Op { .. } => {}
                    Work::While { condition: a, body: b, .. } | Work::Cond { on_true: a, on_false: b } => {
                        found.extend(batches(a).into_iter().chain(batches(b)));
                    }
                },
            }
        }
        found
    }

    #[test]
    fn recorded_programs_take_little_memory_in_the_order_of_their_levels() {
        let engine = Engine::open(None).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
        let mut narrowed = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let recording = Recording::read(&file.unwrap().path()).unwrap();
            // As if small arenas counted, too: the workloads are recorded at small sizes.
            let builder = Builder { enough_bytes: recording.program.evaluated_bytes(), ..Builder::new(&engine) };
            let program = optimize(recording.program, &engine.target()).unwrap();
            let executable = build_with(builder, &program).unwrap();
            if !batches(&executable).iter().all(|batch| batch.schedule.is_by_level(engine.model().short)) {
                narrowed.push(recording.name);
            }
        }
        narrowed.sort();
        // Many ops of the same operands, whose workspaces would all lie beside each other: three to four times what is
        // needed.
        let many = ["solvers_c64", "solvers_f32", "solvers_f64", "windows_f32", "windows_f64", "windows_s64"];
        assert_eq!(narrowed, many);
    }
}

//! Compiled programs: the resource that Elixir holds, and the NIFs that make and run them.

use std::cell::Cell;
use std::sync::Arc;

use nx_vulkan_engine::executable::{Described, Executable, Launched};
use nx_vulkan_engine::program::{Attr, Program, batched, programs_to_dot};
use nx_vulkan_engine::{Compile, Engine, Error, Result};
use rustler::{Atom, Encoder, Env, ResourceArc, Term};

use crate::engines::Opened;
use crate::tensor::{Taken, answer_all, collects_before, tensors_of};
use crate::{device, error, memory, term};

mod atoms {
    rustler::atoms! {
        ok, nil, commands, barriers, waits, arena_bytes, own_bytes, peak_bytes, donated_bytes, kept_bytes,
        kernel, groups, barrier, read_bytes, written_bytes, flops, live_bytes, wait, collect, size_bytes,
        made_by, read_by,
    }
}

/// Deeply nested programs are read and compiled by recursion, for which a scheduler's stack may be too small.
const STACK_BYTES: usize = 64 << 20;

pub struct ExecutableRef {
    engine: Opened,
    executable: Executable,
    /// Of its inputs, those that a run takes from their references.
    donated: Vec<bool>,
}

#[rustler::resource_impl]
impl rustler::Resource for ExecutableRef {}

fn executable_of(term: Term) -> Result<ResourceArc<ExecutableRef>> {
    term.decode().map_err(|_| Error::InvalidArgument {
        what: "executable",
        expected: "a reference to an executable".to_string(),
        got: format!("{term:?}"),
    })
}

/// Runs what may recurse deeply on a thread with a stack for it.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let failed = |cause: String| Error::Vulkan { call: "compile", cause };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| failed(e.to_string()))?;
        thread.join().map_err(|_| failed("the compiling thread ended early".to_string()))?
    })
}

fn compile(engine: &Arc<Engine>, program: Attr, donated: &[bool], memory: Option<u64>) -> Result<Executable> {
    on_large_stack(move || {
        let program = Program::from_attr(&program)?;
        match memory {
            Some(bytes) => Executable::compile_within(engine, program, donated, bytes),
            None => Executable::compile_donating(engine, program, donated),
        }
    })
}

/// Compiles the program of deferred ops.
pub fn compile_deferred(engine: &Arc<Engine>, program: Program) -> Result<Executable> {
    on_large_stack(move || Executable::compile(engine, program))
}

/// Compiles a program in its wire form for the device of that index, or for the default one, to take the inputs for which
/// `donated` is true from their references, and as many bytes besides as `memory` says.
#[rustler::nif(schedule = "DirtyCpu")]
fn program_compile<'a>(
    env: Env<'a>,
    program: Term<'a>,
    donated: Vec<bool>,
    memory: Option<u64>,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let engine = device::engine_of(device)?;
        let executable = compile(engine, term::attr(program)?, &donated, memory)?;
        Ok(ExecutableRef { engine, executable, donated })
    };
    reference(env, run())
}

fn reference(env: Env<'_>, compiled: Result<ExecutableRef>) -> Term<'_> {
    match compiled {
        Ok(executable) => (atoms::ok(), ResourceArc::new(executable)).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// Compiles a program in its wire form for several at once, of whom each has the inputs for which `own` is true.
#[rustler::nif(schedule = "DirtyCpu")]
fn program_compile_batched<'a>(
    env: Env<'a>,
    program: Term<'a>,
    own: Vec<bool>,
    count: u64,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let (engine, program) = (device::engine_of(device)?, term::attr(program)?);
        let executable = on_large_stack(|| {
            let program = batched::of(&Program::from_attr(&program)?, &own, count)?;
            Executable::compile(engine, program)
        })?;
        Ok(ExecutableRef { engine, executable, donated: vec![] })
    };
    reference(env, run())
}

/// What one run of an executable does.
#[rustler::nif]
fn executable_info<'a>(env: Env<'a>, executable: Term<'a>) -> Term<'a> {
    match executable_of(executable) {
        Ok(executable) => {
            let summary = executable.executable.summary();
            let pairs = [
                (atoms::commands(), summary.commands),
                (atoms::barriers(), summary.barriers),
                (atoms::waits(), summary.waits),
                (atoms::arena_bytes(), summary.arena_bytes),
                (atoms::own_bytes(), summary.own_bytes),
                (atoms::peak_bytes(), summary.peak_bytes),
                (atoms::donated_bytes(), summary.donated_bytes),
                (atoms::kept_bytes(), summary.kept_bytes),
            ];
            let map = Term::map_from_pairs(env, &pairs).unwrap_or_else(|_| Term::map_new(env));
            (atoms::ok(), map).encode(env)
        }
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// Intermediate results that one run holds where it holds most: as many terms as these are.
#[rustler::nif(schedule = "DirtyCpu")]
fn executable_held<'a>(env: Env<'a>, executable: Term<'a>) -> Term<'a> {
    let held = executable_of(executable).and_then(|it| {
        let held = it.executable.held_at_peak();
        let maps = held.iter().map(|held| {
            map_of(
                env,
                &[
                    (atoms::size_bytes(), held.size_bytes.encode(env)),
                    (atoms::made_by(), held.made_by.encode(env)),
                    (atoms::read_by(), held.read_by.encode(env)),
                ],
            )
        });
        maps.collect::<Result<Vec<Term<'a>>>>()
    });
    match held {
        Ok(list) => (atoms::ok(), list).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

fn map_of<'a>(env: Env<'a>, pairs: &[(Atom, Term<'a>)]) -> Result<Term<'a>> {
    Term::map_from_pairs(env, pairs).map_err(|_| Error::InvalidProgram {
        op: "program".to_string(),
        reason: "a launch has two descriptions".to_string(),
    })
}

/// What one run of an executable does, launch by launch: as many terms as it has launches.
#[rustler::nif(schedule = "DirtyCpu")]
fn executable_launches<'a>(env: Env<'a>, executable: Term<'a>) -> Term<'a> {
    let described = executable_of(executable).and_then(|it| described(env, &it.executable.describe()));
    match described {
        Ok(list) => (atoms::ok(), list).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

fn described<'a>(env: Env<'a>, parts: &[Described]) -> Result<Vec<Term<'a>>> {
    let part = |part: &Described| match part {
        Described::Launch(Launched { kernel, groups: [x, y, z], barrier, work, live_bytes }) => map_of(
            env,
            &[
                (atoms::kernel(), kernel.encode(env)),
                (atoms::groups(), (x, y, z).encode(env)),
                (atoms::barrier(), barrier.encode(env)),
                (atoms::read_bytes(), work.read_bytes.encode(env)),
                (atoms::written_bytes(), work.written_bytes.encode(env)),
                (atoms::flops(), work.flops.encode(env)),
                (atoms::live_bytes(), live_bytes.encode(env)),
            ],
        ),
        Described::Wait { op, parts } => {
            let name = |name: &str| {
                Atom::from_str(env, name).map_err(|_| Error::InvalidArgument {
                    what: "name",
                    expected: "an atom".to_string(),
                    got: name.to_string(),
                })
            };
            let mut pairs = vec![(atoms::wait(), name(op)?.to_term(env))];
            for (title, inner) in parts {
                pairs.push((name(title)?, described(env, inner)?.encode(env)));
            }
            map_of(env, &pairs)
        }
    };
    parts.iter().map(part).collect()
}

/// Programs as one DOT graph, each with a title, as the engine optimizes them for the device of that index, or for the
/// default one.
#[rustler::nif(schedule = "DirtyCpu")]
fn programs_graph<'a>(env: Env<'a>, title: &str, programs: Vec<(&str, Term<'a>)>, device: Option<usize>) -> Term<'a> {
    let graph = || {
        let engine = device::engine_of(device)?;
        let read = programs.iter().map(|(title, program)| Ok((*title, term::attr(*program)?)));
        let read = read.collect::<Result<Vec<(&str, Attr)>>>()?;
        on_large_stack(move || {
            let optimized =
                read.iter().map(|(name, program)| Ok((*name, engine.optimize(Program::from_attr(program)?)?)));
            let optimized = optimized.collect::<Result<Vec<(&str, Program)>>>()?;
            let parts: Vec<(&str, &Program)> = optimized.iter().map(|(name, program)| (*name, program)).collect();
            Ok(programs_to_dot(title, &parts))
        })
    };
    match graph() {
        Ok(text) => (atoms::ok(), text).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

fn run<'a>(env: Env<'a>, reference: &ExecutableRef, inputs: Term<'a>, compile: Compile) -> Term<'a> {
    // A process that is killed stays in its call until this returns.
    let goes_on = || env.is_process_alive(env.pid());
    let run = || {
        let ExecutableRef { engine, executable, donated } = reference;
        if donated.is_empty() {
            return executable.run_while(&tensors_of(inputs, engine, compile)?, compile, &goes_on);
        }
        let taken = Taken::of(inputs, engine, donated, compile)?;
        let spent = Cell::new(false);
        let results = executable.run_donating(&taken.tensors, compile, &goes_on, &spent);
        match &results {
            Err(_) if !spent.get() => taken.give_back(),
            _ => taken.release(),
        }
        results
    };
    answer_all(env, atoms::nil().to_term(env), run().map(Into::into), reference.engine)
}

/// Runs an executable: records it and returns. `:needs_compile` where it has to wait for the device, `:collect` where
/// the caller should collect garbage first.
#[rustler::nif]
fn executable_run<'a>(env: Env<'a>, executable: Term<'a>, inputs: Term<'a>) -> Term<'a> {
    let reference = match executable_of(executable) {
        Ok(reference) => reference,
        Err(e) => return error::encode(env, atoms::nil().to_term(env), &e),
    };
    // Who comes a second time, to the dirty twin, has been asked. A host that is far ahead of the device waits there,
    // too.
    if collects_before(reference.engine) {
        return atoms::collect().to_term(env);
    }
    device::when_ready(env, Some(reference.engine), |_| run(env, &reference, inputs, Compile::Refused))
}

/// As `executable_run`, and it waits for the device where the program does.
#[rustler::nif(schedule = "DirtyCpu")]
fn executable_run_dirty<'a>(env: Env<'a>, executable: Term<'a>, inputs: Term<'a>) -> Term<'a> {
    match executable_of(executable) {
        Ok(reference) => memory::charged(env, reference.engine, || run(env, &reference, inputs, Compile::Allowed)),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

//! Compiled programs: the resource that Elixir holds, and the NIFs that make and run them.

use std::sync::Arc;

use nx_vulkan_engine::executable::Executable;
use nx_vulkan_engine::program::Program;
use nx_vulkan_engine::program::wire::Attr;
use nx_vulkan_engine::{Compile, Engine, Error, Result};
use rustler::{Encoder, Env, ResourceArc, Term};

use crate::tensor::{encode_tensors, tensors_of};
use crate::{device, error, term};

mod atoms {
    rustler::atoms! { ok, nil, needs_compile, commands, barriers, waits, arena_bytes, own_bytes }
}

/// Deeply nested programs are read and compiled by recursion, for which a scheduler's stack may be too small.
const STACK_BYTES: usize = 64 << 20;

pub struct ExecutableRef {
    executable: Executable,
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

fn compile(engine: &Arc<Engine>, program: Attr) -> Result<Executable> {
    on_large_stack(move || Executable::compile(engine, Program::from_attr(&program)?))
}

/// Compiles a program in its wire form.
#[rustler::nif(schedule = "DirtyCpu")]
fn program_compile<'a>(env: Env<'a>, program: Term<'a>) -> Term<'a> {
    let run = || compile(device::engine()?, term::attr(program)?);
    match run() {
        Ok(executable) => (atoms::ok(), ResourceArc::new(ExecutableRef { executable })).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
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
            ];
            let map = Term::map_from_pairs(env, &pairs).unwrap_or_else(|_| Term::map_new(env));
            (atoms::ok(), map).encode(env)
        }
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

fn run<'a>(env: Env<'a>, engine: &Engine, executable: Term<'a>, inputs: Term<'a>, compile: Compile) -> Term<'a> {
    let run = || executable_of(executable)?.executable.run(&tensors_of(inputs)?, compile);
    match run() {
        Ok(tensors) => encode_tensors(env, engine, tensors.into()),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// Runs an executable: records it and returns. `:needs_compile` where it has to wait for the device.
#[rustler::nif]
fn executable_run<'a>(env: Env<'a>, executable: Term<'a>, inputs: Term<'a>) -> Term<'a> {
    match device::ready_engine() {
        Some(engine) => Engine::without_waiting(|| run(env, engine, executable, inputs, Compile::Refused)),
        None => atoms::needs_compile().encode(env),
    }
}

/// As `executable_run`, and it waits for the device where the program does.
#[rustler::nif(schedule = "DirtyCpu")]
fn executable_run_dirty<'a>(env: Env<'a>, executable: Term<'a>, inputs: Term<'a>) -> Term<'a> {
    match device::engine() {
        Ok(engine) => run(env, engine, executable, inputs, Compile::Allowed),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

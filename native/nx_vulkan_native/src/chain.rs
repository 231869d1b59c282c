//! Chains of leapfrog steps from log-densities, and transitions of samplers: the resources that Elixir holds, and the
//! NIFs that make and run them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nx_vulkan_engine::chain::log_density::{LogDensityChain, Mass, Start};
use nx_vulkan_engine::chain::transition::Transition;
use nx_vulkan_engine::chain::{Form, Run};
use nx_vulkan_engine::program::Program;
use nx_vulkan_engine::{Compile, Error, Result};
use rustler::{Encoder, Env, ResourceArc, Term};

use crate::engines::Opened;
use crate::executable::on_large_stack;
use crate::tensor::{answer_all, tensors_of};
use crate::{device, error, term};

mod atoms {
    rustler::atoms! { ok, nil, more, diagonal, dense, auto, workgroup, device }
}

pub struct ChainRef {
    engine: Opened,
    chain: LogDensityChain,
}

#[rustler::resource_impl]
impl rustler::Resource for ChainRef {}

fn bad(what: &'static str, expected: &str, got: Term) -> Error {
    Error::InvalidArgument { what, expected: expected.to_string(), got: format!("{got:?}") }
}

fn mass_of(term: Term) -> Result<Mass> {
    let atom: Option<rustler::Atom> = term.decode().ok();
    match atom {
        Some(atom) if atom == atoms::diagonal() => Ok(Mass::Diagonal),
        Some(atom) if atom == atoms::dense() => Ok(Mass::Dense),
        _ => Err(bad("mass", ":diagonal or :dense", term)),
    }
}

fn form_of(term: Term) -> Result<Option<Form>> {
    let atom: Option<rustler::Atom> = term.decode().ok();
    match atom {
        Some(atom) if atom == atoms::auto() => Ok(None),
        Some(atom) if atom == atoms::workgroup() => Ok(Some(Form::Workgroup)),
        Some(atom) if atom == atoms::device() => Ok(Some(Form::Device)),
        _ => Err(bad("form", ":auto, :workgroup or :device", term)),
    }
}

fn form_atom(form: Form) -> rustler::Atom {
    match form {
        Form::Workgroup => atoms::workgroup(),
        Form::Device => atoms::device(),
    }
}

/// Compiles the chain of a log-density and its gradient, a program in its wire form, for the device of that index, or for
/// the default one. Answers it and its form.
#[rustler::nif(schedule = "DirtyCpu")]
fn chain_compile<'a>(
    env: Env<'a>,
    program: Term<'a>,
    mass: Term<'a>,
    form: Term<'a>,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let (engine, program) = (device::engine_of(device)?, term::attr(program)?);
        let (mass, form) = (mass_of(mass)?, form_of(form)?);
        let chain =
            on_large_stack(move || LogDensityChain::compile(engine, &Program::from_attr(&program)?, mass, form))?;
        Ok(ChainRef { engine, chain })
    };
    match run() {
        Ok(chain) => {
            let form = form_atom(chain.chain.form());
            (atoms::ok(), (ResourceArc::new(chain), form)).encode(env)
        }
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// A run whose parts are recorded one after the other. Who drops it ends it.
pub struct RunRef {
    engine: Opened,
    run: Mutex<Run>,
}

#[rustler::resource_impl]
impl rustler::Resource for RunRef {}

/// Records the first part of a run. Answers the references of its results, or `{:more, run}`.
fn first_part<'a>(env: Env<'a>, engine: Opened, begin: impl FnOnce() -> Result<Run>) -> Term<'a> {
    let nil = atoms::nil().to_term(env);
    let goes_on = || env.is_process_alive(env.pid());
    let begun = begin().and_then(|mut run| run.advance_while(&goes_on).map(|is_done| (run, is_done)));
    match begun {
        Ok((run, true)) => answer_all(env, nil, Ok(run.results().to_vec().into()), engine),
        Ok((run, false)) => (atoms::more(), ResourceArc::new(RunRef { engine, run: Mutex::new(run) })).encode(env),
        Err(e) => error::encode(env, nil, &e),
    }
}

/// Records the next part of a run, of whose parts at most two wait for the device or are with it. Answers as the call
/// that began it.
#[rustler::nif(schedule = "DirtyIo")]
fn chain_continue<'a>(env: Env<'a>, run: Term<'a>) -> Term<'a> {
    let nil = atoms::nil().to_term(env);
    let next = || {
        let reference: ResourceArc<RunRef> = run.decode().map_err(|_| bad("run", "a reference to a run", run))?;
        let mut run = reference.run.lock().unwrap_or_else(PoisonError::into_inner);
        // A process that is killed stays in its call until this returns.
        let is_done = run.advance_while(&|| env.is_process_alive(env.pid()))?;
        Ok((is_done.then(|| run.results().to_vec()), reference.engine))
    };
    match next() {
        Ok((Some(results), engine)) => answer_all(env, nil, Ok(results.into()), engine),
        Ok((None, _)) => (atoms::more(), run).encode(env),
        Err(e) => error::encode(env, nil, &e),
    }
}

fn chain_of(term: Term) -> Result<ResourceArc<ChainRef>> {
    term.decode().map_err(|_| bad("chain", "a reference to a chain", term))
}

fn run<'a>(env: Env<'a>, chain: &ChainRef, terms: [Term<'a>; 3], compile: Compile) -> Term<'a> {
    let [start, captured, steps] = terms;
    first_part(env, chain.engine, || {
        let tensors = tensors_of(start, chain.engine, compile)?;
        let [q, p, inverse_mass, step_size] = &tensors[..] else { return Err(bad("start", "four tensors", start)) };
        let captured = tensors_of(captured, chain.engine, compile)?;
        let steps: u32 = steps.decode().map_err(|_| bad("steps", "a number of steps", steps))?;
        let start = Start { q, p, inverse_mass, step_size, captured: &captured, steps };
        chain.chain.begin(chain.engine, &start, compile)
    })
}

/// Starts chains and returns. `:needs_compile` where an operand must be copied first by a kernel that is not compiled,
/// or the run may be several parts.
#[rustler::nif]
fn chain_run<'a>(env: Env<'a>, chain: Term<'a>, start: Term<'a>, captured: Term<'a>, steps: Term<'a>) -> Term<'a> {
    match chain_of(chain) {
        Ok(chain) => device::when_ready(env, Some(chain.engine), |_| {
            run(env, &chain, [start, captured, steps], Compile::Refused)
        }),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// As `chain_run`, and it compiles. `{:more, run}` where parts are left.
#[rustler::nif(schedule = "DirtyCpu")]
fn chain_run_dirty<'a>(
    env: Env<'a>,
    chain: Term<'a>,
    start: Term<'a>,
    captured: Term<'a>,
    steps: Term<'a>,
) -> Term<'a> {
    match chain_of(chain) {
        Ok(chain) => run(env, &chain, [start, captured, steps], Compile::Allowed),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

pub struct TransitionRef {
    engine: Opened,
    transition: Transition,
}

#[rustler::resource_impl]
impl rustler::Resource for TransitionRef {}

/// Compiles a program that takes a chain from one draw to the next, in its wire form, for the device of that index, or
/// for the default one. Answers it and its form.
#[rustler::nif(schedule = "DirtyCpu")]
fn transition_compile<'a>(
    env: Env<'a>,
    program: Term<'a>,
    states: usize,
    own: Vec<bool>,
    form: Term<'a>,
    device: Option<usize>,
) -> Term<'a> {
    let run = || {
        let (engine, program, form) = (device::engine_of(device)?, term::attr(program)?, form_of(form)?);
        let transition =
            on_large_stack(move || Transition::compile(engine, Program::from_attr(&program)?, states, &own, form))?;
        Ok(TransitionRef { engine, transition })
    };
    match run() {
        Ok(transition) => {
            let form = form_atom(transition.transition.form());
            (atoms::ok(), (ResourceArc::new(transition), form)).encode(env)
        }
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// The form that chains of such a program take if none is asked for.
#[rustler::nif(schedule = "DirtyCpu")]
fn transition_form<'a>(env: Env<'a>, program: Term<'a>, device: Option<usize>) -> Term<'a> {
    let run = || {
        let (engine, program) = (device::engine_of(device)?, term::attr(program)?);
        on_large_stack(move || Ok(Transition::form_of(engine, &Program::from_attr(&program)?)))
    };
    match run() {
        Ok(form) => (atoms::ok(), form_atom(form)).encode(env),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

fn transition_of(term: Term) -> Result<ResourceArc<TransitionRef>> {
    term.decode().map_err(|_| bad("transition", "a reference to a transition", term))
}

fn draw<'a>(env: Env<'a>, reference: &TransitionRef, terms: [Term<'a>; 4], compile: Compile) -> Term<'a> {
    let [inputs, chains, draws, part_us] = terms;
    first_part(env, reference.engine, || {
        let inputs = tensors_of(inputs, reference.engine, compile)?;
        let chains: u64 = chains.decode().map_err(|_| bad("chains", "a number of chains", chains))?;
        let draws: u32 = draws.decode().map_err(|_| bad("draws", "a number of draws", draws))?;
        let part_us: u64 = part_us.decode().map_err(|_| bad("part_us", "microseconds", part_us))?;
        let run = reference.transition.begin(reference.engine, &inputs, chains, draws, compile)?;
        Ok(run.in_parts_that_take(Duration::from_micros(part_us)))
    })
}

/// Starts chains and returns. `:needs_compile` where an operand must be copied first by a kernel that is not compiled,
/// or the run may be several parts.
#[rustler::nif]
fn transition_run<'a>(
    env: Env<'a>,
    transition: Term<'a>,
    inputs: Term<'a>,
    chains: Term<'a>,
    draws: Term<'a>,
    part_us: Term<'a>,
) -> Term<'a> {
    match transition_of(transition) {
        Ok(transition) => device::when_ready(env, Some(transition.engine), |_| {
            draw(env, &transition, [inputs, chains, draws, part_us], Compile::Refused)
        }),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

/// As `transition_run`, and it compiles. `{:more, run}` where parts are left.
#[rustler::nif(schedule = "DirtyCpu")]
fn transition_run_dirty<'a>(
    env: Env<'a>,
    transition: Term<'a>,
    inputs: Term<'a>,
    chains: Term<'a>,
    draws: Term<'a>,
    part_us: Term<'a>,
) -> Term<'a> {
    match transition_of(transition) {
        Ok(transition) => draw(env, &transition, [inputs, chains, draws, part_us], Compile::Allowed),
        Err(e) => error::encode(env, atoms::nil().to_term(env), &e),
    }
}

//! Compiles the engine's kernels with the driver of the device at hand, and writes what its compiler says of them:
//! registers, spills, subgroups at once, instructions, cycles. Nothing is run but products of no consequence, so it
//! serves devices that are only pretended.
//!
//! `cargo run --example pipelines -- [file [part of names]]` writes a page of Markdown to the file, or prints it. Fails
//! where a kernel does not compile. With a part of names, only such programs are compiled, beside the tiles of
//! products.
//! `bin/pipelines` does so for GPUs that are not there.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod products;
mod programs;
mod report;
mod rows;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_check::Reflection;
use nx_vulkan_engine::program::file::Recording;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::{Engine, Error, Executable, Interface, Options, PipelineKey, Result};

/// What was compiled, and what was not.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Programs and modules.
    compiled: usize,
    /// What the device has no features for.
    unsupported: Vec<String>,
    /// What failed: faults.
    failed: Vec<String>,
}

impl Outcome {
    fn fail(&mut self, what: String) {
        self.failed.push(what);
    }

    fn note(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.compiled += 1,
            Err(Error::Unsupported { needs, .. }) => self.unsupported.push(format!("{name}: {needs}")),
            Err(error) => self.failed.push(format!("{name}: {error}")),
        }
    }
}

/// The committed shaders that take descriptors.
fn prebuilt(engine: &Engine, outcome: &mut Outcome) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priv/shaders");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "spv"));
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let bytes = std::fs::read(&path)?;
        let compile = || {
            let reflection = Reflection::of(&bytes, &name)?;
            if reflection.declares_float64() && !engine.caps().shader_float64 {
                return Err(Error::Unsupported { op: name.clone(), dtype: None, needs: "shaderFloat64".into() });
            }
            let spirv: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            let bindings = reflection.bindings.iter().map(|b| b.binding + 1).max().unwrap_or(0);
            let interface = Interface::Descriptors { bindings, push_bytes: reflection.push_bytes };
            // SAFETY: the module is one of ours, for this interface, and is not launched.
            unsafe { engine.pipeline(PipelineKey::new(&spirv, &[], interface), &spirv, &[], interface) }.map(|p| {
                p.set_label(|| format!("nativev.{}", name.trim_end_matches(".spv")));
            })
        };
        outcome.note(&name, compile());
    }
    Ok(())
}

/// What was recorded from Nx, Axon, Scholar and exmc.
fn recorded(engine: &Arc<Engine>, outcome: &mut Outcome) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    for path in paths {
        let recording = match Recording::read(&path) {
            Ok(recording) => recording,
            Err(error) => {
                outcome.failed.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        let compile = || {
            let program = optimize(recording.program.clone(), &engine.target())?;
            Executable::compile(engine, program).map(|_| ())
        };
        outcome.note(&recording.name, compile());
    }
    Ok(())
}

fn run(file: Option<&str>, part: Option<&str>) -> std::result::Result<Outcome, Box<dyn std::error::Error>> {
    let start = Instant::now();
    let options = Options { statistics: true, cache_dir: None, max_pipelines: usize::MAX / 8, ..Options::from_env() };
    let engine = Engine::open_with(&options)?;
    let mut outcome = Outcome::default();
    let tiles = products::tiles(&engine, &mut outcome);
    let compile = |programs: Vec<programs::Named>, outcome: &mut Outcome| {
        for (name, program) in programs.into_iter().filter(|(name, _)| part.is_none_or(|part| name.contains(part))) {
            let compile = |program| Executable::compile(&engine, optimize(program, &engine.target())?).map(|_| ());
            outcome.note(&name, program.and_then(compile));
        }
    };
    compile(programs::rows(), &mut outcome);
    let rows = rows::rows(&engine, &Engine::open_with(&options)?, &mut outcome);
    if part.is_none() {
        prebuilt(&engine, &mut outcome)?;
        recorded(&engine, &mut outcome)?;
    }
    compile(programs::all(), &mut outcome);
    let page = report::page(&engine, &outcome, &tiles, &rows);
    match file {
        Some(file) => std::fs::write(file, page)?,
        None => print!("{page}"),
    }
    let found = engine.pipelines();
    let spilling = found.iter().filter(|p| p.statistics().is_some_and(report::spills)).count();
    eprintln!(
        "{}: {} pipelines of {} programs and modules in {:.0} s, {spilling} spill or have scratch memory, \
         {} unsupported, {} failed",
        engine.info().name,
        found.len(),
        outcome.compiled,
        start.elapsed().as_secs_f64(),
        outcome.unsupported.len(),
        outcome.failed.len()
    );
    Ok(outcome)
}

fn main() -> ExitCode {
    match run(std::env::args().nth(1).as_deref(), std::env::args().nth(2).as_deref()) {
        Ok(outcome) if outcome.failed.is_empty() => ExitCode::SUCCESS,
        Ok(outcome) => {
            outcome.failed.iter().for_each(|line| eprintln!("failed: {line}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

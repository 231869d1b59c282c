//! Looks for data that is much slower than other data of its size: special values, equal ones, sorted ones, denormals,
//! one place that all updates go to. Prints Markdown tables with a row for each kernel and a column for each kind of
//! data: milliseconds for ordinary data, and times that for the others, with a mark above 1.5.
//!
//! `cargo run --release --example cliffs [-- small] [PARTS ...]`; `small` fits a CPU device, the others are parts of
//! the names of tables or rows to measure.
#![allow(clippy::print_stdout)]

mod data;
mod indices;
mod matrices;
mod values;

use std::sync::Arc;
use std::time::Instant;

use nx_vulkan_engine::program::Op;
use nx_vulkan_engine::{Compile, Engine, Error, Tensor, Type, eager};

pub type Outcome<T> = Result<T, Error>;

/// A ratio from which other data counts as a cliff.
const CLIFF: f64 = 1.5;

/// Batches of which the least time counts, and about how long one takes, in milliseconds.
const BATCHES: usize = 5;
const BATCH_MS: f64 = 6.0;

/// What is measured, and where.
#[derive(Debug)]
pub struct Bench {
    pub engine: Arc<Engine>,
    /// Whether sizes are those for a CPU device.
    pub small: bool,
    parts: Vec<String>,
}

impl Bench {
    /// One op with one result.
    pub fn op(&self, op: &Op, operands: &[Tensor], out: &Type) -> Outcome<Tensor> {
        eager::run(&self.engine, op, operands, out, Compile::Allowed)
    }

    /// One op.
    pub fn all(&self, op: &Op, operands: &[Tensor], outs: &[Type]) -> Outcome<()> {
        eager::run_all(&self.engine, op, operands, outs, Compile::Allowed).map(|_| ())
    }

    /// Least milliseconds of one run, from batches that keep the device busy.
    fn time(&self, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
        run()?;
        self.engine.wait()?;
        let start = Instant::now();
        run()?;
        self.engine.wait()?;
        let once = start.elapsed().as_secs_f64() * 1e3;
        let per_batch = ((BATCH_MS / once.max(1e-3)) as usize).clamp(1, 200);
        let mut least = f64::INFINITY;
        for _ in 0..BATCHES {
            let start = Instant::now();
            for _ in 0..per_batch {
                run()?;
            }
            self.engine.wait()?;
            least = least.min(start.elapsed().as_secs_f64() * 1e3 / per_batch as f64);
        }
        Ok(least)
    }

    /// The head of a table, whose first kind is the ordinary one.
    pub fn table(&self, name: &str, kinds: &[&str]) {
        let [ordinary, others @ ..] = kinds else { return };
        println!("\n## {name}\n\n| | {ordinary}, ms | {} |", others.join(" | "));
        println!("|---|{}", "---:|".repeat(kinds.len()));
    }

    /// A row of a table: what `run` takes for each of the operands.
    pub fn row<T>(&self, table: &str, name: &str, kinds: &[T], run: impl Fn(&T) -> Outcome<()>) -> Outcome<()> {
        if !self.parts.is_empty() && !self.parts.iter().any(|part| table.contains(part) || name.contains(part)) {
            return Ok(());
        }
        let mut cells = vec![];
        let mut ordinary = None;
        for kind in kinds {
            let ms = self.time(|| run(kind))?;
            match ordinary {
                None => {
                    ordinary = Some(ms);
                    cells.push(format!("{ms:.4}"));
                }
                Some(first) if ms > CLIFF * first => cells.push(format!("**{:.2}**", ms / first)),
                Some(first) => cells.push(format!("{:.2}", ms / first)),
            }
        }
        println!("| {name} | {} |", cells.join(" | "));
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|argument| argument == "small");
    let parts = arguments.into_iter().filter(|argument| argument != "small").collect();
    let bench = Bench { engine: Engine::open(None)?, small, parts };
    let info = bench.engine.info();
    println!("{}, {} {}", info.name, info.driver_name, info.driver_info);
    values::products(&bench)?;
    values::elements(&bench)?;
    values::rows(&bench)?;
    indices::indices_of(&bench)?;
    matrices::matrices(&bench)
}

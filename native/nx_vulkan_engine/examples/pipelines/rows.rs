//! Kernels of rows by other numbers of invocations than those that the model chooses.

use std::sync::Arc;

use nx_vulkan_engine::kernels::KernelSpec;
use nx_vulkan_engine::kernels::rows::{Along, RowsSpec};
use nx_vulkan_engine::{Compile, Engine, Pipeline, Result};

use crate::products::{AMD, MOST_OF_BEST};
use crate::{Outcome, report};

/// The most that memory gives a SIMD in a cycle: 960 GB/s for 192 of 2.5 GHz (Navi 31), and where subgroups have 64
/// invocations 256 GB/s for 144 of 1.3 GHz (Polaris). GPUs that share a CPU's memory have less.
fn bytes_per_cycle(engine: &Engine) -> f64 {
    if engine.caps().min_subgroup_size >= 64 { 1.3 } else { 2.0 }
}

/// What a compiler makes of a kernel of rows.
#[derive(Debug)]
pub struct OfRows {
    pub name: String,
    /// Elements of a row.
    pub elements: u64,
    /// Invocations of a row, and the compiler's cycles for a row, of the kernel that the model chooses.
    pub chosen: (u32, f64),
    /// Those of the one with the fewest cycles.
    pub best: (u32, f64),
    /// Cycles for which memory is busy with a row, at least.
    pub memory: f64,
}

/// Cycles of all of a row's invocations, as the compiler counts them.
fn cycles(engine: &Engine, spec: &RowsSpec, pipeline: &Pipeline) -> Option<f64> {
    let statistics = pipeline.statistics()?;
    let subgroup = if statistics.subgroup_size > 0 { statistics.subgroup_size } else { engine.caps().subgroup_size };
    let subgroups = f64::from(spec.local_size()) / f64::from(subgroup.max(1));
    Some(statistics.cycles? as f64 * subgroups / f64::from(spec.rows_per_group()))
}

/// Elements of an invocation beyond which registers spill.
const MOST_ELEMENTS: u32 = 64;

/// The same rows by another number of invocations.
fn shared(spec: &RowsSpec, team: u32) -> Option<RowsSpec> {
    let loads = u32::from(spec.items) * spec.team;
    let items = u8::try_from(loads / team).ok()?;
    let fits = loads.is_multiple_of(team) && (1..=MOST_ELEMENTS).contains(&(u32::from(items) * u32::from(spec.width)));
    fits.then(|| RowsSpec { team, items, ..spec.clone() })
}

fn compare(engine: &Arc<Engine>, trial: &Arc<Engine>, spec: &RowsSpec, pipeline: &Pipeline) -> Result<Option<OfRows>> {
    let Some(own) = cycles(engine, spec, pipeline) else { return Ok(None) };
    let mut best = (spec.team, own);
    for team in [spec.team / 4, spec.team / 2, 2 * spec.team, 4 * spec.team] {
        let Some(other) = Some(team).filter(|&team| (1..=1024).contains(&team)).and_then(|team| shared(spec, team))
        else {
            continue;
        };
        trial.kernel(&other, Compile::Allowed)?;
        let made = trial.kernels_of::<RowsSpec>().into_iter().find(|(made, _)| *made == other);
        // Cycles of what is spilled don't count how long memory takes.
        let made = made.filter(|(_, pipeline)| !pipeline.statistics().is_some_and(report::spills));
        let Some(cycles) = made.and_then(|(_, pipeline)| cycles(trial, &other, &pipeline)) else { continue };
        if cycles < best.1 {
            best = (team, cycles);
        }
    }
    let elements = u64::from(spec.width) * u64::from(spec.items) * u64::from(spec.team);
    let ports = spec.inputs.iter().chain(spec.outputs.iter().map(|(_, port)| port));
    let bytes: u64 = ports.filter(|port| port.along != Along::Row).map(|port| elements * port.dtype.size_bytes()).sum();
    let memory = bytes as f64 / bytes_per_cycle(engine);
    Ok(Some(OfRows { name: spec.name(), elements, chosen: (spec.team, own), best, memory }))
}

/// All kernels of rows so far whose elements lie beside each other and fill all loads, on a GPU of AMD, whose choices
/// were not measured. Others are compiled by an engine for trials.
pub fn rows(engine: &Arc<Engine>, trial: &Arc<Engine>, outcome: &mut Outcome) -> Vec<OfRows> {
    if engine.caps().vendor_id != AMD {
        return vec![];
    }
    let mut found = vec![];
    for (spec, pipeline) in engine.kernels_of::<RowsSpec>().into_iter().filter(|(spec, _)| spec.full && !spec.columns) {
        match compare(engine, trial, &spec, &pipeline) {
            Ok(of_rows) => found.extend(of_rows),
            Err(error) => outcome.note(&spec.name(), Err(error)),
        }
    }
    found.sort_by(|a, b| (&a.name, a.elements).cmp(&(&b.name, b.elements)));
    // Cycles below those of memory are free.
    let is_slow = |rows: &&OfRows| rows.chosen.1 > MOST_OF_BEST * rows.best.1.max(rows.memory);
    for rows in found.iter().filter(is_slow) {
        outcome.fail(format!(
            "{} of {}: {} invocations take {:.0} cycles, {} take {:.0}",
            rows.name, rows.elements, rows.chosen.0, rows.chosen.1, rows.best.0, rows.best.1
        ));
    }
    found
}

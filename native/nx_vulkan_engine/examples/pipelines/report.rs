//! The page that is written of a device.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use nx_vulkan_engine::kernels::dot::Tiling;
use nx_vulkan_engine::{Engine, Pipeline, Statistics};

use crate::Outcome;
use crate::products::OfTile;
use crate::rows::OfRows;

/// Kernels that are listed as the worst of their kind.
const WORST: usize = 12;
/// Subgroups at once below which a kernel hides little of what it waits for.
const FEW_SUBGROUPS: u64 = 5;

/// The family of a kernel: the beginning of its name.
fn family(name: &str) -> &str {
    const WHOLE: [&str; 5] = ["nativev", "dot", "rows", "reduce", "map"];
    let first = name.split(['.', '-']).next().unwrap_or(name);
    WHOLE.into_iter().find(|family| first == *family).unwrap_or(first)
}

fn show(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_string(), |n| n.to_string())
}

fn most(all: &[&Statistics], of: impl Fn(&Statistics) -> Option<u64>) -> Option<u64> {
    all.iter().filter_map(|s| of(s)).max()
}

fn list(page: &mut String, title: &str, found: &[(String, Statistics)]) -> std::fmt::Result {
    if found.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "\n## {title}\n\n| kernel | registers | spilled | scratch B | shared B | subgroups | instructions | cycles |"
    )?;
    writeln!(page, "|---|---:|---:|---:|---:|---:|---:|---:|")?;
    for (name, s) in found.iter().take(WORST) {
        let numbers =
            [s.registers, s.spills, s.scratch_bytes, s.shared_bytes, s.subgroups, s.instructions, s.cycles].map(show);
        writeln!(page, "| {name} | {} |", numbers.join(" | "))?;
    }
    if found.len() > WORST {
        writeln!(page, "\nand {} others", found.len() - WORST)?;
    }
    Ok(())
}

fn families(page: &mut String, told: &[(String, Statistics)]) -> std::fmt::Result {
    let mut by_family: BTreeMap<&str, Vec<&Statistics>> = BTreeMap::new();
    for (name, statistics) in told {
        by_family.entry(family(name)).or_default().push(statistics);
    }
    writeln!(page, "\n## By family\nThe most of each, and the fewest subgroups at once.\n")?;
    writeln!(page, "| family | kernels | registers | spilled | scratch B | shared B | subgroups | instructions |")?;
    writeln!(page, "|---|---:|---:|---:|---:|---:|---:|---:|")?;
    for (name, all) in by_family {
        let fewest = all.iter().filter_map(|s| s.subgroups).min();
        let numbers = [
            Some(all.len() as u64),
            most(&all, |s| s.registers),
            most(&all, |s| s.spills),
            most(&all, |s| s.scratch_bytes),
            most(&all, |s| s.shared_bytes),
            fewest,
            most(&all, |s| s.instructions),
        ];
        writeln!(page, "| {name} | {} |", numbers.map(show).join(" | "))?;
    }
    Ok(())
}

fn tiles(page: &mut String, tiles: &[OfTile]) -> std::fmt::Result {
    if tiles.iter().all(|t| t.cycles == 0.0) {
        return Ok(());
    }
    writeln!(
        page,
        "\n## Tiles of products\nCycles of 1000 multiplications as the compiler counts them; `*` is what large \
         products take.\n"
    )?;
    writeln!(page, "| tile | own | teams x depth | type | registers | spilled | subgroups | cycles |")?;
    writeln!(page, "|---|---|---|---|---:|---:|---:|---:|")?;
    for t in tiles {
        let chosen = if t.chosen { " *" } else { "" };
        let (tile, own, teams) = match t.tiling {
            Tiling::Tiled(t) => (
                format!("{}x{}{chosen}", t.rows, t.columns),
                format!("{}x{}", t.own_rows, t.own_columns),
                format!("{}x{}", t.slices, t.depth),
            ),
            Tiling::Matrix(t) => {
                (format!("{}x{} on units{chosen}", t.rows, t.columns), "-".into(), format!("1x{}", t.block()))
            }
            Tiling::Vectors(t) => (format!("{}x{} vectors", t.rows(), t.count), "4x1".into(), format!("{}x4", t.teams)),
            Tiling::Square | Tiling::Narrow | Tiling::Lanes(_) | Tiling::Residues(_) => continue,
        };
        writeln!(
            page,
            "| {tile} | {own} | {teams} | {} | {} | {} | {} | {:.2} |",
            t.dtype, t.registers, t.spills, t.subgroups, t.cycles
        )?;
    }
    Ok(())
}

fn rows(page: &mut String, rows: &[OfRows]) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "\n## Rows\nInvocations of a row, and cycles of all of them as the compiler counts them: as chosen, and with \
         the fewest cycles of a quarter to four times as many, without spills. Memory takes as many at least.\n"
    )?;
    writeln!(page, "| kernel | elements | invocations | cycles | best | cycles | memory |")?;
    writeln!(page, "|---|---:|---:|---:|---:|---:|---:|")?;
    for r in rows {
        let ((team, cycles), (best, least)) = (r.chosen, r.best);
        writeln!(
            page,
            "| {} | {} | {team} | {cycles:.0} | {best} | {least:.0} | {:.0} |",
            r.name, r.elements, r.memory
        )?;
    }
    Ok(())
}

fn write(
    engine: &Engine,
    outcome: &Outcome,
    of_tiles: &[OfTile],
    of_rows: &[OfRows],
) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    let info = engine.info();
    let pipelines: Vec<Arc<Pipeline>> = engine.pipelines();
    let mut told: Vec<(String, Statistics)> =
        pipelines.iter().filter_map(|p| Some((p.name(), p.statistics()?.clone()))).collect();
    told.sort_by(|a, b| a.0.cmp(&b.0));
    writeln!(page, "# Kernels on {}\n", info.name)?;
    writeln!(
        page,
        "What the compiler of {} ({}) makes of them; `bin/pipelines` wrote it.",
        info.driver_name, info.driver_info
    )?;
    writeln!(page, "Nothing ran.\n")?;
    writeln!(
        page,
        "{} pipelines of {} programs and modules; {} are not for this device; {} failed.",
        pipelines.len(),
        outcome.compiled,
        outcome.unsupported.len(),
        outcome.failed.len()
    )?;
    if told.is_empty() {
        writeln!(page, "\nThe driver tells nothing of them.")?;
        return Ok(page);
    }
    let tells_spills = told.iter().any(|(_, s)| s.spills.is_some());
    let mut spilled: Vec<_> = told.iter().filter(|(_, s)| spills(s)).cloned().collect();
    spilled.sort_by_key(|(_, s)| std::cmp::Reverse((s.spills, s.scratch_bytes)));
    let mut few: Vec<_> =
        told.iter().filter(|(_, s)| s.subgroups.is_some_and(|n| n < FEW_SUBGROUPS)).cloned().collect();
    few.sort_by_key(|(_, s)| s.subgroups);
    match tells_spills {
        true => write!(page, "{} spill", spilled.len())?,
        false => write!(page, "The driver tells no spills; {} have memory of each invocation", spilled.len())?,
    }
    match told.iter().any(|(_, s)| s.subgroups.is_some()) {
        true => writeln!(page, "; {} have fewer than {FEW_SUBGROUPS} subgroups at once.", few.len())?,
        false => writeln!(page, ".")?,
    }
    families(&mut page, &told)?;
    list(&mut page, if tells_spills { "Spills" } else { "Memory of each invocation" }, &spilled)?;
    list(&mut page, "Few subgroups", &few)?;
    tiles(&mut page, of_tiles)?;
    rows(&mut page, of_rows)?;
    Ok(page)
}

/// Whether registers went to memory; where the driver does not tell, whether an invocation has memory, which is for
/// arrays as well.
pub fn spills(statistics: &Statistics) -> bool {
    statistics.spills.or(statistics.scratch_bytes).unwrap_or(0) > 0
}

/// The page.
pub fn page(engine: &Engine, outcome: &Outcome, tiles: &[OfTile], rows: &[OfRows]) -> String {
    write(engine, outcome, tiles, rows).unwrap_or_default()
}

//! Which tiling and how many splits a product takes: the least time by a model of workgroups on multiprocessors, whose constants
//! were measured with `examples/products.rs`.

use nx_vulkan_ir::program::epilogue::MATRIX_MIN_WORK;
use nx_vulkan_ir::program::step::stands_in_loop;
use nx_vulkan_spirv::dot::{LANES, LaneTile, Tile, Tiling};
use nx_vulkan_spirv::matrix::{MatrixTile, Planes};

use super::matrix::Form;
use super::{Choice, MAX_PARTIAL_BYTES, MAX_SPLIT_DEPTH, Product};
use crate::kernels::has_lanes;
use crate::{CType, DeviceKind, Engine};

/// What the model knows of a device. Times are in cycles of a multiprocessor.
#[derive(Debug, Clone, Copy)]
struct Machine {
    multiprocessors: u64,
    /// Invocations that one holds at once, as far as registers allow.
    invocations: u64,
    /// f32 multiplications per cycle.
    lanes: f64,
    /// From the fetch of a step to its use.
    latency: f64,
    /// To fetch an element of an operand and put it in shared memory, beside what is computed.
    fetch: f64,
    /// To store a result, and for each step of an epilogue that stands in a loop, by the results of one invocation.
    result: f64,
    /// What another dispatch costs, apart from its work.
    dispatch: f64,
    /// Bytes of partial sums written and read again per cycle, by all.
    bytes: f64,
}

/// An H100, which stands for large GPUs.
const GPU: Machine = Machine {
    multiprocessors: 132,
    invocations: 2048,
    lanes: 128.0,
    latency: 900.0,
    fetch: 0.03,
    result: 60.0,
    dispatch: 8000.0,
    bytes: 2000.0,
};

/// lavapipe on two cores.
const CPU: Machine = Machine {
    multiprocessors: 2,
    invocations: 256,
    lanes: 16.0,
    latency: 0.0,
    fetch: 0.0,
    result: 0.0,
    dispatch: 40000.0,
    bytes: 8.0,
};

/// Splits that are tried, beyond what accuracy asks for: many only where few results are sums of many products.
const SPLITS: [u64; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64];

/// Multiplications from which a CPU device makes up for compiling an unrolled kernel, which takes it up to a second.
const MIN_CPU_WORK: u64 = 1 << 20;

/// Workgroups beyond which splits of the contracted axis only cost: four for each multiprocessor of a large GPU.
const MAX_GROUPS: u64 = 528;

/// Share of the arithmetic that a tile reaches where it fills the device, by the results of an invocation. Teams that share out the
/// contracted elements add their sums up at the end, short steps have more barriers, and workgroups of 64 fetch more for each result. lavapipe's tests of bounds and barriers weigh more
/// the fewer results they serve.
fn efficiency(machine: &Machine, tile: &Tile) -> f64 {
    if machine.multiprocessors == CPU.multiprocessors {
        return match tile.own_rows * tile.own_columns {
            64.. => 1.0,
            32.. => 0.2,
            _ => 0.3,
        };
    }
    let whole = match tile.own_rows * tile.own_columns {
        128.. => 0.7,
        64.. => 0.75,
        32.. if tile.invocations() > 64 => 0.75,
        32.. => 0.66,
        _ => 0.5,
    };
    let teams = match tile.slices {
        1 => 1.0,
        2..4 => 0.8,
        _ => 0.6,
    };
    whole * teams * if tile.depth < 16 { 0.85 } else { 1.0 }
}

/// Registers of an invocation limit how many are there at once: an invocation takes about 165 for 64 results, 108 for 32, 85 for 16.
fn resident(machine: &Machine, tile: &Tile) -> u64 {
    let by_registers = match tile.own_rows * tile.own_columns {
        64.. => machine.invocations / 8,
        32.. => machine.invocations / 4,
        _ => machine.invocations * 3 / 4,
    };
    (by_registers / u64::from(tile.invocations())).max(1)
}

/// Cycles that a product takes with tiles and splits.
pub fn estimate(engine: &Engine, p: &Product<'_>, sum: CType, tile: &Tile, splits: u64) -> f64 {
    let machine = if engine.caps().kind == DeviceKind::Cpu { &CPU } else { &GPU };
    let (rows, columns) = (p.a.free.elements(), p.b.free.elements());
    let (batches, depth) = (p.a.batch.elements(), p.a.depth.elements());
    let groups = batches * rows.div_ceil(tile.rows.into()) * columns.div_ceil(tile.columns.into()) * splits;
    let steps = depth.div_ceil(splits).div_ceil(tile.block()) as f64;
    let lanes = if sum == CType::F64 { machine.lanes / 2.0 } else { machine.lanes };
    let fetched = f64::from(tile.rows + tile.columns) * tile.block() as f64;
    let computed = f64::from(tile.rows * tile.columns) * tile.block() as f64;
    let busy = computed / (lanes * efficiency(machine, tile)) + fetched * machine.fetch;
    let each = groups.div_ceil(machine.multiprocessors);
    let resident = resident(machine, tile).min(each);
    let rounds = each.div_ceil(resident) as f64;
    let step = (busy * resident as f64).max(machine.latency);
    let partial = partial(machine, splits * batches * rows * columns * sum.dtype().size_bytes(), splits);
    let looped = match &p.epilogue {
        Some(epilogue) if splits == 1 && stands_in_loop(epilogue.steps) => epilogue.steps.len(),
        _ => 0,
    };
    let own_results = f64::from(tile.rows * tile.columns) / f64::from(tile.invocations());
    let stores = own_results * machine.result * (1 + looped) as f64;
    // A workgroup begins with a fetch and ends with stores.
    rounds * (steps * step + 2.0 * machine.latency + stores) + partial
}

/// Cycles that partial sums of so many bytes in all cost.
fn partial(machine: &Machine, bytes: u64, splits: u64) -> f64 {
    if splits > 1 { machine.dispatch + 2.0 * bytes as f64 / machine.bytes } else { 0.0 }
}

/// The splits that accuracy asks for, if none of them is to have more contracted elements than `depth`.
fn accurate_splits(p: &Product<'_>, sum: CType, depth: u64) -> u64 {
    let results = p.a.batch.elements() * p.a.free.elements() * p.b.free.elements();
    let partial_bytes = results * sum.dtype().size_bytes();
    (p.a.depth.elements() / depth).min(MAX_PARTIAL_BYTES / partial_bytes.max(1)).max(1)
}

/// All tiles that the device can run, with the splits that may pay.
pub fn candidates(engine: &Engine, p: &Product<'_>, sum: CType) -> Vec<(Tile, u64)> {
    let least = accurate_splits(p, sum, MAX_SPLIT_DEPTH);
    let caps = engine.caps();
    let fits =
        |t: &&Tile| t.shared_bytes(sum) <= caps.max_shared_memory_bytes && t.invocations() <= caps.max_invocations;
    let mut found = vec![];
    let (rows, columns) = (p.a.free.elements(), p.b.free.elements());
    for tile in Tile::all(sum).iter().filter(fits) {
        let tiles = p.a.batch.elements() * rows.div_ceil(tile.rows.into()) * columns.div_ceil(tile.columns.into());
        // Two steps at least for each split, and no more workgroups than the device holds.
        let most = (p.a.depth.elements() / (2 * tile.block())).min(MAX_GROUPS / tiles.max(1)).max(1);
        found.extend(SPLITS.iter().filter(|&&splits| splits <= most).map(|&splits| (*tile, splits.max(least))));
    }
    found.dedup();
    found
}

/// Tiles on matrix units, with the splits that may pay and the cycles that all that belongs to them takes by the model; none where the
/// device or the types don't allow it.
pub fn matrix_candidates(engine: &Engine, p: &Product<'_>, sum: CType) -> Vec<(MatrixTile, u64, f64)> {
    let Some(form) = Form::of(engine, p, sum) else { return vec![] };
    let machine = &GPU;
    let (rows, columns) = (p.a.free.elements(), p.b.free.elements());
    let (batches, depth) = (p.a.batch.elements(), p.a.depth.elements());
    let least = accurate_splits(p, sum, MAX_SPLIT_DEPTH);
    // Every element is read, twice where rows are scaled, and written. Of operands that may be taken in place it does not count: where they lie
    // must not choose the kernel, nor the bits.
    let elements = (batches * (rows + columns) * depth) as f64;
    let before = match (form.scaled, form.planes) {
        (true, planes) => 2.5 * machine.dispatch + elements * (8.0 + 2.0 * f64::from(planes.count())) / machine.bytes,
        (false, Planes::ThreeBf16) => machine.dispatch + elements * 10.0 / machine.bytes,
        (false, Planes::OneF16 | Planes::TwoF16) => 0.0,
    };
    let mut found = vec![];
    let caps = engine.caps();
    let fits =
        |t: &MatrixTile| t.shared_bytes() <= caps.max_shared_memory_bytes && t.invocations() <= caps.max_invocations;
    for tile in MatrixTile::all(form.planes).filter(fits) {
        let side = u64::from(tile.side);
        let tiles = batches * rows.div_ceil(side) * columns.div_ceil(side);
        let most = (depth / (4 * tile.block())).min(MAX_GROUPS / tiles.max(1)).max(1);
        for splits in SPLITS.into_iter().filter(|&splits| splits <= most).map(|splits| splits.max(least)) {
            let each = (tiles * splits).div_ceil(machine.multiprocessors);
            let steps = depth.div_ceil(splits).div_ceil(tile.block()) as f64;
            let busy = (side * side * tile.block()) as f64 / products_per_cycle(&tile);
            // What is fetched right into registers is waited for where few workgroups stand in for each other.
            let latency = if tile.planes.is_in_order() { machine.latency / each.min(4) as f64 } else { 0.0 };
            let step = busy.max(latency);
            let partial = partial(machine, splits * batches * rows * columns * 4, splits);
            let cycles = each as f64 * (steps * step + 4.0 * machine.latency) + before + partial;
            found.push((tile, splits, cycles));
        }
    }
    found
}

/// Multiplications per cycle of a multiprocessor whose tiles fill it.
fn products_per_cycle(tile: &MatrixTile) -> f64 {
    match (tile.planes, tile.side) {
        (Planes::ThreeBf16, _) => 160.0,
        (Planes::TwoF16, 128) => 225.0,
        (Planes::TwoF16, _) => 180.0,
        (Planes::OneF16, 128) => 560.0,
        (Planes::OneF16, _) => 330.0,
    }
}

/// The cheapest launch by the model.
pub fn choose(engine: &Engine, p: &Product<'_>, sum: CType) -> Choice {
    if let Some(choice) = lanes(p, sum, lane_tiles(engine, sum)) {
        return choice;
    }
    let plain = plain(engine, p, sum, None);
    let Tiling::Tiled(tile) = plain.tiling else { return plain };
    if p.multiplications() < MATRIX_MIN_WORK {
        return plain;
    }
    let limit = estimate(engine, p, sum, &tile, plain.splits);
    let best = matrix_candidates(engine, p, sum).into_iter().min_by(|a, b| a.2.total_cmp(&b.2));
    match best.filter(|(_, _, cycles)| *cycles < limit) {
        Some((tile, splits, _)) => Choice { tiling: Tiling::Matrix(tile), splits },
        None => plain,
    }
}

/// The cheapest launch without matrix units, with so many splits if that is given.
pub fn plain(engine: &Engine, p: &Product<'_>, sum: CType, splits: Option<u64>) -> Choice {
    let best = candidates(engine, p, sum)
        .into_iter()
        .map(|(tile, own)| (tile, splits.unwrap_or(own)))
        .map(|(tile, splits)| (estimate(engine, p, sum, &tile, splits), tile, splits))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((_, tile, splits)) => Choice { tiling: Tiling::Tiled(tile), splits },
        None => square(engine, p, sum),
    }
}

/// Whether a kernel for tiles is worth its compilation.
pub(super) fn pays(engine: &Engine, p: &Product<'_>) -> bool {
    engine.caps().kind != DeviceKind::Cpu || p.multiplications() >= MIN_CPU_WORK
}

/// Workgroups of square tiles that fill a device, and contracted elements that pay for another dispatch.
const SQUARE_GROUPS: u64 = 264;
const CPU_GROUPS: u64 = 4;
const MIN_SQUARE_DEPTH: u64 = 512;

/// Square tiles, of any type.
pub(super) fn square(engine: &Engine, p: &Product<'_>, sum: CType) -> Choice {
    let side = match sum.dtype().size_bytes() {
        4 => 64,
        8 => 32,
        _ => 16,
    };
    let tiles = p.a.batch.elements() * p.a.free.elements().div_ceil(side) * p.b.free.elements().div_ceil(side);
    let target = if engine.caps().kind == DeviceKind::Cpu { CPU_GROUPS } else { SQUARE_GROUPS };
    let splits = (target / tiles.max(1)).min(p.a.depth.elements() / MIN_SQUARE_DEPTH);
    Choice { tiling: Tiling::Square, splits: splits.max(accurate_splits(p, sum, MAX_SPLIT_DEPTH)) }
}

/// Multiplications from which a tile of so many rows is worth its compilation, which takes as long as it is large.
const MIN_LANES_WORK: [(u32, u64); 2] = [(32, 1 << 23), (16, 1 << 18)];

/// Workgroups that keep the cores of a CPU busy where tiles are that large.
const MIN_LANES_GROUPS: u64 = 8;

/// Results that one core is to compute, at least, before the contracted axis is split.
const MIN_SPLIT_RESULTS: u64 = 128;

/// Contracted elements per split: a lane adds up one after the other, where other tiles have teams or short sums.
const MAX_LANES_DEPTH: u64 = 2048;

/// Tiles for lanes that the device can run: those of CPU devices, whose subgroups are their vectors.
pub fn lane_tiles(engine: &Engine, sum: CType) -> &'static [LaneTile] {
    let caps = engine.caps();
    if has_lanes(caps) && caps.subgroup_ops.ballot { LaneTile::all(sum) } else { &[] }
}

/// The tile of `tiles` for a product, the largest ones first. The splits depend on no tile, nor on which operand has the rows, so that a
/// transposed product of exchanged operands has the same bits.
fn lanes(p: &Product<'_>, sum: CType, tiles: &[LaneTile]) -> Option<Choice> {
    let (rows, columns, batches) = (p.a.free.elements(), p.b.free.elements(), p.a.batch.elements());
    let pays = |tile: &&LaneTile| {
        let groups = batches * rows.div_ceil(tile.rows.into()) * columns.div_ceil(tile.columns().into());
        let least = MIN_LANES_WORK.iter().find(|(rows, _)| *rows == tile.rows);
        let is_worth = least.is_none_or(|&(_, work)| p.multiplications() >= work && groups >= MIN_LANES_GROUPS);
        is_worth && (tile.vectors == 1 || columns > LANES.into())
    };
    let tile = *tiles.iter().find(pays)?;
    let shares = (batches * rows * columns).div_ceil(MIN_SPLIT_RESULTS);
    let splits = (CPU_GROUPS / shares.max(1)).min(p.a.depth.elements() / MIN_SQUARE_DEPTH);
    Some(Choice { tiling: Tiling::Lanes(tile), splits: splits.max(accurate_splits(p, sum, MAX_LANES_DEPTH)) })
}

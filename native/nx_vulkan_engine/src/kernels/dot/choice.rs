//! Which tiling and how many splits a product takes: the least time by a model of workgroups on processors.

use super::generate_matrix::ROWS_OF_LINEAR;
use super::launch::{Choice, MAX_PARTIAL_BYTES, MAX_SPLIT_DEPTH, Outline};
use super::matrix::{MAX_PLACED_DEPTH, Narrowing};
use super::residues::{Residues, Sizes};
use super::{Feed, LANES, LaneTile, MatrixTile, Planes, ResidueTile, Tile, Tiling, VectorTile, parts_of};
use crate::kernels::has_lanes;
use crate::tuning::{DeviceModel, Products, Units};
use crate::{CType, DType};

/// Splits that are tried, beyond what accuracy asks for: many only where few results are sums of many products.
const SPLITS: [u64; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64];

/// Share of the arithmetic that a tile reaches where it fills the device.
fn efficiency(products: &Products, tile: &Tile) -> f64 {
    let share = &products.efficiency;
    let whole = match tile.own_rows * tile.own_columns {
        128.. => share.of_128,
        64.. => share.of_64,
        32.. if tile.invocations() > 64 => share.of_32,
        32.. => share.of_32_in_few,
        _ => share.of_few,
    };
    let teams = match tile.slices {
        1 => 1.0,
        2..4 => share.of_two_teams,
        _ => share.of_teams,
    };
    whole * teams * if tile.depth < 16 { share.of_short_steps } else { 1.0 }
}

/// Registers of an invocation limit how many are there at once: an invocation takes about 165 for 64 results, 108 for
/// 32, 85 for 16.
fn resident(products: &Products, tile: &Tile) -> u64 {
    let by_registers = match tile.own_rows * tile.own_columns {
        64.. => products.invocations / 8,
        32.. => products.invocations / 4,
        _ => products.invocations * 3 / 4,
    };
    (by_registers / u64::from(tile.invocations())).max(1)
}

/// Cycles that a product takes with tiles and splits.
pub fn estimate(model: &DeviceModel, p: &Outline, sum: CType, tile: &Tile, splits: u64) -> f64 {
    let products = &model.products;
    let (rows, columns) = (p.rows, p.columns);
    let (batches, depth) = (p.batches, p.depth);
    let groups = batches * rows.div_ceil(tile.rows.into()) * columns.div_ceil(tile.columns.into()) * splits;
    let steps = depth.div_ceil(splits).div_ceil(tile.block()) as f64;
    let lanes = if sum == CType::F64 { products.lanes * products.f64_share } else { products.lanes };
    let fetched = f64::from(tile.rows + tile.columns) * tile.block() as f64;
    let computed = f64::from(tile.rows * tile.columns) * tile.block() as f64;
    let busy = computed / (lanes * efficiency(products, tile)) + fetched * products.fetch;
    let each = groups.div_ceil(model.processors);
    let resident = resident(products, tile).min(each);
    let rounds = each.div_ceil(resident) as f64;
    let latency = if is_odd(model, p) { products.latency * products.latency_of_odd } else { products.latency };
    let step = (busy * resident as f64).max(latency);
    let partial = partial(products, splits * batches * rows * columns * sum.dtype().size_bytes(), splits);
    let looped = if splits == 1 { p.looped_steps } else { 0 };
    let own_results = f64::from(tile.rows * tile.columns) / f64::from(tile.invocations());
    let stores = own_results * products.result * (1 + looped) as f64;
    // A workgroup begins with a fetch and ends with stores.
    rounds * (steps * step + 2.0 * products.latency + stores) + partial
}

/// Whether a product is so large that matrix units may take less.
fn is_worth_units(model: &DeviceModel, p: &Outline) -> bool {
    p.multiplications() >= model.programs.joins.unit_work
}

/// Whether a row or column of numbers of 16 bits begins where four of them are not loaded at once, in a product that is
/// worth matrix units. By sizes alone: where operands lie must not choose the kernel, nor the bits.
fn is_odd(model: &DeviceModel, p: &Outline) -> bool {
    let is_narrow = p.operands.iter().any(|dtype| dtype.size_bytes() == 2);
    is_narrow && is_worth_units(model, p) && [p.rows, p.columns, p.depth].iter().any(|n| !n.is_multiple_of(4))
}

/// Cycles that partial sums of so many bytes in all cost.
fn partial(products: &Products, bytes: u64, splits: u64) -> f64 {
    if splits > 1 { products.dispatch + 2.0 * bytes as f64 / products.bytes } else { 0.0 }
}

/// The splits that accuracy asks for.
pub(crate) fn accurate_splits(p: &Outline, sum: CType) -> u64 {
    splits_of(p, sum, MAX_SPLIT_DEPTH)
}

/// The splits that accuracy asks for, if none of them is to have more contracted elements than `depth`.
fn splits_of(p: &Outline, sum: CType, depth: u64) -> u64 {
    let results = p.batches * p.rows * p.columns;
    let partial_bytes = results * sum.dtype().size_bytes();
    (p.depth / depth).min(MAX_PARTIAL_BYTES / partial_bytes.max(1)).max(1)
}

/// All tiles that the device can run, with the splits that may pay.
pub fn candidates(model: &DeviceModel, p: &Outline, sum: CType) -> Vec<(Tile, u64)> {
    let least = accurate_splits(p, sum);
    let caps = &model.caps;
    let fits =
        |t: &&Tile| t.shared_bytes(sum) <= caps.max_shared_memory_bytes && t.invocations() <= caps.max_invocations;
    let mut found = vec![];
    if is_lowered(model, sum) {
        return found;
    }
    let (rows, columns) = (p.rows, p.columns);
    for tile in Tile::all(sum).iter().filter(fits) {
        let tiles = p.batches * rows.div_ceil(tile.rows.into()) * columns.div_ceil(tile.columns.into());
        // Two steps at least for each split, and no more workgroups than the device holds.
        let most = (p.depth / (2 * tile.block())).min(model.products.most_groups / tiles.max(1)).max(1);
        found.extend(SPLITS.iter().filter(|&&splits| splits <= most).map(|&splits| (*tile, splits.max(least))));
    }
    found.dedup();
    found
}

/// Tiles on matrix units, with the splits that may pay and the cycles that all that belongs to them takes by the model;
/// none where the device or the types don't allow it.
pub fn matrix_candidates(model: &DeviceModel, p: &Outline, sum: CType) -> Vec<(MatrixTile, u64, f64)> {
    let Some(form) = Narrowing::of(model, p, sum) else { return vec![] };
    let elements = p.batches * (p.rows + p.columns) * p.depth;
    let mut found = few_candidates(model, p, sum, form);
    found.extend(candidates_of(model, p, sum, form, elements));
    found
}

/// Tiles on matrix units for a matrix by few vectors, which take as long as it takes to read the matrix: those by more
/// vectors than two matrices share in one launch.
fn few_candidates(model: &DeviceModel, p: &Outline, sum: CType, form: Narrowing) -> Vec<(MatrixTile, u64, f64)> {
    let products = &model.products;
    let first = p.rows < p.columns;
    let (rows, vectors) = if first { (p.columns, p.rows) } else { (p.rows, p.columns) };
    let mut found = vec![];
    if vectors <= VectorTile::MOST_OF_PAIR || !has_vectors(model, rows) {
        return found;
    }
    let matrix_bytes = (p.batches * rows * p.depth * 2) as f64;
    // In any other case either axis may be the one that is no whole eights, and the matrix be written first.
    let is_own = p.operands.iter().all(|&dtype| form.planes.own_type() == Some(dtype));
    let in_place = is_own && [rows, p.depth].iter().all(|n| n.is_multiple_of(8));
    let before = if in_place { 0.0 } else { products.dispatch + 2.0 * matrix_bytes / products.bytes };
    let caps = &model.caps;
    let fits =
        |t: &MatrixTile| t.shared_bytes() <= caps.max_shared_memory_bytes && t.invocations() <= caps.max_invocations;
    for tile in MatrixTile::of_few(form.planes, vectors, first).into_iter().filter(fits) {
        let teams = u64::from(tile.invocations() / 32);
        // Each team adds up its own share.
        let least = splits_of(p, sum, MAX_SPLIT_DEPTH * teams);
        let tiles = p.batches * rows.div_ceil(tile.rows.max(tile.columns).into());
        // Two steps at least for each team.
        let most = p.depth / (2 * teams * tile.block());
        let tried = SPLITS.into_iter().filter(|&splits| splits <= most);
        let tried = tried.filter(|&splits| splits == 1 || splits * tiles <= products.most_groups);
        for splits in tried.map(|splits| splits.max(least)) {
            let groups = tiles * splits;
            let by_registers = products.resident * 128;
            let held = (by_registers / u64::from(tile.invocations())).max(1) * model.processors;
            let steps = p.depth.div_ceil(splits).div_ceil(teams * tile.block()) as f64;
            // A step is fetched in two halves.
            let waits = steps * products.latency * 2.0;
            // Few processors don't draw all that memory gives.
            let round = |count: u64| {
                let share = products.draw * count as f64 / model.processors as f64;
                let read = matrix_bytes * count as f64 / groups as f64;
                waits.max(read / (products.bytes * share.min(1.0))) + 4.0 * products.latency
            };
            let (whole, last) = (groups / held, groups % held);
            let rounds = whole as f64 * round(held) + if last > 0 { round(last) } else { 0.0 };
            let partial = partial(products, splits * p.batches * p.rows * p.columns * 4, splits);
            found.push((tile, splits, rounds + before + partial));
        }
    }
    found
}

/// The tile on matrix units for few vectors by a matrix of scaled numbers, which is the operand at `place`; `None` where
/// the device or the types have none.
pub fn linear_choice(model: &DeviceModel, p: &Outline, place: usize) -> Option<Choice> {
    let planes = [Planes::OwnF16, Planes::OwnBf16].into_iter().find(|planes| planes.own_type() == Some(p.product))?;
    let first = place == 1;
    let (rows, vectors) = if first { (p.columns, p.rows) } else { (p.rows, p.columns) };
    let caps = &model.caps;
    if !has_vectors(model, rows) || !caps.subgroup_ops.shuffle {
        return None;
    }
    let fits =
        |t: &MatrixTile| t.shared_bytes() <= caps.max_shared_memory_bytes && t.invocations() <= caps.max_invocations;
    let tiles: Vec<MatrixTile> = MatrixTile::of_linear(planes, vectors, first).filter(fits).collect();
    // More teams where there are too few workgroups to fill the processors.
    let groups = rows.div_ceil(ROWS_OF_LINEAR.into());
    let fills = |t: &&MatrixTile| groups * u64::from(t.invocations()) >= model.processors * model.products.invocations;
    let tile = *tiles.iter().find(fills).or(tiles.last())?;
    let splits = splits_of(p, CType::F32, MAX_SPLIT_DEPTH * u64::from(tile.invocations() / 32));
    Some(Choice { tiling: Tiling::Matrix(tile), splits })
}

/// Tiles on matrix units that read f32 operands in place, of which memory holds so many elements, with their splits and
/// cycles as [`matrix_candidates`] has them.
fn in_place_candidates(model: &DeviceModel, p: &Outline, sum: CType, elements: u64) -> Vec<(MatrixTile, u64, f64)> {
    let Some(form) = Narrowing::in_place(model, p, sum) else { return vec![] };
    let mut found = candidates_of(model, p, sum, form, elements);
    found.retain(|(_, splits, _)| p.depth.div_ceil(*splits) <= MAX_PLACED_DEPTH);
    found
}

/// The cheapest launch on matrix units that reads f32 operands in place.
pub(crate) fn in_place(model: &DeviceModel, p: &Outline, sum: CType, elements: u64) -> Option<Choice> {
    let found = in_place_candidates(model, p, sum, elements).into_iter();
    let (tile, splits, _) = found.min_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(Choice { tiling: Tiling::Matrix(tile), splits })
}

/// Whether a product of f32 takes least if matrix units read its operands in place, of which memory holds so many
/// `elements`; else it would be `other`.
pub(crate) fn pays_in_place(model: &DeviceModel, p: &Outline, sum: CType, elements: u64, other: &Outline) -> bool {
    let found = in_place_candidates(model, p, sum, elements).into_iter();
    let Some(least) = found.map(|(.., cycles)| cycles).min_by(f64::total_cmp) else { return false };
    is_worth_units(model, p) && cheapest(model, other, sum).is_some_and(|(_, cycles)| least < cycles)
}

/// Tiles on matrix units for a form of operands of which so many elements are written.
fn candidates_of(
    model: &DeviceModel,
    p: &Outline,
    sum: CType,
    form: Narrowing,
    elements: u64,
) -> Vec<(MatrixTile, u64, f64)> {
    let products = &model.products;
    let (rows, columns) = (p.rows, p.columns);
    let (batches, depth) = (p.batches, p.depth);
    let least = accurate_splits(p, sum);
    // Every element is read, twice where rows are scaled, and written. Of operands that may be taken in place it does
    // not count: where they lie must not choose the kernel, nor the bits.
    let elements = elements as f64;
    let before = match (form.scaled, form.planes) {
        (true, planes) => 2.5 * products.dispatch + elements * (8.0 + 2.0 * f64::from(planes.count())) / products.bytes,
        (false, Planes::ThreeBf16 | Planes::OwnThreeBf16) => products.dispatch + elements * 10.0 / products.bytes,
        // One operand lies across, as weights do; it may be either.
        (false, Planes::OwnF16 | Planes::OwnBf16) => products.dispatch + elements * 2.0 / products.bytes,
        (false, Planes::OneF16 | Planes::TwoF16) => 0.0,
    };
    let mut found = vec![];
    let caps = &model.caps;
    let fits =
        |t: &MatrixTile| t.shared_bytes() <= caps.max_shared_memory_bytes && t.invocations() <= caps.max_invocations;
    // Both operands are written where they may be elements of a matrix each, by eights along either axis.
    let is_long = |n: &u64| n.is_multiple_of(8) && *n >= products.units.least_of_fragments;
    let is_written = !p.repeats && [rows, columns, depth].iter().all(is_long);
    let tiles = MatrixTile::all(form.planes).filter(|tile| tile.feed != Feed::Fragments || is_written);
    for tile in tiles.filter(fits) {
        let before = match tile.feed {
            Feed::Fragments => {
                let written = elements / depth as f64 * depth.next_multiple_of(tile.block()) as f64;
                // Copies of weights are kept, and several products share that of their other operand: half of them.
                let share = if batches > 1 { 2.0 } else { 1.0 };
                2.0 * products.dispatch + share * (elements + written) / products.bytes
            }
            Feed::Planes | Feed::Few | Feed::Linear { .. } => before,
        };
        let [m, n] = [tile.rows, tile.columns].map(u64::from);
        // Tiles have no mirror images, but a transposed product of exchanged operands is to have the same splits.
        let tiles = (rows.div_ceil(m) * columns.div_ceil(n)).max(rows.div_ceil(n) * columns.div_ceil(m)) * batches;
        let most = (depth / (4 * tile.block())).max(1);
        let few = SPLITS.into_iter().filter(|&splits| splits == 1 || splits * tiles <= model.products.most_groups);
        let held = resident_of(products, &tile);
        // A workgroup more than processors hold at once begins when others are done: one or two rounds of them.
        let filling = (1..=2 * held).map(|each| each * model.processors / tiles.max(1));
        let tried = few.chain(filling).filter(|splits| (1..=most).contains(splits));
        for splits in tried.map(|splits| splits.max(least)) {
            let each = (tiles * splits).div_ceil(model.processors);
            let steps = depth.div_ceil(splits).div_ceil(tile.block()) as f64;
            let busy = (m * n * tile.block()) as f64 / products_per_cycle(&products.units, &tile, p);
            // What is fetched right into registers is waited for where few workgroups stand in for each other.
            let resident = each.min(products.resident) as f64;
            let step = |resident: f64| match (tile.planes.is_in_order(), tile.fetches_ahead()) {
                (false, _) => busy,
                (true, true) => busy.max(products.latency / resident),
                (true, false) => busy.max((busy + products.latency) / resident),
            };
            let partial = partial(products, splits * batches * rows * columns * 4, splits);
            let rest = match (tile.planes.is_own(), tile.is_large()) {
                (false, _) => 4.0 * products.latency,
                // Others stand in for a workgroup that waits. Small tiles store eight results at once.
                (true, true) => 4.0 * products.latency / resident + products.result * (m * n / 128) as f64 / resident,
                (true, false) => 4.0 * products.latency / resident,
            };
            let (together, last) = ((each / held * held) as f64, (each % held) as f64);
            let multiplied = together * step(held as f64) + if last > 0.0 { last * step(last) } else { 0.0 };
            let cycles = steps * multiplied + each as f64 * rest + before + partial;
            found.push((tile, splits, cycles));
        }
    }
    found
}

/// Tiles of products by residues, with the cycles that all that belongs to them takes by the model; none where the device
/// or the types don't allow it.
pub fn residue_candidates(model: &DeviceModel, p: &Outline, sum: CType) -> Vec<(ResidueTile, f64)> {
    let has_units = model.caps.byte_matrix && model.class.is_nvidia() && p.own[0];
    let is_so = has_units && sum == CType::F64 && p.product == DType::F64;
    let Some(form) = Residues::of(p.depth).filter(|_| is_so) else { return vec![] };
    let products = &model.products;
    let sizes = Sizes { rows: p.rows, columns: p.columns, depth: p.depth, batches: p.batches };
    if form.bytes(sizes).is_none_or(|bytes| bytes > products.residue_bytes) {
        return vec![];
    }
    let planes = form.planes() as f64;
    let lanes = products.lanes * model.processors as f64;
    let written = (p.batches * (p.rows + p.columns) * p.depth) as f64;
    let results = (p.batches * p.rows * p.columns) as f64;
    // Operands are read twice, and all is computed in integers, with as many operations for each plane.
    let split = (written * (16.0 + planes) / products.bytes).max(written * planes * products.units.split / lanes);
    let restored =
        (results * (16.0 + 2.0 * planes) / products.bytes).max(results * planes * products.units.restored / lanes);
    let fits = |side: &u32| side * side / 128 <= model.caps.max_invocations;
    let tile = |side: u32| {
        let groups = p.batches * p.rows.div_ceil(side.into()) * p.columns.div_ceil(side.into()) * form.planes();
        let rate = products.units.bytes[usize::from(side != ResidueTile::SIDES[0])];
        let busy = f64::from(side * side) * p.depth.next_multiple_of(32) as f64 / rate;
        let each = groups.div_ceil(model.processors) as f64;
        let cycles = each * busy + split + restored + DISPATCHES_OF_RESIDUES * products.dispatch;
        (ResidueTile { side, moduli: form.moduli }, cycles)
    };
    ResidueTile::SIDES.into_iter().filter(fits).map(tile).collect()
}

/// Launches of a product by residues that wait for each other: zeros, exponents, bytes, coarse products, their check,
/// products, results.
const DISPATCHES_OF_RESIDUES: f64 = 7.0;

/// Workgroups of a tile that a processor holds, where they find operands by their axes. Measured on an H100: gradients
/// by kernels take least where three of the large tiles fill each processor.
fn resident_of(products: &Products, tile: &MatrixTile) -> u64 {
    let resident = products.resident;
    match tile.planes {
        Planes::OwnF16 | Planes::OwnBf16 if tile.feed == Feed::Fragments => {
            if tile.is_large() {
                resident / 2
            } else {
                resident - 1
            }
        }
        Planes::OwnF16 | Planes::OwnBf16 if tile.is_large() => resident - 1,
        Planes::OwnThreeBf16 => resident / 2,
        Planes::OwnF16 | Planes::OwnBf16 | Planes::OneF16 | Planes::TwoF16 | Planes::ThreeBf16 => resident,
    }
}

/// Multiplications per cycle of a processor that such tiles fill.
fn products_per_cycle(units: &Units, tile: &MatrixTile, p: &Outline) -> f64 {
    let by_side = |[large, small]: [f64; 2]| if tile.is_large() { large } else { small };
    match tile.planes {
        Planes::OwnF16 | Planes::OwnBf16 if tile.feed == Feed::Fragments => by_side(units.fragments),
        Planes::OwnF16 | Planes::OwnBf16 => by_side(units.own),
        Planes::ThreeBf16 => units.three_bf16 * (1.0 + 6.0) / (1.0 + products_of_parts(p.operands.map(parts_of))),
        Planes::OwnThreeBf16 => units.own_three_bf16,
        Planes::TwoF16 => by_side(units.two_f16),
        Planes::OneF16 => by_side(units.one_f16),
    }
}

/// Whether a matrix of so many rows is worth the kernels that multiply it with few vectors.
pub(super) fn has_vectors(model: &DeviceModel, rows: u64) -> bool {
    model.products.least_vector_rows.is_some_and(|least| rows >= least)
}

/// Results of a workgroup whose invocations compute one each.
const NARROW_RESULTS: u64 = 64;

/// Whether a product with few vectors is faster where many invocations share out each result than where one computes
/// it, element after element: few results leave most of a device idle.
pub(crate) fn shares_results(model: &DeviceModel, p: &Outline, sum: CType) -> bool {
    let products = &model.products;
    let each = (p.batches * p.rows * p.columns).div_ceil(NARROW_RESULTS).div_ceil(model.processors);
    let resident = each.min(products.invocations / NARROW_RESULTS).max(1);
    // Four elements are loaded at once, and loading one takes as long as multiplying it.
    let busy = (4 * 2 * NARROW_RESULTS * resident) as f64 / (products.lanes * products.efficiency.of_few);
    let steps = p.depth.div_ceil(4) as f64;
    let narrow = each.div_ceil(resident) as f64 * (steps * busy.max(products.latency) + 2.0 * products.latency);
    vector_candidates(model, p, sum).iter().any(|&(.., cycles)| cycles < narrow)
}

/// Ways to multiply a matrix with few vectors, with the splits that may pay and the cycles that they take by the model.
pub fn vector_candidates(model: &DeviceModel, p: &Outline, sum: CType) -> Vec<(VectorTile, u64, f64)> {
    let first = p.rows < p.columns;
    let (rows, vectors) = if first { (p.columns, p.rows) } else { (p.rows, p.columns) };
    let mut found = vec![];
    if sum != CType::F32 || !has_vectors(model, rows) {
        return found;
    }
    let products = &model.products;
    // Each team adds up its own share.
    let least = |tile: &VectorTile| splits_of(p, sum, MAX_SPLIT_DEPTH * u64::from(tile.teams));
    for tile in VectorTile::all(vectors, first).filter(|tile| tile.fits(&model.caps)) {
        let tiles = p.batches * rows.div_ceil(tile.rows().into());
        let block = 2 * tile.block();
        let most = (p.depth / block).min(products.most_groups / tiles).max(1);
        // An invocation takes about 64 registers, and four for each vector beyond a few.
        let by_registers = if tile.count > 4 { products.invocations / 4 } else { products.invocations / 2 };
        let resident = (by_registers / u64::from(tile.invocations())).max(1);
        for splits in SPLITS.into_iter().filter(|&splits| splits <= most).map(|splits| splits.max(least(&tile))) {
            let each = (tiles * splits).div_ceil(model.processors);
            let resident = resident.min(each);
            let steps = p.depth.div_ceil(splits).div_ceil(block) as f64;
            // To load and convert an element takes as long as two multiplications.
            let computed = f64::from(tile.rows() * (tile.count + 2)) * block as f64;
            let busy = computed / (products.lanes * products.efficiency.of_few);
            let step = (busy * resident as f64).max(products.latency);
            let cycles = each.div_ceil(resident) as f64 * (steps * step + 2.0 * products.latency);
            let partial = partial(products, splits * p.batches * p.rows * p.columns * 4, splits);
            found.push((tile, splits, cycles + partial));
        }
    }
    found
}

/// Products of parts that are added up, six at most; to add their sum to that of all takes as long as one of them.
fn products_of_parts([a, b]: [u32; 2]) -> f64 {
    (0..a).map(|part| b.min(3 - part)).sum::<u32>().into()
}

/// How a product is launched that is no vector's; a `small` one is not worth a kernel of its own.
pub(crate) fn launch_of(model: &DeviceModel, p: &Outline, sum: CType, small: bool) -> Choice {
    let has_lanes = !lane_tiles(model, sum).is_empty();
    let is_square = !has_lanes && (small || !pays(model, p));
    if is_square { square(model, p, sum) } else { choose(model, p, sum) }
}

/// The cheapest launch by the model.
pub fn choose(model: &DeviceModel, p: &Outline, sum: CType) -> Choice {
    if let Some(choice) = lanes(model, p, sum, lane_tiles(model, sum)) {
        return choice;
    }
    cheapest(model, p, sum).map_or_else(|| square(model, p, sum), |(choice, _)| choice)
}

/// The cheapest launch that the model knows, with its cycles.
fn cheapest(model: &DeviceModel, p: &Outline, sum: CType) -> Option<(Choice, f64)> {
    let plain = plain(model, p, sum, None);
    let Tiling::Tiled(tile) = plain.tiling else { return None };
    let by_tiles = (plain, estimate(model, p, sum, &tile, plain.splits));
    let by_vectors = vector_candidates(model, p, sum).into_iter();
    let by_vectors =
        by_vectors.map(|(tile, splits, cycles)| (Choice { tiling: Tiling::Vectors(tile), splits }, cycles));
    let on_units = is_worth_units(model, p).then(|| matrix_candidates(model, p, sum)).into_iter().flatten();
    let on_units = on_units.map(|(tile, splits, cycles)| (Choice { tiling: Tiling::Matrix(tile), splits }, cycles));
    let by_residues = is_worth_units(model, p).then(|| residue_candidates(model, p, sum)).into_iter().flatten();
    let by_residues =
        by_residues.map(|(tile, cycles)| (Choice { tiling: Tiling::Residues(tile), splits: plain.splits }, cycles));
    // The first of equals.
    by_vectors.chain([by_tiles]).chain(on_units).chain(by_residues).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The cheapest launch without matrix units, with so many splits if that is given.
pub fn plain(model: &DeviceModel, p: &Outline, sum: CType, splits: Option<u64>) -> Choice {
    let best = candidates(model, p, sum)
        .into_iter()
        .map(|(tile, own)| (tile, splits.unwrap_or(own)))
        .map(|(tile, splits)| (estimate(model, p, sum, &tile, splits), tile, splits))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((_, tile, splits)) => Choice { tiling: Tiling::Tiled(tile), splits },
        None => square(model, p, sum),
    }
}

/// Whether a kernel for tiles is worth its compilation.
fn pays(model: &DeviceModel, p: &Outline) -> bool {
    p.multiplications() >= model.products.least_work
}

/// Square tiles, of any type.
fn square(model: &DeviceModel, p: &Outline, sum: CType) -> Choice {
    let side = match sum.dtype().size_bytes() {
        4 => 64,
        8 => 32,
        _ => 16,
    };
    let tiles = p.batches * p.rows.div_ceil(side) * p.columns.div_ceil(side);
    let splits = (model.products.square_groups / tiles.max(1)).min(p.depth / model.products.least_split_depth);
    Choice { tiling: Tiling::Square, splits: splits.max(accurate_splits(p, sum)) }
}

/// Contracted elements per split: a lane adds up one after the other, where other tiles have teams or short sums.
const MAX_LANES_DEPTH: u64 = 2048;

/// Tiles for lanes that the device can run: those of CPU devices, whose subgroups are their vectors.
pub fn lane_tiles(model: &DeviceModel, sum: CType) -> &'static [LaneTile] {
    let caps = &model.caps;
    match LaneTile::all(sum) {
        _ if !has_lanes(caps) || !caps.subgroup_ops.ballot => &[],
        [.., smallest] if is_lowered(model, sum) => std::slice::from_ref(smallest),
        all => all,
    }
}

/// Whether sums are of doubles that the device lacks: an fma is then as long as a kernel, and large tiles would be
/// hundreds of them.
fn is_lowered(model: &DeviceModel, sum: CType) -> bool {
    model.caps.lacks().float64 && matches!(sum, CType::F64 | CType::C128)
}

/// The tile of `tiles` for a product, the largest ones first. The splits depend on no tile, nor on which operand has
/// the rows, so that a transposed product of exchanged operands has the same bits.
fn lanes(model: &DeviceModel, p: &Outline, sum: CType, tiles: &[LaneTile]) -> Option<Choice> {
    let tuned = &model.lanes;
    let (rows, columns, batches) = (p.rows, p.columns, p.batches);
    let pays = |tile: &&LaneTile| {
        let groups = batches * rows.div_ceil(tile.rows.into()) * columns.div_ceil(tile.columns().into());
        let least = tuned.least_work.iter().find(|(rows, _)| *rows == tile.rows);
        let is_worth = least.is_none_or(|&(_, work)| p.multiplications() >= work && groups >= tuned.busy_groups);
        is_worth && (tile.vectors == 1 || columns > LANES.into())
    };
    let tile = *tiles.iter().find(pays)?;
    let shares = (batches * rows * columns).div_ceil(tuned.least_results);
    let Products { square_groups, least_split_depth, .. } = model.products;
    let splits = (square_groups / shares.max(1)).min(p.depth / least_split_depth);
    Some(Choice { tiling: Tiling::Lanes(tile), splits: splits.max(splits_of(p, sum, MAX_LANES_DEPTH)) })
}

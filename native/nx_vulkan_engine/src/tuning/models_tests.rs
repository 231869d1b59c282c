//! What models of devices choose that no test runs on: nothing beyond a device's limits, and nothing that takes much
//! longer, by the model, than what it could have chosen.

use super::devices::{ALL, h200, lavapipe, rtx_2080, rtx_4060};
use super::{Calibration, Class, DeviceModel};
use crate::kernels::dot::{
    Choice, Feed, LANES, Outline, ResidueTile, Tile, Tiling, accurate_splits, estimate, in_place, launch_of,
    matrix_candidates, pays_in_place, residue_candidates, shares_results, vector_candidates,
};
use crate::kernels::fft::FftSpec;
use crate::kernels::linalg::qr;
use crate::kernels::reduce::ReduceSpec;
use crate::kernels::{fft, map, rows, scan};
use crate::{CType, Caps, DType, DeviceKind, Precision};

/// By how much a choice may miss the model's own best.
const MOST_MISSED: f64 = 1.5;

const SIZES: [u64; 6] = [2, 64, 100, 333, 784, 4096];

const SPLITS: [u64; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64];

fn outlines() -> impl Iterator<Item = (Outline, CType)> {
    let types = [
        (DType::F32, CType::F32, Precision::Highest),
        (DType::F32, CType::F32, Precision::High),
        (DType::F16, CType::F32, Precision::Highest),
        (DType::F64, CType::F64, Precision::Highest),
    ];
    types.into_iter().flat_map(move |(dtype, sum, precision)| {
        let sides = SIZES.into_iter().flat_map(|rows| SIZES.map(|columns| (rows, columns)));
        let all = sides.flat_map(|(rows, columns)| SIZES.map(|depth| [1, 12].map(|n| [n, rows, columns, 4 * depth])));
        all.flatten().map(move |[batches, rows, columns, depth]| {
            let operands = [dtype; 2];
            (
                Outline {
                    batches,
                    rows,
                    columns,
                    depth,
                    operands,
                    product: dtype,
                    looped_steps: 0,
                    precision,
                    own: [true; 2],
                    repeats: false,
                },
                sum,
            )
        })
    })
}

fn fits(model: &DeviceModel, tile: &Tile, sum: CType) -> bool {
    tile.shared_bytes(sum) <= model.caps.max_shared_memory_bytes && tile.invocations() <= model.caps.max_invocations
}

/// The least cycles of all launches that the device could run with two steps for each split, however many workgroups
/// that makes.
fn best(model: &DeviceModel, p: &Outline, sum: CType) -> f64 {
    let least = accurate_splits(p, sum);
    let tiles = Tile::all(sum).iter().filter(|tile| fits(model, tile, sum));
    let most = move |tile: &Tile| (p.depth / (2 * tile.block())).clamp(1, 64);
    let by_tiles = tiles.flat_map(|tile| {
        let splits = SPLITS.into_iter().filter(move |&splits| splits <= most(tile));
        splits.map(move |splits| (tile, splits.max(least)))
    });
    let by_tiles = by_tiles.map(|(tile, splits)| estimate(model, p, sum, tile, splits));
    // Below, they are not tried, whatever the model says.
    let is_large = p.batches * p.rows * p.columns * p.depth >= model.programs.joins.unit_work;
    let by_units = matrix_candidates(model, p, sum).into_iter().filter(|_| is_large).map(|(_, _, cycles)| cycles);
    let by_residues = residue_candidates(model, p, sum).into_iter().filter(|_| is_large).map(|(_, cycles)| cycles);
    by_tiles.chain(by_units).chain(by_residues).min_by(f64::total_cmp).unwrap()
}

/// Cycles of a choice by the model; none of one that the model does not know.
fn cycles(model: &DeviceModel, p: &Outline, sum: CType, choice: Choice) -> Option<f64> {
    match choice.tiling {
        Tiling::Tiled(tile) => Some(estimate(model, p, sum, &tile, choice.splits)),
        Tiling::Matrix(tile) => {
            let all = matrix_candidates(model, p, sum);
            let found = all.into_iter().find(|(other, splits, _)| *other == tile && *splits == choice.splits);
            Some(found.unwrap().2)
        }
        Tiling::Vectors(tile) => {
            let all = vector_candidates(model, p, sum);
            let found = all.into_iter().find(|(other, splits, _)| *other == tile && *splits == choice.splits);
            Some(found.unwrap().2)
        }
        Tiling::Residues(tile) => {
            let all = residue_candidates(model, p, sum);
            Some(all.into_iter().find(|(other, _)| *other == tile).unwrap().1)
        }
        Tiling::Square | Tiling::Narrow | Tiling::Lanes(_) => None,
    }
}

#[test]
fn no_product_is_beyond_a_device_or_far_from_its_best() {
    for (name, caps) in ALL.map(|(name, caps)| (name, caps())) {
        let model = DeviceModel::of(&caps);
        for (p, sum) in outlines() {
            let choice = launch_of(&model, &p, sum, false);
            match choice.tiling {
                Tiling::Tiled(tile) => assert!(fits(&model, &tile, sum), "{name}: {p:?} by {tile:?}"),
                Tiling::Matrix(tile) => {
                    let has_subgroups = (caps.min_subgroup_size..=caps.max_subgroup_size).contains(&32);
                    assert!(caps.cooperative_matrix && has_subgroups, "{name}: {p:?} by {tile:?}");
                    assert!(tile.shared_bytes() <= caps.max_shared_memory_bytes, "{name}: {tile:?}");
                    assert!(tile.invocations() <= caps.max_invocations, "{name}: {tile:?}");
                }
                Tiling::Residues(tile) => {
                    assert!(caps.byte_matrix && tile.side != ResidueTile::PLAIN, "{name}: {p:?} by {tile:?}");
                    assert!(p.depth <= 1 << 21 && p.product == DType::F64, "{name}: {p:?} by {tile:?}");
                }
                Tiling::Vectors(tile) => {
                    assert!(tile.shared_bytes() <= caps.max_shared_memory_bytes, "{name}: {tile:?}");
                    assert!(tile.invocations() <= caps.max_invocations, "{name}: {tile:?}");
                }
                Tiling::Lanes(_) => {
                    assert!(caps.kind == DeviceKind::Cpu && caps.subgroup_size >= LANES, "{name}: {p:?}");
                }
                Tiling::Square => {
                    let is_lowered = caps.lacks().float64 && sum == CType::F64;
                    let is_small = p.batches * p.rows * p.columns * p.depth < model.products.least_work;
                    assert!(is_small || is_lowered, "{name}: {p:?}");
                }
                Tiling::Narrow => panic!("{name}: {p:?} is no vector's"),
            }
            assert!(choice.splits * p.batches * p.rows * p.columns <= i32::MAX as u64, "{name}: {p:?} by {choice:?}");
            if let Some(cycles) = cycles(&model, &p, sum, choice) {
                let best = best(&model, &p, sum);
                assert!(cycles <= MOST_MISSED * best, "{name}: {p:?} by {choice:?} takes {cycles} cycles, not {best}");
            }
        }
    }
}

#[test]
fn windows_of_f32_are_read_in_place_where_units_pay() {
    let windows = |rows: u64, precision: Precision| Outline {
        batches: 1,
        rows,
        columns: 64,
        depth: 576,
        operands: [DType::F32; 2],
        product: DType::F32,
        looped_steps: 0,
        precision,
        own: [true; 2],
        repeats: false,
    };
    for (name, caps) in ALL.map(|(name, caps)| (name, caps())) {
        let model = DeviceModel::of(&caps);
        let pays = |p: &Outline| pays_in_place(&model, p, CType::F32, 64 * p.rows, p);
        let many = windows(1 << 18, Precision::Highest);
        let has_units = caps.cooperative_matrix && caps.bfloat16_matrix;
        assert_eq!(pays(&many), has_units, "{name}");
        assert_eq!(in_place(&model, &many, CType::F32, 1 << 24).is_some(), has_units, "{name}");
        assert!(!pays(&windows(1 << 10, Precision::Highest)) && !pays(&windows(1 << 18, Precision::High)), "{name}");
        assert!(!pays(&Outline { own: [false; 2], ..many }), "{name}");
    }
}

#[test]
fn few_results_are_shared_out_among_invocations() {
    let outline = |[batches, rows, columns, depth]: [u64; 4]| Outline {
        batches,
        rows,
        columns,
        depth,
        operands: [DType::Bf16; 2],
        product: DType::Bf16,
        looped_steps: 0,
        precision: Precision::Highest,
        own: [false; 2],
        repeats: false,
    };
    let few = [[1, 1, 768, 768], [1, 3072, 1, 768], [12, 1, 64, 576], [1, 8, 768, 512]].map(outline);
    let many = [[1 << 16, 1, 32, 9], [1 << 14, 8, 32, 16]].map(outline);
    let model = DeviceModel::of(&h200());
    assert!(
        few.iter().all(|p| shares_results(&model, p, CType::F32))
            && !many.iter().any(|p| shares_results(&model, p, CType::F32))
    );
    let cpu = DeviceModel::of(&lavapipe());
    assert!(!few.iter().chain(&many).any(|p| shares_results(&cpu, p, CType::F32)));
}

#[test]
fn no_other_launch_is_beyond_a_device() {
    for (name, caps) in ALL.map(|(name, caps)| (name, caps())) {
        let model = DeviceModel::of(&caps);
        assert!(ReduceSpec::LOCAL_SIZE <= caps.max_invocations && FftSpec::LOCAL_SIZE <= caps.max_invocations.into());
        assert!(model.reductions.most_team <= caps.max_invocations.into(), "{name}");
        for compute in [CType::C64, CType::C128] {
            let capacity = fft::capacity(&model, compute);
            let bytes = capacity * compute.dtype().size_bytes();
            assert!(capacity >= 16 && bytes <= caps.max_shared_memory_bytes.into(), "{name}: {capacity}");
            for (n, count) in SIZES.into_iter().filter(|&n| n <= capacity).flat_map(|n| SIZES.map(|count| (n, count))) {
                let group = fft::rows_per_group(&model, n, count, capacity, true);
                assert!(group * n <= capacity.max(n), "{name}: {group} rows of {n}");
            }
        }
        for (words, columns) in [1u32, 2, 4].into_iter().flat_map(|words| [false, true].map(|columns| (words, columns)))
        {
            for (count, elements) in SIZES.into_iter().flat_map(|count| SIZES.map(|elements| (64 * count, elements))) {
                for width in [1, 2, 4] {
                    let Some((team, items)) = rows::share(&model, words, count, elements, width, columns, words > 1)
                    else {
                        continue;
                    };
                    assert!(team <= caps.max_invocations.into() && team.is_power_of_two(), "{name}: {team}");
                    assert!(team * items * width >= elements, "{name}: {team} x {items} x {width} of {elements}");
                }
            }
        }
        for n in SIZES {
            let (chunk, chunks) = scan::chunks(&model, n, 1 << 20, 1024);
            assert!(chunk * chunks >= 1 << 20 && chunks <= 1024, "{name}: {chunks}");
            let (each, groups) = qr::blocks(&model, 8 * n);
            assert!(each >= 1 && groups >= 1, "{name}");
            assert!(crate::eager::cholesky_tiles(&model, n, n, CType::F32) >= 1, "{name}");
            let pairs = map::takes_pairs(&model, n);
            assert!(!pairs || caps.kind == DeviceKind::Cpu, "{name}");
        }
        assert!(model.short.groups > 0 && model.short.bytes > 0 && model.fill.scan_groups > 0, "{name}");
    }
}

#[test]
fn cheap_rows_of_f64_have_few_invocations_where_f64_is_slow() {
    for (name, caps) in ALL {
        let model = DeviceModel::of(&caps());
        let team = |elements, cheap| rows::share(&model, 4, 1 << 20, elements, 2, false, cheap).map(|(team, _)| team);
        let is_slow = model.class != Class::Cpu && model.products.f64_share < 0.1;
        for elements in [64, 4096] {
            let (many, few) = (team(elements, false), team(elements, true));
            let expected = if is_slow { many.map(|many| many / 4) } else { many };
            assert_eq!(few, expected, "{name}: {elements}");
        }
        // What an invocation holds is bounded.
        assert!(team(16_384, true).is_none_or(|team| !is_slow || 16_384 / team <= 64), "{name}");
    }
}

#[test]
fn devices_have_classes_and_the_processors_that_drivers_tell() {
    let classes = ALL.map(|(name, caps)| (name, Class::of(&caps()), DeviceModel::of(&caps()).processors));
    let expected = [
        ("H200", Class::NvidiaDataCenter, 132),
        ("A100", Class::NvidiaDataCenter, 108),
        ("RTX 4060", Class::Nvidia, 24),
        ("RTX 2080", Class::Nvidia, 46),
        ("RX 6800", Class::AmdRdna, 60),
        ("RX 7900 XTX", Class::AmdRdna, 96),
        ("MI210", Class::AmdCdna, 104),
        ("Iris Xe", Class::Intel, 6),
        ("Arc A770", Class::Intel, 32),
        ("M1", Class::Apple, 8),
        ("Mali-G78", Class::Arm, 20),
        ("V3D", Class::Other, 4),
        ("lavapipe", Class::Cpu, 2),
        ("lavapipe, 128-bit", Class::Cpu, 2),
    ];
    assert_eq!(classes, expected);
}

/// What an H200 gives, about.
const MEASURED: Calibration = Calibration {
    bytes_per_second: 3.9e12,
    flops_per_second: 6.2e13,
    dispatch_ns: 190.0,
    wait_ns: 2100.0,
    f32_products_per_second: 2.2e13,
    f64_products_per_second: Some(1.1e13),
    unit_products_per_second: Some(9e13),
};

#[test]
fn what_is_measured_takes_the_place_of_guesses() {
    let guess = DeviceModel::of(&h200());
    let measured = DeviceModel::calibrated(&h200(), &MEASURED);
    assert_ne!(guess, measured);
    let near = |got: f64, want: f64| assert!((0.5..2.0).contains(&(got / want)), "{got} instead of {want}");
    near(measured.products.dispatch, guess.products.dispatch);
    near(measured.products.bytes, guess.products.bytes);
    near(measured.products.lanes, guess.products.lanes);
    near(measured.short.bytes as f64, guess.short.bytes as f64);
    near(measured.short.flops as f64, guess.short.flops as f64);
    near(measured.rates.ns(None) as f64, guess.rates.ns(None) as f64);
    // Twice as slow to begin, and with a tenth of the memory's rate.
    let slow = Calibration { wait_ns: 4200.0, bytes_per_second: 3.9e11, ..MEASURED };
    let slow = DeviceModel::calibrated(&h200(), &slow);
    assert_eq!(slow.products.dispatch, 2.0 * measured.products.dispatch);
    let joins = |model: &DeviceModel| (model.programs.joins.unit_work, model.programs.joins.read_bytes);
    assert_eq!([&guess, &measured, &slow].map(joins), [(1 << 26, 4 << 20), (1 << 26, 4 << 20), (1 << 27, 1 << 20)]);
    assert!(slow.products.bytes < 0.11 * measured.products.bytes && slow.short.bytes < measured.short.bytes);
    let cpu = DeviceModel::calibrated(&lavapipe(), &Calibration { unit_products_per_second: None, ..MEASURED });
    let guess = DeviceModel::of(&lavapipe());
    assert_eq!((cpu.processors, cpu.short, joins(&cpu)), (2, guess.short, joins(&guess)));
}

/// Gradients by 3 x 3 kernels of `channels` from images of a side, to `filters`.
fn gradient_by_kernel(side: u64, channels: u64, filters: u64) -> Outline {
    Outline {
        batches: 1,
        rows: 9 * channels,
        columns: filters,
        depth: 16 * side * side,
        operands: [DType::Bf16; 2],
        product: DType::Bf16,
        looped_steps: 0,
        precision: Precision::Highest,
        own: [true; 2],
        repeats: true,
    }
}

#[test]
fn splits_on_matrix_units_fill_processors_in_whole_rounds() {
    let model = DeviceModel::of(&h200());
    for (side, channels, filters) in [(128, 64, 64), (64, 128, 128), (64, 256, 128), (32, 256, 256), (32, 512, 256)] {
        let p = gradient_by_kernel(side, channels, filters);
        let Choice { tiling: Tiling::Matrix(tile), splits } = launch_of(&model, &p, CType::F32, false) else {
            panic!("{p:?} without matrix units");
        };
        let tiles = p.rows.div_ceil(tile.rows.into()) * p.columns.div_ceil(tile.columns.into());
        // Three of the large tiles fill a processor of an H200.
        let rounds = (tiles * splits) as f64 / (3 * model.processors) as f64;
        assert!((0.9..=1.0).contains(&(rounds / rounds.ceil())), "{p:?}: {rounds} rounds by {tile:?} in {splits}");
    }
}

/// Products of bf16 of the sizes that language models have, by few vectors on either side.
#[test]
fn few_vectors_in_narrow_types_are_given_to_units_that_take_them_as_they_are() {
    let model = DeviceModel::of(&h200());
    let by = |vectors: u64, [matrix, depth]: [u64; 2], first: bool, own: bool| {
        let (rows, columns) = if first { (vectors, matrix) } else { (matrix, vectors) };
        let p = Outline { rows, columns, depth, own: [own; 2], ..gradient_by_kernel(1, 1, 1) };
        launch_of(&model, &p, CType::F32, false)
    };
    let is_few = |choice: Choice| matches!(choice.tiling, Tiling::Matrix(tile) if tile.feed == Feed::Few);
    for sizes in [[14_336, 4096], [4096, 14_336], [8192, 4096], [4096, 4096]] {
        for vectors in [8, 12, 16] {
            let [one, other] = [false, true].map(|first| by(vectors, sizes, first, true));
            assert!(is_few(one) && is_few(other), "{sizes:?} by {vectors}: {one:?}, {other:?}");
            let (Tiling::Matrix(tile), Tiling::Matrix(turned)) = (one.tiling, other.tiling) else { unreachable!() };
            assert_eq!(one.splits, other.splits);
            assert_eq!((tile.rows, tile.columns), (turned.columns, turned.rows));
            assert!(!is_few(by(vectors, sizes, false, false)));
        }
        // Two matrices share a launch by up to four vectors, and by more than 16 whole tiles are as fast.
        assert!(![1, 4, 17, 64].into_iter().any(|vectors| is_few(by(vectors, sizes, false, true))));
    }
    // Such products take no units, however many vectors.
    assert!(!is_few(by(16, [1024, 1024], false, true)));
}

/// Large products of f16 and bf16 pay for copies of both operands in the order of matrices; few columns or contracted
/// elements, many small products and windows, which copies would repeat, don't.
#[test]
fn large_products_in_narrow_types_are_written_in_the_order_of_matrices() {
    let model = DeviceModel::of(&h200());
    let is_written = |batches: u64, [rows, depth, columns]: [u64; 3], repeats: bool| {
        let p = Outline { batches, rows, columns, depth, own: [true; 2], repeats, ..gradient_by_kernel(1, 1, 1) };
        let Tiling::Matrix(tile) = launch_of(&model, &p, CType::F32, false).tiling else { panic!("{p:?}: no units") };
        tile.feed == Feed::Fragments
    };
    for sizes in [[4096; 3], [8192; 3], [4096, 768, 768], [4096, 768, 3072], [4096, 3072, 768], [512, 2048, 8192]] {
        assert!(is_written(1, sizes, false), "{sizes:?}");
        assert!(!is_written(1, sizes, true), "{sizes:?}");
        let [rows, depth, columns] = sizes;
        assert!(!is_written(1, [rows, depth - 3, columns], false), "{sizes:?} with an odd depth");
    }
    for (batches, sizes) in [
        (1, [1024, 1024, 1024]),
        (1, [200_704, 64, 256]),
        (1, [50_176, 512, 128]),
        (64, [2048, 2048, 64]),
        (384, [128, 64, 128]),
    ] {
        assert!(!is_written(batches, sizes, false), "{batches} of {sizes:?}");
    }
}

/// Of NVIDIA's GPUs for desktops; where f64 runs at half of f32's rate, plain tiles take less.
#[test]
fn products_of_f64_are_residues_where_f64_is_slow() {
    let is_by_residues = |caps: &Caps, n: u64, own: bool| {
        let one = gradient_by_kernel(1, 1, 1);
        let (operands, own) = ([DType::F64; 2], [own, false]);
        let p = Outline { rows: n, columns: n, depth: n, operands, product: DType::F64, own, repeats: false, ..one };
        matches!(launch_of(&DeviceModel::of(caps), &p, CType::F64, false).tiling, Tiling::Residues(_))
    };
    for n in [64, 1024, 4096, 8192] {
        assert!(!is_by_residues(&h200(), n, true) && !is_by_residues(&lavapipe(), n, true), "{n}");
        assert!(!is_by_residues(&rtx_4060(), n, false), "{n}");
    }
    for caps in [rtx_4060(), rtx_2080()] {
        assert!([1024, 4096].iter().all(|&n| is_by_residues(&caps, n, true)), "{}", caps.device_id);
        assert!([2, 64, 128].iter().all(|&n| !is_by_residues(&caps, n, true)), "{}", caps.device_id);
    }
}

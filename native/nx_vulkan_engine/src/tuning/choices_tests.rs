//! The choices that a model makes, for a grid of sizes and types, against those recorded in `tests/data/choices`: what
//! a change of the model or of its numbers moves can be read there. `NX_VULKAN_UPDATE_GOLDEN=1` writes them anew.

use std::fmt::Write;
use std::path::Path;

use super::devices::{h200, lavapipe};
use super::{Class, DeviceModel};
use crate::kernels::dot::{Choice, Feed, MatrixTile, Outline, Tiling, launch_of, plain};
use crate::kernels::index::Applied;
use crate::kernels::linalg::{LinalgSpec, qr};
use crate::kernels::{fft, map, reduce, rows, scan};
use crate::shape::Space;
use crate::{CType, DType, Engine, Precision};

const BATCHES: [u64; 2] = [1, 16];
const ROWS: [u64; 6] = [2, 8, 64, 200, 1024, 4096];
const COLUMNS: [u64; 5] = [3, 10, 100, 512, 2048];
const DEPTHS: [u64; 7] = [16, 32, 128, 784, 4096, 9000, 65_536];

fn way(choice: Choice) -> String {
    let tiling = match choice.tiling {
        Tiling::Square => "square".to_string(),
        Tiling::Narrow => "narrow".to_string(),
        Tiling::Tiled(t) => {
            format!("{}x{}/{}x{}/{}x{}", t.rows, t.columns, t.own_rows, t.own_columns, t.slices, t.depth)
        }
        Tiling::Lanes(t) => format!("lanes{}x{}", t.rows, t.vectors),
        Tiling::Vectors(t) => format!("vectors{}x{}x{}", t.count, t.lanes, t.teams),
        Tiling::Matrix(MatrixTile { rows, columns, feed: Feed::Few, .. }) => format!("few{rows}x{columns}"),
        Tiling::Matrix(MatrixTile { rows, columns, feed: Feed::Fragments, .. }) => format!("fragments{rows}x{columns}"),
        Tiling::Matrix(t) if t.planes.is_own() => format!("own{}x{}", t.rows, t.columns),
        Tiling::Matrix(t) => format!("units{}x{}", t.rows, t.planes.count()),
        Tiling::Residues(t) => format!("residues{}x{}", t.side, t.moduli),
    };
    format!("{tiling}*{}", choice.splits)
}

/// Products of types, each with that of its sums.
const PRODUCTS: [(DType, CType, Precision); 8] = [
    (DType::F32, CType::F32, Precision::Highest),
    (DType::F32, CType::F32, Precision::High),
    (DType::F32, CType::F64, Precision::Highest),
    (DType::F16, CType::F32, Precision::Highest),
    (DType::Bf16, CType::F32, Precision::Highest),
    (DType::F64, CType::F64, Precision::Highest),
    (DType::S64, CType::I64, Precision::Highest),
    (DType::C128, CType::C128, Precision::Highest),
];

fn products(model: &DeviceModel, out: &mut String) {
    let own = [model.class.is_nvidia(); 2];
    for (dtype, sum, precision) in PRODUCTS {
        for batches in BATCHES {
            for (rows, columns) in ROWS.into_iter().flat_map(|rows| COLUMNS.map(|columns| (rows, columns))) {
                let ways = DEPTHS.map(|depth| {
                    let looped_steps = if depth == 784 { 3 } else { 0 };
                    let operands = [dtype; 2];
                    let outline = Outline {
                        batches,
                        rows,
                        columns,
                        depth,
                        operands,
                        product: dtype,
                        looped_steps,
                        precision,
                        own,
                        repeats: false,
                    };
                    let small = sum == CType::F64 && dtype == DType::F32;
                    let last = plain(model, &outline, sum, Some(2));
                    format!("{}|{}", way(launch_of(model, &outline, sum, small)), way(last))
                });
                let what = format!("{dtype:?} {sum:?} {precision:?} {batches}x{rows}x{columns}");
                writeln!(out, "product {what}: {}", ways.join(" ")).unwrap();
            }
        }
    }
}

fn reductions(model: &DeviceModel, out: &mut String) {
    for dtype in [DType::U8, DType::F32, DType::F64, DType::C64] {
        for outputs in [1u64, 2, 10, 100, 256, 1000, 4096, 100_000] {
            for columns in [false, true] {
                let ways = [3u64, 32, 64, 100, 1024, 4100, 100_000, 1 << 22].map(|elements| {
                    let (kept, reduced) = if columns { (1, outputs as i64) } else { (elements as i64, 1) };
                    let [kept, reduced] =
                        [(outputs, kept), (elements, reduced)].map(|(n, s)| Space::new(&[n], &[&[s]]));
                    let layout = reduce::layout(&kept, &reduced, dtype, true, model);
                    let last = layout.of_partials(model, outputs, layout.chunks, 8);
                    let teams = [layout.team(model, 1, layout.chunk), last.team(model, 2, layout.chunks)];
                    format!("{:?} {} {} {} {teams:?}", layout.direction, layout.chunks, layout.chunk, layout.paired)
                });
                writeln!(out, "reduction {dtype:?} {outputs} {columns}: {}", ways.join("; ")).unwrap();
            }
        }
    }
}

fn row_kernels(model: &DeviceModel, out: &mut String) {
    for columns in [false, true] {
        for words in [1u32, 2, 3, 8] {
            for rows in [1u64, 8, 128, 131, 1000, 1057, 4224, 65_536] {
                let ways = [1u64, 7, 32, 128, 1000, 4096, 16_384, 70_000].map(|elements| {
                    let ways = [1, 4].map(|width| rows::share(model, words, rows, elements, width, columns, false));
                    format!("{ways:?}")
                });
                writeln!(out, "rows {columns} {words} {rows}: {}", ways.join(" ")).unwrap();
            }
        }
    }
}

fn others(model: &DeviceModel, out: &mut String) {
    for n in [4u64, 10, 64, 100, 256, 1000, 1024, 2048] {
        for compute in [CType::C64, CType::C128] {
            let capacity = fft::capacity(model, compute);
            let rows = [1u64, 5, 64, 131, 264, 1000, 1 << 14, 1 << 20];
            let ways = rows.map(|rows| [false, true].map(|near| fft::rows_per_group(model, n, rows, capacity, near)));
            writeln!(out, "transform {n} {compute:?}: {capacity} {ways:?}").unwrap();
        }
    }
    let fixed = [1 << 15, 1 << 16, 1 << 19, 1 << 20].map(|elements| fft::is_fixed(model, elements));
    writeln!(out, "transforms of one length: {fixed:?}").unwrap();
    for compute in [CType::F32, CType::F64, CType::C64, CType::C128] {
        let ways = [0u64, 1, 32, 100, 1000, 5000, 40_000]
            .map(|rest| [1u64, 3, 100, 600].map(|batches| crate::eager::cholesky_tiles(model, rest, batches, compute)));
        writeln!(out, "cholesky {compute:?} {}: {ways:?}", LinalgSpec::columns(compute)).unwrap();
    }
    for rows in [1u64, 2, 4, 5, 100, 1023, 1024, 5000] {
        let ways = [1u64, 1024, 5000, 1 << 20, 1 << 26]
            .map(|elements| [256u64, 1024, 2048].map(|step| scan::chunks(model, rows, elements, step)));
        writeln!(out, "scan {rows}: {ways:?}").unwrap();
    }
    for count in [1u64, 8, 9, 64, 1024, 1025, 4095, 4096, 16_384, 30_000, 1 << 20] {
        let ways = [1u64, 63, 650, 4096, 1 << 16].map(|inner| {
            [false, true].map(|add| Applied::of(add, count, inner)).map(|what| (what, what.way(model, count, inner)))
        });
        writeln!(out, "updates {count}: {ways:?}").unwrap();
    }
    for matrices in [1u64, 2, 255, 256, 257, 1000] {
        let ways = [1u64, 32, 127, 128, 129, 2000, 16_384, 16_385, 100_000]
            .map(|height| (qr::shares(model, matrices, height), qr::blocks(model, height)));
        writeln!(out, "panel {matrices}: {ways:?}").unwrap();
    }
    for elements in [1u64, 8192, 16_383, 16_384, 65_535, 65_536, 1 << 19, (1 << 19) + 1, 1 << 20, 1 << 24] {
        let single = [map::is_exact(model, elements), map::is_single(model, elements)];
        let ways = (single, map::takes_pairs(model, elements), map::block_items(model, elements));
        writeln!(out, "map {elements}: {ways:?} {:?}", [false, true].map(|short| map::unrolls(model, elements, short)))
            .unwrap();
    }
    writeln!(out, "short: {:?}", model.short).unwrap();
}

fn check(name: &str, model: &DeviceModel) {
    let mut got = String::new();
    products(model, &mut got);
    reductions(model, &mut got);
    row_kernels(model, &mut got);
    others(model, &mut got);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/choices").join(format!("{name}.txt"));
    if std::env::var("NX_VULKAN_UPDATE_GOLDEN").as_deref() == Ok("1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    assert_eq!(want.lines().count(), got.lines().count());
    for (want, got) in want.lines().zip(got.lines()) {
        assert_eq!(want, got, "{name}");
    }
}

#[test]
fn an_h200_gets_the_recorded_choices() {
    check("h200", &DeviceModel::of(&h200()));
}

#[test]
fn lavapipe_gets_the_recorded_choices() {
    check("lavapipe", &DeviceModel::of(&lavapipe()));
}

/// Of devices whose choices are recorded.
#[test]
fn the_device_in_use_gets_the_recorded_choices() {
    let engine = Engine::open(None).unwrap();
    let model = DeviceModel::of(engine.caps());
    match (model.class, engine.caps().processors, engine.caps().subgroup_size) {
        (Class::NvidiaDataCenter, Some(132), _) => check("h200", &model),
        (Class::Cpu, _, 8) => check("lavapipe", &model),
        _ => {}
    }
}

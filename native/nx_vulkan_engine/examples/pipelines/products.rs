//! Products by every tile that a device can run, beside the one that the model chooses.

use std::sync::Arc;

use nx_vulkan_engine::kernels::dot::{
    Choice, Matrix, MergedAxes, Outline, Product, Tiling, VectorTile, candidates, choose, matrix_candidates, product_as,
};
use nx_vulkan_engine::{CType, Compile, DType, Engine, Result, Tensor, Type};

use crate::Outcome;

/// Rows, columns and contracted elements of a product that fills any device.
const LARGE: u64 = 4096;
/// Those of the products that are recorded: only their kernels count.
const SIDE: u64 = 256;

/// How much more than the best tile's the cycles of the chosen one may be where the compiler's estimate is taken at its
/// word: AMD's, whose choices were not measured on a device.
pub const MOST_OF_BEST: f64 = 1.2;
pub const AMD: u32 = 0x1002;

/// What a compiler makes of a tile.
#[derive(Debug)]
pub struct OfTile {
    pub dtype: DType,
    pub tiling: Tiling,
    pub registers: u64,
    pub spills: u64,
    pub subgroups: u64,
    /// Cycles for 1000 multiplications of the loop over contracted elements, as the compiler counts it.
    pub cycles: f64,
    /// Whether large products take it.
    pub chosen: bool,
}

/// Rows, columns, contracted elements of a step, and invocations.
fn sizes(tiling: Tiling) -> Option<[u64; 4]> {
    let (rows, columns, block, invocations) = match tiling {
        Tiling::Tiled(tile) => (tile.rows, tile.columns, tile.block(), tile.invocations()),
        Tiling::Matrix(tile) => (tile.rows, tile.columns, tile.block(), tile.invocations()),
        Tiling::Vectors(tile) => (tile.rows(), tile.count, tile.block(), tile.invocations()),
        Tiling::Square | Tiling::Narrow | Tiling::Lanes(_) | Tiling::Residues(_) => return None,
    };
    Some([rows.into(), columns.into(), block, invocations.into()])
}

fn compile(engine: &Arc<Engine>, dtype: DType, tiling: Tiling, chosen: Tiling) -> Result<Option<OfTile>> {
    let Some([rows, columns, block, invocations]) = sizes(tiling) else { return Ok(None) };
    let free = if matches!(tiling, Tiling::Vectors(_)) { columns } else { SIDE };
    let tensor = |columns| Tensor::uninitialized(engine, &Type::new(dtype, &[1, SIDE, columns]));
    let (a, b, out) = (tensor(SIDE)?, tensor(free)?, tensor(free)?);
    let matrix = |t: &Tensor, free: u64, strides: [i64; 2]| Matrix {
        tensor: t.clone(),
        batch: MergedAxes::new(&[1], &[(SIDE * free) as i64]),
        free: MergedAxes::new(&[free], &strides[..1]),
        depth: MergedAxes::new(&[SIDE], &strides[1..]),
    };
    let p = Product {
        a: matrix(&a, SIDE, [SIDE as i64, 1]),
        b: matrix(&b, free, [1, free as i64]),
        out: &out,
        prologues: [None, None],
        epilogue: None,
    };
    let before: Vec<_> = engine.pipelines().iter().map(|p| p.key()).collect();
    product_as(engine, &p, dtype.ctype(), Choice { tiling, splits: 1 }, Compile::Allowed)?;
    engine.wait()?;
    let units = if matches!(tiling, Tiling::Matrix(_)) { "matrix_" } else { "" };
    let name = match tiling {
        Tiling::Vectors(_) => format!("dot.vectors_{columns}.{dtype}"),
        _ => format!("dot.{units}{rows}x{columns}.{dtype}"),
    };
    let new = engine.pipelines().into_iter().find(|p| !before.contains(&p.key()) && p.name().starts_with(&name));
    let Some(statistics) = new.as_ref().and_then(|p| p.statistics()) else { return Ok(None) };
    let subgroup = if statistics.subgroup_size > 0 { statistics.subgroup_size } else { engine.caps().subgroup_size };
    let subgroups = invocations as f64 / f64::from(subgroup.max(1));
    let multiplications = (rows * columns * block) as f64;
    Ok(Some(OfTile {
        dtype,
        tiling,
        registers: statistics.registers.unwrap_or(0),
        spills: statistics.spills.unwrap_or(0),
        subgroups: statistics.subgroups.unwrap_or(0),
        cycles: statistics.cycles.unwrap_or(0) as f64 * subgroups / multiplications * 1e3,
        chosen: tiling == chosen,
    }))
}

/// All tiles of f32 and f64, and those of f16 and bf16 on matrix units.
pub fn tiles(engine: &Arc<Engine>, outcome: &mut Outcome) -> Vec<OfTile> {
    let mut found = vec![];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
        if dtype == DType::F64 && !engine.caps().shader_float64 {
            continue;
        }
        let outline = Outline {
            batches: 1,
            rows: LARGE,
            columns: LARGE,
            depth: LARGE,
            operands: [dtype; 2],
            product: dtype,
            looped_steps: 0,
            precision: engine.precision(),
            own: [false; 2],
            repeats: false,
        };
        let (model, sum) = (engine.model(), dtype.ctype());
        let chosen = choose(model, &outline, sum).tiling;
        let mut tilings: Vec<Tiling> = vec![];
        let plain = candidates(model, &outline, sum).into_iter().map(|(tile, _)| Tiling::Tiled(tile));
        let units = matrix_candidates(model, &outline, sum).into_iter().map(|(tile, ..)| Tiling::Matrix(tile));
        let vectors = [1, 2, 4, 8].into_iter().flat_map(|count| VectorTile::all(count, false)).map(Tiling::Vectors);
        let vectors = vectors.filter(|_| sum == CType::F32);
        // Plain tiles of narrow types are those of f32.
        let wide = dtype.size_bytes() >= 4;
        for tiling in plain.filter(|_| wide).chain(units.filter(|_| !wide)).chain(vectors) {
            if !tilings.contains(&tiling) {
                tilings.push(tiling);
            }
        }
        for tiling in tilings {
            match compile(engine, dtype, tiling, chosen) {
                Ok(of_tile) => found.extend(of_tile),
                Err(error) => outcome.note(&format!("{tiling:?} {dtype}"), Err(error)),
            }
        }
    }
    if engine.caps().vendor_id == AMD {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            let is_square = |t: &&OfTile| t.dtype == dtype && !matches!(t.tiling, Tiling::Vectors(_));
            let of_type = || found.iter().filter(is_square);
            let best = of_type().map(|t| t.cycles).fold(f64::INFINITY, f64::min);
            for t in of_type().filter(|t| t.chosen && t.cycles > MOST_OF_BEST * best) {
                outcome.fail(format!("{dtype}: {:?} takes {:.2} cycles, the best {best:.2}", t.tiling, t.cycles));
            }
        }
    }
    found
}

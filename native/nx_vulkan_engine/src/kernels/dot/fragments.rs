//! Products of f16 and bf16 on matrix units by dot_fragments.comp: both operands are written first, in the order in
//! which invocations hold matrices of 16 x 16.

use smallvec::SmallVec;

use super::launch::{Matrix, Product};
use super::matrix::{InPlace, Narrowing, Prepared, spec, written};
use super::{Feed, Load, MatrixTile, SplitSpec, SplitStage};
use crate::kernels::Compile;
use crate::{Engine, Result};

/// Rows of a matrix.
const SIDE: u32 = 16;

/// Whether a kernel writes the operand so.
fn takes(form: Narrowing, m: &Matrix) -> bool {
    form.planes.own_type() == Some(m.tensor.view.dtype) && m.loaded_along_k(8).is_some()
}

/// The tile that takes the place of one by fragments where an operand's neighbours don't lie together by eight, with
/// the same bits.
pub(super) fn or_else(tile: MatrixTile, form: Narrowing, p: &Product<'_>) -> MatrixTile {
    if tile.feed != Feed::Fragments || (takes(form, &p.a) && takes(form, &p.b)) {
        return tile;
    }
    let others = MatrixTile::all(tile.planes).filter(|other| other.feed == Feed::Planes);
    others.max_by_key(|other| other.rows * other.columns).unwrap_or(tile)
}

/// Both operands as the product takes them.
///
/// # Errors
/// What allocating and launching may fail with.
pub(super) fn prepare_both(
    engine: &Engine,
    p: &Product<'_>,
    form: Narrowing,
    compile: Compile,
) -> Result<SmallVec<[Prepared; 2]>> {
    let mut prepared = SmallVec::new();
    for (m, second) in [(&p.a, false), (&p.b, true)] {
        let load = Load { along_k: m.loaded_along_k(8) == Some(true), by_four: true };
        let spec = SplitSpec { load, second, fragments: true, ..spec(m, form, SplitStage::Copy, second) };
        // uvec4 of 16 rows, and of a batch.
        let line = u64::from(SIDE) * m.depth.elements().next_multiple_of(form.planes.block()) / 8;
        let batch = m.free.elements().div_ceil(SIDE.into()) * line;
        let words = m.batch.elements() * batch * 4;
        let (numbers, largest) = written(engine, m, spec, (SIDE, None, words), form, compile)?;
        let steps = SmallVec::from_slice(&[line, batch]);
        prepared.push(Prepared {
            numbers,
            lies: InPlace::Along { k: true },
            steps,
            plane: None,
            scales: None,
            largest,
        });
    }
    Ok(prepared)
}

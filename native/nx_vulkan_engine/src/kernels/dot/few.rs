//! Products of a matrix by few vectors on matrix units, by dot_few.comp: it finds operands by their axes, in place or
//! as kernels wrote them.

use smallvec::SmallVec;

use super::launch::{Matrix, MergedAxes, Product};
use super::matrix::{InPlace, Narrowing, Prepared, prepare};
use super::{MatrixTile, Planes};
use crate::kernels::Compile;
use crate::shape::{Dims, Strides};
use crate::{Engine, Result};

/// Rows that lie together where kernels wrote them.
const TOGETHER: u64 = 16;

/// How the product reads the operand in place: the matrix by eight neighbours along either axis, vectors along the
/// contracted one. `None` where it does not.
fn takes(planes: Planes, m: &Matrix, is_matrix: bool) -> Option<InPlace> {
    let is_ascending = [&m.batch, &m.free, &m.depth].iter().all(|g| g.strides.iter().all(|&stride| stride >= 0));
    let along_k = m.loaded_along_k(8).filter(|&along_k| along_k || is_matrix);
    let is_own = planes.own_type() == Some(m.tensor.view.dtype);
    along_k.filter(|_| is_own && is_ascending).map(|k| InPlace::Along { k })
}

/// Both operands as the product takes them. Those in place have no steps.
///
/// # Errors
/// As of [`prepare`].
pub(super) fn prepare_both(
    engine: &Engine,
    p: &Product<'_>,
    tile: MatrixTile,
    form: Narrowing,
    compile: Compile,
) -> Result<SmallVec<[Prepared; 2]>> {
    let first = tile.is_vectors_first();
    let mut prepared = SmallVec::new();
    for (m, side, is_matrix) in [(&p.a, tile.rows, !first), (&p.b, tile.columns, first)] {
        match takes(form.planes, m, is_matrix) {
            Some(lies) => {
                let (numbers, steps) = (m.tensor.clone(), SmallVec::new());
                prepared.push(Prepared { numbers, lies, steps, plane: None, scales: None, largest: None });
            }
            None => prepared.extend(prepare(engine, &[(m, side.max(TOGETHER as u32))], form, u64::MAX, compile)?),
        }
    }
    Ok(prepared)
}

/// Ranks, sizes and strides of the axes by which the product finds an operand, the contracted ones last, or before the
/// free ones.
pub(super) fn axes(m: &Matrix, prepared: &Prepared, depth_last: bool) -> ([u8; 3], Dims, Strides) {
    let &[step, line, row, slice, _, batch, _] = prepared.steps.as_slice() else { return m.axes(depth_last) };
    let elements = |eighths: u64| (8 * eighths) as i64;
    let lines = m.free.elements().div_ceil(TOGETHER);
    // Slices of 32 contracted elements, of 16 rows each.
    let slices = m.depth.elements().div_ceil(elements(row) as u64);
    let written = Matrix {
        tensor: prepared.numbers.clone(),
        batch: MergedAxes::new(&[m.batch.elements()], &[elements(batch)]),
        free: MergedAxes::new(&[lines, 2, TOGETHER / 2], &[elements(step), elements(line), elements(row)]),
        depth: MergedAxes::new(&[slices, elements(row) as u64], &[elements(slice), 1]),
    };
    written.axes(depth_last)
}

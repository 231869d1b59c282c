//! Launches of tiled copies.

use super::map::Operand;
use super::{Arguments, Compile, KernelSpec, MAX_POSITION, Place, launch, max_position};
use crate::codegen::transpose::TransposeSpec;
use crate::shape::{Dims, Space, Strides};
use crate::{Engine, Result};

/// Shortest axis for which tiles beat plain strided reads: half a tile.
const MIN_AXIS: u64 = TransposeSpec::TILE / 2;

/// Copies `from` to `to` if tiles fit the two layouts; answers whether it did.
pub fn transpose(
    engine: &Engine,
    sizes: &[u64],
    from: &Operand<'_>,
    to: &Operand<'_>,
    compile: Compile,
) -> Result<bool> {
    let space = Space::new(sizes, &[&from.strides, &to.strides]);
    let reach = |s: &Strides| -> u64 { s.iter().zip(&space.sizes).map(|(&s, &n)| s.unsigned_abs() * (n - 1)).sum() };
    let fastest =
        |s: &Strides| (0..space.rank()).find(|&axis| s[axis].unsigned_abs() == 1 && space.sizes[axis] >= MIN_AXIS);
    let (Some(row), Some(column)) = (fastest(&space.strides[0]), fastest(&space.strides[1])) else { return Ok(false) };
    if row == column
        || space.elements() > MAX_POSITION
        || space.strides.iter().any(|s| reach(s) > max_position(from.element.size_bytes().into()))
    {
        return Ok(false);
    }
    let order: Vec<usize> = (0..space.rank()).filter(|&a| a != row && a != column).chain([row, column]).collect();
    // A batch axis always exists, so that kernels of matrices and of batches are the same.
    let lead = usize::from(order.len() == 2);
    let sizes: Dims = std::iter::repeat_n(1, lead).chain(order.iter().map(|&a| space.sizes[a])).collect();
    let pick = |s: &Strides| -> Strides { std::iter::repeat_n(0, lead).chain(order.iter().map(|&a| s[a])).collect() };
    let (from_strides, to_strides) = (pick(&space.strides[0]), pick(&space.strides[1]));
    let batch_rank = sizes.len() - 2;
    let spec = KernelSpec::Transpose(TransposeSpec { element: from.element, batch_rank: batch_rank as u8 });
    let kernel = engine.kernel(&spec, compile)?;
    let batches: u64 = sizes[..batch_rank].iter().product();
    let (rows, columns) = (sizes[batch_rank], sizes[batch_rank + 1]);
    let element_bytes = u64::from(from.element.size_bytes());
    let places = [
        Place { buffer: from.buffer, address: from.address(), strides: &from_strides, element_bytes },
        Place { buffer: to.buffer, address: to.address(), strides: &to_strides, element_bytes },
    ];
    let extra = [rows as u32, columns as u32, batches as u32];
    let arguments = Arguments { count: space.elements() as u32, sizes: &sizes, places: &places, extra: &extra };
    let groups = rows.div_ceil(TransposeSpec::TILE) * columns.div_ceil(TransposeSpec::TILE) * batches;
    launch(engine, &kernel, &arguments, 1, groups)?;
    Ok(true)
}

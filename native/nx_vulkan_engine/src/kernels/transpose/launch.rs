//! Launches of tiled copies.

use crate::kernels::transpose::TransposeSpec;

use crate::kernels::map::Operand;
use crate::kernels::{Arguments, Compile, KernelSpec, Place, launch};
use crate::shape::{Dims, Space, Strides, elements};
use crate::{Engine, Result};

/// Shortest axis for which tiles beat plain strided reads: half a tile.
const MIN_AXIS: u64 = TransposeSpec::TILE / 2;

/// Axes of a padded copy, which are bits of a word and numbers of a launch.
const MAX_AXES: usize = 16;

/// Copies `from` to `to` if tiles fit the two layouts; answers whether it did.
pub fn transpose(
    engine: &Engine,
    sizes: &[u64],
    from: &Operand<'_>,
    to: &Operand<'_>,
    compile: Compile,
) -> Result<bool> {
    let space = Space::new(sizes, &[&from.strides, &to.strides]);
    let span = |s: &Strides| -> u64 { s.iter().zip(&space.sizes).map(|(&s, &n)| s.unsigned_abs() * (n - 1)).sum() };
    let most = space.strides.iter().map(span).max().unwrap_or(0).max(space.elements());
    let fastest =
        |s: &Strides| (0..space.rank()).find(|&axis| s[axis].unsigned_abs() == 1 && space.sizes[axis] >= MIN_AXIS);
    let (Some(row), Some(column)) = (fastest(&space.strides[0]), fastest(&space.strides[1])) else { return Ok(false) };
    if row == column {
        return Ok(false);
    }
    let reach = engine.reach();
    if most > reach.far() {
        return halves(engine, &space, from, to, compile);
    }
    let far = most > reach.near(from.element.size_bytes().into());
    let order: Vec<usize> = (0..space.rank()).filter(|&a| a != row && a != column).chain([row, column]).collect();
    // A batch axis always exists, so that kernels of matrices and of batches are the same.
    let lead = usize::from(order.len() == 2);
    let sizes: Dims = std::iter::repeat_n(1, lead).chain(order.iter().map(|&a| space.sizes[a])).collect();
    let pick = |s: &Strides| -> Strides { std::iter::repeat_n(0, lead).chain(order.iter().map(|&a| s[a])).collect() };
    let (from_strides, to_strides) = (pick(&space.strides[0]), pick(&space.strides[1]));
    let batch_rank = sizes.len() - 2;
    let element = from.element;
    let spec = KernelSpec::Transpose(TransposeSpec { element, batch_rank: batch_rank as u8, row_rank: 1, padded: 0 });
    let kernel = engine.kernel(&spec.reaching(far), compile)?;
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

/// The same as two copies of halves of the longest axis. Where only one was made by tiles, it is made once more.
fn halves(engine: &Engine, space: &Space, from: &Operand<'_>, to: &Operand<'_>, compile: Compile) -> Result<bool> {
    let Some(axis) = (0..space.rank()).max_by_key(|&axis| space.sizes[axis]) else { return Ok(false) };
    let half = space.sizes[axis] / 2;
    for (start, length) in [(0, half), (half, space.sizes[axis] - half)] {
        let mut sizes = space.sizes.clone();
        sizes[axis] = length;
        let part = |k: usize, whole: &Operand<'_>| {
            let strides = space.strides[k].clone();
            let bytes = strides[axis] * start as i64 * i64::from(whole.element.size_bytes());
            (strides, whole.offset_bytes.wrapping_add_signed(bytes))
        };
        let [(from_strides, from_bytes), (to_strides, to_bytes)] = [part(0, from), part(1, to)];
        let from = Operand { strides: from_strides, offset_bytes: from_bytes, ..from.clone() };
        let to = Operand { strides: to_strides, offset_bytes: to_bytes, ..to.clone() };
        if !transpose(engine, &sizes, &from, &to, compile)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same from a source of other sizes, whose element 0 goes to the coordinates `begins` (negative where elements before them are left
/// out), with zeros wherever it has no element. `to` has strides along `sizes`, `from` along `source`.
pub fn padded_transpose(
    engine: &Engine,
    (source, from): (&[u64], &Operand<'_>),
    (sizes, to): (&[u64], &Operand<'_>),
    begins: &[i64],
    compile: Compile,
) -> Result<bool> {
    let element_bytes = u64::from(from.element.size_bytes());
    let axes: Vec<usize> = (0..sizes.len()).filter(|&axis| sizes[axis] > 1 || source[axis] > 1).collect();
    let reach = |s: &Strides, n: &[u64]| -> u64 { s.iter().zip(n).map(|(s, &n)| s.unsigned_abs() * (n - 1)).sum() };
    let positions = [reach(&from.strides, source), reach(&to.strides, sizes), elements(sizes)];
    if element_bytes > 4
        || from.strides.iter().chain(&to.strides).any(|&s| s < 0)
        || axes.len() > MAX_AXES
        || source.contains(&0)
        || sizes.contains(&0)
        || positions.iter().any(|&n| n > engine.reach().near(element_bytes))
    {
        return Ok(false);
    }
    // Axes that are one in the source's memory, the fastest first.
    let mut rows: Vec<usize> = Vec::new();
    let mut stride = 1;
    while let Some(&axis) = axes.iter().find(|&&a| source[a] > 1 && !rows.contains(&a) && from.strides[a] == stride) {
        rows.push(axis);
        stride *= source[axis] as i64;
    }
    let Some(&column) = axes.iter().find(|&&a| to.strides[a] == 1 && sizes[a] > 1) else { return Ok(false) };
    rows.reverse();
    if let Some(end) = rows.iter().position(|&axis| axis == column) {
        rows.drain(..=end);
    }
    let row_count: u64 = rows.iter().map(|&axis| sizes[axis]).product();
    if rows.is_empty() || row_count < MIN_AXIS || sizes[column] < MIN_AXIS {
        return Ok(false);
    }
    let batch: Vec<usize> = axes.iter().copied().filter(|axis| *axis != column && !rows.contains(axis)).collect();
    // A batch axis always exists, of one element where there is none.
    let lead = usize::from(batch.is_empty());
    let order: Vec<usize> = batch.iter().chain(&rows).chain([&column]).copied().collect();
    let with_lead = |first: u64, all: &[u64]| -> Dims {
        std::iter::repeat_n(first, lead).chain(order.iter().map(|&axis| all[axis])).collect()
    };
    let pick = |s: &Strides| -> Strides { std::iter::repeat_n(0, lead).chain(order.iter().map(|&a| s[a])).collect() };
    let space = with_lead(1, sizes);
    let (from_strides, to_strides) = (pick(&from.strides), pick(&to.strides));
    let batches: u64 = batch.iter().map(|&axis| sizes[axis]).product();
    let mut extra = vec![row_count as u32, sizes[column] as u32, batches as u32];
    let mut padded = 0;
    for (bit, &axis) in (lead..).zip(&order) {
        if begins[axis] != 0 || source[axis] != sizes[axis] {
            padded |= 1 << bit;
            extra.extend([begins[axis] as u32, source[axis] as u32]);
        }
    }
    let batch_rank = (batch.len() + lead) as u8;
    let spec = TransposeSpec { element: from.element, batch_rank, row_rank: rows.len() as u8, padded };
    let kernel = engine.kernel(&KernelSpec::Transpose(spec), compile)?;
    let places = [
        Place { buffer: from.buffer, address: from.address(), strides: &from_strides, element_bytes },
        Place { buffer: to.buffer, address: to.address(), strides: &to_strides, element_bytes },
    ];
    let arguments = Arguments { count: elements(sizes) as u32, sizes: &space, places: &places, extra: &extra };
    let groups = row_count.div_ceil(TransposeSpec::TILE) * sizes[column].div_ceil(TransposeSpec::TILE) * batches;
    launch(engine, &kernel, &arguments, 1, groups)?;
    Ok(true)
}

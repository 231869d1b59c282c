//! Launches of copies between layouts.

use nx_vulkan_spirv::access::Element;

use super::{Route, TransposeSpec};
use crate::kernels::map::Operand;
use crate::kernels::{Arguments, Compile, Place, launch};
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
    let batches: u64 = sizes[..batch_rank].iter().product();
    let (rows, columns) = (sizes[batch_rank], sizes[batch_rank + 1]);
    let element_bytes = u64::from(from.element.size_bytes());
    let addresses = [from.address(), to.address()];
    let form = form_of(element_bytes, &sizes, [&from_strides, &to_strides], addresses);
    let spec = TransposeSpec { element, batch_rank: batch_rank as u8, row_rank: 1, padded: 0, form };
    let kernel = engine.kernel_reaching(&spec, far, compile)?;
    let places = [
        Place { buffer: from.buffer, address: from.address(), strides: &from_strides, element_bytes },
        Place { buffer: to.buffer, address: to.address(), strides: &to_strides, element_bytes },
    ];
    let extra = [rows as u32, columns as u32, batches as u32];
    let arguments = Arguments { count: space.elements() as u32, sizes: &sizes, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 1, groups(form, [rows, columns, batches]))?;
    Ok(true)
}

/// Blocks in registers where whole groups lie together in both layouts, else tiles. The last two axes are that along
/// which the source has neighbours, and that of the result's.
fn form_of(element_bytes: u64, sizes: &[u64], strides: [&Strides; 2], addresses: [u64; 2]) -> Route {
    let block = TransposeSpec::BLOCK;
    let fastest = [sizes.len() - 2, sizes.len() - 1];
    let is_whole = |(strides, fastest): (&Strides, usize)| {
        let others = (0..sizes.len()).filter(|&axis| axis != fastest && sizes[axis] > 1);
        sizes[fastest].is_multiple_of(block) && strides[fastest] == 1 && { others }
            .all(|axis| strides[axis].unsigned_abs().is_multiple_of(block))
    };
    let fits = element_bytes == TransposeSpec::BLOCK_ELEMENT_BYTES
        && strides.into_iter().zip(fastest).all(is_whole)
        && addresses.iter().all(|address| address.is_multiple_of(TransposeSpec::GROUP_BYTES));
    if !fits {
        return Route::Tiles;
    }
    // As much of a line of a cache for what is written as for what is read.
    let beside = (sizes[fastest[1]] / block).trailing_zeros().min(2);
    Route::Blocks { beside: 1 << beside }
}

/// Workgroups for so many rows, columns and batches.
fn groups(form: Route, [rows, columns, batches]: [u64; 3]) -> u64 {
    match form {
        Route::Tiles => rows.div_ceil(TransposeSpec::TILE) * columns.div_ceil(TransposeSpec::TILE) * batches,
        Route::Blocks { .. } => {
            let blocks = rows / TransposeSpec::BLOCK * (columns / TransposeSpec::BLOCK);
            (blocks * batches).div_ceil(TransposeSpec::BLOCKS)
        }
        Route::Lines => batches.div_ceil(TransposeSpec::GROUPS),
    }
}

/// Transposes by two copies of halves of the longest axis. Where only one was made by tiles, it is made once more.
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

/// Copies by tiles from a source of other sizes, whose element 0 goes to the coordinates `begins` (negative where
/// elements before them are left out), with zeros wherever it has no element. `to` has strides along `sizes`, `from`
/// along `source`.
pub fn padded_copy(
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
    if from.strides.iter().chain(&to.strides).any(|&s| s < 0)
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
    let is_padded = |axis: usize| begins[axis] != 0 || source[axis] != sizes[axis];
    let padded = Padded { source, sizes, begins };
    if from.strides[column] == 1 && !is_padded(column) {
        return padded.lines(engine, from, to, (axes, column), compile);
    }
    rows.reverse();
    if let Some(end) = rows.iter().position(|&axis| axis == column) {
        rows.drain(..=end);
    }
    let row_count: u64 = rows.iter().map(|&axis| sizes[axis]).product();
    if element_bytes > 4 || rows.is_empty() || row_count < MIN_AXIS || sizes[column] < MIN_AXIS {
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
    let counts = [row_count, sizes[column], batches];
    let (padded, extra) = padded.numbers(counts, &order, lead);
    let batch_rank = (batch.len() + lead) as u8;
    let form = match rows.last().is_some_and(|&row| is_padded(row)) || is_padded(column) {
        true => Route::Tiles,
        false => {
            // Of an axis with one element in the result, others are left out of the source.
            let sizes: Dims = space.iter().zip(with_lead(1, source)).map(|(&own, of)| own.max(of)).collect();
            form_of(element_bytes, &sizes, [&from_strides, &to_strides], [from.address(), to.address()])
        }
    };
    let spec = TransposeSpec { element: from.element, batch_rank, row_rank: rows.len() as u8, padded, form };
    let kernel = engine.kernel(&spec, compile)?;
    let places = [
        Place { buffer: from.buffer, address: from.address(), strides: &from_strides, element_bytes },
        Place { buffer: to.buffer, address: to.address(), strides: &to_strides, element_bytes },
    ];
    let arguments = Arguments { count: elements(sizes) as u32, sizes: &space, places: &places, extra: &extra };
    launch(engine, &kernel, &arguments, 1, groups(form, counts))?;
    Ok(true)
}

/// A source among zeros.
struct Padded<'a> {
    source: &'a [u64],
    sizes: &'a [u64],
    begins: &'a [i64],
}

impl Padded<'_> {
    /// The axes along which there are zeros, of those in an order behind others, and the numbers of a launch.
    fn numbers(&self, counts: [u64; 3], order: &[usize], lead: usize) -> (u32, Vec<u32>) {
        let mut numbers = counts.map(|count| count as u32).to_vec();
        let mut padded = 0;
        for (bit, &axis) in (lead..).zip(order) {
            if self.begins[axis] != 0 || self.source[axis] != self.sizes[axis] {
                padded |= 1 << bit;
                numbers.extend([self.begins[axis] as u32, self.source[axis] as u32]);
            }
        }
        (padded, numbers)
    }

    /// Copies groups of neighbours along the axis that is the fastest of both; answers whether all are whole and
    /// aligned.
    fn lines(
        &self,
        engine: &Engine,
        from: &Operand<'_>,
        to: &Operand<'_>,
        (mut order, fastest): (Vec<usize>, usize),
        compile: Compile,
    ) -> Result<bool> {
        let group = TransposeSpec::GROUP_BYTES / u64::from(from.element.size_bytes());
        let is_whole = |&axis: &usize| {
            let lengths = [from.strides[axis].unsigned_abs(), to.strides[axis].unsigned_abs()];
            let lengths = if axis == fastest { [self.sizes[axis]; 2] } else { lengths };
            lengths.iter().all(|length| length.is_multiple_of(group))
        };
        let addresses = [from.address(), to.address()];
        if !order.iter().all(is_whole)
            || !addresses.iter().all(|address| address.is_multiple_of(TransposeSpec::GROUP_BYTES))
        {
            return Ok(false);
        }
        order.sort_by_key(|&axis| (axis == fastest, std::cmp::Reverse(to.strides[axis])));
        let in_groups = |axis: usize, length: u64| if axis == fastest { length / group } else { length };
        let sizes: Dims = order.iter().map(|&axis| in_groups(axis, self.sizes[axis])).collect();
        let pick = |s: &Strides| -> Strides {
            order.iter().map(|&axis| if axis == fastest { 1 } else { s[axis] / group as i64 }).collect()
        };
        let (from_strides, to_strides) = (pick(&from.strides), pick(&to.strides));
        let count = elements(&sizes);
        let (padded, extra) = self.numbers([count, 1, 1], &order, 0);
        let (element, form) = (Element::Raw(TransposeSpec::GROUP_BYTES as u8), Route::Lines);
        let spec = TransposeSpec { element, batch_rank: order.len() as u8, row_rank: 0, padded, form };
        let kernel = engine.kernel(&spec, compile)?;
        let element_bytes = TransposeSpec::GROUP_BYTES;
        let places = [
            Place { buffer: from.buffer, address: from.address(), strides: &from_strides, element_bytes },
            Place { buffer: to.buffer, address: to.address(), strides: &to_strides, element_bytes },
        ];
        let arguments = Arguments { count: count as u32, sizes: &sizes, places: &places, extra: &extra };
        launch(engine, &kernel, &arguments, 1, groups(form, [1, 1, count]))?;
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::shape::contiguous_strides;
    use crate::{DType, Tensor, Type, View};

    /// What lies in memory, in the order of the axes that `memory` tells, of a source of counted elements that begins
    /// at `begins` among zeros.
    fn padded(source: &[u64], sizes: &[u64], begins: &[i64], memory: &[usize], dtype: DType) -> Option<Vec<u64>> {
        let engine = Engine::open(None).unwrap();
        let element_bytes = dtype.size_bytes() as usize;
        let bytes: Vec<u8> = (1..=elements(source)).flat_map(|i| i.to_le_bytes()[..element_bytes].to_vec()).collect();
        let from = Tensor::from_nx_bytes(&engine, &Type::new(dtype, source), &bytes).unwrap();
        let ordered: Dims = memory.iter().map(|&axis| sizes[axis]).collect();
        let to = Tensor::uninitialized(&engine, &Type::new(dtype, &ordered)).unwrap();
        let mut strides = Strides::from_elem(0, sizes.len());
        for (&axis, &stride) in memory.iter().zip(&contiguous_strides(&ordered)) {
            strides[axis] = stride;
        }
        let view = View { shape: sizes.into(), strides, ..View::clone(&to.view) };
        let element = Element::raw(dtype);
        let (from, into) = (Operand::new(&from.buffer, &from.view, element), Operand::new(&to.buffer, &view, element));
        if !padded_copy(&engine, (source, &from), (sizes, &into), begins, Compile::Allowed).unwrap() {
            return None;
        }
        let mut got = vec![0; elements(sizes) as usize * element_bytes];
        to.read_nx_bytes(&engine, None, &mut got).unwrap();
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        Some(got.chunks_exact(element_bytes).map(number).collect())
    }

    /// What a padded copy gives, by counting.
    fn expected(source: &[u64], sizes: &[u64], begins: &[i64], memory: &[usize], dtype: DType) -> Vec<u64> {
        let ordered: Dims = memory.iter().map(|&axis| sizes[axis]).collect();
        let (to, from) = (contiguous_strides(&ordered), contiguous_strides(source));
        let most = if dtype.size_bytes() == 2 { 0xffff } else { u64::MAX };
        let at = |linear: u64| {
            let mut place = 1;
            for (k, &axis) in memory.iter().enumerate() {
                let coordinate = (linear / to[k] as u64 % ordered[k]) as i64 - begins[axis];
                if coordinate < 0 || coordinate >= source[axis] as i64 {
                    return 0;
                }
                place += coordinate as u64 * from[axis] as u64;
            }
            place & most
        };
        (0..elements(sizes)).map(at).collect()
    }

    #[test]
    fn padded_copies_have_zeros_around_what_is_copied() {
        let image = &[16, 5, 7, 24][..];
        let around = &[16, 8, 9, 24][..];
        // Lines, blocks and tiles; elements are left out, too.
        for (sizes, begins, memory) in [
            (around, &[0i64, 1, 2, 0][..], &[0usize, 1, 2, 3][..]),
            (around, &[0, 1, 2, 0], &[1, 2, 3, 0]),
            (around, &[0, 1, 2, 0], &[2, 1, 3, 0]),
            (&[16, 3, 9, 24], &[0, -1, 1, 0], &[0, 2, 1, 3]),
            (&[16, 3, 9, 24], &[0, -1, 1, 0], &[1, 2, 3, 0]),
            (&[19, 8, 9, 24], &[1, 1, 2, 0], &[1, 2, 3, 0]),
            (&[16, 8, 9, 32], &[0, 1, 2, 0], &[1, 2, 3, 0]),
        ] {
            for dtype in [DType::U16, DType::F32] {
                let got = padded(image, sizes, begins, memory, dtype).unwrap();
                assert!(
                    got == expected(image, sizes, begins, memory, dtype),
                    "{sizes:?} {begins:?} {memory:?} {dtype}"
                );
            }
        }
        let lines = (&[16, 8, 9, 24][..], &[0i64, 1, 2, 0][..], &[0usize, 1, 2, 3][..]);
        let wide = padded(image, lines.0, lines.1, lines.2, DType::U64).unwrap();
        assert!(wide == expected(image, lines.0, lines.1, lines.2, DType::U64));
        // Groups of 16 bytes are not whole.
        assert_eq!(padded(&[16, 5, 7, 9], &[16, 8, 9, 9], &[0, 1, 2, 0], &[0, 1, 2, 3], DType::U16), None);
    }

    #[test]
    fn blocks_take_whole_groups_of_aligned_elements() {
        let strides = |strides: [i64; 3]| Strides::from_slice(&strides);
        let form =
            |bytes, sizes: [u64; 3], from, to, at| form_of(bytes, &sizes, [&strides(from), &strides(to)], [0, at]);
        let turned = ([1, 200, 32], [0, 1, 200], [0, 32, 1]);
        assert_eq!(form(2, turned.0, turned.1, turned.2, 16), Route::Blocks { beside: 4 });
        assert_eq!(form(2, [1, 200, 24], [0, 1, 200], [0, 24, 1], 16), Route::Blocks { beside: 1 });
        for (bytes, at) in [(4, 16), (2, 8)] {
            assert_eq!(form(bytes, turned.0, turned.1, turned.2, at), Route::Tiles);
        }
        assert_eq!(form(2, [1, 200, 32], [0, 1, 204], [0, 32, 1], 0), Route::Tiles);
        assert_eq!(form(2, [1, 204, 32], [0, 1, 208], [0, 32, 1], 0), Route::Tiles);
        assert_eq!(form(2, [3, 200, 32], [4, 1, 600], [6400, 32, 1], 0), Route::Tiles);
    }
}

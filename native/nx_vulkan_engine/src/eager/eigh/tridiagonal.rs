//! Hermitian matrices to real tridiagonal ones by Householder reflections, in panels of columns: half of the work is
//! products of a column with the matrix, which read it once per column, half updates of the rest by a whole panel.

use nx_vulkan_device::device::Caps;

use super::super::matrix::{Work, near_rows, part};
use super::super::qr::{Panel, Reflections};
use crate::kernels::linalg;
use crate::{Result, Tensor, Type};

/// Columns of a panel; fixed in the kernels.
const PANEL: u64 = 32;

/// Rows that one workgroup of eigh_reflect takes; fixed in the kernel.
const ROWS: u64 = 64;

/// Bits of the flags of eigh_column.
const FINISH: u32 = 1;
const START: u32 = 2;

/// Invocations of the workgroup that makes the reflection of a column: so many that each holds its rows in registers,
/// where a workgroup has as many.
fn column_invocations(caps: &Caps, n: u64) -> u32 {
    /// Rows that an invocation holds; fixed in the kernel.
    const HELD: u64 = 4;
    /// Sizes of workgroups: the least that pays, what every device has, the largest that is asked for.
    const LEAST: u64 = 64;
    const USUAL: u64 = 256;
    const MOST: u64 = 1024;
    /// Shared memory of the largest one.
    const LARGE_BYTES: u32 = 1 << 14;
    let is_large = u64::from(caps.max_invocations) >= MOST && caps.max_shared_memory_bytes >= LARGE_BYTES;
    let most = if is_large { MOST } else { USUAL };
    n.div_ceil(HELD).next_power_of_two().clamp(LEAST, most) as u32
}

/// The diagonals and what is beside them, `[batches, 2, n]`, and the reflections that take the matrices to that. The
/// matrices, whose largest elements lie between 1 and 2, are overwritten.
pub fn reduce(work: &Work<'_>, a: Tensor) -> Result<(Tensor, Reflections)> {
    let (engine, dtype) = (work.engine, work.dtype());
    let (batches, n) = (a.view.shape[0], a.view.shape[1]);
    let real = work.real();
    let kernel = |template, operands: &[_]| linalg::kernel(engine, template, work.compute, operands, work.compile);
    let of_column = &[dtype, dtype, dtype, dtype, dtype, real];
    let invocations = column_invocations(engine.caps(), n);
    let column_kernel =
        linalg::specialized(engine, "eigh_column", &[invocations], work.compute, of_column, work.compile)?;
    let products_kernel = kernel("eigh_products", &[dtype; 4])?;
    let reflect_kernel = kernel("eigh_reflect", &[dtype; 4])?;

    let length = 2 * n + 2 * PANEL + 1 + n.div_ceil(ROWS);
    let vectors = work.uninitialized(&[batches, length])?;
    let tridiagonal = Tensor::uninitialized(engine, &Type::new(real, &[batches, 2, n]))?;
    let mut panels = vec![];
    for first in (0..n).step_by(PANEL as usize) {
        let width = PANEL.min(n - first);
        let x = work.uninitialized(&[batches, 2 * PANEL, n])?;
        let y = work.uninitialized(&[batches, 2 * PANEL, n])?;
        let t = work.uninitialized(&[batches, PANEL, PANEL])?;
        let column = |i: u64, flags: u32| {
            let parts = (n - i).div_ceil(ROWS);
            let numbers = [n, i, first, batches, u64::from(flags), length, parts].map(|x| x as u32);
            let row = part(&a, i, 0, [1, n])?;
            linalg::run(engine, &column_kernel, &[&row, &x, &y, &t, &vectors, &tridiagonal], 1, &numbers, batches)
        };
        for i in first..first + width {
            column(i, if i == first { START } else { START | FINISH })?;
            let below = n - i - 1;
            if below == 0 {
                continue;
            }
            let rest = part(&a, i + 1, 0, [below, n])?;
            for (left_out, rows) in near_rows(engine, &[&rest], 1) {
                let is_last = left_out + rows == below;
                let jobs = rows + if is_last { 2 * (i - first) } else { 0 };
                let numbers = [n, i, first, batches, length, left_out, rows, jobs].map(|x| x as u32);
                let rows = part(&rest, left_out, 0, [rows, n])?;
                linalg::run(engine, &products_kernel, &[&rows, &x, &y, &vectors], 3, &numbers, batches * jobs)?;
            }
            let (groups, is_next) = (below.div_ceil(ROWS), u64::from(i + 1 < first + width));
            let numbers = [n, i, first, batches, length, groups, is_next].map(|x| x as u32);
            let row = part(&a, i + 1, 0, [1, n])?;
            linalg::run(engine, &reflect_kernel, &[&row, &y, &x, &vectors], 2, &numbers, batches * groups)?;
        }
        let next = first + width;
        if next < n {
            column(next, FINISH)?;
            let rest = n - next;
            let left = transposed(&part(&x, 0, next, [2 * PANEL, rest])?)?;
            let right = part(&y, 0, next, [2 * PANEL, rest])?;
            work.subtract_product(&part(&a, next, next, [rest, rest])?, &left, &right)?;
        }
        // The last column has nothing below its diagonal.
        let count = width.min(n - 1 - first);
        if count > 0 {
            let v = transposed(&part(&x, 0, first + 1, [count, n - first - 1])?)?;
            panels.push(Panel { first: first + 1, v, t: part(&t, 0, 0, [count, count])? });
        }
    }
    Ok((tridiagonal, Reflections { panels, batches, rows: n }))
}

fn transposed(a: &Tensor) -> Result<Tensor> {
    Ok(a.with_view(a.view.transpose(&[0, 2, 1])?))
}

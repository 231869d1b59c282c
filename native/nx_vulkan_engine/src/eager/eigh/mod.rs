//! Eigenvalues and eigenvectors of Hermitian matrices: by two-sided Jacobi rotations in shared memory where a matrix
//! fits, else by way of a tridiagonal matrix, which is solved by divide and conquer.

mod divide;
mod tridiagonal;

use smallvec::smallvec;

use super::call::{Call, Results};
use super::matrix::{Work, check, compute_type, in_type, near_rows, part};
use crate::kernels::Compile;
use crate::kernels::linalg;
use crate::program::ops::Visitor;
use crate::program::ops::matrix::Eigh;
use crate::{CType, Error, Result, Tensor};

/// Up to this order a workgroup of 64 invocations has one for every pair of pairs.
const SHORT: u64 = 16;

/// The largest order that the shared memory of one workgroup holds; fixed in the kernel.
fn small_order(compute: CType) -> u64 {
    match compute {
        CType::F32 => 40,
        CType::F64 | CType::C64 => 28,
        CType::C128 => 20,
        // Integers are computed as f32.
        CType::I32 | CType::U32 | CType::I64 | CType::U64 => 0,
    }
}

impl Visitor<Eigh, Result<Results>> for &Call<'_> {
    fn visit(self, _: &Eigh) -> Result<Results> {
        eigh(self)
    }
}

/// Eigenvalues and eigenvectors of an op's operand.
fn eigh(call: &Call<'_>) -> Result<Results> {
    let outs = call.outs;
    check(call, outs)?;
    let a = call.operand(0)?;
    let [values_out, vectors_out] = outs else {
        return Err(call.invalid(format!("has two results, got {}", outs.len())));
    };
    let work = Work { engine: call.engine, compute: compute_type(a.view.dtype), compile: call.compile };
    let order = a.view.shape.last().copied().unwrap_or(1);
    if order > small_order(work.compute) && call.compile == Compile::Refused {
        // Thousands of launches take milliseconds to record: too long for a normal scheduler.
        return Err(Error::NeedsCompile);
    }
    let a = work.copy(a)?;
    let (values, vectors) = if order <= small_order(work.compute) { small(&work, &a)? } else { large(&work, a)? };
    Ok(smallvec![in_type(&work, &values, values_out)?, in_type(&work, &vectors, vectors_out)?])
}

/// Values and vectors of matrices that fit in shared memory.
fn small(work: &Work<'_>, a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (batches, order) = (a.view.shape[0], a.view.shape[1]);
    let values = work.uninitialized(&[batches, order])?;
    let vectors = work.uninitialized(&[batches, order, order])?;
    let template = if order <= SHORT { "eigh_small_short" } else { "eigh_small" };
    let kernel = linalg::kernel(work.engine, template, work.compute, &[work.dtype(); 3], work.compile)?;
    let numbers = [order as u32, batches as u32];
    linalg::run(work.engine, &kernel, &[a, &values, &vectors], 1, &numbers, batches)?;
    Ok((values, vectors))
}

/// Values and vectors, as columns, of matrices of any order, in descending order of the values' sizes.
pub fn large(work: &Work<'_>, a: Tensor) -> Result<(Tensor, Tensor)> {
    let (engine, dtype) = (work.engine, work.dtype());
    let (batches, n) = (a.view.shape[0], a.view.shape[1]);
    let largest = work.largest(&a)?;
    let real = largest.view.dtype;
    let scaled = work.uninitialized(&[batches, n, n])?;
    let prepare = linalg::kernel(engine, "eigh_prepare", work.compute, &[dtype, dtype, real, dtype], work.compile)?;
    let ranges = || near_rows(engine, &[&a], 1);
    for ((row, rows), (column, columns)) in ranges().flat_map(|of_rows| ranges().map(move |range| (of_rows, range))) {
        let [own, to] = [part(&a, row, column, [rows, columns])?, part(&scaled, row, column, [rows, columns])?];
        let mirrored = part(&a, column, row, [columns, rows])?;
        let numbers = [n, batches, row, column, rows, columns].map(|x| x as u32);
        let groups = (batches * rows * columns).div_ceil(256);
        linalg::run(engine, &prepare, &[&own, &mirrored, &largest, &to], 3, &numbers, groups)?;
    }

    drop(a);

    let (tridiagonal, reflections) = tridiagonal::reduce(work, scaled)?;
    let real_work = Work { compute: real.ctype(), ..*work };
    let (found, found_vectors) = divide::solve(&real_work, &tridiagonal, n)?;

    let values = work.uninitialized(&[batches, n])?;
    let vectors = work.uninitialized(&[batches, n, n])?;
    let rows = found.view.shape[1];
    let types = [real, real, real, real, dtype, dtype];
    let order = linalg::kernel(engine, "eigh_order", work.compute, &types, work.compile)?;
    // Where there are no rows past the order, some row that nothing reads.
    let past = part(&found_vectors, n.min(rows - 1), 0, [(rows - n).max(1), rows])?;
    for (first, count) in near_rows(engine, &[&part(&found_vectors, 0, 0, [n, rows])?, &vectors], 1) {
        let [from, to] = [part(&found_vectors, first, 0, [count, rows])?, part(&vectors, first, 0, [count, n])?];
        let numbers = [n, rows, batches, count].map(|x| x as u32);
        linalg::run(engine, &order, &[&found, &from, &past, &largest, &values, &to], 4, &numbers, batches * rows)?;
    }
    reflections.apply(work, &vectors)?;
    Ok((values, vectors))
}

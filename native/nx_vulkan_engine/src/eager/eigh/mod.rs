//! Eigenvalues and eigenvectors of Hermitian matrices: by two-sided Jacobi rotations in shared memory where a matrix
//! fits, else by way of a tridiagonal matrix, which is solved by divide and conquer.

mod divide;
mod tridiagonal;

use smallvec::smallvec;

use super::call::{Call, Results};
use super::matrix::{Work, check, compute_type, in_type};
use crate::kernels::Compile;
use crate::kernels::linalg;
use crate::{CType, Error, Result, Tensor, Type};

/// Up to this order a workgroup of 64 invocations has one for every pair of pairs.
const SHORT: u64 = 16;

/// The largest order that the shared memory of one workgroup holds; fixed in the kernel.
fn small_order(compute: CType) -> u64 {
    match compute {
        CType::F32 => 40,
        CType::C128 => 20,
        _ => 28,
    }
}

/// Eigenvalues and eigenvectors of an op's operand.
pub fn eigh(call: &Call<'_>, outs: &[Type]) -> Result<Results> {
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
    let (values, vectors) = if order <= small_order(work.compute) { small(&work, &a)? } else { large(&work, &a)? };
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

fn large(work: &Work<'_>, a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (engine, dtype) = (work.engine, work.dtype());
    let (batches, n) = (a.view.shape[0], a.view.shape[1]);
    let largest = work.largest(a)?;
    let real = largest.view.dtype;
    let scaled = work.uninitialized(&[batches, n, n])?;
    let prepare = linalg::kernel(engine, "eigh_prepare", work.compute, &[dtype, real, dtype], work.compile)?;
    let numbers = [n as u32, batches as u32];
    linalg::run(engine, &prepare, &[a, &largest, &scaled], 2, &numbers, (batches * n * n).div_ceil(256))?;

    let (tridiagonal, reflections) = tridiagonal::reduce(work, &scaled)?;
    let real_work = Work { compute: real.ctype(), ..*work };
    let (found, found_vectors) = divide::solve(&real_work, &tridiagonal, n)?;

    let values = work.uninitialized(&[batches, n])?;
    let vectors = work.uninitialized(&[batches, n, n])?;
    let rows = found.view.shape[1];
    let order = linalg::kernel(engine, "eigh_order", work.compute, &[real, real, real, dtype, dtype], work.compile)?;
    let numbers = [n as u32, rows as u32, batches as u32];
    let operands = [&found, &found_vectors, &largest, &values, &vectors];
    linalg::run(engine, &order, &operands, 3, &numbers, batches * rows)?;
    reflections.apply(work, &vectors)?;
    Ok((values, vectors))
}

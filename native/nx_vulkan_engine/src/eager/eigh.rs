//! Eigenvalues and eigenvectors of Hermitian matrices by two-sided Jacobi rotations: in shared memory where a matrix fits, else
//! one dispatch per round of disjoint pairs.

use smallvec::smallvec;

use super::matrix::{Work, check, compute_type, in_type};
use super::{Call, Compile, Results};
use crate::kernel::launch::linalg;
use crate::{CType, Error, Result, Tensor, Type};

/// Sweeps over all pairs after which a matrix counts as one that does not converge; ten are usual.
const MAX_SWEEPS: u32 = 40;

/// Pairs of rows or columns per workgroup; fixed in the kernel.
const TILE: u64 = 16;

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
    let a = work.copy(a)?;
    let (batches, order) = (a.view.shape[0], a.view.shape[1]);
    let values = work.uninitialized(&[batches, order])?;
    let vectors = work.uninitialized(&[batches, order, order])?;
    if order <= small_order(work.compute) {
        let template = if order <= SHORT { "eigh_small_short" } else { "eigh_small" };
        let kernel = linalg::kernel(work.engine, template, work.compute, &[work.dtype(); 3], work.compile)?;
        let numbers = [order as u32, batches as u32];
        linalg::run(work.engine, &kernel, &[&a, &values, &vectors], 1, &numbers, batches)?;
    } else {
        large(call, &work, &a, &values, &vectors)?;
    }
    Ok(smallvec![in_type(&work, &values, values_out)?, in_type(&work, &vectors, vectors_out)?])
}

fn large(call: &Call<'_>, work: &Work<'_>, a: &Tensor, values: &Tensor, vectors: &Tensor) -> Result<()> {
    if call.compile == Compile::Refused {
        // The number of sweeps is read back, and waiting is for the scheduler that may also compile.
        return Err(Error::NeedsCompile);
    }
    let (engine, dtype) = (work.engine, work.dtype());
    let (batches, n) = (a.view.shape[0], a.view.shape[1]);
    let order = n.next_multiple_of(2);
    let tiles = (order / 2).div_ceil(TILE);
    let largest = work.largest(a)?;
    let marks = work.marks(batches * tiles)?;
    let mut from = work.uninitialized(&[batches, order, order])?;
    let mut to = work.uninitialized(&[batches, order, order])?;
    let rows = work.uninitialized(&[batches, order, order])?;
    let real = largest.view.dtype;
    let kernel = |template, operands: &[_]| linalg::kernel(engine, template, work.compute, operands, work.compile);

    let prepare = kernel("eigh_prepare", &[dtype, real, dtype, dtype])?;
    let numbers = [n as u32, order as u32, batches as u32];
    let groups = (batches * order * order).div_ceil(256);
    linalg::run(engine, &prepare, &[a, &largest, &from, &rows], 2, &numbers, groups)?;

    let round = kernel("eigh_round", &[dtype, dtype, dtype, marks.view.dtype])?;
    let (mut turn, mut sweep) = (0, 0);
    loop {
        sweep += 1;
        for _ in 0..n {
            let numbers = [order as u32, turn, batches as u32, sweep];
            linalg::run(engine, &round, &[&from, &to, &rows, &marks], 1, &numbers, batches * tiles * tiles)?;
            std::mem::swap(&mut from, &mut to);
            turn = (turn + 1) % (order as u32 - 1);
        }
        if !work.is_marked(&marks, sweep)? {
            break;
        }
        if sweep == MAX_SWEEPS {
            return Err(Error::NoConvergence { op: call.op.name().to_string(), sweeps: MAX_SWEEPS });
        }
    }
    let finish = kernel("eigh_finish", &[dtype, dtype, real, dtype, dtype])?;
    let numbers = [n as u32, order as u32, turn, batches as u32];
    linalg::run(engine, &finish, &[&from, &rows, &largest, values, vectors], 3, &numbers, batches * n)
}

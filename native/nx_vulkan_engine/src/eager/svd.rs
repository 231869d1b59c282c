//! Singular values and vectors by one-sided Jacobi rotations of the columns of R.

use smallvec::smallvec;

use super::call::{Call, Results};
use super::copies;
use super::matrix::{Work, check, compute_type, in_type, part};
use super::qr::{Diagonal, factorize};
use crate::kernels::Compile;
use crate::kernels::linalg;
use crate::program::ops::Visitor;
use crate::program::ops::matrix::Svd;
use crate::{Error, Result, Tensor, View};

/// Sweeps over all pairs after which a matrix counts as one that does not converge; ten are usual.
const MAX_SWEEPS: u32 = 60;

/// Columns up to this length get a workgroup of 32 invocations rather than 128.
const SHORT: u64 = 128;

/// Rounding errors of the largest singular value up to which another one is 0: what is left of dependent columns, a
/// third of the root of `n` in random matrices of up to 100 columns. `Nx.LinAlg.pinv` divides by whatever is greater
/// than 1e-10.
fn zero_below(n: u64) -> f32 {
    4.0 + (n as f32).sqrt()
}

/// Singular vectors as rows, and values.
struct Singular {
    left: Tensor,
    values: Tensor,
    right: Tensor,
}

impl Visitor<Svd, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Svd) -> Result<Results> {
        svd(self, op.full)
    }
}

/// U, S and V^T of an op's operand.
fn svd(call: &Call<'_>, full: bool) -> Result<Results> {
    let outs = call.outs;
    check(call, outs)?;
    let a = call.operand(0)?;
    let [u_out, s_out, vt_out] = outs else {
        return Err(call.invalid(format!("has three results, got {}", outs.len())));
    };
    if call.compile == Compile::Refused {
        // The number of sweeps is read back, and waiting is for the scheduler that may also compile.
        return Err(Error::NeedsCompile);
    }
    let work = Work { engine: call.engine, compute: compute_type(a.view.dtype), compile: call.compile };
    let rank = a.view.shape.len();
    let is_wide = a.view.shape[rank - 2] < a.view.shape[rank - 1];
    // Rotations take pairs of columns from anywhere: refused before any work.
    let (batches, columns) =
        (a.view.shape[..rank - 2].iter().product(), a.view.shape[rank - 2].min(a.view.shape[rank - 1]));
    let rotated = View::contiguous(work.dtype(), &[batches, columns.next_multiple_of(2), columns]);
    work.engine.reach().is_far(&[&rotated])?;

    let tall = if is_wide { work.copy(&swapped(a)?)? } else { work.copy(a)? };
    let rows = tall.view.shape[1];
    let kept = if full { rows } else { columns };
    let reflections = if rows > columns { Some(factorize(&work, &tall, Diagonal::Nx)?) } else { None };
    let found = rotate(call, &work, &part(&tall, 0, 0, [columns, columns])?)?;
    // Columns of singular values that vanish are missing: the reflections that take the others to a diagonal complete
    // them.
    let left = work.copy(&swapped(&found.left)?)?;
    let left = factorize(&work, &left, Diagonal::Positive)?.q(&work, columns)?;
    let u = match reflections {
        None => left,
        Some(reflections) => {
            let u = work.identity(batches, rows, kept)?;
            copies::copy(work.engine, &left, &part(&u, 0, 0, [columns, columns])?, work.compile)?;
            reflections.apply(&work, &u)?;
            u
        }
    };
    let (u, vt) = if is_wide { (swapped(&found.right)?, swapped(&u)?) } else { (u, found.right) };
    Ok(smallvec![in_type(&work, &u, u_out)?, in_type(&work, &found.values, s_out)?, in_type(&work, &vt, vt_out)?])
}

/// Rows and columns swapped, as a view.
fn swapped(a: &Tensor) -> Result<Tensor> {
    let mut axes: Vec<usize> = (0..a.view.shape.len()).collect();
    if let [.., row, column] = axes.as_mut_slice() {
        std::mem::swap(row, column);
    }
    Ok(a.with_view(a.view.transpose(&axes)?))
}

/// Makes the columns of square matrices orthogonal.
fn rotate(call: &Call<'_>, work: &Work<'_>, a: &Tensor) -> Result<Singular> {
    let (engine, dtype) = (work.engine, work.dtype());
    let (batches, n) = (a.view.shape[0], a.view.shape[1]);
    let order = n.next_multiple_of(2);
    let pairs = order / 2;
    let kernel = |template, operands: &[_]| linalg::kernel(engine, template, work.compute, operands, work.compile);
    let largest = work.largest(a)?;
    let marks = work.marks(batches * pairs)?;
    let columns = work.uninitialized(&[batches, order, n])?;
    let vectors = work.uninitialized(&[batches, order, n])?;

    let prepare = kernel("svd_prepare", &[dtype; 4])?;
    let strides = [a.view.strides[1] as u32, a.view.strides[0] as u32];
    let numbers = [n as u32, order as u32, strides[0], strides[1], batches as u32];
    let groups = (batches * order * n).div_ceil(256);
    linalg::run(engine, &prepare, &[a, &largest, &columns, &vectors], 2, &numbers, groups)?;

    let round = kernel(if n <= SHORT { "svd_round_short" } else { "svd_round" }, &[dtype, dtype, marks.view.dtype])?;
    // Sums of n products differ from the exact ones by about the root of n rounding errors.
    let orthogonal = 8.0 + (n as f32).sqrt();
    let (mut turn, mut sweep) = (0, 0);
    loop {
        sweep += 1;
        for _ in 0..n {
            let numbers = [n as u32, order as u32, turn, batches as u32, sweep, orthogonal.to_bits()];
            linalg::run(engine, &round, &[&columns, &vectors, &marks], 0, &numbers, batches * pairs)?;
            turn = (turn + 1) % (order as u32 - 1);
        }
        if !work.is_marked(&marks, sweep)? {
            break;
        }
        if sweep == MAX_SWEEPS {
            return Err(Error::NoConvergence { op: call.op.name().to_string(), sweeps: MAX_SWEEPS });
        }
    }
    let norm = kernel("svd_norm", &[dtype; 2])?;
    let norms = work.uninitialized(&[batches, order])?;
    let numbers = [n as u32, order as u32, batches as u32];
    linalg::run(engine, &norm, &[&columns, &norms], 1, &numbers, batches * order)?;

    let finish = kernel("svd_finish", &[dtype; 7])?;
    let rows = Singular {
        left: work.uninitialized(&[batches, n, n])?,
        values: work.uninitialized(&[batches, n])?,
        right: work.uninitialized(&[batches, n, n])?,
    };
    let operands = [&columns, &vectors, &norms, &largest, &rows.left, &rows.values, &rows.right];
    let numbers = [n as u32, order as u32, turn, batches as u32, zero_below(n).to_bits()];
    linalg::run(engine, &finish, &operands, 4, &numbers, batches * n)?;
    Ok(rows)
}

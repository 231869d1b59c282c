//! Singular values and vectors by one-sided Jacobi rotations of the columns of R: in shared memory where a matrix fits,
//! else after a change of basis that makes the columns nearly orthogonal.

use smallvec::smallvec;

use super::call::{Call, Results};
use super::copies;
use super::eigh;
use super::matrix::{Work, check, compute_type, in_type, part};
use super::qr::{Diagonal, factorize};
use crate::kernels::Compile;
use crate::kernels::linalg;
use crate::program::ops::Visitor;
use crate::program::ops::matrix::Svd;
use crate::{CType, Error, Result, Tensor, View};

/// Sweeps over all pairs after which a matrix counts as one that does not converge; ten are usual, two or three after a
/// change of basis. Fixed in svd_small.
const MAX_SWEEPS: u32 = 60;

/// What svd_small and svd_finish mark a matrix with; svd_round marks with the number of its sweep.
const DIVERGED: u32 = 1;
const VANISHED: u32 = 2;

/// The largest order that the shared memory of one workgroup holds, and the largest of the kernel for shorter ones;
/// fixed in svd_small.
fn small_order(compute: CType) -> u64 {
    if compute == CType::F64 { 28 } else { 40 }
}
const SHORT_ORDER: u64 = 16;

/// Columns up to this length get a workgroup of 32 invocations rather than 128.
const SHORT: u64 = 128;

/// Rounding errors of the largest singular value up to which another one is 0: what is left of dependent columns, a
/// third of the root of `n` in random matrices of up to 100 columns. `Nx.LinAlg.pinv` divides by whatever is greater
/// than 1e-10.
fn zero_below(n: u64) -> f32 {
    4.0 + (n as f32).sqrt()
}

/// Rounding errors between columns that count as orthogonal: sums of n products differ from the exact ones by about the
/// root of n of them.
fn orthogonal(n: u64) -> f32 {
    8.0 + (n as f32).sqrt()
}

/// Singular vectors as rows, and values.
struct Singular {
    left: Tensor,
    values: Tensor,
    right: Tensor,
    /// Some singular value is 0: its left vector is of rounding errors.
    vanished: bool,
}

impl Singular {
    /// For matrices of order n.
    fn uninitialized(work: &Work<'_>, batches: u64, n: u64) -> Result<Singular> {
        let (left, right) = (work.uninitialized(&[batches, n, n])?, work.uninitialized(&[batches, n, n])?);
        Ok(Singular { left, values: work.uninitialized(&[batches, n])?, right, vanished: false })
    }
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
    let square = part(&tall, 0, 0, [columns, columns])?;
    let found = if columns <= small_order(work.compute) { small(&work, &square)? } else { large(&work, &square)? };
    let Some(found) = found else {
        return Err(Error::NoConvergence { op: call.op.name().to_string(), sweeps: MAX_SWEEPS });
    };
    let mut left = swapped(&found.left)?;
    if found.vanished {
        // The reflections that take the other columns to a diagonal complete them.
        left = factorize(&work, &work.copy(&left)?, Diagonal::Positive)?.q(&work, columns)?;
    }
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

/// The singular values of square matrices that fit in shared memory; none if they don't converge.
fn small(work: &Work<'_>, a: &Tensor) -> Result<Option<Singular>> {
    let (batches, n, dtype) = (a.view.shape[0], a.view.shape[1], work.dtype());
    let mut found = Singular::uninitialized(work, batches, n)?;
    let marks = work.marks(batches)?;
    let template = if n <= SHORT_ORDER { "svd_small_short" } else { "svd_small" };
    let types = [dtype, dtype, dtype, dtype, marks.view.dtype];
    let kernel = linalg::kernel(work.engine, template, work.compute, &types, work.compile)?;
    let [matrix, row, _] = linalg::strides(a);
    let numbers = [n as u32, row, matrix, batches as u32, orthogonal(n).to_bits(), zero_below(n).to_bits()];
    let operands = [a, &found.left, &found.values, &found.right, &marks];
    linalg::run(work.engine, &kernel, &operands, 1, &numbers, batches)?;
    let marks = work.marked(&marks)?;
    found.vanished = marks.iter().any(|mark| mark & VANISHED != 0);
    Ok(if marks.iter().any(|mark| mark & DIVERGED != 0) { None } else { Some(found) })
}

/// The singular values of square matrices; none if they don't converge.
///
/// Rotations converge in two or three sweeps from columns that are nearly orthogonal, as they are in the basis of the
/// eigenvectors of `A^T A`. What these are wrong by, where singular values are small beside the largest, is no error of
/// the result: the basis is orthogonal, and the rotations find what is left. Source: Drmac and Veselic, "New fast and
/// accurate Jacobi SVD algorithm I", 2008, for changes of basis before one-sided rotations.
fn large(work: &Work<'_>, a: &Tensor) -> Result<Option<Singular>> {
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
    change_basis(work, &part(&columns, 0, 0, [n, n])?, &part(&vectors, 0, 0, [n, n])?)?;

    let round = kernel(if n <= SHORT { "svd_round_short" } else { "svd_round" }, &[dtype, dtype, marks.view.dtype])?;
    let (mut turn, mut sweep) = (0, 0);
    loop {
        sweep += 1;
        for _ in 0..n {
            let numbers = [n as u32, order as u32, turn, batches as u32, sweep, orthogonal(n).to_bits()];
            linalg::run(engine, &round, &[&columns, &vectors, &marks], 0, &numbers, batches * pairs)?;
            turn = (turn + 1) % (order as u32 - 1);
        }
        if !work.marked(&marks)?.contains(&sweep) {
            break;
        }
        if sweep == MAX_SWEEPS {
            return Ok(None);
        }
    }
    let norm = kernel("svd_norm", &[dtype; 2])?;
    let norms = work.uninitialized(&[batches, order])?;
    let numbers = [n as u32, order as u32, batches as u32];
    linalg::run(engine, &norm, &[&columns, &norms], 1, &numbers, batches * order)?;

    let mut found = Singular::uninitialized(work, batches, n)?;
    let marks = work.marks(batches * n)?;
    let finish = kernel("svd_finish", &[dtype, dtype, dtype, dtype, dtype, dtype, dtype, marks.view.dtype])?;
    let operands = [&columns, &vectors, &norms, &largest, &found.left, &found.values, &found.right, &marks];
    let numbers = [n as u32, order as u32, turn, batches as u32, zero_below(n).to_bits()];
    linalg::run(engine, &finish, &operands, 4, &numbers, batches * n)?;
    found.vanished = work.marked(&marks)?.contains(&VANISHED);
    Ok(Some(found))
}

/// Replaces columns, which are rows in memory, by their products with the eigenvectors of the matrix of their inner
/// products, and `vectors` by those eigenvectors.
fn change_basis(work: &Work<'_>, columns: &Tensor, vectors: &Tensor) -> Result<()> {
    let inner = work.multiply(columns, &swapped(columns)?)?;
    let (_, basis) = eigh::large(work, inner)?;
    let basis = swapped(&basis)?;
    let changed = work.multiply(&basis, columns)?;
    copies::copy(work.engine, &changed, columns, work.compile)?;
    copies::copy(work.engine, &basis, vectors, work.compile)
}

//! Direct solvers on batches of square matrices: triangular systems, Cholesky, LU and what follows from it.
//!
//! Matrices go block by block: a kernel factors or solves a block of columns in shared memory, rank_update subtracts
//! its product with what it was coupled to from the rest. Matrices of one block take no update.

pub(crate) mod cholesky;
mod lu;
mod triangular;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::call::{Call, Results};
use super::{copies, eigh, qr, svd};
use crate::kernels::linalg::LinalgSpec;
use crate::kernels::{Compile, Kernel, linalg};
use crate::program::Linalg;
use crate::program::ops::matrix::Matrix;
use crate::shape::{Space, Type};
use crate::{CType, DType, Engine, Result, Tensor, View};

/// Runs an op, which gives `outs`.
pub fn run(call: &Call<'_>, op: &Matrix, outs: &[Type]) -> Result<Results> {
    match op {
        Matrix::Linalg(Linalg::TriangularSolve { lower, left_side, transform }) => {
            Ok(smallvec![triangular::triangular_solve(call, *lower, *left_side, *transform)?])
        }
        Matrix::Linalg(Linalg::Cholesky) => Ok(smallvec![cholesky::cholesky(call)?]),
        Matrix::Linalg(Linalg::Determinant) => Ok(smallvec![lu::determinant(call)?]),
        Matrix::Linalg(Linalg::Lu) => lu::lu(call, outs),
        Matrix::Linalg(Linalg::Solve) => lu::solve(call, outs),
        Matrix::Qr(op) => qr::qr(call, op.complete, outs),
        Matrix::Eigh(_) => eigh::eigh(call, outs),
        Matrix::Svd(op) => svd::svd(call, op.full, outs),
    }
}

/// Batches of matrices with one stride per batch, row and column, none of them negative.
#[derive(Debug, Clone)]
struct Matrices {
    tensor: Tensor,
    strides: [u32; 3],
}

/// Rows, columns and how many of them an operand has, whose last two axes are matrices.
fn square(call: &Call<'_>, tensor: &Tensor) -> Result<(u64, u64)> {
    match &tensor.view.shape[..] {
        [batch @ .., rows, columns] if rows == columns => Ok((*rows, batch.iter().product())),
        shape => Err(call.invalid(format!("{shape:?} are not square matrices"))),
    }
}

/// The matrices of a tensor where they lie, or in a copy if kernels can't reach them so.
fn matrices(call: &Call<'_>, tensor: &Tensor) -> Result<Matrices> {
    if tensor.view.dtype.is_integer() {
        let dtype = call.out.dtype.ctype().dtype();
        return matrices(call, &work_copy(call, tensor, View::clone(&tensor.view), dtype)?);
    }
    let view = &tensor.view;
    let lead = view.shape.len() - 2;
    let batch = Space::new(&view.shape[..lead], &[&view.strides[..lead]]);
    let direct = batch.rank() <= 1 && view.strides.iter().all(|&s| (0..=i64::from(i32::MAX)).contains(&s));
    if !direct {
        return matrices(call, &copies::contiguous(call.engine, tensor, call.compile)?);
    }
    let batch_stride = batch.strides.first().and_then(|s| s.first()).copied().unwrap_or(0);
    let strides = [batch_stride, view.strides[lead], view.strides[lead + 1]].map(|s| s as u32);
    Ok(Matrices { tensor: tensor.clone(), strides })
}

/// The last two axes exchanged.
fn transposed(view: &View) -> Result<View> {
    let rank = view.shape.len();
    let mut axes: SmallVec<[usize; 6]> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    view.transpose(&axes)
}

/// A copy of a view of a tensor to work on, row-major.
fn work_copy(call: &Call<'_>, tensor: &Tensor, view: View, dtype: DType) -> Result<Tensor> {
    let copy = Tensor::uninitialized(call.engine, &Type::new(dtype, &view.shape))?;
    copies::copy(call.engine, &tensor.with_view(view), &copy, call.compile)?;
    Ok(copy)
}

/// The tensor from the element `offset` further on. Kernels know its strides.
fn from(tensor: &Tensor, offset: u64) -> Tensor {
    tensor.with_view(View { offset: tensor.view.offset + offset, ..View::clone(&tensor.view) })
}

/// `C -= A B`, where A has few columns.
#[derive(Debug)]
struct Update<'a> {
    rows: u64,
    columns: u64,
    depth: u64,
    batches: u64,
    /// Strides: batch, row, column.
    a: (&'a Tensor, [u32; 3]),
    b: (&'a Tensor, [u32; 3]),
    /// Strides: batch, row.
    c: (&'a Tensor, [u32; 2]),
    conjugate_a: bool,
    /// Leaves out what lies below the diagonal.
    upper: bool,
}

impl Update<'_> {
    fn kernel(engine: &Engine, a: DType, b: DType, c: DType, compile: Compile) -> Result<Arc<Kernel>> {
        linalg::kernel(engine, "rank_update", c.ctype(), &[a, b, c], compile)
    }

    fn run(&self, engine: &Engine, kernel: &Arc<Kernel>) -> Result<()> {
        let tile = LinalgSpec::tile(self.c.0.view.dtype.ctype());
        let mut numbers: SmallVec<[u32; 16]> =
            [self.rows, self.columns, self.depth, self.batches].iter().map(|&x| x as u32).collect();
        numbers.extend(self.a.1);
        numbers.extend(self.b.1);
        numbers.extend(self.c.1);
        numbers.push(u32::from(self.conjugate_a) | u32::from(self.upper) << 1);
        let groups = self.rows.div_ceil(tile) * self.columns.div_ceil(tile) * self.batches;
        linalg::run(engine, kernel, &[self.a.0, self.b.0, self.c.0], 2, &numbers, groups)
    }
}

/// Blocks of columns: first column and columns.
fn blocks(n: u64, compute: CType) -> impl Iterator<Item = (u64, u64)> {
    let block = LinalgSpec::block(compute);
    (0..n.div_ceil(block)).map(move |i| (i * block, block.min(n - i * block)))
}

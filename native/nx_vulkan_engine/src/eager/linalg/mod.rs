//! Direct solvers on batches of square matrices: triangular systems, Cholesky, LU and what follows from it.
//!
//! Matrices go block by block: a kernel factors or solves a block of columns in shared memory, rank_update subtracts
//! its product with what it was coupled to from the rest. Matrices of one block take no update.

pub(crate) mod cholesky;
mod lu;
mod triangular;

use std::sync::Arc;

use nx_vulkan_device::device::{Caps, DeviceKind};
use smallvec::{SmallVec, smallvec};

use super::call::{Call, Results};
use super::copies;
use super::matrix::{near_rows, part, ranges};
use crate::kernels::linalg::LinalgSpec;
use crate::kernels::{Compile, Kernel, linalg, reach_of};
use crate::program::Linalg;
use crate::program::ops::Visitor;
use crate::shape::{Space, Type};
use crate::{CType, DType, Engine, Result, Tensor, View};

impl Visitor<Linalg, Result<Results>> for &Call<'_> {
    fn visit(self, op: &Linalg) -> Result<Results> {
        match *op {
            Linalg::TriangularSolve { lower, left_side, transform } => {
                Ok(smallvec![triangular::triangular_solve(self, lower, left_side, transform)?])
            }
            Linalg::Cholesky => Ok(smallvec![cholesky::cholesky(self)?]),
            Linalg::Determinant => Ok(smallvec![lu::determinant(self)?]),
            Linalg::Lu => lu::lu(self, self.outs),
            Linalg::Solve => lu::solve(self, self.outs),
        }
    }
}

/// Rows, columns and how many of them an operand has, whose last two axes are matrices.
fn square(call: &Call<'_>, tensor: &Tensor) -> Result<(u64, u64)> {
    match &tensor.view.shape[..] {
        [batch @ .., rows, columns] if rows == columns => Ok((*rows, batch.iter().product())),
        shape => Err(call.invalid(format!("{shape:?} are not square matrices"))),
    }
}

/// The matrices of a tensor as `[batches, rows, columns]` where they lie, or in a copy if kernels can't reach them so:
/// strides are numbers of 32 bits, none of them negative, and one launch reaches a block.
fn matrices(call: &Call<'_>, tensor: &Tensor) -> Result<Tensor> {
    let view = &tensor.view;
    let (lead, dtype, most) = (view.shape.len() - 2, view.dtype, call.engine.reach().far());
    if dtype.is_integer() {
        return work_copy(call, tensor, View::clone(view), call.out.dtype.ctype().dtype());
    }
    let batch = Space::new(&view.shape[..lead], &[&view.strides[..lead]]);
    let merged = View {
        shape: smallvec![batch.elements(), view.shape[lead], view.shape[lead + 1]],
        strides: smallvec![batch.strides[0][0], view.strides[lead], view.strides[lead + 1]],
        ..View::clone(view)
    };
    let steps = || merged.strides.iter().zip(&merged.shape).filter(|(_, size)| **size > 1).map(|(&stride, _)| stride);
    let is_block_reached = || {
        let steps: u64 = merged.strides.iter().skip(1).map(|&stride| stride as u64).sum();
        merged.shape[0] == 1 && steps * LinalgSpec::block(dtype.ctype()) <= most
    };
    let is_direct = batch.rank() == 1
        && steps().all(|stride| (0..=i64::from(i32::MAX)).contains(&stride))
        && (reach_of(&merged) <= most || is_block_reached());
    if is_direct { Ok(tensor.with_view(merged)) } else { work_copy(call, tensor, View::clone(view), dtype) }
}

/// The last two axes exchanged.
fn swapped(view: &View) -> Result<View> {
    let rank = view.shape.len();
    let mut axes: SmallVec<[usize; 6]> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    view.transpose(&axes)
}

/// The transposes of matrices, as a view.
fn transposed(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.with_view(swapped(&tensor.view)?))
}

/// A copy of a view of a tensor to work on, row-major, as `[batches, rows, columns]`.
fn work_copy(call: &Call<'_>, tensor: &Tensor, view: View, dtype: DType) -> Result<Tensor> {
    let copy = Tensor::uninitialized(call.engine, &Type::new(dtype, &view.shape))?;
    let (batch, sizes) = view.shape.split_at(view.shape.len() - 2);
    let merged = View::contiguous(dtype, &[batch.iter().product(), sizes[0], sizes[1]]);
    copies::copy(call.engine, &tensor.with_view(view), &copy, call.compile)?;
    Ok(copy.with_view(merged))
}

/// `C -= A B` for each of a batch of matrices, where A has few columns and rows of C are contiguous.
#[derive(Debug)]
struct Update<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    c: &'a Tensor,
    conjugate_a: bool,
    /// Leaves out what lies below the diagonal.
    upper: bool,
}

impl Update<'_> {
    fn kernel(engine: &Engine, a: DType, b: DType, c: DType, compile: Compile) -> Result<Arc<Kernel>> {
        linalg::kernel(engine, "rank_update", c.ctype(), &[a, b, c], compile)
    }

    fn run(&self, engine: &Engine, kernel: &Arc<Kernel>) -> Result<()> {
        let tile = LinalgSpec::tile(self.c.view.dtype.ctype());
        let (batches, columns, depth) = (self.c.view.shape[0], self.c.view.shape[2], self.a.view.shape[2]);
        for (first, rows) in near_rows(engine, &[self.a, self.c], tile) {
            let left = if self.upper { first } else { 0 };
            let columns = columns - left;
            let a = part(self.a, first, 0, [rows, depth])?;
            let b = part(self.b, 0, left, [depth, columns])?;
            let c = part(self.c, first, left, [rows, columns])?;
            let mut numbers: SmallVec<[u32; 16]> = [rows, columns, depth, batches].iter().map(|&x| x as u32).collect();
            numbers.extend(linalg::strides(&a));
            numbers.extend(linalg::strides(&b));
            numbers.extend_from_slice(&linalg::strides(&c)[..2]);
            numbers.push(u32::from(self.conjugate_a) | u32::from(self.upper) << 1);
            let groups = rows.div_ceil(tile) * columns.div_ceil(tile) * batches;
            linalg::run(engine, kernel, &[&a, &b, &c], 2, &numbers, groups)?;
        }
        Ok(())
    }
}

/// Whether kernels that hold rows in registers end: on SwiftShader, with subgroups of 4, they don't
/// (docs/design/driver-faults.md).
fn has_registers(caps: &Caps) -> bool {
    caps.kind != DeviceKind::Cpu || caps.subgroup_size > 4
}

/// Blocks of columns: first column and columns.
fn blocks(n: u64, compute: CType) -> impl Iterator<Item = (u64, u64)> {
    ranges(n, LinalgSpec::block(compute))
}

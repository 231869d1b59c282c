//! Eigenvalues and vectors of real tridiagonal matrices by divide and conquer: blocks that fit in shared memory are
//! solved there, then joined two by two. All nodes of a level are a batch, and no number of theirs comes back to the
//! host.

use super::super::matrix::Work;
use super::small;
use crate::kernels::linalg;
use crate::{DType, Result, Tensor, Type, View};

/// The largest order of a block.
const BLOCK: u64 = 28;

/// Rows of `state` and of `places` of a node; fixed in linalg_divide.glsl.
const STATE_ROWS: u64 = 6;
const PLACES_ROWS: u64 = 4;

/// Eigenvalues, and vectors as columns, of matrices of order n given as `[batches, 2, n]`: diagonals and what is beside
/// them. The results are of the next order that is a power of two times that of a block; what is added has the
/// eigenvalue 0 and unit vectors.
pub fn solve(work: &Work<'_>, tridiagonal: &Tensor, n: u64) -> Result<(Tensor, Tensor)> {
    let (engine, dtype, batches) = (work.engine, work.dtype(), tridiagonal.view.shape[0]);
    let mut nodes = 1;
    while n.div_ceil(nodes) > BLOCK {
        nodes *= 2;
    }
    let mut columns = n.div_ceil(nodes);
    let kernel = |template, operands: &[_]| linalg::kernel(engine, template, work.compute, operands, work.compile);

    let blocks = work.uninitialized(&[batches * nodes, columns, columns])?;
    let leaves = kernel("eigh_leaves", &[dtype; 2])?;
    let numbers = [n, columns, nodes, batches].map(|x| x as u32);
    linalg::run(engine, &leaves, &[tridiagonal, &blocks], 1, &numbers, blocks.view.elements().div_ceil(256))?;
    let (mut values, mut vectors) = small(work, &blocks)?;

    let poles = kernel("eigh_poles", &[dtype, dtype, dtype, dtype, DType::U32])?;
    let deflate = kernel("eigh_deflate", &[dtype, dtype, DType::U32, dtype])?;
    let secular = kernel("eigh_secular", &[dtype, dtype, DType::U32, dtype])?;
    let weights = kernel("eigh_weights", &[dtype, DType::U32])?;
    let element = kernel("eigh_vectors", &[dtype, DType::U32, dtype])?;
    let rotate = kernel("eigh_rotate", &[dtype, DType::U32, dtype])?;
    while nodes > 1 {
        nodes /= 2;
        columns *= 2;
        let all = batches * nodes;
        let joined = work.uninitialized(&[all, columns])?;
        let state = work.uninitialized(&[all, STATE_ROWS, columns])?;
        let places = Tensor::uninitialized(engine, &Type::new(DType::U32, &[all, PLACES_ROWS * columns + 2]))?;
        let inner = work.uninitialized(&[all, columns, columns])?;
        let numbers = [n, columns, nodes, all].map(|x| x as u32);
        let operands = [tridiagonal, &values, &vectors, &state, &places];
        linalg::run(engine, &poles, &operands, 3, &numbers, all * columns.div_ceil(256))?;
        linalg::run(engine, &deflate, &[tridiagonal, &state, &places, &joined], 1, &numbers, all)?;
        linalg::run(engine, &secular, &[tridiagonal, &state, &places, &joined], 1, &numbers, all * columns)?;
        let numbers = [columns, all].map(|x| x as u32);
        linalg::run(engine, &weights, &[&state, &places], 0, &numbers, all * columns)?;
        linalg::run(engine, &element, &[&state, &places, &inner], 2, &numbers, all * columns)?;
        linalg::run(engine, &rotate, &[&state, &places, &inner], 2, &numbers, (all * columns).div_ceil(64))?;
        // The halves of a node are rows of its vectors.
        let halves = View::contiguous(dtype, &[2 * all, columns / 2, columns]);
        let product = work.multiply(&vectors, &inner.with_view(halves))?;
        vectors = product.with_view(View::contiguous(dtype, &[all, columns, columns]));
        values = joined;
    }
    Ok((values, vectors))
}

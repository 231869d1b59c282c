//! Eigenvalues and vectors of real tridiagonal matrices by divide and conquer: blocks that fit in shared memory are
//! solved there, then joined two by two. All nodes of a level are a batch, and no number of theirs comes back to the
//! host.

use std::sync::Arc;

use smallvec::smallvec;

use super::super::copies;
use super::super::matrix::{Work, near_rows, part, ranges};
use super::small;
use crate::kernels::{Kernel, linalg};
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
        let numbers = [n, columns, nodes, all].map(|x| x as u32);
        let half = columns / 2;
        let beside = View {
            shape: smallvec![all, columns],
            strides: smallvec![(columns * half) as i64, 1],
            offset: vectors.view.offset + (half - 1) * half,
            dtype,
        };
        let operands = [tridiagonal, &values, &vectors.with_view(beside), &state, &places];
        linalg::run(engine, &poles, &operands, 3, &numbers, all * columns.div_ceil(256))?;
        linalg::run(engine, &deflate, &[tridiagonal, &state, &places, &joined], 1, &numbers, all)?;
        linalg::run(engine, &secular, &[tridiagonal, &state, &places, &joined], 1, &numbers, all * columns)?;
        let numbers = [columns, all].map(|x| x as u32);
        linalg::run(engine, &weights, &[&state, &places], 0, &numbers, all * columns)?;
        vectors = join(work, &vectors, &state, &places, [&element, &rotate])?;
        values = joined;
    }
    Ok((values, vectors))
}

/// The vectors of nodes, from those of their halves.
fn join(
    work: &Work<'_>,
    of_halves: &Tensor,
    state: &Tensor,
    places: &Tensor,
    [element, rotate]: [&Arc<Kernel>; 2],
) -> Result<Tensor> {
    let (engine, dtype) = (work.engine, work.dtype());
    let (nodes, half) = (of_halves.view.shape[0] / 2, of_halves.view.shape[1]);
    let columns = 2 * half;
    // Columns of the vectors in terms of the halves' ones. The halves of a node are rows of them.
    let inner = |first: u64, count: u64| -> Result<Tensor> {
        let inner = work.uninitialized(&[2 * nodes, half, count])?;
        let operands = [state, places, &inner];
        let numbers = [columns, nodes, first, count].map(|x| x as u32);
        linalg::run(engine, element, &operands, 2, &numbers, nodes * count)?;
        let numbers = [columns, nodes, count].map(|x| x as u32);
        linalg::run(engine, rotate, &operands, 2, &numbers, (nodes * count).div_ceil(64))?;
        Ok(inner)
    };
    let whole = View::contiguous(dtype, &[nodes, columns, columns]);
    if whole.elements() <= engine.reach().far() {
        return Ok(work.multiply(of_halves, &inner(0, columns)?)?.with_view(whole));
    }
    // Some columns at a time, and of these some rows.
    let result = work.uninitialized(&[2 * nodes, half, columns])?;
    let near = engine.reach().near(dtype.size_bytes());
    for (first, count) in ranges(columns, (near / (nodes * columns)).clamp(1, columns)) {
        let inner = inner(first, count)?;
        for k in 0..2 * nodes {
            let one = |all: &Tensor| -> Result<Tensor> {
                let sizes = [1, half, all.view.shape[2]];
                Ok(all.with_view(all.view.slice(&[k, 0, 0], &sizes, &[1; 3])?))
            };
            let [left, right, place] = [one(of_halves)?, one(&inner)?, one(&result)?];
            for (row, rows) in near_rows(engine, &[&left], 1) {
                let product = work.multiply(&part(&left, row, 0, [rows, half])?, &right)?;
                copies::copy(engine, &product, &part(&place, row, first, [rows, count])?, work.compile)?;
            }
        }
    }
    Ok(result.with_view(whole))
}

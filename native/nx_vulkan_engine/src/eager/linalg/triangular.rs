//! Triangular systems.

use crate::kernels::linalg::LinalgSpec;

use super::{Update, blocks, linalg, matrices, part, ranges, square, swapped, transposed, work_copy};
use crate::eager::call::Call;
use crate::eager::copies;
use crate::kernels::Compile;
use crate::program::Transform;
use crate::shape::Dims;
use crate::{Engine, Result, Tensor, Type, View};

/// A system `A X = B` with a triangular A.
#[derive(Debug)]
pub struct System {
    /// `[batches, n, n]`.
    pub a: Tensor,
    /// The diagonal is ones, whatever A has there.
    pub unit: bool,
    /// A is upper triangular.
    pub backward: bool,
    pub conjugate: bool,
}

impl System {
    /// Replaces B by X: `[batches, n, columns]`, row-major.
    pub fn solve(&self, engine: &Engine, x: &Tensor, compile: Compile) -> Result<()> {
        let (a, dtypes) = (&self.a, [self.a.view.dtype, x.view.dtype]);
        let (batches, n, columns) = (x.view.shape[0], x.view.shape[1], x.view.shape[2]);
        let compute = linalg::wide(x.view.dtype);
        let block = linalg::kernel(engine, "solve_block", compute, &dtypes, compile)?;
        let update = if n > LinalgSpec::block(compute) {
            Some(Update::kernel(engine, dtypes[0], dtypes[1], dtypes[1], compile)?)
        } else {
            None
        };
        let tiles = columns.div_ceil(LinalgSpec::columns(compute));
        // What is rounded to fewer bits in the end can do with reciprocals, and so can large systems.
        let divides = compute == x.view.dtype.ctype() && update.is_none();
        let flags = [self.unit, self.backward, self.conjugate, divides];
        let flags = flags.iter().rev().fold(0, |word, &flag| word << 1 | u32::from(flag));
        let [batch, row, column] = linalg::strides(a);
        for (first, size) in blocks(n, compute) {
            // Rows as they lie, of the block and of what is left.
            let rest = n - first - size;
            let (solved, left) = if self.backward { (rest, 0) } else { (first, first + size) };
            let [size_, n_, columns_, batches_] = [size, n, columns, batches].map(|x| x as u32);
            let numbers = [size_, n_, columns_, batches_, batch, row, column, flags];
            let (diagonal, own) = (part(a, solved, solved, [size, size])?, part(x, solved, 0, [size, columns])?);
            linalg::run(engine, &block, &[&diagonal, &own], 1, &numbers, tiles * batches)?;
            let (Some(update), 1..) = (&update, rest) else { continue };
            Update {
                a: &part(a, left, solved, [rest, size])?,
                b: &own,
                c: &part(x, left, 0, [rest, columns])?,
                conjugate_a: self.conjugate,
                upper: false,
            }
            .run(engine, update)?;
        }
        Ok(())
    }
}

/// What `solve` gives for `[.., n, columns]`, as `[batches, n, columns]`: of a matrix that no launch reaches a few
/// columns at a time, as they don't depend on each other.
pub fn by_columns(call: &Call<'_>, right: &Tensor, solve: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (shape, reach) = (&right.view.shape, call.engine.reach());
    let (batch, sizes) = shape.split_at(shape.len() - 2);
    let (n, columns) = (sizes[0], sizes[1]);
    if batch.iter().product::<u64>() > 1 || n * columns <= reach.far() {
        return solve(right);
    }
    let dtype = call.out.dtype.ctype().dtype();
    let whole = Tensor::uninitialized(call.engine, &Type::new(dtype, &[1, n, columns]))?;
    let step = (reach.near(dtype.size_bytes()) / n).max(1);
    let (mut starts, mut lengths) = (Dims::from_elem(0, shape.len()), shape.clone());
    for (first, count) in ranges(columns, step) {
        (starts[batch.len() + 1], lengths[batch.len() + 1]) = (first, count);
        let view = right.view.slice(&starts, &lengths, &Dims::from_elem(1, shape.len()))?;
        let x = solve(&right.with_view(view))?;
        copies::copy(call.engine, &x, &part(&whole, 0, first, [n, count])?, call.compile)?;
    }
    Ok(whole)
}

pub fn triangular_solve(call: &Call<'_>, lower: bool, left_side: bool, transform: Transform) -> Result<Tensor> {
    let (a, b) = (call.operand(0)?, call.operand(1)?);
    let (n, batches) = square(call, a)?;
    let vectors = b.view.shape.len() + 1 == a.view.shape.len();
    let mut view = View::clone(&b.view);
    if vectors {
        view.shape.push(1);
        view.strides.push(1);
    } else if !left_side {
        // X A = B is A' X' = B'.
        view = swapped(&view)?;
    }
    match &view.shape[..] {
        [.., rows, columns] if *rows == n && rows * columns * batches == view.elements() => {}
        _ => return Err(call.invalid(format!("{:?} and {:?} are no system", a.view.shape, b.view.shape))),
    }
    let is_transposed = left_side == (transform == Transform::Transpose);
    let a = matrices(call, a)?;
    let system = System {
        a: if is_transposed { transposed(&a)? } else { a },
        unit: false,
        backward: lower == is_transposed,
        conjugate: transform == Transform::Conjugate,
    };
    let shape = view.shape.clone();
    let x = by_columns(call, &b.with_view(view), |right| {
        let x = work_copy(call, right, View::clone(&right.view), call.out.dtype.ctype().dtype())?;
        system.solve(call.engine, &x, call.compile)?;
        Ok(x)
    })?;
    let shape = if vectors { &b.view.shape } else { &shape };
    let mut result = x.with_view(View::contiguous(x.view.dtype, shape));
    if !vectors && !left_side {
        result = transposed(&result)?;
    }
    finish(call, result)
}

/// The result as the type that the op promises.
pub fn finish(call: &Call<'_>, result: Tensor) -> Result<Tensor> {
    if result.view.dtype == call.out.dtype {
        return call.result(result);
    }
    let cast = Tensor::uninitialized(call.engine, call.out)?;
    copies::copy(call.engine, &result, &cast, call.compile)?;
    call.result(cast)
}

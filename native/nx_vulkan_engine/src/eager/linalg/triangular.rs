//! Triangular systems.

use crate::kernels::linalg::LinalgSpec;

use super::{Matrices, Update, blocks, from, linalg, matrices, square, transposed, work_copy};
use crate::eager::call::Call;
use crate::kernels::Compile;
use crate::program::Transform;
use crate::{Engine, Result, Tensor, View};

/// A system `A X = B` with a triangular A.
#[derive(Debug)]
pub struct System {
    pub a: Matrices,
    pub n: u64,
    pub batches: u64,
    /// The diagonal is ones, whatever A has there.
    pub unit: bool,
    /// A is upper triangular.
    pub backward: bool,
    pub conjugate: bool,
}

impl System {
    /// Replaces B by X: `columns` right-hand sides per matrix, row-major.
    pub fn solve(&self, engine: &Engine, x: &Tensor, columns: u64, compile: Compile) -> Result<()> {
        let (n, a, dtypes) = (self.n, &self.a, [self.a.tensor.view.dtype, x.view.dtype]);
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
        let [batch, row, column] = a.strides;
        for (first, size) in blocks(n, compute) {
            let [size_, first_, n_, columns_, batches_] = [size, first, n, columns, self.batches].map(|x| x as u32);
            let numbers = [size_, first_, n_, columns_, batches_, batch, row, column, flags];
            linalg::run(engine, &block, &[&a.tensor, x], 1, &numbers, tiles * self.batches)?;
            let (Some(update), rest @ 1..) = (&update, n - first - size) else { continue };
            // Rows as they lie, of the block and of what is left.
            let (solved, left) = if self.backward { (n - first - size, 0) } else { (first, first + size) };
            let x_strides = [(n * columns) as u32, columns_, 1];
            Update {
                rows: rest,
                columns,
                depth: size,
                batches: self.batches,
                a: (&from(&a.tensor, left * u64::from(row) + solved * u64::from(column)), a.strides),
                b: (&from(x, solved * columns), x_strides),
                c: (&from(x, left * columns), [x_strides[0], x_strides[1]]),
                conjugate_a: self.conjugate,
                upper: false,
            }
            .run(engine, update)?;
        }
        Ok(())
    }
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
        view = transposed(&view)?;
    }
    let columns = match &view.shape[..] {
        [.., rows, columns] if *rows == n && rows * columns * batches == view.elements() => *columns,
        _ => return Err(call.invalid(format!("{:?} and {:?} are no system", a.view.shape, b.view.shape))),
    };
    let is_transposed = left_side == (transform == Transform::Transpose);
    let mut a = matrices(call, a)?;
    if is_transposed {
        a.strides.swap(1, 2);
    }
    let system = System {
        a,
        n,
        batches,
        unit: false,
        backward: lower == is_transposed,
        conjugate: transform == Transform::Conjugate,
    };
    let x = work_copy(call, b, view, call.out.dtype.ctype().dtype())?;
    system.solve(call.engine, &x, columns, call.compile)?;
    let mut result = x;
    if vectors {
        result = result.with_view(View::contiguous(result.view.dtype, &b.view.shape));
    } else if !left_side {
        result = result.with_view(transposed(&result.view)?);
    }
    finish(call, result)
}

/// The result as the type that the op promises.
pub fn finish(call: &Call<'_>, result: Tensor) -> Result<Tensor> {
    if result.view.dtype == call.out.dtype {
        return call.result(result);
    }
    call.result(work_copy(call, &result, View::clone(&result.view), call.out.dtype)?)
}

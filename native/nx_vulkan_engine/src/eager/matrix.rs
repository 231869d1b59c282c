//! Batches of matrices in working memory: rank 3, in a compute type, changed in place by the factorizations.

use std::slice::from_ref;
use std::sync::Arc;

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::smallvec;

use super::call::Call;
use super::copies;
use crate::kernels::dot::{self, Product, product};
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::{Compile, reach_of};
use crate::program::{Binary, Elementwise, Op, Reduction, Unary};
use crate::{CType, DType, Engine, Result, Tensor, Type, View};

/// The device and the type in which a factorization computes.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    pub engine: &'a Arc<Engine>,
    pub compute: CType,
    pub compile: Compile,
}

/// The type in which matrices of `dtype` are factorized.
pub fn compute_type(dtype: DType) -> CType {
    if dtype.is_integer() { CType::F32 } else { dtype.ctype() }
}

/// Checks that an op's operand is a batch of matrices that it factorizes into `outs`.
pub fn check(call: &Call<'_>, outs: &[Type]) -> Result<()> {
    let expected = call.op.factors(&call.operand(0)?.view.ty());
    if expected.as_deref() == Some(outs) {
        return Ok(());
    }
    Err(call.invalid(format!("gives {expected:?}, not {outs:?}")))
}

impl Work<'_> {
    pub fn dtype(&self) -> DType {
        self.compute.dtype()
    }

    /// The type of the parts of an element.
    pub fn real(&self) -> DType {
        match self.compute {
            CType::C64 => DType::F32,
            CType::C128 => DType::F64,
            other => other.dtype(),
        }
    }

    pub fn uninitialized(&self, shape: &[u64]) -> Result<Tensor> {
        Tensor::uninitialized(self.engine, &Type::new(self.dtype(), shape))
    }

    /// A copy of `matrices`, their batch axes merged, that nobody else sees.
    pub fn copy(&self, matrices: &Tensor) -> Result<Tensor> {
        let rank = matrices.view.shape.len();
        let (batch, sizes) = matrices.view.shape.split_at(rank.saturating_sub(2));
        let result = self.uninitialized(&matrices.view.shape)?;
        copies::copy(self.engine, matrices, &result, self.compile)?;
        let merged: Vec<u64> = std::iter::once(batch.iter().product()).chain(sizes.iter().copied()).collect();
        Ok(result.with_view(View::contiguous(self.dtype(), &merged)))
    }

    /// The identity, `rows` x `columns`, for every matrix of the batch.
    pub fn identity(&self, batches: u64, rows: u64, columns: u64) -> Result<Tensor> {
        let result = self.uninitialized(&[batches, rows, columns])?;
        let output = Operand::new(&result.buffer, &result.view, Element::Typed(self.dtype()));
        let equal = Step {
            op: Elementwise::Binary(Binary::Equal),
            args: smallvec![Ref::Coordinate(1), Ref::Coordinate(2)],
            out: self.dtype(),
        };
        map(
            self.engine,
            &result.view.shape,
            &[],
            smallvec![equal],
            &[(Ref::Result(0), output)],
            Shapes::Any,
            self.compile,
        )?;
        Ok(result)
    }

    /// The largest absolute element of every matrix, as real numbers; NaN where an element is.
    pub fn largest(&self, a: &Tensor) -> Result<Tensor> {
        let real = self.real();
        let Work { engine, compile, .. } = *self;
        let (op, operands, out) = (&Op::Unary(Unary::Abs), std::slice::from_ref(a), &Type::new(real, &a.view.shape));
        let sizes = Call { engine, op, operands, out, outs: from_ref(out), compile }
            .elementwise(Elementwise::Unary(Unary::Abs))?;
        let op = &Op::Reduce { reduction: Reduction::Max, axes: smallvec![1, 2], tie_high: false };
        let (operands, out) = (&[sizes], &Type::new(real, &a.view.shape[..1]));
        Call { engine, op, operands, out, outs: from_ref(out), compile }.reduce(Reduction::Max, &[1, 2], false)
    }

    /// Words that are zero, for kernels to mark what they did.
    pub fn marks(&self, count: u64) -> Result<Tensor> {
        let marks = Tensor::uninitialized(self.engine, &Type::new(DType::U32, &[count]))?;
        self.engine.fill(&marks.buffer, 0, count * 4, 0)?;
        Ok(marks)
    }

    /// The words that kernels marked. Waits for the device.
    pub fn marked(&self, marks: &Tensor) -> Result<Vec<u32>> {
        let bytes = marks.to_nx_bytes(self.engine, None)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|&word| u32::from_ne_bytes(word)).collect())
    }

    /// `a b` for every matrix of the batch.
    pub fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (rows, columns) = (a.view.shape[1], b.view.shape[2]);
        let out = self.uninitialized(&[a.view.shape[0], rows, columns])?;
        let group = |tensor: &Tensor, axis: usize| {
            dot::MergedAxes::new(&tensor.view.shape[axis..=axis], &tensor.view.strides[axis..=axis])
        };
        let matrix = |tensor: &Tensor, free: usize, depth: usize| dot::Matrix {
            tensor: tensor.clone(),
            batch: group(tensor, 0),
            free: group(tensor, free),
            depth: group(tensor, depth),
        };
        let product_of =
            Product { a: matrix(a, 1, 2), b: matrix(b, 2, 1), out: &out, prologues: [None, None], epilogue: None };
        product(self.engine, &product_of, self.compile)?;
        Ok(out)
    }

    /// `target - update` in place of `target`.
    pub fn subtract(&self, target: &Tensor, update: &Tensor) -> Result<()> {
        self.change(target, Binary::Subtract, update)
    }

    /// An operation on `target` and `other` in place of `target`.
    pub fn change(&self, target: &Tensor, by: Binary, other: &Tensor) -> Result<()> {
        let operand = |t: &'_ Tensor| Element::Typed(t.view.dtype);
        let inputs = [target, other].map(|t| Operand::new(&t.buffer, &t.view, operand(t)));
        let output = Operand::new(&target.buffer, &target.view, operand(target));
        let args = smallvec![Ref::Input(0), Ref::Input(1)];
        let steps = smallvec![Step { op: Elementwise::Binary(by), args, out: self.dtype() }];
        let (sizes, outputs) = (&target.view.shape, [(Ref::Result(0), output)]);
        map(self.engine, sizes, &inputs, steps, &outputs, Shapes::Any, self.compile)
    }

    /// `target - left right` in place of `target`. Where launches would have to reach far, some rows after the other.
    pub fn subtract_product(&self, target: &Tensor, left: &Tensor, right: &Tensor) -> Result<()> {
        let (depth, columns) = (left.view.shape[2], target.view.shape[2]);
        for (first, rows) in near_rows(self.engine, &[target], 1) {
            let product = self.multiply(&part(left, first, 0, [rows, depth])?, right)?;
            self.subtract(&part(target, first, 0, [rows, columns])?, &product)?;
        }
        Ok(())
    }

    /// The conjugate transpose of every matrix.
    pub fn adjoint(&self, a: &Tensor) -> Result<Tensor> {
        let a = if self.compute.dtype().is_complex() { self.conjugate(a)? } else { a.clone() };
        Ok(a.with_view(a.view.transpose(&[0, 2, 1])?))
    }

    fn conjugate(&self, a: &Tensor) -> Result<Tensor> {
        let result = self.uninitialized(&a.view.shape)?;
        let input = Operand::new(&a.buffer, &a.view, Element::Typed(self.dtype()));
        let output = Operand::new(&result.buffer, &result.view, Element::Typed(self.dtype()));
        let step = Step { op: Elementwise::Unary(Unary::Conjugate), args: smallvec![Ref::Input(0)], out: self.dtype() };
        map(
            self.engine,
            &a.view.shape,
            &[input],
            smallvec![step],
            &[(Ref::Result(0), output)],
            Shapes::Any,
            self.compile,
        )?;
        Ok(result)
    }
}

/// Rows and columns from (`row`, `column`) on, as many as `sizes` says.
pub fn part(a: &Tensor, row: u64, column: u64, sizes: [u64; 2]) -> Result<Tensor> {
    let view = a.view.slice(&[0, row, column], &[a.view.shape[0], sizes[0], sizes[1]], &[1, 1, 1])?;
    Ok(a.with_view(view))
}

/// Ranges of so many elements: the first one of each, and their number.
pub fn ranges(count: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..count.div_ceil(step)).map(move |k| (k * step, step.min(count - k * step)))
}

/// Ranges of rows of matrices which lie alike, so that launches for one range each need not reach far: first row and
/// rows. Where there are several matrices, or all of one is near, that is all rows.
pub fn near_rows(engine: &Engine, tensors: &[&Tensor], unit: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
    let rows = tensors.iter().map(|t| t.view.shape[1]).max().unwrap_or(0);
    let at_once = |t: &&Tensor| {
        let (view, near) = (&*t.view, engine.reach().near(t.view.dtype.size_bytes()));
        if view.shape[0] > 1 || reach_of(view) <= near {
            return rows;
        }
        let row = view.strides[2] as u64 * (view.shape[2] - 1);
        let fit = near.saturating_sub(row) / (view.strides[1] as u64).max(1) + 1;
        if fit > unit { fit / unit * unit } else { fit }
    };
    let step = tensors.iter().map(at_once).min().unwrap_or(rows).clamp(1, rows.max(1));
    ranges(rows, step)
}

/// `a` in the shape and type that an op promises: a view where its memory holds little else, or else a copy.
pub fn in_type(work: &Work<'_>, a: &Tensor, out: &Type) -> Result<Tensor> {
    if a.view.dtype == out.dtype
        && a.view.elements() * a.view.dtype.size_bytes() * 2 > a.buffer.size_bytes()
        && let Some(view) = a.view.reshape(&out.shape)
    {
        return Ok(a.with_view(view));
    }
    let result = Tensor::uninitialized(work.engine, out)?;
    let view = View::contiguous(out.dtype, &a.view.shape);
    copies::copy(work.engine, a, &result.with_view(view), work.compile)?;
    Ok(result)
}

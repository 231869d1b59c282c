//! One op with its operands: what its results are, and the ops that take no more than a view or a map.

use std::sync::Arc;

use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;
use smallvec::{SmallVec, smallvec};

use super::copies::contiguous;
use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::reduce::{Reduce, Target, reduce};
use crate::kernels::{Compile, Loaded};
use crate::program::fused::{Load, Seen, through};
use crate::program::{Binary, Elementwise, Op, Reduction};
use crate::{Engine, Error, Result, Tensor, Type, View};

/// The results of one op.
pub type Results = SmallVec<[Tensor; 3]>;

/// One op with its operands. Visits of the ops of a family give the results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub engine: &'a Arc<Engine>,
    pub op: &'a Op,
    pub operands: &'a [Tensor],
    /// The first of the results, which is all of them for most ops.
    pub out: &'a Type,
    pub outs: &'a [Type],
    pub compile: Compile,
}

/// An operand as the kernel reads it.
pub(super) fn loaded(call: &Call<'_>, load: &Load) -> Result<Loaded> {
    let (tensor, view) = seen(call, call.operand(load.operand as usize)?, &load.views)?;
    Ok(match load.bounded {
        true => Loaded::within(&tensor, view),
        false => Loaded { tensor: tensor.with_view(view), bounds: None },
    })
}

/// A tensor, or a copy of it where its strides need that, and what views show of it.
pub(super) fn seen(call: &Call<'_>, tensor: &Tensor, views: &[Seen]) -> Result<(Tensor, View)> {
    if let Some(view) = through(View::clone(&tensor.view), views) {
        return Ok((tensor.clone(), view));
    }
    let copy = contiguous(call.engine, tensor, call.compile)?;
    let view = through(View::clone(&copy.view), views);
    Ok((copy, view.ok_or_else(|| call.invalid("views that need copies".into()))?))
}

impl<'a> Call<'a> {
    pub fn invalid(&self, reason: String) -> Error {
        Error::InvalidProgram { op: self.op.name().to_string(), reason }
    }

    pub fn operand(&self, index: usize) -> Result<&'a Tensor> {
        self.operands
            .get(index)
            .ok_or_else(|| self.invalid(format!("needs operand {index}, got {} operands", self.operands.len())))
    }

    /// The result of an op that has one.
    pub fn one(&self, mut results: Results) -> Result<Tensor> {
        results.pop().ok_or_else(|| self.invalid("has a result".into()))
    }

    /// A result that shares the first operand's memory.
    pub fn view(&self, f: impl FnOnce(&View) -> Result<View>) -> Result<Tensor> {
        let a = self.operand(0)?;
        let view = f(&a.view)?;
        self.result(a.with_view(view))
    }

    /// Checks that a result has the promised type.
    pub fn result(&self, tensor: Tensor) -> Result<Tensor> {
        if tensor.view.shape != self.out.shape || tensor.view.dtype != self.out.dtype {
            return Err(self.invalid(format!(
                "the result is {}{:?}, not {}{:?}",
                tensor.view.dtype, tensor.view.shape, self.out.dtype, self.out.shape
            )));
        }
        Ok(tensor)
    }

    pub fn reshape(&self) -> Result<Tensor> {
        let a = self.operand(0)?;
        if a.view.elements() != self.out.elements() {
            return Err(self.invalid(format!("{:?} does not reshape to {:?}", a.view.shape, self.out.shape)));
        }
        if let Some(view) = a.view.reshape(&self.out.shape) {
            return self.result(a.with_view(view));
        }
        let copy = contiguous(self.engine, a, self.compile)?;
        self.result(copy.with_view(View::contiguous(a.view.dtype, &self.out.shape)))
    }

    pub fn bitcast(&self) -> Result<Tensor> {
        let a = self.operand(0)?;
        if a.view.dtype.bits() != self.out.dtype.bits() {
            return Err(self.invalid(format!("{} and {} have different widths", a.view.dtype, self.out.dtype)));
        }
        self.view(|v| Ok(View { dtype: self.out.dtype, ..v.clone() }))
    }

    pub fn elementwise(&self, op: Elementwise) -> Result<Tensor> {
        if self.operands.len() != op.arity() {
            return Err(self.invalid(format!("needs {} operands, got {}", op.arity(), self.operands.len())));
        }
        if op == Elementwise::AsType && self.operands.iter().all(|t| t.view.dtype == self.out.dtype) {
            return self.view(|v| Ok(v.clone()));
        }
        // What repeats one element goes on doing so.
        let uniform = self.out.elements() > 1 && self.operands.iter().all(|t| t.view.is_uniform());
        let sizes = if uniform { &[][..] } else { &self.out.shape[..] };
        let mut inputs: SmallVec<[Operand<'_>; 3]> = SmallVec::new();
        for tensor in self.operands {
            let broadcast = tensor.view.broadcast_trailing(&self.out.shape)?;
            let mut operand = Operand::new(&tensor.buffer, &broadcast, Element::Typed(tensor.view.dtype));
            if uniform {
                operand.strides.clear();
            }
            inputs.push(operand);
        }
        let steps = smallvec![Step { op, args: (0..op.arity() as u8).map(Ref::Input).collect(), out: self.out.dtype }];
        let result = Tensor::uninitialized(self.engine, &Type::new(self.out.dtype, sizes))?;
        let output = Operand::new(&result.buffer, &result.view, Element::Typed(self.out.dtype));
        map(self.engine, sizes, &inputs, steps, &[(Ref::Result(0), output)], Shapes::Any, self.compile)?;
        if uniform {
            let view = result.view.broadcast_trailing(&self.out.shape)?;
            return Ok(result.with_view(view));
        }
        Ok(result)
    }

    pub fn reduce(&self, reduction: Reduction, axes: &[usize], tie_high: bool) -> Result<Tensor> {
        let a = self.operand(0)?;
        let rank = a.view.shape.len();
        if axes.iter().any(|&axis| axis >= rank) {
            return Err(self.invalid(format!("axes {axes:?} of rank {rank}")));
        }
        let kept: u64 = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| a.view.shape[axis]).product();
        if kept != self.out.elements() {
            return Err(self.invalid(format!("{kept} results for a shape of {:?}", self.out.shape)));
        }
        let result = Tensor::uninitialized(self.engine, self.out)?;
        let what = Reduce { reduction, tie_high, axes, out: self.out.dtype };
        let target = Target { buffer: &result.buffer, offset_bytes: 0 };
        reduce(self.engine, &a.buffer, &a.view, what, target, self.compile)?;
        Ok(result)
    }

    /// A tensor of `ty` whose elements are computed from their indices.
    pub fn counted(&self, ty: &Type, op: Elementwise, args: &[Ref]) -> Result<Tensor> {
        let result = Tensor::uninitialized(self.engine, ty)?;
        let output = Operand::new(&result.buffer, &result.view, Element::Typed(ty.dtype));
        let step = Step { op, args: SmallVec::from_slice(args), out: ty.dtype };
        map(self.engine, &ty.shape, &[], smallvec![step], &[(Ref::Result(0), output)], Shapes::Any, self.compile)?;
        Ok(result)
    }

    pub fn iota(&self, axis: Option<usize>) -> Result<Tensor> {
        let shape = &self.out.shape;
        let Some(axis) = axis else {
            let flat = Type::new(self.out.dtype, &[self.out.elements()]);
            let counted = self.counted(&flat, Elementwise::AsType, &[Ref::Linear])?;
            return Ok(counted.with_view(View::contiguous(self.out.dtype, shape)));
        };
        if axis >= shape.len() {
            return Err(self.invalid(format!("axis {axis} of rank {}", shape.len())));
        }
        // The counted axis once; the others repeat it as a view.
        let line = Type::new(self.out.dtype, &[shape[axis]]);
        let counted = self.counted(&line, Elementwise::AsType, &[Ref::Linear])?;
        self.result(counted.with_view(counted.view.broadcast(shape, &[axis])?))
    }

    pub fn eye(&self) -> Result<Tensor> {
        let shape = &self.out.shape;
        let Some(lead) = shape.len().checked_sub(2) else {
            return Err(self.invalid(format!("needs two axes, got {shape:?}")));
        };
        // One matrix; batch axes repeat it as a view.
        let matrix = Type::new(self.out.dtype, &shape[lead..]);
        let equal = Elementwise::Binary(Binary::Equal);
        let eye = self.counted(&matrix, equal, &[Ref::Coordinate(0), Ref::Coordinate(1)])?;
        self.result(eye.with_view(eye.view.broadcast_trailing(shape)?))
    }
}

//! One op at a time: a program of one instruction, run as soon as it is known.
//!
//! View ops only change the view. Every other op looks its kernel up, fills parameter words and records a dispatch.

mod attention;
mod constant;
mod control;
mod conv;
mod dot;
mod eigh;
mod epilogue;
mod fft;
mod fold;
mod fused;
mod halves;
mod index;
mod indexed;
mod linalg;
mod matrix;
mod movement;
mod order;
mod program;
mod qr;
mod read;
mod svd;
mod window;
mod workgroup;

use std::sync::Arc;

pub use crate::kernels::Compile;
pub(crate) use constant::ConstantCache;
pub(crate) use control::{is_true, read_number};
#[cfg(test)]
pub(crate) use linalg::cholesky::tiles as cholesky_tiles;
pub use movement::{contiguous, copied, copy};
pub use program::run_program;
use smallvec::{SmallVec, smallvec};

use crate::kernels::map::{Operand, Shapes, map};
use crate::kernels::reduce::{Reduce, Target, reduce};
use crate::program::ops::Class;
use crate::program::{Binary, Elementwise, Op, verify};
use crate::shape::Type;
use crate::{Engine, Error, Result, Tensor, View};
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_spirv::access::Element;

/// The results of one op.
pub type Results = SmallVec<[Tensor; 3]>;

/// Runs one op of any number of results, of the types `outs`.
///
/// # Errors
/// As [`run`].
pub fn run_all(engine: &Arc<Engine>, op: &Op, operands: &[Tensor], outs: &[Type], compile: Compile) -> Result<Results> {
    match op {
        Op::While(body) => {
            check(op, operands, outs)?;
            return control::repeat(engine, body, operands, outs.len(), compile);
        }
        Op::Workgroup(program) => {
            check(op, operands, outs)?;
            return workgroup::run(engine, program, operands, outs, compile);
        }
        Op::Cond(branches) => {
            check(op, operands, outs)?;
            return control::choose(engine, branches, operands, compile);
        }
        Op::Fused(body) => {
            check(op, operands, outs)?;
            let missing = || Error::InvalidProgram { op: "fused".to_string(), reason: "has results".to_string() };
            let out = outs.first().ok_or_else(missing)?;
            return fused::fused(&Call { engine, op, operands, out, compile }, body);
        }
        _ => {}
    }
    if let [out] = outs {
        return Ok(smallvec![run(engine, op, operands, out, compile)?]);
    }
    let bad = |reason: String| Error::InvalidProgram { op: op.name().to_string(), reason };
    let out = outs.first().ok_or_else(|| bad("has results".to_string()))?;
    check(op, operands, outs)?;
    refuse_long(engine, op, operands, compile)?;
    if let Some(results) = halves::halves(engine, op, operands, outs, compile)? {
        return Ok(results);
    }
    let call = Call { engine, op, operands, out, compile };
    let results = match (op, outs) {
        (Op::Qr { complete }, _) => qr::qr(&call, *complete, outs),
        (Op::Eigh, _) => eigh::eigh(&call, outs),
        (Op::Svd { full }, _) => svd::svd(&call, *full, outs),
        (Op::Linalg(op), _) => linalg::run_all(&call, *op, outs),
        (Op::TopK { k }, [_, places]) => Ok(order::top_k(&call, *k, places)?.into_iter().collect()),
        _ => Err(bad(format!("has one result, got {}", outs.len()))),
    };
    match results {
        Err(error) if matches!(error, Error::TooLarge { .. }) => {
            halves::of_batches(engine, op, operands, outs, compile)?.ok_or(error)
        }
        results => results,
    }
}

/// Sides of matrices, and operands of one op, from which on recording takes long enough to wait for the device in between.
const LONG_SIDE: u64 = 256;
const LONG_OPERANDS: usize = 32;

/// Sends ops of many launches to callers that may wait, and matrices whose kernels reach far.
fn refuse_long(engine: &Engine, op: &Op, operands: &[Tensor], compile: Compile) -> Result<()> {
    let matrices = op.class() == Class::Matrix;
    let is_long = |t: &Tensor| {
        let far = t.view.elements() > engine.reach().near(t.view.dtype.size_bytes());
        far || t.view.shape.iter().rev().take(2).any(|&n| n > LONG_SIDE)
    };
    let long_side = operands.iter().any(is_long);
    match compile {
        Compile::Refused if matrices && long_side || operands.len() > LONG_OPERANDS => Err(Error::NeedsCompile),
        Compile::Refused | Compile::Allowed => Ok(()),
    }
}

/// Checks all rules, in every build: kernels index by what they are told.
fn check(op: &Op, operands: &[Tensor], outs: &[Type]) -> Result<()> {
    let types: SmallVec<[Type; 3]> = operands.iter().map(|t| t.view.ty()).collect();
    verify::instruction(op, &types.iter().collect::<SmallVec<[&Type; 3]>>(), outs)
}

/// Runs one op of one result. Returns at once; the result's memory is filled when the device gets there.
///
/// # Errors
/// `NeedsCompile` when a kernel is missing and `compile` refuses to wait for it. `InvalidProgram` for operands or a result
/// that the op does not have. `TooLarge` for results that no memory holds.
pub fn run(engine: &Arc<Engine>, op: &Op, operands: &[Tensor], out: &Type, compile: Compile) -> Result<Tensor> {
    check(op, operands, std::slice::from_ref(out))?;
    let call = Call { engine, op, operands, out, compile };
    if let Some(elementwise) = op.elementwise() {
        if let Some(known) = constant::computed(engine, elementwise, operands, out)? {
            return Ok(known);
        }
        return call.elementwise(elementwise);
    }
    refuse_long(engine, op, operands, compile)?;
    if let Some(result) =
        halves::halves(engine, op, operands, std::slice::from_ref(out), compile)?.and_then(|mut all| all.pop())
    {
        return Ok(result);
    }
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Clip | Op::AsType => {
            Err(call.invalid("not elementwise".into()))
        }
        Op::Constant(value) => constant::constant(engine, *value, out),
        Op::Iota { axis } => call.iota(*axis),
        Op::Eye => call.eye(),
        Op::Bitcast => call.bitcast(),
        Op::Reshape | Op::Squeeze => call.reshape(),
        Op::After => call.view(|view| Ok(view.clone())),
        Op::Reduce { reduction, axes, tie_high } => {
            let view = &call.operand(0)?.view;
            let rank = view.shape.len();
            if axes.iter().any(|&axis| axis >= rank) {
                return Err(call.invalid(format!("axes {axes:?} of rank {rank}")));
            }
            let kept: u64 = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| view.shape[axis]).product();
            if kept != out.elements() {
                return Err(call.invalid(format!("{kept} results for a shape of {:?}", out.shape)));
            }
            let result = Tensor::uninitialized(engine, out)?;
            let what = Reduce { reduction: *reduction, tie_high: *tie_high, axes, out: out.dtype };
            let target = Target { buffer: &result.buffer, offset_bytes: 0 };
            reduce(engine, &call.operand(0)?.buffer, view, what, target, compile)?;
            Ok(result)
        }
        Op::Window { reduction, windows } => window::reduce_windows(&call, *reduction, windows),
        Op::Sort { axis, descending } => order::sort(&call, *axis, *descending),
        Op::Argsort { axis, descending } => order::argsort(&call, *axis, *descending),
        Op::TopK { .. } => Err(call.invalid("has two results".into())),
        Op::Scan { scan, axis, reverse } => order::scan(&call, *scan, *axis, *reverse),
        Op::Dot { contract_a, batch_a, contract_b, batch_b } => {
            dot::dot(&call, [contract_a, contract_b], [batch_a, batch_b], [None, None], None)
        }
        Op::Fold { axes, function } => fold::fold(&call, axes, function),
        Op::WindowFold { windows, function } => fold::fold_windows(&call, windows, function),
        Op::WindowScatter { max, windows } => window::scatter(&call, *max, windows),
        Op::Conv(op) => conv::conv(&call, op, [None, None], None),
        Op::Take { axis } => index::take(&call, *axis, false),
        Op::TakeAlongAxis { axis } => index::take(&call, *axis, true),
        Op::Fft { kind, axis, length, eps } => fft::transform(&call, *kind, *axis, *length, eps.real()),
        Op::Gather { axes } => index::gather(&call, axes),
        Op::Qr { .. } | Op::Eigh | Op::Svd { .. } => Err(call.invalid("has several results".into())),
        Op::While(_) | Op::Cond(_) | Op::Workgroup(_) | Op::Fused(_) => {
            Err(call.invalid("gives a list of results".into()))
        }
        Op::IndexedAdd { axes } => indexed::indexed(&call, axes, true),
        Op::IndexedPut { axes } => indexed::indexed(&call, axes, false),
        Op::Linalg(of) => match linalg::run(&call, *of) {
            Err(error) if matches!(error, Error::TooLarge { .. }) => {
                let halves = halves::of_batches(engine, op, operands, std::slice::from_ref(out), compile)?;
                halves.and_then(|mut all| all.pop()).ok_or(error)
            }
            result => result,
        },
        // What only moves elements.
        _ => movement::moved(&call),
    }
}

/// One op with its operands.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    engine: &'a Arc<Engine>,
    op: &'a Op,
    operands: &'a [Tensor],
    out: &'a Type,
    compile: Compile,
}

impl<'a> Call<'a> {
    fn invalid(&self, reason: String) -> Error {
        Error::InvalidProgram { op: self.op.name().to_string(), reason }
    }

    fn operand(&self, index: usize) -> Result<&'a Tensor> {
        self.operands
            .get(index)
            .ok_or_else(|| self.invalid(format!("needs operand {index}, got {} operands", self.operands.len())))
    }

    /// A result that shares the first operand's memory.
    fn view(&self, f: impl FnOnce(&View) -> Result<View>) -> Result<Tensor> {
        let a = self.operand(0)?;
        let view = f(&a.view)?;
        self.result(a.with_view(view))
    }

    /// Checks that a result has the promised type.
    fn result(&self, tensor: Tensor) -> Result<Tensor> {
        if tensor.view.shape != self.out.shape || tensor.view.dtype != self.out.dtype {
            return Err(self.invalid(format!(
                "the result is {}{:?}, not {}{:?}",
                tensor.view.dtype, tensor.view.shape, self.out.dtype, self.out.shape
            )));
        }
        Ok(tensor)
    }

    fn reshape(&self) -> Result<Tensor> {
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

    fn bitcast(&self) -> Result<Tensor> {
        let a = self.operand(0)?;
        if a.view.dtype.bits() != self.out.dtype.bits() {
            return Err(self.invalid(format!("{} and {} have different widths", a.view.dtype, self.out.dtype)));
        }
        self.view(|v| Ok(View { dtype: self.out.dtype, ..v.clone() }))
    }

    fn elementwise(&self, op: Elementwise) -> Result<Tensor> {
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

    /// A tensor of `ty` whose elements are computed from their indices.
    fn counted(&self, ty: &Type, op: Elementwise, args: &[Ref]) -> Result<Tensor> {
        let result = Tensor::uninitialized(self.engine, ty)?;
        let output = Operand::new(&result.buffer, &result.view, Element::Typed(ty.dtype));
        let step = Step { op, args: SmallVec::from_slice(args), out: ty.dtype };
        map(self.engine, &ty.shape, &[], smallvec![step], &[(Ref::Result(0), output)], Shapes::Any, self.compile)?;
        Ok(result)
    }

    fn iota(&self, axis: Option<usize>) -> Result<Tensor> {
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

    fn eye(&self) -> Result<Tensor> {
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

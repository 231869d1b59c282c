//! Treats windows that lie side by side as axes of their own: their extremes become reductions, and scatters to their
//! extremes become elementwise ops, both of which join the kernels around them.

use smallvec::SmallVec;

use super::rewrite::Rewriter;
use crate::program::attribute::{Axes, Scalar};
use crate::program::ops::window::{Window, WindowScatter, Windowed};
use crate::program::{Binary, Instruction, Op, Operand, Program, Reduction, Windows};
use crate::shape::{Dims, elements};
use crate::{DType, Result, Type};

/// Elements of a window that a scatter compares for each of them.
const MAX_COMPARED: u64 = 4;

pub fn run(program: &Program) -> Result<Program> {
    let mut new = Rewriter::new(program);
    for old in &program.instructions {
        let instruction = Instruction { operands: new.operands(old)?, ..old.clone() };
        let extreme = match &instruction.op {
            Op::Windowed(Windowed::Window(Window {
                reduction: reduction @ (Reduction::Max | Reduction::Min),
                windows,
            })) => reduced(&mut new, &instruction, *reduction, windows)?,
            Op::Windowed(Windowed::WindowScatter(WindowScatter { max, windows })) => {
                scattered(&mut new, &instruction, *max, windows)?
            }
            _ => None,
        };
        match extreme {
            Some(result) => new.moved(result),
            None => new.replace(instruction),
        }
    }
    new.finish(program)
}

/// Axes of a tensor that is made of windows: where a window has several elements along an axis, that axis is two, one
/// that counts windows and one within them.
struct Split {
    shape: Dims,
    /// The axes within windows.
    inner: Axes,
}

impl Split {
    /// `None` where windows overlap, leave elements out or reach beyond the tensor, and where they have one element
    /// each.
    fn of(windows: &Windows, shape: &[u64]) -> Option<Split> {
        let mut split = Split { shape: Dims::new(), inner: Axes::new() };
        for (axis, &size) in windows.sizes.iter().enumerate() {
            let is_plain = windows.padding[axis] == (0, 0) && (windows.dilations[axis] == 1 || size == 1);
            if !is_plain || windows.strides[axis] != size || !shape[axis].is_multiple_of(size) {
                return None;
            }
            split.shape.push(shape[axis] / size);
            if size > 1 {
                split.inner.push(split.shape.len());
                split.shape.push(size);
            }
        }
        (!split.inner.is_empty()).then_some(split)
    }

    fn is_inner(&self, axis: usize) -> bool {
        self.inner.contains(&axis)
    }

    /// The shape with one element of each window.
    fn one_each(&self) -> Dims {
        self.shape.iter().enumerate().map(|(axis, &size)| if self.is_inner(axis) { 1 } else { size }).collect()
    }

    /// Elements of a window.
    fn elements(&self) -> u64 {
        self.inner.iter().map(|&axis| self.shape[axis]).product()
    }

    /// Element `number` of each window, counted in row-major order.
    fn slice(&self, number: u64) -> Op {
        let mut starts: SmallVec<[Option<i64>; 6]> = SmallVec::from_elem(Some(0), self.shape.len());
        let mut rest = number;
        for &axis in self.inner.iter().rev() {
            starts[axis] = Some((rest % self.shape[axis]) as i64);
            rest /= self.shape[axis];
        }
        Op::Slice { starts, strides: SmallVec::from_elem(1, self.shape.len()), lengths: self.one_each() }
    }
}

fn reduced(
    new: &mut Rewriter,
    instruction: &Instruction,
    reduction: Reduction,
    windows: &Windows,
) -> Result<Option<Operand>> {
    let (&[a], [out]) = (instruction.operands.as_slice(), instruction.outs.as_slice()) else { return Ok(None) };
    let ty = new.ty(a)?.clone();
    let Some(split) = Split::of(windows, &ty.shape) else { return Ok(None) };
    let whole = new.push_one(Op::Reshape, &[a], &Type { shape: split.shape.clone(), ..ty });
    let op = Op::Reduce { reduction, axes: split.inner, tie_high: false };
    Ok(Some(new.push_one(op, &[whole], out)))
}

/// Each element compares the elements of its window, and takes the window's source if it is the last of the extreme
/// ones.
fn scattered(new: &mut Rewriter, instruction: &Instruction, max: bool, windows: &Windows) -> Result<Option<Operand>> {
    let (&[a, source, initial], [out]) = (instruction.operands.as_slice(), instruction.outs.as_slice()) else {
        return Ok(None);
    };
    let ty = new.ty(a)?.clone();
    let Some(split) = Split::of(windows, &ty.shape) else { return Ok(None) };
    // Sums are rounded once: of operands that have the result's type, and of nothing.
    let is_zero = new.constant(initial) == Some(Scalar::Int(0));
    let dtype = out.dtype;
    let is_exact = new.ty(source)?.dtype == dtype && (is_zero || new.ty(initial)?.dtype == dtype);
    if split.elements() > MAX_COMPARED || elements(&ty.shape) == 0 || !is_exact {
        return Ok(None);
    }
    let of = |dtype: DType, shape: &[u64]| Type::new(dtype, shape);
    let one_each = split.one_each();
    let initial = match is_zero {
        true => new.push_one(Op::Constant(Scalar::Int(0)), &[], &of(dtype, &[])),
        false => new.push_one(Op::Reshape, &[initial], &of(dtype, &[])),
    };
    let source = new.push_one(Op::Reshape, &[source], &of(dtype, &one_each));
    let whole = new.push_one(Op::Reshape, &[a], &of(ty.dtype, &split.shape));
    let number =
        |new: &mut Rewriter, i: u64| new.push_one(Op::Constant(Scalar::Int(i.into())), &[], &of(DType::S32, &[]));
    let comparison = Op::Binary(if max { Binary::GreaterEqual } else { Binary::LessEqual });
    let mut best = new.push_one(split.slice(0), &[whole], &of(ty.dtype, &one_each));
    let mut chosen = number(new, 0);
    for i in 1..split.elements() {
        let element = new.push_one(split.slice(i), &[whole], &of(ty.dtype, &one_each));
        let replaces = new.push_one(comparison.clone(), &[element, best], &of(DType::U8, &one_each));
        let own = number(new, i);
        best = new.push_one(Op::Select, &[replaces, element, best], &of(ty.dtype, &one_each));
        chosen = new.push_one(Op::Select, &[replaces, own, chosen], &of(DType::S32, &one_each));
    }
    let sum = new.push_one(Op::Binary(Binary::Add), &[initial, source], &of(dtype, &one_each));
    let place = place(new, &split);
    let is_chosen = new.push_one(Op::Binary(Binary::Equal), &[chosen, place], &of(DType::U8, &split.shape));
    let result = new.push_one(Op::Select, &[is_chosen, sum, initial], &of(dtype, &split.shape));
    Ok(Some(new.push_one(Op::Reshape, &[result], out)))
}

/// The number of each element in its window.
fn place(new: &mut Rewriter, split: &Split) -> Operand {
    // Of the shape that spans windows alone, so that it is one number per element of a window.
    let inner: Dims =
        (0..split.shape.len()).map(|axis| if split.is_inner(axis) { split.shape[axis] } else { 1 }).collect();
    let ty = Type::new(DType::S32, &inner);
    new.push_one(Op::Iota { axis: None }, &[], &ty)
}

//! Folds with functions of the user's.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::function::{Function, ScalarStep, Scalars};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::result_dtype;
use nx_vulkan_engine::program::ops::window::WindowFold;
use nx_vulkan_engine::program::{Binary, Elementwise, Op, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Type, Value};
use smallvec::SmallVec;

use super::values::{Range, operand};
use super::window::windows;
use super::{finish, rng, run, upload, verify, verify_on};
use crate::compare::Bound;

/// Writes functions step by step; the types of values are known.
pub struct Writer {
    types: Vec<DType>,
    steps: Vec<ScalarStep>,
}

impl Writer {
    pub fn new(inputs: &[DType]) -> Writer {
        Writer { types: inputs.to_vec(), steps: vec![] }
    }

    fn step(&mut self, op: Scalars, args: &[u16], out: DType) -> u16 {
        self.steps.push(ScalarStep { op, args: SmallVec::from_slice(args), out });
        self.types.push(out);
        self.types.len() as u16 - 1
    }

    pub fn constant(&mut self, value: Value, dtype: DType) -> u16 {
        self.step(Scalars::Constant(value.cast(dtype).to_bits(dtype)), &[], dtype)
    }

    pub fn apply(&mut self, op: Elementwise, args: &[u16]) -> u16 {
        let types: Vec<DType> = args.iter().map(|&arg| self.types[usize::from(arg)]).collect();
        let out = result_dtype(op, &types).unwrap_or_else(|| panic!("{} of {types:?}", op.name()));
        self.step(Scalars::Elementwise(op), args, out)
    }

    pub fn binary(&mut self, op: Binary, a: u16, b: u16) -> u16 {
        self.apply(Elementwise::Binary(op), &[a, b])
    }

    pub fn finish(mut self, result: u16, out: DType) -> Box<Function> {
        let result = if self.types[usize::from(result)] == out {
            result
        } else {
            self.step(Scalars::Elementwise(Elementwise::AsType), &[result], out)
        };
        Box::new(Function { steps: self.steps, result })
    }
}

/// `select(x > acc, x - c, acc + k)`, or `acc + x - k` for complex numbers: neither order nor grouping is free.
fn function(x: DType, out: DType, captured: DType) -> Box<Function> {
    let mut w = Writer::new(&[x, out, captured]);
    let three = w.constant(Value::Int(3), out);
    if [x, out, captured].iter().any(|t| t.is_complex()) {
        let sum = w.binary(Binary::Add, 1, 0);
        let minus = w.binary(Binary::Subtract, sum, three);
        return w.finish(minus, out);
    }
    let greater = w.binary(Binary::Greater, 0, 1);
    let less = w.binary(Binary::Subtract, 0, 2);
    let more = w.binary(Binary::Add, 1, three);
    let chosen = w.apply(Elementwise::Select, &[greater, less, more]);
    w.finish(chosen, out)
}

fn scalar(dtype: DType, value: i128) -> Array {
    Array::new(&Type::new(dtype, &[]), [Value::Int(value)])
}

#[test]
fn folds_of_all_types() {
    let mut rng = rng(80);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let other = DType::ALL[(i * 7 + 3) % 20];
        let out = if i % 3 == 0 && !dtype.is_complex() && other.is_float() { other } else { dtype };
        let a = operand(&Type::new(dtype, &[3, 5, 4]), Range::Ordinary, 0, &mut rng);
        let captured = if out.is_integer() { DType::U8 } else { out };
        let function = function(dtype, out, captured);
        for (folded, shape) in [(&[1usize][..], &[3u64, 4][..]), (&[0, 2], &[1, 5, 1]), (&[0, 1, 2], &[])] {
            let op = Op::Fold { axes: Axes::from_slice(folded), function: function.clone() };
            let operands = [a.clone(), scalar(dtype, 1), scalar(captured, 2)];
            verify(&op, &operands, &Type::new(out, shape), Bound::Exact);
        }
    }
    finish();
}

#[test]
fn folds_of_windows() {
    let mut rng = rng(81);
    for dtype in [DType::F32, DType::S64, DType::U8, DType::F64, DType::C64] {
        for shape in [&[9u64][..], &[5, 6], &[2, 4, 5]] {
            let windows = windows(shape, true, &mut rng);
            let out = Type::new(dtype, &windows.counts(shape).unwrap());
            let a = operand(&Type::new(dtype, shape), Range::Ordinary, 0, &mut rng);
            let op = Op::from(WindowFold { windows, function: function(dtype, dtype, dtype) });
            verify(&op, &[a, scalar(dtype, 5), scalar(dtype, 1)], &out, Bound::Exact);
        }
    }
    finish();
}

#[test]
fn folds_of_views() {
    let mut rng = rng(82);
    let base = operand(&Type::new(DType::S32, &[300, 7]), Range::Ordinary, 0, &mut rng);
    let reverse = Op::from(Reverse { axes: Axes::from_slice(&[0, 1]) });
    let view = run(&reverse, &[upload(&base)], &base.ty).unwrap();
    let array = reference::evaluate(&reverse, std::slice::from_ref(&base), &base.ty).unwrap();
    let operands = [array, scalar(DType::S32, 1), scalar(DType::S32, 2)];
    let tensors = [view, upload(&operands[1]), upload(&operands[2])];
    for (folded, out) in [(0, 7), (1, 300)] {
        let function = function(DType::S32, DType::S32, DType::S32);
        let op = Op::Fold { axes: Axes::from_slice(&[folded]), function };
        verify_on(&op, &tensors, &operands, &Type::new(DType::S32, &[out]), Bound::Exact);
    }
    finish();
}

/// Functions that use values which do not exist, or give another type, are refused, and so are captured tensors.
#[test]
fn wrong_functions_are_errors() {
    let step = |args: &[u16]| ScalarStep {
        op: Scalars::Elementwise(Elementwise::Unary(Unary::Negate)),
        args: SmallVec::from_slice(args),
        out: DType::F32,
    };
    let (a, out) = (Type::new(DType::F32, &[4]), Type::new(DType::F32, &[]));
    let ones = |ty: &Type| Array::new(ty, std::iter::repeat_n(Value::Int(1), ty.elements() as usize));
    for (steps, result, captured) in [
        (vec![step(&[2])], 2, vec![]),
        (vec![step(&[0, 1])], 2, vec![]),
        (vec![step(&[1])], 3, vec![]),
        (vec![step(&[1])], 2, vec![a.clone()]),
    ] {
        let op = Op::Fold { axes: Axes::from_slice(&[0]), function: Box::new(Function { steps, result }) };
        let operands: Vec<_> = [a.clone(), out.clone()].iter().chain(&captured).map(|t| upload(&ones(t))).collect();
        assert!(run(&op, &operands, &out).is_err());
    }
    finish();
}

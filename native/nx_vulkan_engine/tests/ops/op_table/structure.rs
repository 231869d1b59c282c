//! Ops with a structure of their own: constants, moves, and whole programs.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::index::IndexedPut;
use nx_vulkan_engine::program::ops::moved::{Pad, Reverse};
use nx_vulkan_engine::program::{Binary, Instruction, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Tensor, Type, Value};
use smallvec::{SmallVec, smallvec};

use super::values::{Range, operand};
use super::{download, finish, rng, run, upload, verify};
use crate::compare::{Bound, epsilon, mismatch};

fn axes(axes: &[usize]) -> Axes {
    Axes::from_slice(axes)
}

/// One type of each width, and the packed ones.
const WIDTHS: [DType; 7] = [DType::S2, DType::U4, DType::S8, DType::F16, DType::S32, DType::F64, DType::C128];

#[test]
fn constants() {
    let one = 2f64.powi(-52) + 1.0;
    for dtype in DType::ALL {
        for value in [
            Scalar::Int(0),
            Scalar::Int(-3),
            Scalar::Int(i64::MAX.into()),
            Scalar::Int(u64::MAX.into()),
            // Ties for the narrow floats, and next to ties, also where f32 would round first.
            Scalar::Int((1 << 40) + (1 << 16) + 1),
            Scalar::Float(-0.0),
            Scalar::Float(0.1),
            Scalar::Float(-1e6),
            Scalar::Float(1e300),
            Scalar::Float(1e-40),
            Scalar::Float(1.0 + 2f64.powi(-11)),
            Scalar::Float((1.0 + 2f64.powi(-11)) * one),
            Scalar::Float((1.0 + 2f64.powi(-8)) * one),
            Scalar::Float((1.0 + 2f64.powi(-4)) * one),
            Scalar::Float(f64::INFINITY),
            Scalar::Float(f64::NEG_INFINITY),
            Scalar::Float(f64::NAN),
            Scalar::Complex(-0.5, 2.25),
        ] {
            verify(&Op::Constant(value), &[], &Type::new(dtype, &[2, 3]), Bound::Exact);
        }
    }
    finish();
}

#[test]
fn iota_and_eye() {
    for dtype in DType::ALL {
        verify(&Op::Iota { axis: None }, &[], &Type::new(dtype, &[3, 100]), Bound::Exact);
        verify(&Op::Iota { axis: Some(1) }, &[], &Type::new(dtype, &[2, 5, 3]), Bound::Exact);
        verify(&Op::Eye, &[], &Type::new(dtype, &[2, 3, 5]), Bound::Exact);
    }
    finish();
}

#[test]
fn bitcasts() {
    let mut rng = rng(31);
    for from in DType::ALL {
        for to in DType::ALL.into_iter().filter(|to| to.bits() == from.bits()) {
            let a = operand(&Type::new(from, &[64]), Range::Ordinary, 2, &mut rng);
            verify(&Op::Bitcast, &[a], &Type::new(to, &[64]), Bound::Exact);
        }
    }
    finish();
}

#[test]
fn moves_of_all_widths() {
    let mut rng = rng(32);
    for dtype in WIDTHS {
        let mut array = |shape: &[u64]| operand(&Type::new(dtype, shape), Range::All, 2, &mut rng);
        let out = |shape: &[u64]| Type::new(dtype, shape);
        let a = array(&[4, 35, 6]);
        let index = |i: i64| Array::new(&Type::new(DType::S64, &[]), [Value::Int(i.into())]);
        for (op, operands, shape) in [
            (Op::Transpose { axes: axes(&[2, 0, 1]) }, vec![a.clone()], &[6, 4, 35][..]),
            (Op::Transpose { axes: axes(&[0, 2, 1]) }, vec![a.clone()], &[4, 6, 35]),
            (Op::Reshape, vec![a.clone()], &[7, 120]),
            (Op::Squeeze, vec![array(&[1, 5, 1, 3])], &[5, 3]),
            (Op::After, vec![a.clone(), index(2)], &[4, 35, 6]),
            (Op::Broadcast { axes: axes(&[0, 2]) }, vec![array(&[3, 1])], &[3, 4, 5]),
            (Op::from(Reverse { axes: axes(&[1]) }), vec![a.clone()], &[4, 35, 6]),
            (
                Op::Slice {
                    starts: smallvec![None, Some(-4), None],
                    strides: smallvec![1, 3, 2],
                    lengths: smallvec![2, 20, 5],
                },
                vec![a.clone(), index(-7), index(9)],
                &[2, 7, 3],
            ),
            (
                Op::PutSlice { starts: smallvec![Some(1), None, Some(100)] },
                vec![a.clone(), array(&[2, 11, 4]), index(13)],
                &[4, 35, 6],
            ),
            (
                Op::from(Pad { config: smallvec![(1, -2, 2), (-3, 4, 0), (0, 0, 1)] }),
                vec![a.clone(), array(&[])],
                &[9, 36, 11],
            ),
            (
                Op::from(Pad { config: smallvec![(-2, -2, 0), (0, 0, 0), (1, 0, 0)] }),
                vec![a.clone(), array(&[])],
                &[0, 35, 7],
            ),
            (
                Op::from(Pad { config: smallvec![(-3, -2, 1), (0, 0, 0), (0, 0, 0)] }),
                vec![a.clone(), array(&[])],
                &[2, 35, 6],
            ),
            (Op::Concatenate { axis: 1 }, vec![a.clone(), array(&[4, 1, 6]), array(&[4, 5, 6])], &[4, 41, 6]),
            (Op::Concatenate { axis: 0 }, vec![array(&[257]), array(&[3])], &[260]),
            (Op::Stack { axis: 0 }, vec![array(&[5, 3]), array(&[5, 3])], &[2, 5, 3]),
            (Op::Stack { axis: 2 }, vec![array(&[5, 3]), array(&[5, 3]), array(&[5, 3])], &[5, 3, 3]),
        ] {
            // Nx has no empty tensors.
            if shape.iter().all(|&n| n > 0) {
                verify(&op, &operands, &out(shape), Bound::Exact);
            }
        }
    }
    finish();
}

/// Starts that are operands stay on the device and are clamped there, whatever their type.
#[test]
fn windows_begin_where_operands_say() {
    let mut rng = rng(34);
    let integers = DType::ALL.into_iter().filter(|dtype| dtype.is_integer());
    for dtype in integers {
        for start in [-9i128, -1, 0, 2, 3, 7, 100, i128::from(u64::MAX), i128::from(i64::MIN)] {
            let bits = dtype.bits();
            let fits = if dtype.is_signed() { -(1 << (bits - 1))..1 << (bits - 1) } else { 0..1 << bits };
            if !fits.contains(&start) {
                continue;
            }
            let index = || Array::new(&Type::new(dtype, &[]), [Value::Int(start)]);
            let mut array = |shape: &[u64]| operand(&Type::new(DType::F32, shape), Range::All, 2, &mut rng);
            let slice = Op::Slice {
                starts: smallvec![None, Some(1), None],
                strides: smallvec![1, 1, 2],
                lengths: smallvec![3, 2, 5],
            };
            verify(&slice, &[array(&[6, 4, 9]), index(), index()], &Type::new(DType::F32, &[3, 2, 3]), Bound::Exact);
            let put = Op::PutSlice { starts: smallvec![None, Some(1), None] };
            let operands = [array(&[6, 4, 9]), array(&[3, 2, 9]), index(), index()];
            verify(&put, &operands, &Type::new(DType::F32, &[6, 4, 9]), Bound::Exact);
        }
    }
    for dtype in WIDTHS {
        let mut array = |shape: &[u64]| operand(&Type::new(dtype, shape), Range::All, 2, &mut rng);
        let index = |i: i128| Array::new(&Type::new(DType::S32, &[]), [Value::Int(i)]);
        let slice = Op::Slice { starts: smallvec![None, None], strides: smallvec![1, 1], lengths: smallvec![70, 33] };
        verify(&slice, &[array(&[300, 70]), index(120), index(50)], &Type::new(dtype, &[70, 33]), Bound::Exact);
        let put = Op::PutSlice { starts: smallvec![None, None] };
        let operands = [array(&[300, 70]), array(&[70, 33]), index(120), index(50)];
        verify(&put, &operands, &Type::new(dtype, &[300, 70]), Bound::Exact);
    }
    finish();
}

#[test]
fn moves_that_cast() {
    let mut rng = rng(33);
    let mut array = |dtype, shape: &[u64]| operand(&Type::new(dtype, shape), Range::All, 2, &mut rng);
    for (op, operands, out) in [
        (
            Op::Concatenate { axis: 0 },
            vec![array(DType::S32, &[3, 2]), array(DType::F32, &[1, 2])],
            Type::new(DType::F32, &[4, 2]),
        ),
        (
            Op::Stack { axis: 1 },
            vec![array(DType::U8, &[30]), array(DType::S8, &[30])],
            Type::new(DType::S16, &[30, 2]),
        ),
        (
            Op::from(Pad { config: smallvec![(1, 1, 0)] }),
            vec![array(DType::S64, &[30]), array(DType::F16, &[])],
            Type::new(DType::F16, &[32]),
        ),
        (
            Op::PutSlice { starts: smallvec![Some(2)] },
            vec![array(DType::F64, &[30]), array(DType::S8, &[20])],
            Type::new(DType::F64, &[30]),
        ),
        (
            Op::from(IndexedPut { axes: axes(&[0]) }),
            vec![
                array(DType::F32, &[30]),
                Array::new(&Type::new(DType::U8, &[2, 1]), [3, 9].map(Value::Int)),
                array(DType::S32, &[2]),
            ],
            Type::new(DType::F32, &[30]),
        ),
    ] {
        verify(&op, &operands, &out, Bound::Exact);
    }
    finish();
}

/// A dense layer with its loss: x w + b, tanh, differences to a target, their squares, the mean.
fn layer(dtype: DType) -> Program {
    let ty = |shape: &[u64]| Type::new(dtype, shape);
    let step = |op, operands: &[Operand], shape: &[u64]| Instruction {
        op,
        operands: SmallVec::from_slice(operands),
        outs: smallvec![ty(shape)],
    };
    let dot = Op::Dot { contract_a: axes(&[1]), batch_a: axes(&[]), contract_b: axes(&[0]), batch_b: axes(&[]) };
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: axes(&[0, 1]), tie_high: false };
    let (input, result) = (Operand::Input, Operand::Result);
    Program {
        inputs: vec![ty(&[9, 20]), ty(&[20, 7]), ty(&[7]), ty(&[7, 9])],
        instructions: vec![
            step(dot, &[input(0), input(1)], &[9, 7]),
            step(Op::Binary(Binary::Add), &[result(0), input(2)], &[9, 7]),
            step(Op::Unary(Unary::Tanh), &[result(1)], &[9, 7]),
            step(Op::Transpose { axes: axes(&[1, 0]) }, &[input(3)], &[9, 7]),
            step(Op::Binary(Binary::Subtract), &[result(2), result(3)], &[9, 7]),
            step(Op::Binary(Binary::Multiply), &[result(4), result(4)], &[9, 7]),
            step(sum, &[result(5)], &[]),
            step(Op::Constant(Scalar::Int(63)), &[], &[]),
            step(Op::Binary(Binary::Divide), &[result(6), result(7)], &[]),
        ],
        outputs: vec![result(8), result(2)],
    }
}

#[test]
fn programs_of_several_instructions() {
    let mut rng = rng(34);
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::C64] {
        let program = layer(dtype);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| operand(ty, Range::Ordinary, 0, &mut rng)).collect();
        let expected = reference::run(&program, &inputs).unwrap();
        let tensors: Vec<Tensor> = inputs.iter().map(upload).collect();
        let mut results: Vec<Tensor> = Vec::new();
        let find = |results: &[Tensor], operand: Operand| match operand {
            Operand::Input(i) => tensors[i as usize].clone(),
            Operand::Result(i) => results[i as usize].clone(),
        };
        for instruction in &program.instructions {
            let operands: Vec<Tensor> = instruction.operands.iter().map(|&o| find(&results, o)).collect();
            results.push(run(&instruction.op, &operands, &instruction.outs[0]).unwrap());
        }
        // tanh of sums of 20 products, where complex tanh is steep near its poles.
        let slack = if dtype.is_complex() { 1e4 } else { 100.0 };
        let bound = Bound::Norm { relative: slack * epsilon(dtype), absolute: slack * epsilon(dtype) };
        for (&output, want) in program.outputs.iter().zip(expected) {
            let got = download(&find(&results, output));
            assert_eq!(mismatch(&got, std::slice::from_ref(&want), bound), None, "{dtype}: {got:?}, not {want:?}");
        }
    }
    finish();
}

//! Random programs that one workgroup runs, against the reference.

use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::{Binary, Builder, Loop, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Tensor, Type, Value};
use smallvec::smallvec;

use super::programs::{INDEX_COUNT, random_program};
use super::values::{Range, operand};
use super::{all_results, download, finish, rng, seed, upload};
use crate::common::Rng;
use crate::compare::{Bound, mismatch};

fn output_types(program: &Program) -> Vec<Type> {
    program.outputs.iter().map(|&o| program.type_of(o).unwrap().clone()).collect()
}

/// Runs a program in one workgroup on the device.
fn run(program: &Program, inputs: &[Array]) -> Vec<Array> {
    let tensors: Vec<Tensor> = inputs.iter().map(upload).collect();
    run_on(program, &tensors)
}

fn run_on(program: &Program, inputs: &[Tensor]) -> Vec<Array> {
    let op = Op::Workgroup(Box::new(program.clone()));
    let results = all_results(&op, inputs, &output_types(program)).unwrap();
    results.iter().map(download).collect()
}

#[test]
fn random_programs_of_integers() {
    const PROGRAMS: usize = 60;
    let mut rng = rng(60);
    for number in 0..PROGRAMS {
        let mut program = random_program(&mut rng);
        let count = program.instructions.len() as u32;
        // All results or the last few: then others are never kept.
        let from = if number % 2 == 0 { 0 } else { count - 2 };
        program.outputs = (from..count).map(Operand::Result).collect();
        let mut inputs: Vec<Array> =
            program.inputs.iter().map(|ty| operand(ty, Range::Ordinary, 0, &mut rng)).collect();
        inputs[2] = Array::new(&program.inputs[2], (0..INDEX_COUNT).map(|_| Value::Int(rng.below(7).into())));
        let expected = reference::run(&program, &inputs).unwrap();
        let got = run(&program, &inputs);
        for (k, (got, want)) in got.iter().zip(&expected).enumerate() {
            let wrong = mismatch(got, std::slice::from_ref(want), Bound::Exact);
            assert_eq!(wrong, None, "program {number}, seed {}, output {k} of {program:#?}", seed());
        }
    }
    finish();
}

/// A program of floats: functions, sums of all sizes, products, values that many read.
fn random_floats(dtype: DType, rng: &mut Rng) -> Program {
    let maker = Builder::new();
    let (rows, columns) = (1 + rng.below(24), 1 + rng.below(600));
    let a = maker.input(dtype, &[rows, columns]);
    let b = maker.input(dtype, &[columns]);
    let mut values = vec![a, b];
    let mut outputs = vec![];
    for _ in 0..14 {
        let x = values[rng.below(values.len() as u64) as usize];
        let ty = maker.ty(x);
        let rank = ty.shape.len();
        let made = match rng.below(10) {
            0 => maker.unary(Unary::Tanh, x),
            1 => {
                let x = maker.unary(Unary::Sin, x);
                maker.unary(Unary::Exp, x)
            }
            2 | 3 => {
                let y = values[rng.below(values.len() as u64) as usize];
                let (p, q) = (maker.ty(x), maker.ty(y));
                let fits =
                    p.shape == q.shape || q.elements() == 1 || q.shape.len() == 1 && p.shape.last() == q.shape.last();
                if !fits {
                    continue;
                }
                let sum = maker.binary(if rng.below(2) == 0 { Binary::Add } else { Binary::Multiply }, x, y);
                maker.unary(Unary::Sigmoid, sum)
            }
            4 if rank > 0 => {
                let axis = rng.below(rank as u64) as usize;
                let reduction = if rng.below(2) == 0 { Reduction::Sum } else { Reduction::Max };
                maker.reduce(reduction, x, &[axis], false)
            }
            5 if rank > 0 => {
                let axes: Vec<usize> = (0..rank).collect();
                let sum = maker.reduce(Reduction::Sum, x, &axes, false);
                maker.unary(Unary::Tanh, sum)
            }
            6 if rank == 2 && ty.shape[1] == columns => {
                let op = Op::Dot {
                    contract_a: smallvec![1],
                    batch_a: Axes::new(),
                    contract_b: smallvec![0],
                    batch_b: Axes::new(),
                };
                let product = maker.push(op, &[x, b], &Type::new(dtype, &[ty.shape[0]]));
                maker.unary(Unary::Tanh, product)
            }
            // Rows that are told apart, read together and alone.
            8 if rank > 0 => {
                let y = values.iter().rev().copied().find(|&y| y != x && maker.ty(y) == ty).unwrap_or(x);
                let axis = rng.below(rank as u64 + 1) as usize;
                let shape: Vec<u64> = [&ty.shape[..axis], &[3], &ty.shape[axis..]].concat();
                let rows = maker.push(Op::Stack { axis }, &[x, y, x], &Type::new(dtype, &shape));
                let high = maker.reduce(Reduction::Max, rows, &[axis], false);
                let kept = Type::new(dtype, &[&ty.shape[..axis], &[1], &ty.shape[axis..]].concat());
                let high = maker.push(Op::Reshape, &[high], &kept);
                let apart = maker.binary(Binary::Subtract, rows, high);
                let parts = maker.unary(Unary::Exp, apart);
                let sum = maker.reduce(Reduction::Sum, parts, &[axis], false);
                let start = rng.below(2);
                let at =
                    |there: u64, elsewhere: u64| (0..=rank).map(move |i| if i == axis { there } else { elsewhere });
                let length: Vec<u64> = (0..=rank).map(|i| if i == axis { 1 + start } else { shape[i] }).collect();
                let window = Op::Slice {
                    starts: at(start, 0).map(|start| Some(start as i64)).collect(),
                    strides: at(1, 1).collect(),
                    lengths: length.iter().copied().collect(),
                };
                let some = maker.push(window, &[parts], &Type::new(dtype, &length));
                let some = maker.reduce(Reduction::Sum, some, &[axis], false);
                maker.binary(Binary::Divide, some, sum)
            }
            // Scalars of one op, which are computed side by side.
            9 if rank > 0 => {
                let axes: Vec<usize> = (0..rank).collect();
                let sums: Vec<Operand> = [Reduction::Max, Reduction::Min, Reduction::Sum]
                    .into_iter()
                    .map(|reduction| maker.reduce(reduction, x, &axes, false))
                    .map(|sum| maker.unary(Unary::Tanh, sum))
                    .map(|sum| maker.unary(Unary::Exp, sum))
                    .collect();
                let some = maker.binary(Binary::Divide, sums[0], sums[1]);
                maker.binary(Binary::Add, some, sums[2])
            }
            7 if rank == 2 => {
                let out = [ty.shape[1], ty.shape[0]];
                maker.push(Op::Transpose { axes: smallvec![1, 0] }, &[x], &Type::new(dtype, &out))
            }
            _ => continue,
        };
        values.push(made);
        if rng.below(3) == 0 {
            outputs.push(made);
        }
    }
    outputs.extend(values.last().filter(|last| !outputs.contains(last) && matches!(last, Operand::Result(_))));
    maker.finish(&outputs).unwrap()
}

#[test]
fn random_programs_of_floats() {
    let mut rng = rng(61);
    for number in 0..30 {
        let dtype = if number % 3 == 2 { DType::F64 } else { DType::F32 };
        let program = random_floats(dtype, &mut rng);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| operand(ty, Range::Ordinary, 0, &mut rng)).collect();
        let expected = reference::run(&program, &inputs).unwrap();
        let got = run(&program, &inputs);
        assert_eq!(got, run(&program, &inputs), "program {number} twice");
        // Each op errs by a rounding or two; sums of 14400 values of up to 2.5 keep that relative to their terms.
        let epsilon = if dtype == DType::F64 { 1e-14 } else { 1e-5 };
        let bound = Bound::Norm { relative: epsilon * 10.0, absolute: epsilon };
        for (k, (got, want)) in got.iter().zip(&expected).enumerate() {
            let wrong = mismatch(got, std::slice::from_ref(want), bound);
            let at = wrong.map(|(i, _)| (got.values[i], want.values[i]));
            assert_eq!(wrong, None, "{at:?}, program {number}, seed {}, output {k} of {program:#?}", seed());
        }
    }
    finish();
}

/// A sum of few elements is read while a long one of the next phase must not yet be written.
#[test]
fn short_and_long_sums_side_by_side() {
    let mut rng = rng(67);
    let maker = Builder::new();
    let (a, b) = (maker.input(DType::F32, &[2]), maker.input(DType::F32, &[200]));
    let total = |x: Operand| maker.reduce(Reduction::Sum, x, &[0], false);
    let (short, long) = (total(maker.unary(Unary::Tanh, a)), total(maker.unary(Unary::Sigmoid, b)));
    let scaled = maker.binary(Binary::Multiply, b, short);
    let last = total(maker.unary(Unary::Sin, scaled));
    let program = maker.finish(&[short, long, last]).unwrap();
    let inputs: Vec<Array> = program.inputs.iter().map(|ty| operand(ty, Range::Ordinary, 0, &mut rng)).collect();
    let expected = reference::run(&program, &inputs).unwrap();
    let bound = Bound::Norm { relative: 1e-4, absolute: 1e-5 };
    for (got, want) in run(&program, &inputs).iter().zip(&expected) {
        assert_eq!(mismatch(got, std::slice::from_ref(want), bound), None, "{got:?}, not {want:?}");
    }
    finish();
}

#[test]
fn inputs_are_views() {
    let mut rng = rng(63);
    let maker = Builder::new();
    let a = maker.input(DType::S16, &[6, 4]);
    let b = maker.input(DType::S16, &[6, 4]);
    let c = maker.input(DType::S16, &[6, 4]);
    let difference = maker.subtract(a, b);
    let sum = maker.add(difference, c);
    let last = maker.push(Op::from(Reverse { axes: smallvec![1] }), &[c], &Type::new(DType::S16, &[6, 4]));
    let program = maker.finish(&[sum, last]).unwrap();
    let base = operand(&Type::new(DType::S16, &[4, 6]), Range::Ordinary, 0, &mut rng);
    let row = operand(&Type::new(DType::S16, &[8]), Range::Ordinary, 0, &mut rng);
    let (base, row) = (upload(&base), upload(&row));
    let view = |t: &Tensor, view| Tensor::new(t.buffer().clone(), view).unwrap();
    let transposed = base.view().transpose(&[1, 0]).unwrap();
    let reversed = transposed.reverse(&[0, 1]).unwrap();
    let part = row.view().slice(&[1], &[7], &[2]).unwrap().broadcast_trailing(&[6, 4]).unwrap();
    let tensors = [view(&base, transposed), view(&base, reversed), view(&row, part)];
    let inputs: Vec<Array> = tensors.iter().map(download).collect();
    assert_eq!(run_on(&program, &tensors), reference::run(&program, &inputs).unwrap());
    finish();
}

/// A chain of values, each of which is an operand of the next.
#[test]
fn long_programs() {
    let mut rng = rng(64);
    let maker = Builder::new();
    let a = maker.input(DType::S32, &[5]);
    let mut x = a;
    for _ in 0..1500 {
        x = maker.add(x, a);
    }
    let program = maker.finish(&[x]).unwrap();
    let input = operand(&program.inputs[0], Range::Ordinary, 0, &mut rng);
    assert_eq!(run(&program, std::slice::from_ref(&input)), reference::run(&program, &[input]).unwrap());
    finish();
}

/// A loop: x -> tanh(m x + b) while i < n, and the sum of what it met.
fn recurrence(size: u64, steps: i64) -> Program {
    let state = |maker: &Builder| {
        let i = maker.input(DType::S32, &[]);
        let x = maker.input(DType::F32, &[size]);
        let total = maker.input(DType::F32, &[]);
        let m = maker.input(DType::F32, &[size, size]);
        let n = maker.input(DType::S32, &[]);
        (i, x, total, m, n)
    };
    let condition = Builder::new();
    let (i, .., n) = state(&condition);
    let less = condition.binary(Binary::Less, i, n);
    let condition = condition.finish(&[less]).unwrap();
    let body = Builder::new();
    let (i, x, total, m, _) = state(&body);
    let one = body.push(Op::Constant(Scalar::Int(1)), &[], &Type::new(DType::S32, &[]));
    let next = body.binary(Binary::Add, i, one);
    let op = Op::Dot { contract_a: smallvec![1], batch_a: Axes::new(), contract_b: smallvec![0], batch_b: Axes::new() };
    let product = body.push(op, &[m, x], &Type::new(DType::F32, &[size]));
    let reversed = body.push(Op::from(Reverse { axes: smallvec![0] }), &[x], &Type::new(DType::F32, &[size]));
    let sum = body.binary(Binary::Add, product, reversed);
    let y = body.unary(Unary::Tanh, sum);
    let met = body.reduce(Reduction::Sum, y, &[0], false);
    let total = body.binary(Binary::Add, total, met);
    let body = body.finish(&[next, y, total]).unwrap();
    let whole = Builder::new();
    let x = whole.input(DType::F32, &[size]);
    let m = whole.input(DType::F32, &[size, size]);
    let zero = whole.push(Op::Constant(Scalar::Int(0)), &[], &Type::new(DType::S32, &[]));
    let n = whole.push(Op::Constant(Scalar::Int(steps.into())), &[], &Type::new(DType::S32, &[]));
    let none = whole.number(DType::F32, 0.0);
    let outs = [Type::new(DType::S32, &[]), Type::new(DType::F32, &[size]), Type::new(DType::F32, &[])];
    let last = whole.push_all(Op::While(Box::new(Loop::new(condition, body))), &[zero, x, none, m, n], &outs);
    let doubled = whole.add(last[1], last[2]);
    whole.finish(&[&last[..], &[doubled]].concat()).unwrap()
}

#[test]
fn loops() {
    let mut rng = rng(62);
    for (size, steps) in [(1, 3), (5, 0), (8, 7), (33, 5), (70, 40)] {
        let program = recurrence(size, steps);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| operand(ty, Range::Ordinary, 0, &mut rng)).collect();
        // Contractions, so that roundings don't grow.
        let scale = 0.2 / size as f64;
        let small = inputs[1].values.iter().map(|v| Value::Float(v.real() * scale));
        let inputs = [inputs[0].clone(), Array::new(&program.inputs[1], small.collect::<Vec<_>>())];
        let expected = reference::run(&program, &inputs).unwrap();
        let got = run(&program, &inputs);
        for (k, (got, want)) in got.iter().zip(&expected).enumerate() {
            let bound = Bound::Norm { relative: 1e-5, absolute: 1e-5 };
            assert_eq!(
                mismatch(got, std::slice::from_ref(want), bound),
                None,
                "size {size}, output {k}: {got:?} {want:?}"
            );
        }
    }
    finish();
}

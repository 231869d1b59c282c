//! Loops and runs of small ops that become kernels of one workgroup.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Loop, Op, Program, Reduction, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, DeviceKind, Type, Value, value};

use super::known::ops;
use super::{difference, graphs, run};
use crate::common::Rng;
use crate::models;

fn target(kind: DeviceKind) -> Target {
    nx_vulkan_engine::tuning::target::of(kind, 1024, false)
}

/// Sums of sines while a counter, from 0 by 2, is below the third operand: a captured number, or a constant.
fn counting(size: u64, end: Option<i64>) -> Program {
    let inputs = |m: &Builder| (m.input(DType::S32, &[]), m.input(DType::F32, &[size]), m.input(DType::S32, &[]));
    let condition = Builder::new();
    let (i, _, n) = inputs(&condition);
    let less = condition.binary(Binary::Less, i, n);
    let condition = condition.finish(&[less]).unwrap();
    let body = Builder::new();
    let (i, x, _) = inputs(&body);
    let two = body.push(Op::Constant(Scalar::Int(2)), &[], &Type::new(DType::S32, &[]));
    let next = body.add(i, two);
    let sine = body.unary(Unary::Sin, x);
    let all = body.sum(sine, &[0]);
    let small = body.multiply(all, 1e-3);
    let x = body.subtract(x, small);
    let body = body.finish(&[next, x]).unwrap();
    let whole = Builder::new();
    let x = whole.input(DType::F32, &[size]);
    let captured = whole.input(DType::S32, &[]);
    let zero = whole.push(Op::Constant(Scalar::Int(0)), &[], &Type::new(DType::S32, &[]));
    let end =
        end.map_or(captured, |end| whole.push(Op::Constant(Scalar::Int(end.into())), &[], &Type::new(DType::S32, &[])));
    let op = Op::While(Box::new(Loop::new(condition, body)));
    let last = whole.push_all(op, &[zero, x, end], &[Type::new(DType::S32, &[]), Type::new(DType::F32, &[size])]);
    whole.finish(&last).unwrap()
}

/// Checks what ops are left, and the results within `tolerance` of the reference.
fn check(program: &Program, kind: DeviceKind, left: &[&str], inputs: &[Array], tolerance: f64) {
    let optimized = optimize(program.clone(), &target(kind)).unwrap();
    assert_eq!(ops(&optimized), left, "{optimized}");
    let expected = reference::run(program, inputs).unwrap();
    assert_eq!(reference::run(&optimized, inputs).unwrap(), expected);
    for (got, want) in run(&optimized, inputs).iter().zip(&expected) {
        for (x, y) in got.values.iter().zip(&want.values) {
            let scale = y.real().abs().max(1.0);
            assert!((x.real() - y.real()).abs() <= tolerance * scale, "{x:?}, not {y:?}, of {optimized}");
        }
    }
}

fn inputs(program: &Program, end: i32) -> Vec<Array> {
    let mut rng = Rng(31);
    let x = graphs::values(&program.inputs[0], &mut rng);
    let ordinary = |x: f64| if x.is_nan() { 0.5 } else { x.clamp(-2.0, 2.0) };
    let x = Array::new(&x.ty, x.values.iter().map(|v| Value::Float(ordinary(v.real()))));
    vec![x, Array::new(&program.inputs[1], [Value::Int(end.into())])]
}

#[test]
fn loops_that_count_to_a_constant_are_one_kernel() {
    for (size, end) in [(1, 9), (40, 11), (300, 0)] {
        let program = counting(size, Some(end));
        check(&program, DeviceKind::Cpu, &["workgroup"], &inputs(&program, 0), 1e-4);
    }
}

#[test]
fn other_loops_run_in_blocks() {
    let program = counting(40, None);
    for end in [0, 1, 25] {
        check(&program, DeviceKind::Discrete, &["while"], &inputs(&program, end), 1e-4);
    }
    let optimized = optimize(program, &target(DeviceKind::Discrete)).unwrap();
    let Op::While(op) = &optimized.instructions.last().unwrap().op else { panic!("{optimized}") };
    assert_eq!(ops(&op.body), ["workgroup"]);
}

/// More iterations than one block takes: lavapipe's blocks of this body take some thousands.
#[test]
fn blocks_go_on_where_the_last_one_ended() {
    let program = counting(300, None);
    let optimized = optimize(program.clone(), &target(DeviceKind::Cpu)).unwrap();
    let inputs = inputs(&program, 30_001);
    let got = run(&optimized, &inputs);
    assert_eq!(got[0].values, [Value::Int(30_002)]);
}

#[test]
fn small_log_densities_are_one_kernel() {
    let mut rng = Rng(32);
    let number = |x: f64| Value::Float(x);
    for (program, tolerance) in [
        (models::eight_schools(DType::F64), 1e-12),
        (models::regime(DType::F32, 60), 1e-4),
        (models::normals(DType::F32, 5), 1e-5),
    ] {
        let inputs: Vec<Array> = program
            .inputs
            .iter()
            .map(|ty| Array::new(ty, (0..ty.elements()).map(|_| number(0.5 + rng.below(1000) as f64 / 1e3))))
            .collect();
        let left: &[&str] = if program.inputs[0].shape[0] == 5 { &[] } else { &["workgroup"] };
        if left.is_empty() {
            // One reduction and what hangs on it is a dispatch or two: not worth it.
            let optimized = optimize(program, &target(DeviceKind::Discrete)).unwrap();
            assert!(!ops(&optimized).contains(&"workgroup"), "{optimized}");
        } else {
            check(&program, DeviceKind::Discrete, left, &inputs, tolerance);
        }
    }
}

/// A norm between products: one kernel of rows, and the product's takes bias and residual in.
#[test]
fn what_fusion_makes_one_kernel_of_needs_no_workgroup() {
    let columns = 768;
    let b = Builder::new();
    let (x, residual) = (b.input(DType::F32, &[1, columns]), b.input(DType::F32, &[1, columns]));
    let (w, bias) = (b.input(DType::F32, &[columns, columns]), b.input(DType::F32, &[columns]));
    let sum = b.add(b.add(b.dot(x, w), bias), residual);
    let mean = |x| b.divide(b.reduce(Reduction::Sum, x, &[1], true), columns as f64);
    let centred = b.subtract(sum, mean(sum));
    let norm = b.multiply(centred, b.rsqrt(b.add(mean(b.multiply(centred, centred)), 1e-5)));
    let next = b.add(sum, b.dot(norm, w));
    let program = b.finish(&[next]).unwrap();
    assert_eq!(ops(&optimize(program.clone(), &target(DeviceKind::Discrete)).unwrap()), ["fused"; 3]);
    let mut rng = Rng(29);
    let small = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|_| Value::Float(rng.below(99) as f64 / 99.0 - 0.5)));
    let inputs: Vec<Array> = program.inputs.iter().map(small).collect();
    check(&program, DeviceKind::Discrete, &["fused"; 3], &inputs, 1e-4);
}

#[test]
fn large_ops_between_small_ones_do_not_part_them() {
    let b = Builder::new();
    let (x, large) = (b.input(DType::F32, &[16, 10]), b.input(DType::F32, &[700, 300]));
    let shifted = b.subtract(x, b.reduce(Reduction::Max, x, &[1], true));
    let decayed = b.exp(b.multiply(large, 0.5));
    let exp = b.exp(shifted);
    let result = b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true));
    let whole = b.multiply(decayed, b.sum(result, &[0, 1]));
    let program = b.finish(&[whole]).unwrap();
    let value = |k: u64| Value::Float((k * 7919 % 4001) as f64 / 2000.0 - 1.0);
    let inputs: Vec<Array> = program.inputs.iter().map(|ty| Array::new(ty, (0..ty.elements()).map(value))).collect();
    check(&program, DeviceKind::Discrete, &["workgroup", "fused"], &inputs, 1e-6);
}

/// NVIDIA's driver 580.159 left the first element of such rows out on an H200, next to an elementary function, where
/// the least was a comparison and a choice.
#[test]
fn extremes_of_negated_integers_leave_none_out() {
    let rows = [[6, 0, 5, -1, 1], [1, 2, -3, 1, -2], [-3, 6, 0, 4, 1]];
    for reduction in [Reduction::Min, Reduction::Max] {
        let b = Builder::new();
        let (x, y) = (b.input(DType::S32, &[3, 1]), b.input(DType::S32, &[3, 5]));
        let extreme = b.reduce(reduction, b.unary(Unary::Negate, y), &[1], true);
        let function = b.push(Op::Unary(Unary::Tanh), &[x], &Type::new(DType::F32, &[3, 1]));
        let any = b.push(
            Op::Reduce { reduction: Reduction::Any, axes: [1].as_slice().into(), tie_high: false },
            &[x],
            &Type::new(DType::U8, &[3]),
        );
        let program = b.finish(&[extreme, function, any]).unwrap();
        let numbers = |values: &[i128]| values.iter().map(|&i| Value::Int(i)).collect::<Vec<_>>();
        let inputs = [
            Array::new(&program.inputs[0], numbers(&[-3, -1, 6])),
            Array::new(&program.inputs[1], numbers(rows.as_flattened())),
        ];
        check(&program, DeviceKind::Discrete, &["workgroup"], &inputs, 1e-6);
    }
}

/// NVIDIA's driver 580.159 gave such kernels up on an H100 where a sign of integers was a choice of three numbers, next
/// to divisions of f64.
#[test]
fn signs_of_integers_stand_beside_divisions_of_f64() {
    for dtype in [DType::S64, DType::S32] {
        let b = Builder::new();
        let x = b.input(dtype, &[3, 1]);
        let root = b.push(Op::Unary(Unary::Cbrt), &[x], &Type::new(DType::F32, &[3, 1]));
        let sum = b.push(Op::Binary(Binary::Add), &[x, b.abs(root)], &Type::new(DType::F32, &[3, 1]));
        let first = b.reduce(Reduction::ArgMax, b.sign(x), &[0], true);
        let any = b.reduce(Reduction::Any, first, &[1], false);
        let program = b.finish(&[sum, any]).unwrap();
        let inputs = [Array::new(&program.inputs[0], [-3, 0, 6].map(Value::Int))];
        check(&program, DeviceKind::Discrete, &["workgroup"], &inputs, 1e-6);
    }
}

/// NVIDIA's driver 580.159 took |-2^63| for 2^63 in such a kernel on an H100.
#[test]
fn magnitudes_of_the_least_integers_stay_negative() {
    for dtype in [DType::S64, DType::S32] {
        let (least, most) = value::range(dtype);
        let b = Builder::new();
        let x = b.input(dtype, &[7, 36]);
        let (function, magnitude) =
            (b.push(Op::Unary(Unary::ErfInv), &[x], &Type::new(DType::F32, &[7, 36])), b.abs(x));
        let sum = b.reshape(b.sum(function, &[0, 1]), &[1]);
        let parts = b.concatenate(&[function, function, magnitude, magnitude, function], 1);
        let chosen = b.select(parts, parts, sum);
        let program = b.finish(&[function, magnitude, chosen]).unwrap();
        let ends = [least, least + 1, -1, 0, 1, most - 1, most];
        let inputs = [Array::new(&program.inputs[0], ends.iter().cycle().take(7 * 36).map(|&i| Value::Int(i)))];
        let optimized = optimize(program.clone(), &target(DeviceKind::Discrete)).unwrap();
        assert_eq!(ops(&optimized), ["workgroup"], "{optimized}");
        for (got, want) in run(&optimized, &inputs).iter().zip(&run(&program, &inputs)) {
            assert_eq!(difference(got, want), None, "{optimized}");
        }
    }
}

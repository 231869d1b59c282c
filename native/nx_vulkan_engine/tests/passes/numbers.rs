//! Integers among floats, and quotients by powers of two.

use nx_vulkan_engine::program::op::Scalar;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Executable, Type, Value};

use crate::common::Rng;
use crate::{difference, download, engine, gpu, graphs, run, upload};

/// Runs the optimized program in all ways, beside the reference and beside ops that get their numbers as tensors.
fn check(program: &Program, by_tensors: &Program, inputs: &[Array], numbers: &[Array]) -> Program {
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    let expected = reference::run(program, inputs).unwrap();
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    let ran = download(&executable.run(&upload(inputs), Compile::Allowed).unwrap());
    let plain = Target { fusion: false, workgroups: false, ..gpu() };
    let all = [inputs, numbers].concat();
    let apart = run(&optimize(by_tensors.clone(), &plain).unwrap(), &all);
    for results in [reference::run(&optimized, inputs).unwrap(), run(&optimized, inputs), ran, apart] {
        for (got, want) in results.iter().zip(&expected) {
            assert_eq!(difference(got, want), None, "{optimized}");
        }
    }
    optimized
}

const OPS: [Binary; 12] = [
    Binary::Add,
    Binary::Subtract,
    Binary::Multiply,
    Binary::Divide,
    Binary::Max,
    Binary::Min,
    Binary::Equal,
    Binary::NotEqual,
    Binary::Less,
    Binary::LessEqual,
    Binary::Greater,
    Binary::GreaterEqual,
];

/// Each op with the number on its right and on its left, where `number` makes it.
fn both_sides(dtype: DType, number: &dyn Fn(&Builder) -> Operand) -> Program {
    let b = Builder::new();
    let x = b.input(dtype, &[5, 37]);
    let number = number(&b);
    let mut results: Vec<Operand> =
        OPS.iter().flat_map(|&op| [b.binary(op, x, number), b.binary(op, number, x)]).collect();
    results.push(b.select(b.greater(x, 0.5), x, number));
    let clipped = b.push(Op::Clip, &[x, number, number], &Type::new(dtype, &[5, 37]));
    results.push(clipped);
    b.finish(&results).unwrap()
}

#[test]
fn integers_among_floats_are_floats() {
    let mut rng = Rng(81);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
        for number in [0i128, 1, 2, -3, 100, 16_777_216] {
            let constant = |b: &Builder| b.push(Op::Constant(Scalar::Int(number)), &[], &Type::new(DType::S32, &[]));
            let program = both_sides(dtype, &constant);
            let by_tensors = both_sides(dtype, &|b| b.input(DType::S32, &[]));
            let inputs = [graphs::values(&program.inputs[0], &mut rng)];
            let numbers = [Array::new(&by_tensors.inputs[1], [Value::Int(number)])];
            let optimized = check(&program, &by_tensors, &inputs, &numbers).to_string();
            let is_held = number < 1000 || dtype != DType::F16;
            assert_eq!(!optimized.contains("value=Int"), is_held, "{dtype} {number}: {optimized}");
        }
    }
}

#[test]
fn integers_that_floats_do_not_hold_stay() {
    let mut rng = Rng(82);
    for (dtype, number) in [(DType::F32, 16_777_217), (DType::F16, 70_000), (DType::F16, 2049), (DType::Bf16, 257)] {
        let constant = |b: &Builder| b.push(Op::Constant(Scalar::Int(number)), &[], &Type::new(DType::S32, &[]));
        let program = both_sides(dtype, &constant);
        let by_tensors = both_sides(dtype, &|b| b.input(DType::S32, &[]));
        let inputs = [graphs::values(&program.inputs[0], &mut rng)];
        let numbers = [Array::new(&by_tensors.inputs[1], [Value::Int(number)])];
        let optimized = check(&program, &by_tensors, &inputs, &numbers).to_string();
        assert!(optimized.contains(&format!("value=Int({number})")), "{dtype} {number}: {optimized}");
    }
}

#[test]
fn quotients_by_powers_of_two_are_products() {
    let mut rng = Rng(83);
    for dtype in [DType::F32, DType::F64] {
        let quotients = |numbers: [&dyn Fn(&Builder) -> Operand; 2]| {
            let b = Builder::new();
            let x = b.input(dtype, &[301]);
            let [two, eighth] = numbers.map(|number| number(&b));
            let either = b.select(b.greater(x, 0.5), two, eighth);
            let results = [b.divide(x, two), b.divide(x, eighth), b.divide(x, either), b.divide(2.0, x)];
            b.finish(&results).unwrap()
        };
        let program = quotients([&|b| b.number(dtype, 2.0), &|b| b.number(dtype, -0.125)]);
        let input = |b: &Builder| b.input(dtype, &[]);
        let by_tensors = quotients([&input, &input]);
        let mut x = graphs::values(&program.inputs[0], &mut rng);
        for (value, extreme) in x.values.iter_mut().zip([f64::from(f32::MAX), 2f64.powi(-126), -3e-38, 1e38]) {
            *value = Value::Float(extreme).cast(dtype);
        }
        let numbers = [2.0, -0.125].map(|v| Array::new(&Type::new(dtype, &[]), [Value::Float(v)]));
        let optimized = check(&program, &by_tensors, &[x], &numbers).to_string();
        assert_eq!(optimized.matches("divide(").count(), 1, "{optimized}");
    }
}

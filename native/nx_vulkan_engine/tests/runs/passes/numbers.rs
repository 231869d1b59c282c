//! Integers among floats, squares, and quotients by powers of two.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{Compile, DType, Executable, Type, Value};

use super::{difference, download, engine, gpu, graphs, run, upload};
use crate::common::Rng;

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
fn squares_are_products() {
    let mut rng = Rng(85);
    let types = [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::S32, DType::U8, DType::S64];
    for (dtype, exponent) in types.into_iter().flat_map(|dtype| [(dtype, dtype), (dtype, DType::S32)]) {
        let square = |exponent: &dyn Fn(&Builder) -> Operand| {
            let b = Builder::new();
            let x = b.input(dtype, &[5, 37]);
            let two = exponent(&b);
            let squared = b.push(Op::Binary(Binary::Pow), &[x, two], &Type::new(dtype, &[5, 37]));
            b.finish(&[squared]).unwrap()
        };
        let two = if exponent.is_integer() { Scalar::Int(2) } else { Scalar::Float(2.0) };
        let program = square(&|b| b.push(Op::Constant(two), &[], &Type::new(exponent, &[])));
        let by_tensors = square(&|b| b.input(exponent, &[]));
        let inputs = [graphs::values(&program.inputs[0], &mut rng)];
        let numbers = [Array::new(&by_tensors.inputs[1], [Value::from(two)])];
        let optimized = check(&program, &by_tensors, &inputs, &numbers).to_string();
        assert!(optimized.contains("multiply") && !optimized.contains("pow"), "{dtype} {exponent}: {optimized}");
    }
    // A square of another shape or type than its base, and one of complex numbers, are no products of the base.
    for (dtype, out, shape) in
        [(DType::F32, DType::F64, vec![3]), (DType::C64, DType::C64, vec![3]), (DType::F32, DType::F32, vec![4, 3])]
    {
        let b = Builder::new();
        let x = b.input(dtype, &[3]);
        let two = b.push(Op::Constant(Scalar::Int(2)), &[], &Type::new(DType::U8, &shape));
        let squared = b.push(Op::Binary(Binary::Pow), &[x, two], &Type::new(out, &shape));
        let optimized = optimize(b.finish(&[squared]).unwrap(), &gpu()).unwrap().to_string();
        assert!(optimized.contains("pow"), "{optimized}");
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

/// As gradients of extremes have them: ones and zeros by ones and twos.
#[test]
fn quotients_of_choices_are_choices() {
    let mut rng = Rng(83);
    for dtype in [DType::F32, DType::F64] {
        let b = Builder::new();
        let (x, y, row) = (b.input(dtype, &[7, 43]), b.input(dtype, &[7, 43]), b.input(dtype, &[43]));
        let either = |a: Operand, values: [f64; 2]| {
            let [one, other] = values.map(|value| b.number(dtype, value));
            b.push(Op::Select, &[b.equal(a, 1.0), one, other], &b.ty(a))
        };
        let share = b.divide(either(x, [1.0, 0.0]), either(y, [2.0, 1.0]));
        let third = b.divide(either(row, [1.0, -5.0]), b.number(dtype, 3.0));
        let mixed = b.subtract(either(row, [0.5, -0.0]), either(x, [0.25, 0.0]));
        let lost = b.divide(either(x, [2f64.powi(-126), 1.0]), b.number(dtype, 8.0));
        let program = b.finish(&[share, third, mixed, lost]).unwrap();
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        let optimized = check(&program, &program, &inputs, &[]).to_string();
        // Results that are no normal numbers are left to the device.
        assert_eq!(optimized.matches("divide(").count(), usize::from(dtype == DType::F32), "{optimized}");
        assert_eq!(optimized.matches("subtract(").count(), 0, "{optimized}");
    }
}

/// As in gradients of `select` by one predicate for all elements.
#[test]
fn choices_by_one_predicate_keep_their_shape() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[3, 5]);
    let predicate = b.greater(b.sum(x, &[0, 1]), 0.2);
    let of_all = |value: f64| b.push(Op::Constant(Scalar::Float(value)), &[], &Type::new(DType::F32, &[3, 5]));
    let chosen = b.push(Op::Select, &[predicate, of_all(1.0), of_all(0.5)], &Type::new(DType::F32, &[3, 5]));
    let products = [b.multiply(chosen, 3.0), b.multiply(chosen, x)];
    let program = b.finish(&products).unwrap();
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    let inputs = [graphs::values(&program.inputs[0], &mut Rng(11))];
    for (a, b) in run(&program, &inputs).iter().zip(&run(&optimized, &inputs)) {
        assert_eq!(difference(a, b), None, "{optimized}");
    }
}

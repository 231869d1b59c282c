//! Programs that people write, and how many kernels they take.

use nx_vulkan_engine::program::op::Scalar;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::{DType, Type};

use crate::common::Rng;
use crate::{Build, difference, gpu, graphs, run};

impl Build {
    pub fn number(&mut self, x: f64) -> Operand {
        self.push(Op::Constant(Scalar::Float(x)), &[], DType::F32, &[])
    }

    pub fn binary(&mut self, op: Binary, a: Operand, b: Operand) -> Operand {
        let (x, y) = (self.ty(a), self.ty(b));
        let shape = if x.shape.len() >= y.shape.len() { x.shape } else { y.shape };
        self.push(Op::Binary(op), &[a, b], DType::F32, &shape)
    }

    pub fn unary(&mut self, op: Unary, a: Operand) -> Operand {
        let shape = self.ty(a).shape;
        self.push(Op::Unary(op), &[a], DType::F32, &shape)
    }

    pub fn finish(mut self, outputs: &[Operand]) -> Program {
        self.program.outputs = outputs.to_vec();
        self.program
    }
}

/// The names of the ops that are left, without constants.
pub fn ops(program: &Program) -> Vec<&'static str> {
    let ops = program.instructions.iter().map(|i| i.op.name());
    ops.filter(|&name| name != "constant").collect()
}

/// Checks the kernels of a program, and its results beside those of single ops.
pub fn check(program: &Program, kernels: &[&str], outputs: usize) {
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    assert_eq!(ops(&optimized), kernels, "{optimized}");
    assert_eq!(optimized.outputs.len(), outputs);
    let mut rng = Rng(7);
    let inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
    for (a, b) in run(program, &inputs).iter().zip(&run(&optimized, &inputs)) {
        assert_eq!(difference(a, b), None);
    }
}

#[test]
fn gelu_is_one_kernel() {
    let mut b = Build::default();
    let x = b.input(DType::F32, &[33, 65]);
    let root = b.number(std::f64::consts::FRAC_1_SQRT_2);
    let scaled = b.binary(Binary::Multiply, x, root);
    let erf = b.unary(Unary::Erf, scaled);
    let one = b.number(1.0);
    let cdf = b.binary(Binary::Add, erf, one);
    let half = b.number(0.5);
    let halved = b.binary(Binary::Multiply, cdf, half);
    let result = b.binary(Binary::Multiply, x, halved);
    check(&b.finish(&[result]), &["fused"], 1);
}

#[test]
fn an_adam_step_is_one_kernel_of_three_results() {
    let mut b = Build::default();
    let [p, g, m, v] = [(); 4].map(|()| b.input(DType::F32, &[30, 50]));
    let rate = b.input(DType::F32, &[]);
    let blend = |b: &mut Build, old: Operand, new: Operand, beta: f64| {
        let (kept, added) = (b.number(beta), b.number(1.0 - beta));
        let old = b.binary(Binary::Multiply, old, kept);
        let new = b.binary(Binary::Multiply, new, added);
        b.binary(Binary::Add, old, new)
    };
    let m = blend(&mut b, m, g, 0.9);
    let squared = b.binary(Binary::Multiply, g, g);
    let v = blend(&mut b, v, squared, 0.999);
    let root = b.unary(Unary::Sqrt, v);
    let eps = b.number(1e-8);
    let root = b.binary(Binary::Add, root, eps);
    let direction = b.binary(Binary::Divide, m, root);
    let step = b.binary(Binary::Multiply, direction, rate);
    let p = b.binary(Binary::Subtract, p, step);
    check(&b.finish(&[p, m, v]), &["fused"], 3);
}

#[test]
fn views_between_elementwise_ops_take_no_kernel() {
    let mut b = Build::default();
    let x = b.input(DType::F32, &[6, 10]);
    let y = b.input(DType::F32, &[10, 6]);
    let negated = b.unary(Unary::Negate, x);
    let turned = b.push(Op::Transpose { axes: [1, 0].as_slice().into() }, &[negated], DType::F32, &[10, 6]);
    let sum = b.binary(Binary::Add, turned, y);
    let flat = b.push(Op::Reshape, &[sum], DType::F32, &[60]);
    let result = b.unary(Unary::Exp, flat);
    check(&b.finish(&[result]), &["fused"], 1);
}

#[test]
fn what_is_costly_is_not_repeated() {
    let mut b = Build::default();
    let x = b.input(DType::F32, &[40]);
    let y = b.input(DType::F32, &[30, 40]);
    let costly = b.unary(Unary::Exp, x);
    let result = b.binary(Binary::Add, y, costly);
    let program = b.finish(&[result]);
    check(&program, &["exp", "add"], 1);
    let ty = Type::new(DType::F32, &[30, 40]);
    assert_eq!(program.type_of(program.outputs[0]), Some(&ty));
}

#[test]
fn exact_identities_go_and_others_stay() {
    let mut b = Build::default();
    let x = b.input(DType::F32, &[9]);
    let (zero, one) = (b.number(0.0), b.number(1.0));
    let same = b.binary(Binary::Multiply, x, one);
    let same = b.binary(Binary::Subtract, same, zero);
    let same = b.unary(Unary::Negate, same);
    let same = b.unary(Unary::Negate, same);
    let changed = b.binary(Binary::Add, same, zero);
    let optimized = optimize(b.finish(&[same, changed]), &gpu()).unwrap();
    assert_eq!(optimized.outputs[0], Operand::Input(0));
    assert!(matches!(optimized.instructions.last().unwrap().op, Op::Fused(_)));
}

impl Build {
    /// A reduction over the last axis, which stays with size 1.
    fn row(&mut self, reduction: Reduction, a: Operand) -> Operand {
        let mut shape = self.ty(a).shape;
        let last = shape.len() - 1;
        shape[last] = 1;
        let op = Op::Reduce { reduction, axes: [last].as_slice().into(), tie_high: false };
        self.push(op, &[a], DType::F32, &shape)
    }

    fn mean(&mut self, a: Operand) -> Operand {
        let count = self.ty(a).shape[self.ty(a).shape.len() - 1];
        let sum = self.row(Reduction::Sum, a);
        let share = self.number(1.0 / count as f64);
        self.binary(Binary::Multiply, sum, share)
    }
}

pub fn softmax(shape: &[u64]) -> Program {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape);
    let max = b.row(Reduction::Max, x);
    let shifted = b.binary(Binary::Subtract, x, max);
    let exp = b.unary(Unary::Exp, shifted);
    let sum = b.row(Reduction::Sum, exp);
    let result = b.binary(Binary::Divide, exp, sum);
    b.finish(&[result])
}

pub fn layer_norm(shape: &[u64]) -> Program {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape);
    let [gain, bias] = [(); 2].map(|()| b.input(DType::F32, &shape[shape.len() - 1..]));
    let mean = b.mean(x);
    let centered = b.binary(Binary::Subtract, x, mean);
    let squared = b.binary(Binary::Multiply, centered, centered);
    let variance = b.mean(squared);
    let eps = b.number(1e-5);
    let variance = b.binary(Binary::Add, variance, eps);
    let scale = b.unary(Unary::Rsqrt, variance);
    let scaled = b.binary(Binary::Multiply, centered, scale);
    let scaled = b.binary(Binary::Multiply, scaled, gain);
    let result = b.binary(Binary::Add, scaled, bias);
    b.finish(&[result])
}

#[test]
fn softmax_is_one_kernel() {
    for shape in [[5, 33], [300, 10], [3, 200], [40, 1], [1, 128], [2, 2048], [2, 4096]] {
        check(&softmax(&shape), &["fused"], 1);
    }
}

#[test]
fn layer_norm_is_one_kernel() {
    for shape in [[7, 65], [3, 128]] {
        check(&layer_norm(&shape), &["fused"], 1);
    }
}

#[test]
fn a_mean_of_squared_errors_is_one_reduction() {
    for (shape, kernels) in [([20, 30], vec!["fused"]), ([300, 401], vec!["fused", "fused"])] {
        let mut b = Build::default();
        let (x, y) = (b.input(DType::F32, &shape), b.input(DType::F32, &shape));
        let error = b.binary(Binary::Subtract, x, y);
        let squared = b.binary(Binary::Multiply, error, error);
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: [0, 1].as_slice().into(), tie_high: false };
        let sum = b.push(sum, &[squared], DType::F32, &[]);
        let share = b.number(1.0 / (shape[0] * shape[1]) as f64);
        let mean = b.binary(Binary::Multiply, sum, share);
        check(&b.finish(&[mean]), &kernels, 1);
    }
}

#[test]
fn what_is_reduced_is_computed_on_the_way() {
    // Whole rows, chunks of rows, columns, chunks of columns, and an operand that is turned.
    for (shape, axis) in [([37, 129], 1), ([3, 70_000], 1), ([128, 40], 0), ([20_000, 3], 0), ([9, 256], 1)] {
        let mut b = Build::default();
        let x = b.input(DType::F32, &shape);
        let y = b.input(DType::F32, &[shape[1], shape[0]]);
        let bias = b.input(DType::F32, &[shape[1]]);
        let turned = b.push(Op::Transpose { axes: [1, 0].as_slice().into() }, &[y], DType::F32, &shape);
        let product = b.binary(Binary::Multiply, x, turned);
        let moved = b.binary(Binary::Add, product, bias);
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: [axis].as_slice().into(), tie_high: false };
        let sum = b.push(sum, &[moved], DType::F32, &[shape[1 - axis]]);
        check(&b.finish(&[sum]), &["fused"], 1);
    }
}

#[test]
fn vectors_are_loaded_beside_what_repeats() {
    // Rows of whole vectors and others, with an operand per column and one per row.
    for shape in [[5, 8], [700, 36], [33, 7]] {
        let mut b = Build::default();
        let (x, bias, scale) =
            (b.input(DType::F32, &shape), b.input(DType::F32, &shape[1..]), b.input(DType::F32, &[shape[0], 1]));
        let zero = b.number(0.0);
        let scaled = b.binary(Binary::Multiply, x, scale);
        let sum = b.binary(Binary::Add, scaled, bias);
        let result = b.binary(Binary::Max, sum, zero);
        check(&b.finish(&[result]), &["fused"], 1);
    }
}

#[test]
fn columns_are_normalized_in_one_kernel() {
    let mut b = Build::default();
    let x = b.input(DType::F32, &[21, 70]);
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: [0].as_slice().into(), tie_high: false };
    let sum = b.push(sum, &[x], DType::F32, &[70]);
    let result = b.binary(Binary::Divide, x, sum);
    check(&b.finish(&[result, sum]), &["fused"], 2);
}

#[test]
fn the_logarithm_of_a_sum_of_exponentials_is_one_kernel() {
    let mut b = Build::default();
    let x = b.input(DType::F32, &[9, 50]);
    let max = b.row(Reduction::Max, x);
    let shifted = b.binary(Binary::Subtract, x, max);
    let exp = b.unary(Unary::Exp, shifted);
    let sum = b.row(Reduction::Sum, exp);
    let log = b.unary(Unary::Log, sum);
    let result = b.binary(Binary::Add, log, max);
    check(&b.finish(&[result]), &["fused"], 1);
}

//! Elementwise ops that move into the kernels of products.

use nx_vulkan_engine::program::op::Axes;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Conv, Op, Unary};
use nx_vulkan_engine::{DType, Type};

use crate::gpu;
use crate::known::{check, ops};

fn axes(list: &[usize]) -> Axes {
    Axes::from_slice(list)
}

#[test]
fn a_dense_layer_is_one_kernel() {
    for [rows, depth, columns] in [[9, 20, 7], [40, 600, 44], [1, 700, 16]] {
        let b = Builder::new();
        let (x, w) = (b.input(DType::F32, &[rows, depth]), b.input(DType::F32, &[depth, columns]));
        let bias = b.input(DType::F32, &[columns]);
        let product = b.dot(x, w);
        let sum = b.binary(Binary::Add, product, bias);
        let zero = b.number(DType::F32, 0.0);
        let relu = b.binary(Binary::Max, sum, zero);
        check(&b.finish(&[relu]).unwrap(), &["fused"], 1);
    }
}

#[test]
fn a_gradient_takes_its_mask_in() {
    let b = Builder::new();
    let (g, w) = (b.input(DType::F32, &[12, 10]), b.input(DType::F32, &[24, 10]));
    let h = b.input(DType::F32, &[12, 24]);
    let turned = b.push(Op::Transpose { axes: axes(&[1, 0]) }, &[w], &Type::new(DType::F32, &[10, 24]));
    let product = b.dot(g, turned);
    let zero = b.number(DType::F32, 0.0);
    let mask = b.push(Op::Binary(Binary::Greater), &[h, zero], &Type::new(DType::U8, &[12, 24]));
    let masked = b.push(Op::Binary(Binary::Multiply), &[product, mask], &Type::new(DType::F32, &[12, 24]));
    check(&b.finish(&[masked]).unwrap(), &["transpose", "fused"], 1);
}

#[test]
fn a_gradient_that_is_summed_up_too_is_stored_by_its_product() {
    let b = Builder::new();
    let (g, w) = (b.input(DType::F32, &[12, 10]), b.input(DType::F32, &[10, 24]));
    let (x, h) = (b.input(DType::F32, &[24, 7]), b.input(DType::F32, &[12, 24]));
    let masked = b.multiply(b.dot(g, w), b.as_type(b.greater(h, 0.0), DType::F32));
    let (next, bias) = (b.dot(masked, x), b.multiply(b.sum(masked, &[0]), 0.5));
    check(&b.finish(&[next, bias]).unwrap(), &["fused", "fused", "dot"], 2);
}

#[test]
fn a_large_product_takes_in_no_loop() {
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[600, 8]), b.input(DType::F32, &[8, 600]));
    let product = b.dot(x, w);
    let relu = b.max(b.add(product, 0.5), 0.0);
    let tanh = b.tanh(product);
    let mut program = b.finish(&[relu]).unwrap();
    assert_eq!(ops(&optimize(program.clone(), &gpu()).unwrap()), ["fused"]);
    program.outputs = vec![tanh];
    assert_eq!(ops(&optimize(program, &gpu()).unwrap()), ["dot", "tanh"]);
}

#[test]
fn a_product_gives_its_transpose() {
    for [rows, depth, columns] in [[9, 20, 7], [40, 600, 44], [130, 2100, 36], [1, 700, 16], [300, 40, 3]] {
        let b = Builder::new();
        let (g, x) = (b.input(DType::F32, &[depth, rows]), b.input(DType::F32, &[depth, columns]));
        let w = b.input(DType::F32, &[columns, rows]);
        let dot = |contract_a, contract_b, left, right, shape: &[u64]| {
            let none = || axes(&[]);
            let op = Op::Dot { contract_a, batch_a: none(), contract_b, batch_b: none() };
            b.push(op, &[left, right], &Type::new(DType::F32, shape))
        };
        let turned = b.transpose(dot(axes(&[0]), axes(&[0]), g, x, &[rows, columns]), &[1, 0]);
        let stepped = b.subtract(w, b.multiply(turned, 0.5));
        let mut program = b.finish(&[stepped]).unwrap();
        check(&program, &["fused"], 1);
        program.outputs = vec![turned];
        check(&program, &["dot"], 1);
    }
    let b = Builder::new();
    let (x, y) = (b.input(DType::F32, &[3, 5, 12, 4]), b.input(DType::F32, &[3, 12, 6]));
    let op = Op::Dot { contract_a: axes(&[2]), batch_a: axes(&[0]), contract_b: axes(&[1]), batch_b: axes(&[0]) };
    let product = b.push(op, &[x, y], &Type::new(DType::F32, &[3, 5, 4, 6]));
    let turned = b.transpose(product, &[0, 3, 1, 2]);
    let other = b.transpose(product, &[0, 1, 3, 2]);
    let mut program = b.finish(&[turned]).unwrap();
    check(&program, &["dot"], 1);
    program.outputs = vec![other];
    check(&program, &["dot", "transpose"], 1);
    program.outputs = vec![turned, product];
    check(&program, &["dot", "transpose"], 2);
}

#[test]
fn a_single_op_moves_in_and_a_product_read_twice_stays() {
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[8, 12]), b.input(DType::F32, &[12, 16]));
    let product = b.dot(x, w);
    let tanh = b.unary(Unary::Tanh, product);
    let program = b.finish(&[tanh]).unwrap();
    check(&program, &["fused"], 1);
    let mut both = program.clone();
    both.outputs.push(product);
    check(&both, &["dot", "tanh"], 2);
}

#[test]
fn a_convolution_takes_bias_and_residual_in() {
    let plain = axes(&[0, 1, 2, 3]);
    for (output, filters) in [(plain.clone(), 8), (axes(&[0, 3, 1, 2]), 20)] {
        let conv = Conv {
            strides: [1, 1].into_iter().collect(),
            padding: [(1, 1), (1, 1)].into_iter().collect(),
            input_dilation: [1, 1].into_iter().collect(),
            kernel_dilation: [1, 1].into_iter().collect(),
            feature_groups: 1,
            batch_groups: 1,
            input_axes: plain.clone(),
            kernel_axes: plain.clone(),
            output_axes: output,
        };
        let (input, kernel) = ([2, 4, 6, 5], [filters, 4, 3, 3]);
        let sizes = conv.sizes(&input, &kernel).unwrap();
        let shape = conv.output(&sizes);
        let b = Builder::new();
        let (x, w) = (b.input(DType::F32, &input), b.input(DType::F32, &kernel));
        let ones: Vec<u64> = shape.iter().map(|&n| if n == filters { n } else { 1 }).collect();
        let (bias, residual) = (b.input(DType::F32, &ones), b.input(DType::F32, &shape));
        let product = b.push(Op::Conv(Box::new(conv)), &[x, w], &Type::new(DType::F32, &shape));
        let sum = b.binary(Binary::Add, product, bias);
        let relu = b.unary(Unary::Sigmoid, sum);
        let out = b.binary(Binary::Add, relu, residual);
        assert_eq!(b.ty(out), Type::new(DType::F32, &shape));
        check(&b.finish(&[out]).unwrap(), &["fused"], 1);
    }
}

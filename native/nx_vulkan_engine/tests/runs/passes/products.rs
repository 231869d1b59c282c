//! Elementwise ops that move into the kernels of products.

use nx_vulkan_engine::program::attribute::Axes;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Tensor, Type, Value, eager};

use super::known::{check, check_for, ops};
use super::{difference, download, engine, gpu, graphs, run, upload};
use crate::common::{Rng, conv_3x3};

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

/// Layers that each add to what the norm of the next one reads, as models that generate text have them: a sum that a
/// product stores is not a step of all sums behind it.
#[test]
fn norms_of_sums_are_one_kernel_however_many_layers_add_to_them() {
    let (layers, columns) = (30, 16);
    // With a mean, so many are a long program.
    for is_centred in [false, true] {
        let b = Builder::new();
        let (mut x, w) = (b.input(DType::F32, &[1, columns]), b.input(DType::F32, &[columns, columns]));
        let mean = |x| b.divide(b.reduce(Reduction::Sum, x, &[1], true), columns as f64);
        for _ in 0..layers {
            let centred = if is_centred { b.subtract(x, mean(x)) } else { x };
            let norm = b.multiply(centred, b.rsqrt(b.add(mean(b.multiply(centred, centred)), 1e-6)));
            x = b.add(x, b.dot(norm, w));
        }
        check(&b.finish(&[x]).unwrap(), &vec!["fused"; 2 * layers], 1);
    }
}

/// A gate and what it is multiplied with, of so many vectors, which are the rows or the columns of the products.
fn gated(dtype: DType, [vectors, depth, columns]: [u64; 3], first: bool) -> (Builder, Operand, [Operand; 2]) {
    let b = Builder::new();
    let x = b.input(dtype, &[vectors, depth]);
    let [gate, up] = [(); 2].map(|()| {
        let w = b.input(dtype, &[depth, columns]);
        if first { b.dot(x, w) } else { b.dot_axes([w, x], [&[0], &[1]], [&[], &[]]) }
    });
    let bias = if first { b.input(dtype, &[columns]) } else { b.input(dtype, &[columns, 1]) };
    let silu = b.multiply(gate, b.sigmoid(gate));
    let result = b.multiply(silu, b.add(up, bias));
    (b, result, [gate, up])
}

#[test]
fn products_of_few_vectors_with_two_matrices_are_one_kernel() {
    // Where a copy of the matrices costs more than a launch: else they are put together.
    let target = Target { short_bytes: 0, ..gpu() };
    let few = [DType::Bf16, DType::F16].into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]);
    for (k, (dtype, vectors)) in few.chain([(DType::F32, 2), (DType::F32, 4)]).enumerate() {
        let (b, result, _) = gated(dtype, [vectors, 700, [64, 45][k % 2]], k % 3 > 0);
        check_for(&target, &b.finish(&[result]).unwrap(), &["fused"], 1);
    }
    // One vector of f32 is a reduction, and more vectors are other tiles.
    for (dtype, vectors) in [(DType::F32, 1), (DType::Bf16, 5), (DType::F64, 2)] {
        let (b, result, _) = gated(dtype, [vectors, 70, 64], true);
        check_for(&target, &b.finish(&[result]).unwrap(), &["dot", "fused"], 1);
    }
    // What else is read is stored.
    for k in 0..2 {
        let (b, result, products) = gated(DType::Bf16, [1, 700, 64], true);
        let program = b.finish(&[result, products[k]]).unwrap();
        assert_eq!(ops(&optimize(program, &target).unwrap()).len(), 2);
    }
}

/// A layer whose activation a second one and the gradients of both read.
fn layers(dtype: DType, [rows, depth, columns, next]: [u64; 4]) -> Program {
    let b = Builder::new();
    let (x, w) = (b.input(dtype, &[rows, depth]), b.input(dtype, &[depth, columns]));
    let (bias, next_w) = (b.input(dtype, &[columns]), b.input(dtype, &[columns, next]));
    let dot = |left, right, contracted: [usize; 2], shape: &[u64]| {
        let [contract_a, contract_b] = contracted.map(|axis| axes(&[axis]));
        let op = Op::Dot { contract_a, batch_a: axes(&[]), contract_b, batch_b: axes(&[]) };
        b.push(op, &[left, right], &Type::new(dtype, shape))
    };
    let sum = b.add(b.dot(x, w), bias);
    let relu = b.max(sum, b.number(dtype, 0.0));
    let forward = b.multiply(b.dot(relu, next_w), b.number(dtype, 2.0));
    let weights = dot(relu, forward, [0, 0], &[columns, next]);
    let mask = b.as_type(b.equal(sum, relu), dtype);
    let backward = b.multiply(dot(forward, next_w, [1, 1], &[rows, columns]), mask);
    b.finish(&[forward, weights, backward]).unwrap()
}

#[test]
fn products_take_activations_of_their_operands_in() {
    for sizes in [[9, 20, 7, 3], [40, 5, 700, 36], [33, 5, 64, 256]] {
        check(&layers(DType::F32, sizes), &["fused"; 4], 3);
    }
    check(&layers(DType::Bf16, [20, 9, 36, 12]), &["fused"; 4], 3);
    // Tiles take steps on operands in f32 alone.
    for dtype in [DType::F64, DType::S32] {
        check(&layers(dtype, [20, 9, 36, 12]), &["fused", "fused", "fused", "fused", "dot"], 3);
    }
}

/// Elements past the end of what is contracted stay zeros, whatever the steps make of 0.
#[test]
fn steps_on_operands_leave_out_what_is_past_the_end() {
    let mut rng = Rng(5);
    for [rows, depth, columns] in [[5, 7, 6], [72, 332, 76], [71, 333, 77]] {
        for turned in [[false, true], [true, false]] {
            let b = Builder::new();
            let operand = |sizes: [u64; 2], turned: bool| {
                let [free, depth] = sizes;
                b.input(DType::F32, &if turned { [depth, free] } else { sizes })
            };
            let (x, y) = (operand([rows, depth], turned[0]), operand([columns, depth], turned[1]));
            let (x, y) = (b.subtract(1.0, x), b.add(y, 0.5));
            let [contract_a, contract_b] = turned.map(|turned| axes(&[usize::from(!turned)]));
            let op = Op::Dot { contract_a, batch_a: axes(&[]), contract_b, batch_b: axes(&[]) };
            let product = b.push(op, &[x, y], &Type::new(DType::F32, &[rows, columns]));
            let program = b.finish(&[product]).unwrap();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(ops(&optimized), ["fused"]);
            let finite = |ty: &Type, rng: &mut Rng| {
                let values = (0..ty.elements()).map(|_| Value::Float(rng.below(4001) as f64 / 1000.0 - 2.0));
                Array::new(ty, values.collect::<Vec<_>>())
            };
            let inputs: Vec<Array> = program.inputs.iter().map(|ty| finite(ty, &mut rng)).collect();
            let differs = difference(&run(&program, &inputs)[0], &run(&optimized, &inputs)[0]);
            assert_eq!(differs, None, "{rows} x {depth} x {columns}, turned {turned:?}");
        }
    }
}

#[test]
fn steps_on_operands_stay_alone_where_products_do_not_take_them() {
    // Costly ones, those of a vector, those of large products and operands, those that others read too, and those of
    // other sizes.
    let names = |make: &dyn Fn(&Builder) -> Vec<Operand>| {
        let b = Builder::new();
        let outputs = make(&b);
        ops(&optimize(b.finish(&outputs).unwrap(), &gpu()).unwrap())
    };
    let inputs = |b: &Builder, [rows, depth, columns]: [u64; 3]| {
        (b.input(DType::F32, &[rows, depth]), b.input(DType::F32, &[depth, columns]))
    };
    let relu = |b: &Builder, sizes| {
        let (x, w) = inputs(b, sizes);
        vec![b.dot(b.max(x, 0.0), w)]
    };
    assert_eq!(names(&|b| relu(b, [8, 12, 16])), ["fused"]);
    assert_eq!(names(&|b| relu(b, [1, 12, 16])), ["fused", "dot"]);
    assert_eq!(names(&|b| relu(b, [1 << 9, 1 << 9, 1 << 8])), ["fused", "dot"]);
    assert_eq!(names(&|b| relu(b, [1 << 10, 1 << 9, 3])), ["fused", "dot"]);
    assert_eq!(
        names(&|b| {
            let (x, w) = inputs(b, [8, 12, 16]);
            vec![b.dot(b.tanh(x), w)]
        }),
        ["tanh", "dot"]
    );
    assert_eq!(
        names(&|b| {
            let (x, w) = inputs(b, [8, 12, 12]);
            let square = b.multiply(x, x);
            vec![b.dot(square, w), square]
        }),
        ["multiply", "dot"]
    );
    assert_eq!(
        names(&|b| {
            let (x, w) = inputs(b, [8, 12, 16]);
            vec![b.dot(b.add(x, b.input(DType::F32, &[12])), w)]
        }),
        ["add", "dot"]
    );
}

/// An operand that does not lie as the steps' result would is computed first: how operands lie may decide how a product
/// adds up.
#[test]
fn operands_that_take_steps_may_lie_anywhere() {
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[40, 30]), b.input(DType::F32, &[30, 9]));
    let product = b.dot(b.max(x, 0.0), b.negate(w));
    let program = b.finish(&[product]).unwrap();
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    assert_eq!(ops(&optimized), ["fused"]);
    let mut rng = Rng(11);
    let arrays = [[30, 40], [9, 30]].map(|shape| graphs::values(&Type::new(DType::F32, &shape), &mut rng));
    let turned = |t: &Tensor| Tensor::new(t.buffer().clone(), t.view().transpose(&[1, 0]).unwrap()).unwrap();
    let inputs: Vec<Tensor> = upload(&arrays).iter().map(turned).collect();
    let [single, fused] = [&program, &optimized].map(|p| eager::run_program(engine(), p, &inputs).unwrap());
    assert_eq!(difference(&download(&single)[0], &download(&fused)[0]), None);
}

#[test]
fn a_convolution_takes_bias_and_residual_in() {
    let plain = [0, 1, 2, 3];
    for (output, filters) in [(plain, 8), ([0, 3, 1, 2], 20)] {
        let conv = conv_3x3([plain, plain, output]);
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

/// Results that meet elements of a dilated input, and those between, which meet none.
#[test]
fn a_convolution_of_a_dilated_input_takes_steps_in() {
    let channels_last = [[0, 3, 1, 2], [3, 2, 0, 1], [0, 3, 1, 2]];
    for window in [1, 2, 3] {
        let mut conv = conv_3x3(channels_last);
        conv.input_dilation.fill(2);
        let (input, kernel) = ([2, 12, 13, 128], [window, window, 128, 128]);
        let shape = conv.output(&conv.sizes(&input, &kernel).unwrap());
        let b = Builder::new();
        let (x, w) = (b.input(DType::F32, &input), b.input(DType::F32, &kernel));
        let (bias, residual) = (b.input(DType::F32, &[1, 1, 1, 128]), b.input(DType::F32, &shape));
        let product = b.push(Op::Conv(Box::new(conv)), &[x, w], &Type::new(DType::F32, &shape));
        let sum = b.add(product, bias);
        let out = b.add(b.unary(Unary::Sigmoid, sum), residual);
        let program = b.finish(&[out]).unwrap();
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        assert_eq!(ops(&optimized), ["fused"]);
        let mut rng = Rng(23);
        let arrays: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        let inputs = upload(&arrays);
        let [single, fused] = [&program, &optimized].map(|p| eager::run_program(engine(), p, &inputs).unwrap());
        assert_eq!(difference(&download(&single)[0], &download(&fused)[0]), None, "{window}");
    }
}

/// A batch norm: more steps than plain tiles take in for so many results.
#[test]
fn a_convolution_on_matrix_units_takes_many_steps_in() {
    let units = Target { matrix_units: true, half_units: true, ..gpu() };
    let conv = conv_3x3([[0, 3, 1, 2], [3, 2, 0, 1], [0, 3, 1, 2]]);
    for dtype in [DType::F32, DType::Bf16] {
        let b = Builder::new();
        let (x, w) = (b.input(dtype, &[8, 64, 64, 64]), b.input(dtype, &[3, 3, 64, 64]));
        let [mean, scale, bias] = [0; 3].map(|_| b.input(dtype, &[1, 1, 1, 64]));
        let product = b.push(Op::Conv(Box::new(conv.clone())), &[x, w], &Type::new(dtype, &[8, 64, 64, 64]));
        let normed = b.add(b.multiply(b.subtract(product, mean), scale), bias);
        let relu = b.binary(Binary::Max, normed, 0.0);
        let program = b.finish(&[relu]).unwrap();
        let optimized = optimize(program.clone(), &units).unwrap();
        assert_eq!(ops(&optimized), ["fused"], "{optimized}");
        assert_eq!(ops(&optimize(program.clone(), &gpu()).unwrap()), ["conv", "fused"]);
        let mut rng = Rng(19);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        let [expected, got] = [&program, &optimized].map(|program| run(program, &inputs));
        assert_eq!(difference(&got[0], &expected[0]), None);
    }
}

/// Products with a vector, contracted along rows and along columns, in one stage and in two.
#[test]
fn products_with_a_vector_take_what_follows_in() {
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::S32, DType::C64] {
        for ([rows, depth], along_rows) in
            [([300, 70], true), ([3, 40_000], true), ([70, 300], false), ([20_000, 5], false)]
        {
            let b = Builder::new();
            let (kept, summed) = if along_rows { (rows, depth) } else { (depth, rows) };
            let (x, v) = (b.input(dtype, &[rows, depth]), b.input(dtype, &[summed]));
            let (y, z) = (b.input(dtype, &[kept]), b.input(dtype, &[2, kept]));
            let product = b.dot_axes([x, v], [&[usize::from(along_rows)], &[0]], [&[], &[]]);
            let backwards = b.push(Op::from(Reverse { axes: axes(&[0]) }), &[y], &Type::new(dtype, &[kept]));
            let row = b.reshape(b.slice(z, &[1, 0], &[1, kept]), &[kept]);
            let result = b.subtract(b.multiply(b.add(product, backwards), row), b.number(dtype, 2.0));
            let program = b.finish(&[result]).unwrap();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(ops(&optimized).last(), Some(&"fused"), "{optimized}");
            let mut rng = Rng(11);
            let inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
            for (a, b) in run(&program, &inputs).iter().zip(&run(&optimized, &inputs)) {
                assert_eq!(difference(a, b), None, "{dtype} {rows} x {depth}");
            }
        }
    }
    // Batches, and results that lie as they are stored.
    let b = Builder::new();
    let (x, v) = (b.input(DType::F32, &[5, 300, 70]), b.input(DType::F32, &[5, 70]));
    let bias = b.input(DType::F32, &[300]);
    let product = b.dot_axes([x, v], [&[2], &[1]], [&[0], &[0]]);
    let result = b.tanh(b.add(product, bias));
    check(&b.finish(&[result]).unwrap(), &["fused"], 1);
}

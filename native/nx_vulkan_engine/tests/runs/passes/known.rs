//! Programs that people write, and how many kernels they take.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::moved::Pad;
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Instruction, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Type, Value};
use smallvec::smallvec;

use super::{difference, gpu, graphs, run};
use crate::common::Rng;

/// The names of the ops that are left, without constants.
pub fn ops(program: &Program) -> Vec<&'static str> {
    let ops = program.instructions.iter().map(|i| i.op.name());
    ops.filter(|&name| name != "constant").collect()
}

/// Checks the kernels of a program, and its results beside those of single ops.
pub fn check(program: &Program, kernels: &[&str], outputs: usize) {
    check_for(&gpu(), program, kernels, outputs);
}

/// The same for another device.
pub fn check_for(target: &Target, program: &Program, kernels: &[&str], outputs: usize) {
    let optimized = optimize(program.clone(), target).unwrap();
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
    let b = Builder::new();
    let x = b.input(DType::F32, &[33, 65]);
    let root = b.number(DType::F32, std::f64::consts::FRAC_1_SQRT_2);
    let scaled = b.binary(Binary::Multiply, x, root);
    let erf = b.unary(Unary::Erf, scaled);
    let one = b.number(DType::F32, 1.0);
    let cdf = b.binary(Binary::Add, erf, one);
    let half = b.number(DType::F32, 0.5);
    let halved = b.binary(Binary::Multiply, cdf, half);
    let result = b.binary(Binary::Multiply, x, halved);
    check(&b.finish(&[result]).unwrap(), &["fused"], 1);
}

/// Mesa makes the float `-b2f(c)` of a choice between the bits of -1 and 0, which is -0.0 where it should be 0.0.
#[test]
fn floor_and_ceil_keep_the_sign_of_zeros_wherever_it_is_known() {
    for dtype in [DType::F32, DType::F64] {
        for (outer, negates) in [(Unary::Floor, false), (Unary::Floor, true), (Unary::Ceil, false), (Unary::Ceil, true)]
        {
            let b = Builder::new();
            let x = b.abs(b.input(dtype, &[6]));
            let whole = b.unary(outer, if negates { b.negate(x) } else { x });
            let sign = b.sign(whole);
            let program = b.finish(&[whole, sign]).unwrap();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(ops(&optimized), ["fused"]);
            let values = [0.0, -0.0, 0.25, -0.75, 1.5, -2.0].map(Value::Float);
            let input = [Array::new(&Type::new(dtype, &[6]), values)];
            let expected = reference::run(&program, &input).unwrap();
            for (a, b) in run(&optimized, &input).iter().zip(&expected) {
                assert_eq!(difference(a, b), None, "{dtype} {outer:?} {negates}");
            }
        }
    }
}

/// Of zeros with different signs, reductions choose one that does not depend on the order in which they are combined.
#[test]
fn the_largest_and_least_of_zeros_depend_on_no_order() {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for size in [2, 5, 300, 5000] {
            let b = Builder::new();
            let x = b.input(dtype, &[3, size]);
            let both = [Reduction::Max, Reduction::Min].map(|reduction| b.reduce(reduction, x, &[1], false));
            let program = b.finish(&both).unwrap();
            let alone = by_workgroup(&program);
            // All -0.0, all but the first, all but the last.
            let zero = |row: u64, i: u64| if [size, 0, size - 1][row as usize] == i { 0.0 } else { -0.0 };
            let values = (0..3 * size).map(|k| Value::Float(zero(k / size, k % size)));
            let input = [Array::new(&Type::new(dtype, &[3, size]), values)];
            for program in [program, alone] {
                let got: Vec<bool> = run(&program, &input)
                    .iter()
                    .flat_map(|a| a.values.iter().map(|v| v.real().is_sign_negative()).collect::<Vec<_>>())
                    .collect();
                assert_eq!(got, [true, false, false, true, true, true], "{dtype} {size}");
            }
        }
    }
}

/// A program whose only op is the workgroup that runs another.
fn by_workgroup(program: &Program) -> Program {
    let mut alone = Program { inputs: program.inputs.clone(), ..Program::default() };
    let outs: smallvec::SmallVec<[Type; 1]> = program.output_types().into_iter().cloned().collect();
    alone.outputs.extend((0..outs.len() as u32).map(Operand::Result));
    let operands = (0..program.inputs.len() as u32).map(Operand::Input).collect();
    alone.instructions.push(Instruction { op: Op::Workgroup(Box::new(program.clone())), operands, outs });
    alone
}

/// 0 + -0.0 is 0.0, also where the zero is an integer, or a difference of equal ones, that becomes a float.
#[test]
fn zeros_of_integers_are_added_as_floats() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[2, 3]);
    let zero = b.number(DType::U8, 0.0);
    let sum = b.add(zero, b.reduce_max(x, &[1]));
    let whole = b.as_type(x, DType::S32);
    let zeros = b.subtract(whole, b.as_type(whole, DType::S64));
    let sums = b.add(zeros, x);
    let others = b.add(b.as_type(zeros, DType::F32), x);
    // A difference of what is counted to one.
    let first = b.iota(DType::F32, &[1], Some(0));
    let none = b.subtract(first, b.reduce_max(first, &[0]));
    // The imaginary parts of real numbers.
    let less = b.subtract(b.unary(Unary::Imag, whole), b.iota(DType::F32, &[2, 3], Some(1)));
    let program = b.finish(&[sum, sums, others, none, less]).unwrap();
    let input = [Array::new(&Type::new(DType::F32, &[2, 3]), [-0.0, -0.0, -0.0, -1.0, -2.0, 3.0].map(Value::Float))];
    let expected = reference::run(&program, &input).unwrap();
    let alone = by_workgroup(&program);
    for program in [optimize(program, &gpu()).unwrap(), alone] {
        for (a, b) in run(&program, &input).iter().zip(&expected) {
            assert_eq!(difference(a, b), None, "{program}");
        }
    }
}

/// Floats become the nearest number that an integer type has, integers wrap.
#[test]
fn integers_that_were_floats_in_between_are_clamped() {
    for (source, between) in [(DType::S32, DType::F64), (DType::S16, DType::F32), (DType::U32, DType::F64)] {
        let b = Builder::new();
        let x = b.input(source, &[6]);
        let float = b.as_type(x, between);
        let narrow = [DType::U8, DType::S8, DType::U16, DType::S32, DType::U64].map(|dtype| b.as_type(float, dtype));
        let program = b.finish(&narrow).unwrap();
        let values = [0, 1, -2, 255, 300, 30_000].map(|x: i128| if source.is_signed() { x } else { x.abs() << 16 });
        let input = [Array::new(&Type::new(source, &[6]), values.map(Value::Int))];
        let expected = reference::run(&program, &input).unwrap();
        for program in [optimize(program.clone(), &gpu()).unwrap(), by_workgroup(&program), program] {
            for (a, b) in run(&program, &input).iter().zip(&expected) {
                assert_eq!(difference(a, b), None, "{program}");
            }
        }
    }
}

#[test]
fn an_adam_step_is_one_kernel_of_three_results() {
    let b = Builder::new();
    let [p, g, m, v] = [(); 4].map(|()| b.input(DType::F32, &[30, 50]));
    let rate = b.input(DType::F32, &[]);
    let blend = |b: &Builder, old: Operand, new: Operand, beta: f64| {
        let (kept, added) = (b.number(DType::F32, beta), b.number(DType::F32, 1.0 - beta));
        let old = b.binary(Binary::Multiply, old, kept);
        let new = b.binary(Binary::Multiply, new, added);
        b.binary(Binary::Add, old, new)
    };
    let m = blend(&b, m, g, 0.9);
    let squared = b.binary(Binary::Multiply, g, g);
    let v = blend(&b, v, squared, 0.999);
    let root = b.unary(Unary::Sqrt, v);
    let eps = b.number(DType::F32, 1e-8);
    let root = b.binary(Binary::Add, root, eps);
    let direction = b.binary(Binary::Divide, m, root);
    let step = b.binary(Binary::Multiply, direction, rate);
    let p = b.binary(Binary::Subtract, p, step);
    check(&b.finish(&[p, m, v]).unwrap(), &["fused"], 3);
}

#[test]
fn views_between_elementwise_ops_take_no_kernel() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[6, 10]);
    let y = b.input(DType::F32, &[10, 6]);
    let negated = b.unary(Unary::Negate, x);
    let turned = b.push(Op::Transpose { axes: [1, 0].as_slice().into() }, &[negated], &Type::new(DType::F32, &[10, 6]));
    let sum = b.binary(Binary::Add, turned, y);
    let flat = b.push(Op::Reshape, &[sum], &Type::new(DType::F32, &[60]));
    let result = b.unary(Unary::Exp, flat);
    check(&b.finish(&[result]).unwrap(), &["fused"], 1);
}

#[test]
fn what_is_costly_is_not_repeated() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[40]);
    let y = b.input(DType::F32, &[30, 40]);
    let costly = b.unary(Unary::Exp, x);
    let result = b.binary(Binary::Add, y, costly);
    let program = b.finish(&[result]).unwrap();
    check(&program, &["exp", "add"], 1);
    let ty = Type::new(DType::F32, &[30, 40]);
    assert_eq!(program.type_of(program.outputs[0]), Some(&ty));
}

#[test]
fn exact_identities_go_and_others_stay() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[9]);
    let (zero, one) = (b.number(DType::F32, 0.0), b.number(DType::F32, 1.0));
    let same = b.binary(Binary::Multiply, x, one);
    let same = b.binary(Binary::Subtract, same, zero);
    let same = b.unary(Unary::Negate, same);
    let same = b.unary(Unary::Negate, same);
    let changed = b.binary(Binary::Add, same, zero);
    let optimized = optimize(b.finish(&[same, changed]).unwrap(), &gpu()).unwrap();
    assert_eq!(optimized.outputs[0], Operand::Input(0));
    assert!(matches!(optimized.instructions.last().unwrap().op, Op::Fused(_)));
}

/// The means of the last axis, which stays with size 1, as sums times a share.
fn row_mean(b: &Builder, a: Operand) -> Operand {
    let shape = b.ty(a).shape;
    let last = shape.len() - 1;
    b.multiply(b.reduce(Reduction::Sum, a, &[last], true), 1.0 / shape[last] as f64)
}

pub fn softmax(shape: &[u64]) -> Program {
    let last = shape.len() - 1;
    let b = Builder::new();
    let x = b.input(DType::F32, shape);
    let max = b.reduce(Reduction::Max, x, &[last], true);
    let shifted = b.binary(Binary::Subtract, x, max);
    let exp = b.unary(Unary::Exp, shifted);
    let sum = b.reduce(Reduction::Sum, exp, &[last], true);
    let result = b.binary(Binary::Divide, exp, sum);
    b.finish(&[result]).unwrap()
}

pub fn layer_norm(shape: &[u64]) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, shape);
    let [gain, bias] = [(); 2].map(|()| b.input(DType::F32, &shape[shape.len() - 1..]));
    let mean = row_mean(&b, x);
    let centered = b.binary(Binary::Subtract, x, mean);
    let squared = b.binary(Binary::Multiply, centered, centered);
    let variance = row_mean(&b, squared);
    let eps = b.number(DType::F32, 1e-5);
    let variance = b.binary(Binary::Add, variance, eps);
    let scale = b.unary(Unary::Rsqrt, variance);
    let scaled = b.binary(Binary::Multiply, centered, scale);
    let scaled = b.binary(Binary::Multiply, scaled, gain);
    let result = b.binary(Binary::Add, scaled, bias);
    b.finish(&[result]).unwrap()
}

#[test]
fn softmax_is_one_kernel() {
    for shape in [[5, 33], [300, 10], [3, 200], [40, 1], [1, 128], [2, 2048], [2, 4096], [2, 16384]] {
        check(&softmax(&shape), &["fused"], 1);
    }
}

/// Rows of signed zeros, infinities, NaN of both signs, numbers of one sign, and what short forms of functions do not
/// serve.
#[test]
fn rows_of_special_values_have_the_bits_of_single_ops() {
    let bits = |bits: u32| f64::from(f32::from_bits(bits));
    let rows: [&[f64]; 8] = [
        &[-0.0, -0.0],
        &[-0.0, 0.0, -0.0],
        &[-3.0, -2.5, -1e30, f64::NEG_INFINITY],
        &[1.0, 2.5, 1e30],
        &[-1.0, 2.0, f64::INFINITY],
        &[1.0, f64::NAN],
        &[-1.0, bits(0xffc0_0000)],
        &[1e-35, 0.5, -200.0, 88.0],
    ];
    for columns in [13, 64, 128, 1000] {
        for reduction in [Reduction::Max, Reduction::Min] {
            let b = Builder::new();
            let x = b.input(DType::F32, &[rows.len() as u64, columns]);
            let extreme = b.reduce(reduction, x, &[1], true);
            let apart = b.subtract(x, extreme);
            let shares = b.divide(b.exp(apart), extreme);
            let program = b.finish(&[extreme, apart, shares]).unwrap();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(ops(&optimized), ["fused"]);
            let values = rows.iter().flat_map(|row| row.iter().cycle().take(columns as usize));
            let input = [Array::new(&program.inputs[0], values.map(|&x| Value::Float(x)))];
            for (a, b) in run(&program, &input).iter().zip(&run(&optimized, &input)) {
                assert_eq!(difference(a, b), None, "{reduction:?} of {columns} columns");
            }
        }
    }
}

/// Rows divided by their largest element, one of whose dividends lies just inside or outside of what Newton's steps
/// serve, or has a sign, a magnitude or a divisor that they don't.
#[test]
fn quotients_by_a_number_of_the_row_have_the_bits_of_single_ops() {
    let float = |bits: u32| f64::from(f32::from_bits(bits));
    let edges = [0x217f_ffff, 0x2180_0000, 0x5d7f_ffff, 0x5d80_0000].map(float);
    let singles: Vec<f64> = edges
        .iter()
        .flat_map(|&x| [x, -x])
        .chain([0.0, -0.0, 1e-40, -1e-45, 3e38, -3e38, f64::INFINITY, f64::NEG_INFINITY, f64::NAN])
        .collect();
    for columns in [13, 128, 1000] {
        for most in [0.7, 3.0, float(0x3fff_ff80), 1e-30, 1e30] {
            let b = Builder::new();
            let x = b.input(DType::F32, &[singles.len() as u64, columns]);
            let quotients = b.divide(x, b.reduce(Reduction::Max, x, &[1], true));
            let program = b.finish(&[quotients]).unwrap();
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(ops(&optimized), ["fused"]);
            let value = |(row, column): (usize, u64)| match column {
                0 => most,
                5 => singles[row],
                _ => most * ((row as u64 * 31 + column * 17) % 64) as f64 / 64.0,
            };
            let places = (0..singles.len()).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let input = [Array::new(&program.inputs[0], places.map(|place| Value::Float(value(place))))];
            for (a, b) in run(&program, &input).iter().zip(&run(&optimized, &input)) {
                assert_eq!(difference(a, b), None, "by {most} of {columns} columns");
            }
        }
    }
}

/// Sums of magnitudes, of squares and of exponentials of rows that hold a number which takes the sum beyond what is
/// added in short, or close to it, or to nothing.
#[test]
fn sums_of_what_has_no_sign_have_the_bits_of_single_ops() {
    type Terms = fn(&Builder, Operand) -> Operand;
    let terms: [Terms; 3] = [
        |b, x| b.unary(Unary::Abs, x),
        |b, x| b.binary(Binary::Multiply, x, x),
        |b, x| b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true))),
    ];
    let limits = [0x2180_0000, 0x3f80_0000, 0x587f_ffff, 0x5880_0000, 0x717f_ffff, 0x7180_0000].map(f32::from_bits);
    let singles: Vec<f64> = limits
        .iter()
        .flat_map(|&x| [f64::from(x), -f64::from(x)])
        .chain([0.0, -0.0, 1e-40, 1e-30, 100.0, 3.4e38, f64::NEG_INFINITY, f64::INFINITY, f64::NAN])
        .collect();
    for (columns, (k, terms)) in
        [100, 1024, 4096, 16384].into_iter().flat_map(|n| terms.iter().enumerate().map(move |t| (n, t)))
    {
        let b = Builder::new();
        let x = b.input(DType::F32, &[singles.len() as u64, columns]);
        let terms = terms(&b, x);
        let sum = b.reduce(Reduction::Sum, terms, &[1], true);
        // Shares need the terms again.
        let shares = b.divide(terms, sum);
        let program = b.finish(&[sum, shares]).unwrap();
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        assert_eq!(ops(&optimized), ["fused"]);
        for scale in [1e-24, 1e-12, 0.3, 7.0, 1e15] {
            let value = |(row, column): (usize, u64)| match column {
                77 => singles[row],
                _ => scale * (((row as u64 * 31 + column * 7919) % 1009) as f64 / 1009.0 - 0.4),
            };
            let places = (0..singles.len()).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let input = [Array::new(&program.inputs[0], places.map(|place| Value::Float(value(place))))];
            for (a, b) in run(&program, &input).iter().zip(&run(&optimized, &input)) {
                assert_eq!(difference(a, b), None, "terms {k} of {columns} columns of {scale}");
            }
        }
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
    for shape in [[20, 30], [300, 401]] {
        let b = Builder::new();
        let (x, y) = (b.input(DType::F32, &shape), b.input(DType::F32, &shape));
        let error = b.binary(Binary::Subtract, x, y);
        let squared = b.binary(Binary::Multiply, error, error);
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: [0, 1].as_slice().into(), tie_high: false };
        let sum = b.push(sum, &[squared], &Type::new(DType::F32, &[]));
        let share = b.number(DType::F32, 1.0 / (shape[0] * shape[1]) as f64);
        let mean = b.binary(Binary::Multiply, sum, share);
        check(&b.finish(&[mean]).unwrap(), &["fused"], 1);
    }
}

#[test]
fn what_is_reduced_is_computed_on_the_way() {
    // Whole rows, chunks of rows, columns, chunks of columns, and an operand that is turned.
    for (shape, axis) in [([37, 129], 1), ([3, 70_000], 1), ([128, 40], 0), ([20_000, 3], 0), ([9, 256], 1)] {
        let b = Builder::new();
        let x = b.input(DType::F32, &shape);
        let y = b.input(DType::F32, &[shape[1], shape[0]]);
        let bias = b.input(DType::F32, &[shape[1]]);
        let turned = b.push(Op::Transpose { axes: [1, 0].as_slice().into() }, &[y], &Type::new(DType::F32, &shape));
        let product = b.binary(Binary::Multiply, x, turned);
        let moved = b.binary(Binary::Add, product, bias);
        let sum = Op::Reduce { reduction: Reduction::Sum, axes: [axis].as_slice().into(), tie_high: false };
        let sum = b.push(sum, &[moved], &Type::new(DType::F32, &[shape[1 - axis]]));
        check(&b.finish(&[sum]).unwrap(), &["fused"], 1);
    }
}

#[test]
fn vectors_are_loaded_beside_what_repeats() {
    // Rows of whole vectors and others, with an operand per column and one per row.
    for shape in [[5, 8], [700, 36], [33, 7]] {
        let b = Builder::new();
        let (x, bias, scale) =
            (b.input(DType::F32, &shape), b.input(DType::F32, &shape[1..]), b.input(DType::F32, &[shape[0], 1]));
        let zero = b.number(DType::F32, 0.0);
        let scaled = b.binary(Binary::Multiply, x, scale);
        let sum = b.binary(Binary::Add, scaled, bias);
        let result = b.binary(Binary::Max, sum, zero);
        check(&b.finish(&[result]).unwrap(), &["fused"], 1);
    }
}

#[test]
fn columns_are_normalized_in_one_kernel() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[21, 70]);
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: [0].as_slice().into(), tie_high: false };
    let sum = b.push(sum, &[x], &Type::new(DType::F32, &[70]));
    let result = b.binary(Binary::Divide, x, sum);
    check(&b.finish(&[result, sum]).unwrap(), &["fused"], 2);
}

#[test]
fn the_logarithm_of_a_sum_of_exponentials_is_one_kernel() {
    let last = 1;
    let b = Builder::new();
    let x = b.input(DType::F32, &[9, 50]);
    let max = b.reduce(Reduction::Max, x, &[last], true);
    let shifted = b.binary(Binary::Subtract, x, max);
    let exp = b.unary(Unary::Exp, shifted);
    let sum = b.reduce(Reduction::Sum, exp, &[last], true);
    let log = b.unary(Unary::Log, sum);
    let result = b.binary(Binary::Add, log, max);
    check(&b.finish(&[result]).unwrap(), &["fused"], 1);
}

#[test]
fn elements_placed_among_zeros_are_one_kernel() {
    let b = Builder::new();
    let q = b.input(DType::F64, &[8]);
    let vector = Type::new(DType::F64, &[8]);
    let (zero, zeros) = (b.number(DType::F32, 0.0), b.push(Op::Constant(Scalar::Int(0)), &[], &vector));
    let mut sum = zeros;
    for i in [0, 3, 7, 100, -2] {
        let element = b.at(q, (i as u64).min(7));
        let element = b.reshape(element, &[1]);
        let element =
            b.push(Op::from(Pad { config: smallvec![(0, 0, 0)] }), &[element, zero], &Type::new(DType::F64, &[1]));
        let start = b.constant(DType::S32, Scalar::Int(i));
        let placed = b.push(Op::PutSlice { starts: smallvec![None] }, &[zeros, element, start], &vector);
        sum = b.binary(Binary::Add, sum, placed);
    }
    let corner = b.input(DType::S32, &[1, 1]);
    let matrix = Type::new(DType::S32, &[3, 4]);
    let one = b.constant(DType::S32, Scalar::Int(1));
    let padded = b.push(Op::from(Pad { config: smallvec![(1, 1, 2), (2, 1, 0)] }), &[corner, one], &matrix);
    check(&b.finish(&[sum, padded]).unwrap(), &["fused", "fused"], 2);
}

/// `slice` put into zeros of type `ty` from `start` on along an axis.
fn put(b: &Builder, ty: &Type, slice: Operand, axis: usize, start: i64) -> Operand {
    let zeros = b.push(Op::Constant(Scalar::Int(0)), &[], ty);
    let starts = (0..ty.shape.len()).map(|k| Some(if k == axis { start } else { 0 })).collect();
    b.push(Op::PutSlice { starts }, &[zeros, slice], ty)
}

/// Whether something is concatenated in the optimized program, perhaps by a kernel that does more.
fn is_joined(program: &Program) -> bool {
    let is_one = |i: &Instruction| matches!(i.op, Op::Concatenate { .. });
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    optimized.instructions.iter().any(|i| match &i.op {
        Op::Fused(body) => body.instructions.iter().any(is_one),
        _ => is_one(i),
    })
}

fn check_joined(program: &Program, kernels: &[&str]) {
    assert!(is_joined(program), "{program}");
    check(program, kernels, 1);
}

#[test]
fn sums_of_slices_in_zeros_are_concatenated() {
    let whole = Type::new(DType::F32, &[4, 30, 40]);
    // All of the axis, in another order, as gradients of the parts of a product are. What would begin at 25 and end
    // behind the last row begins at 20.
    let b = Builder::new();
    let parts = [0, 1, 2].map(|_| b.transpose(b.input(DType::F32, &[10, 4, 40]), &[1, 0, 2]));
    let w = b.input(DType::F32, &[40, 8]);
    let [x, y, z] = [(0, 10), (1, 25), (2, 0)].map(|(part, start)| put(&b, &whole, parts[part], 1, start));
    let sum = b.add(b.add(x, y), z);
    let product = b.dot(sum, w);
    check_joined(&b.finish(&[product]).unwrap(), &["fused", "dot"]);

    // Where the slices are computed, zero is added there.
    let b = Builder::new();
    let parts = [0, 1, 2].map(|_| {
        let [x, w] = [[40, 64], [64, 40]].map(|shape| b.input(DType::F32, &shape));
        b.reshape(b.transpose(b.dot(x, w), &[1, 0]), &[4, 10, 40])
    });
    let [x, y, z] = [(0, 10), (1, 20), (2, 0)].map(|(part, start)| put(&b, &whole, parts[part], 1, start));
    let sum = b.add(b.add(x, y), z);
    check_joined(&b.finish(&[sum]).unwrap(), &["dot", "dot", "dot", "fused"]);

    // Gaps, zeros among the terms, a pad, and integers, to whose sums nothing is added.
    for dtype in [DType::F32, DType::S32] {
        let whole = Type::new(dtype, &[70, 80]);
        let b = Builder::new();
        let (x, y) = (b.input(dtype, &[70, 5]), b.input(dtype, &[70, 6]));
        let zero = b.constant(dtype, Scalar::Int(0));
        let padded = b.push(Op::from(Pad { config: smallvec![(0, 0, 0), (60, 14, 0)] }), &[y, zero], &whole);
        let zeros = b.push(Op::Constant(Scalar::Int(0)), &[], &whole);
        let sum = b.add(b.add(zeros, padded), put(&b, &whole, x, 1, 3));
        // Five parts, of which three are zeros, are more than one kernel chooses from.
        let kernels: &[&str] = if dtype == DType::F32 { &["concatenate", "fused"] } else { &["concatenate"] };
        check_joined(&b.finish(&[sum]).unwrap(), kernels);
    }
}

#[test]
fn other_sums_of_slices_stay_sums() {
    let whole = Type::new(DType::F32, &[70, 80]);
    let sum_of = |at: [(usize, i64); 2], reads: bool, number: f64| {
        let b = Builder::new();
        let [x, y] = at.map(|(axis, start)| {
            let shape = if axis == 0 { [35, 80] } else { [70, 40] };
            let around = b.push(Op::Constant(Scalar::Float(number)), &[], &whole);
            let starts = [0, 1].map(|k| Some(if k == axis { start } else { 0 })).into_iter().collect();
            b.push(Op::PutSlice { starts }, &[around, b.input(DType::F32, &shape)], &whole)
        });
        let sum = b.add(x, y);
        let mut program = b.finish(&[sum]).unwrap();
        program.outputs.extend(reads.then_some(x));
        program
    };
    assert!(is_joined(&sum_of([(1, 0), (1, 40)], false, 0.0)));
    let others = [
        // They overlap, lie along two axes, are read elsewhere, or lie among other numbers.
        sum_of([(1, 0), (1, 39)], false, 0.0),
        sum_of([(0, 0), (1, 0)], false, 0.0),
        sum_of([(1, 0), (1, 40)], true, 0.0),
        sum_of([(1, 0), (1, 40)], false, 1.0),
        sum_of([(1, 0), (1, 40)], false, -0.0),
    ];
    for program in others {
        assert!(!is_joined(&program), "{program}");
        let mut rng = Rng(5);
        let inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        let optimized = optimize(program.clone(), &gpu()).unwrap();
        for (a, b) in run(&program, &inputs).iter().zip(&run(&optimized, &inputs)) {
            assert_eq!(difference(a, b), None);
        }
    }
}

/// `x` stands before all that one sibling computes, and waits for it all the same: for `y`, which a kernel computes
/// that comes later.
#[test]
fn siblings_that_wait_for_each_other_stay_apart() {
    let b = Builder::new();
    let [a, c, w] = [0, 1, 2].map(|_| b.input(DType::F32, &[8, 8]));
    let y = b.exp(a);
    let x = b.dot(y, w);
    let t = b.exp(c);
    let g = b.multiply(y, b.dot(t, w));
    let s = b.add(x, c);
    check(&b.finish(&[g, s, t]).unwrap(), &["exp", "dot", "fused", "fused"], 3);
}

/// Rounds as those of random bits: an outer loop that swaps what an inner one picks from, and adds its counter.
#[test]
fn loops_that_count_become_one_kernel() {
    let b = Builder::new();
    let (x, y) = (b.input(DType::U32, &[33, 65]), b.input(DType::U32, &[33, 65]));
    let numbers = |numbers: [i128; 2]| {
        let numbers = numbers.map(|n| b.push(Op::Constant(Scalar::Int(n)), &[], &Type::new(DType::U32, &[1])));
        b.push(Op::Concatenate { axis: 0 }, &numbers, &Type::new(DType::U32, &[2]))
    };
    let (first, second) = (numbers([13, 15]), numbers([17, 29]));
    let one = b.constant(DType::U32, Scalar::Int(1));
    let rounds = |b: &Builder, v: &[Operand]| {
        let zero = b.constant(DType::U32, Scalar::Int(0));
        let inner = b.while_loop(
            &[zero, v[1], v[2]],
            &[v[3]],
            |b, v| b.less(v[0], b.constant(DType::U32, Scalar::Int(2))),
            |b, v| {
                let pick = Op::Slice { starts: smallvec![None], strides: smallvec![1], lengths: smallvec![1] };
                let by = b.push(pick, &[v[3], v[0]], &Type::new(DType::U32, &[1]));
                let sum = b.add(v[1], v[2]);
                let moved = b.binary(Binary::LeftShift, v[2], by);
                let next = b.add(v[0], b.constant(DType::U32, Scalar::Int(1)));
                vec![next, sum, b.binary(Binary::BitwiseXor, moved, sum)]
            },
        );
        let next = b.add(v[0], b.constant(DType::U32, Scalar::Int(1)));
        vec![next, b.add(inner[1], v[0]), inner[2], v[4], v[3]]
    };
    let five = |b: &Builder, v: &[Operand]| b.less(v[0], b.constant(DType::U32, Scalar::Int(6)));
    let last = b.while_loop(&[one, x, y, first, second], &[], five, rounds);
    let halves = b.push(Op::Concatenate { axis: 0 }, &last[1..3], &Type::new(DType::U32, &[66, 65]));
    check(&b.finish(&[halves]).unwrap(), &["fused", "reshape"], 1);
}

/// Words that come in pairs, of which the last is left out, and what is made of them.
#[test]
fn an_odd_count_of_pairs_is_one_kernel() {
    for (half, shape) in [(8u64, &[3u64, 5][..]), (33, &[5, 13]), (4, &[7])] {
        let b = Builder::new();
        let (mut x, mut y) = (b.iota(DType::U32, &[half], None), b.input(DType::U32, &[half]));
        for _ in 0..9 {
            x = b.add(x, y);
            y = b.binary(Binary::BitwiseXor, b.multiply(y, 5.0), x);
        }
        let pairs = b.push(Op::Concatenate { axis: 0 }, &[x, y], &Type::new(DType::U32, &[2 * half]));
        let but_one = Op::Slice { starts: smallvec![Some(0)], strides: smallvec![1], lengths: smallvec![2 * half - 1] };
        let odd = b.push(but_one, &[pairs], &Type::new(DType::U32, &[2 * half - 1]));
        let numbers = b.as_type(b.reshape(odd, shape), DType::F32);
        let halved = b.multiply(numbers, 0.5);
        check(&b.finish(&[halved]).unwrap(), &["fused", "slice", "reshape"], 1);
    }
}

/// A loop of 1,000 steps stays one.
#[test]
fn long_loops_stay() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[33, 65]);
    let zero = b.constant(DType::S32, Scalar::Int(0));
    let last = b.while_loop(
        &[zero, x],
        &[],
        |b, v| b.less(v[0], b.constant(DType::S32, Scalar::Int(1000))),
        |b, v| vec![b.add(v[0], b.constant(DType::S32, Scalar::Int(1))), b.add(v[1], v[1])],
    );
    let optimized = optimize(b.finish(&last[1..]).unwrap(), &gpu()).unwrap();
    assert_eq!(ops(&optimized), ["while"], "{optimized}");
}

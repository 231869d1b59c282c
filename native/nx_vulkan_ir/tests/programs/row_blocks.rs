//! What is made row by row in blocks of rows: distances of which the nearest count, whatever keeps some of them.

use nx_vulkan_ir::program::attribute::Scalar;
use nx_vulkan_ir::program::ops::index::TakeAlongAxis;
use nx_vulkan_ir::program::ops::order::{Argsort, TopK};
use nx_vulkan_ir::program::passes::{Saving, Target, optimize};
use nx_vulkan_ir::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::passes::target;

/// Points, and those whose neighbours are looked for: no multiple of the blocks.
const POINTS: u64 = 150;
const QUERIES: u64 = 333;

/// Bytes of a value that is not in memory at once.
const BUDGET: u64 = 80 * POINTS * 4;

fn with_bytes(mapped_bytes: u64) -> Target {
    Target { mapped_bytes, ..target(Saving::Nothing) }
}

/// Squares of distances of queries from points, as Scholar has them.
fn distances(b: &Builder, queries: Operand, points: Operand) -> Operand {
    let (count, others) = (b.ty(queries).shape[0], b.ty(points).shape[0]);
    let norms = |x: Operand| b.sum(b.multiply(x, x), &[1]);
    let sums = b.add(b.reshape(norms(queries), &[count, 1]), b.reshape(norms(points), &[1, others]));
    let products = b.dot_axes([queries, points], [&[1], &[1]], [&[], &[]]);
    b.binary(nx_vulkan_ir::program::Binary::Max, b.subtract(sums, b.multiply(products, 2.0)), 0.0)
}

fn of_distances(outputs: impl Fn(&Builder, Operand) -> Vec<Operand>) -> Program {
    let b = Builder::new();
    let (queries, points) = (b.input(DType::F32, &[QUERIES, 3]), b.input(DType::F32, &[POINTS, 3]));
    let outputs = outputs(&b, distances(&b, queries, points));
    b.finish(&outputs).unwrap()
}

fn top(b: &Builder, a: Operand, k: u64) -> [Operand; 2] {
    let rows = b.ty(a).shape[0];
    let outs = [DType::F32, DType::S32].map(|dtype| Type::new(dtype, &[rows, k]));
    let both = b.push_all(Op::from(TopK { k }), &[a], &outs);
    [both[0], both[1]]
}

fn loops(program: &Program) -> usize {
    program.instructions.iter().filter(|i| matches!(i.op, Op::While(_))).count()
}

/// Whether any value, in loops too, has as many bytes.
fn has_large(program: &Program) -> bool {
    program.results().any(|ty| ty.size_bytes() >= 2 * BUDGET)
        || program.instructions.iter().any(|i| i.op.inside().any(has_large))
}

fn check(program: &Program, is_taken: bool) {
    let optimized = optimize(program.clone(), &with_bytes(BUDGET)).unwrap();
    assert_eq!(loops(&optimized), usize::from(is_taken), "{optimized}");
    assert!(!is_taken || !has_large(&optimized), "{optimized}");
    let number = |i: u64| match i % 97 {
        13 => f64::NAN,
        _ => (i.wrapping_mul(0x9e37_79b9) % 1009) as f64 / 64.0,
    };
    let array = |ty: &Type| {
        let value = |i| if ty.dtype.is_integer() { Value::Int(i128::from(i)) } else { Value::Float(number(i)) };
        Array::new(ty, (0..ty.elements()).map(value).collect::<Vec<_>>())
    };
    let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
    let bits = |program: &Program| -> Vec<Vec<u64>> {
        let of = |value: &Value| if value.real().is_nan() { u64::MAX } else { value.real().to_bits() };
        reference::run(program, &inputs).unwrap().iter().map(|array| array.values.iter().map(of).collect()).collect()
    };
    assert_eq!(bits(&optimized), bits(program), "{optimized}");
}

#[test]
fn nearest_points_are_found_in_blocks() {
    // As Scholar writes it: roots, the largest of what is negated, and the roots at their places.
    let knn = of_distances(|b, squares| {
        let roots = b.sqrt(squares);
        let [_, places] = top(b, b.negate(roots), 4);
        let places = b.as_type(places, DType::U64);
        let taken = Type::new(DType::F32, &[QUERIES, 4]);
        vec![places, b.push(Op::from(TakeAlongAxis { axis: 1 }), &[roots, places], &taken)]
    });
    check(&knn, true);
    check(&of_distances(|b, x| vec![b.reduce(Reduction::ArgMin, x, &[1], false), b.reduce_max(x, &[1])]), true);
    // Kernels of a support vector machine, and a mask of those that are near.
    let near = of_distances(|b, x| {
        let kernel = b.exp(b.negate(x));
        let near = b.less(x, 40.0);
        vec![b.sum(kernel, &[1]), near, b.sum(b.as_type(near, DType::S32), &[1])]
    });
    check(&near, true);
    // With the rows' own numbers, and what is repeated for each row.
    let own = of_distances(|b, x| {
        let shape = [QUERIES, POINTS];
        let [rows, columns] = [0, 1].map(|axis| b.iota(DType::S32, &shape, Some(axis)));
        let other = b.select(b.equal(rows, columns), f64::INFINITY, x);
        let order = b.push(Op::from(Argsort { axis: 1, descending: false }), &[other], &Type::new(DType::S32, &shape));
        vec![b.slice(order, &[0, 0], &[QUERIES, 7])]
    });
    check(&own, true);
    // One block less than a row, and no product at all.
    let b = Builder::new();
    let x = b.input(DType::F32, &[QUERIES, POINTS]);
    let [values, _] = top(&b, b.exp(x), 3);
    check(&b.finish(&[values]).unwrap(), true);
}

#[test]
fn what_is_needed_whole_stays_whole() {
    check(&of_distances(|b, x| vec![b.reduce_max(x, &[1]), x]), false);
    check(&of_distances(|b, x| vec![b.reduce_max(x, &[0])]), false);
    check(&of_distances(|b, x| vec![b.sum(b.dot_axes([x, x], [&[0], &[0]], [&[], &[]]), &[1])]), false);
    // What all distances give together is needed by each.
    let whole = of_distances(|b, x| {
        let largest = b.reduce_max(x, &[0, 1]);
        vec![b.reduce(Reduction::ArgMin, b.divide(x, largest), &[1], false)]
    });
    check(&whole, false);
    // What is reduced alone is one kernel with what computes it.
    let b = Builder::new();
    let x = b.input(DType::F32, &[QUERIES, POINTS]);
    let sum = b.sum(b.exp(x), &[1]);
    check(&b.finish(&[sum]).unwrap(), false);
    // As much is kept as is made.
    check(&of_distances(|b, x| vec![b.divide(x, b.reshape(b.reduce_max(x, &[1]), &[QUERIES, 1]))]), false);
}

#[test]
fn blocks_in_loops_and_branches_are_found() {
    let b = Builder::new();
    let (queries, points) = (b.input(DType::F32, &[QUERIES, 3]), b.input(DType::F32, &[POINTS, 3]));
    let zero = b.constant(DType::S32, Scalar::Int(0));
    let last = b.while_loop(
        &[zero, queries],
        &[points],
        |b, v| b.less(b.sum(v[1], &[0, 1]), 1.0e9),
        |b, v| {
            let nearest = b.reduce(Reduction::Min, distances(b, v[1], v[2]), &[1], true);
            vec![b.add(v[0], 1.0), b.add(v[1], b.add(nearest, 1.0e6))]
        },
    );
    let program = b.finish(&last).unwrap();
    let optimized = optimize(program.clone(), &with_bytes(BUDGET)).unwrap();
    assert!(!has_large(&optimized), "{optimized}");
    let array = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| Value::Float((i % 29) as f64)));
    let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
    assert_eq!(reference::run(&optimized, &inputs).unwrap(), reference::run(&program, &inputs).unwrap());
}

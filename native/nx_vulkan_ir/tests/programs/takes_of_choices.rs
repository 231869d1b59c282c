//! Takes by numbers that are chosen among those of rows and columns, as DBSCAN's labels spread.

use nx_vulkan_ir::program::attribute::Scalar;
use nx_vulkan_ir::program::passes::{Saving, optimize};
use nx_vulkan_ir::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::passes::target;

const POINTS: u64 = 23;

/// The number of the column where there is a neighbour, else that of the row.
fn numbers(b: &Builder, near: Operand, dtype: DType, axes: [usize; 2]) -> Operand {
    let [on_true, on_false] = axes.map(|axis| b.iota(dtype, &[POINTS, POINTS], Some(axis)));
    b.select(near, on_true, on_false)
}

/// Labels become the least of those of neighbours until nothing changes.
fn spreading(dtype: DType, is_state: bool) -> Program {
    let b = Builder::new();
    let labels = b.input(DType::S32, &[POINTS]);
    let near = b.less(b.input(DType::F32, &[POINTS, POINTS]), -3.5);
    let numbers = numbers(&b, near, dtype, [1, 0]);
    let going = b.constant(DType::U8, Scalar::Int(1));
    let (state, captured) = match is_state {
        true => (vec![labels, going, numbers], vec![]),
        false => (vec![labels, going], vec![numbers]),
    };
    let last = b.while_loop(
        &state,
        &captured,
        |_, v| v[1],
        |b, v| {
            let next = b.reduce(Reduction::Min, b.take(v[0], v[2], 0), &[1], false);
            let changed = b.reduce(Reduction::Any, b.not_equal(next, v[0]), &[0], false);
            [vec![next, changed], if is_state { vec![v[2]] } else { vec![] }].concat()
        },
    );
    b.finish(&last).unwrap()
}

fn takes(program: &Program) -> bool {
    program.instructions.iter().any(|i| matches!(i.op, Op::Indexing(_)) || i.op.inside().any(takes))
}

fn check(program: &Program, is_chosen: bool) {
    let optimized = optimize(program.clone(), &target(Saving::Nothing)).unwrap();
    assert_eq!(takes(&optimized), !is_chosen, "{optimized}");
    let value = |ty: &Type, i: u64| match ty.dtype.is_integer() {
        true => Value::Int(i128::from(i.wrapping_mul(0x9e37_79b9) % 41)),
        false => Value::Float((i.wrapping_mul(0x9e37_79b9) % 1009) as f64 / 64.0 - 4.0),
    };
    let array = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| value(ty, i)));
    let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
    let [got, want] = [&optimized, program].map(|program| reference::run(program, &inputs).unwrap());
    assert!(got == want, "{optimized}");
}

#[test]
fn labels_that_spread_are_chosen_by_a_table() {
    for dtype in [DType::S32, DType::S64, DType::U8] {
        check(&spreading(dtype, true), dtype != DType::U8);
        check(&spreading(dtype, false), dtype != DType::U8);
    }
}

#[test]
fn other_takes_stay() {
    // Outside of a loop; from a vector of another length, or a matrix; by numbers that don't count.
    let take = |length: u64, axes: [usize; 2], by: f64| {
        let b = Builder::new();
        let labels = b.input(DType::S32, &[length]);
        let near = b.less(b.input(DType::F32, &[POINTS, POINTS]), 3.5);
        let numbers = numbers(&b, near, DType::S32, axes);
        let numbers = if by == 0.0 { numbers } else { b.add(numbers, by) };
        let taken = b.sum(b.take(labels, numbers, 0), &[1]);
        b.finish(&[taken]).unwrap()
    };
    check(&take(POINTS, [1, 0], 0.0), true);
    check(&take(POINTS, [0, 1], 0.0), true);
    check(&take(POINTS, [1, 1], 0.0), true);
    check(&take(POINTS - 2, [1, 0], 0.0), false);
    check(&take(POINTS + 2, [1, 0], 0.0), false);
    check(&take(POINTS, [1, 0], 1.0), false);
    let b = Builder::new();
    let labels = b.input(DType::S32, &[POINTS, 2]);
    let near = b.less(b.input(DType::F32, &[POINTS, POINTS]), 3.5);
    let taken = b.sum(b.take(labels, numbers(&b, near, DType::S32, [1, 0]), 0), &[1]);
    check(&b.finish(&[taken]).unwrap(), false);
}

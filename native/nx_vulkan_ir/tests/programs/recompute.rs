//! What is computed again for what reads it late, behind where a program takes most.

use nx_vulkan_ir::program::ops::index::Take;
use nx_vulkan_ir::program::passes::{Joins, Saving, Target, optimize};
use nx_vulkan_ir::program::{Builder, Op, Operand, Program};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::passes::target;

/// Results of 4 KiB count, as those of 4 MiB do on a GPU.
fn small() -> Target {
    let gpu = target(Saving::Nothing);
    Target { joins: Joins { read_bytes: 1 << 12, ..gpu.joins }, ..gpu }
}

/// Rows of a table times weights that are put together, and what is made of that in wide results, of which gradients by
/// both read these again. Then a result of `last` rows and columns.
fn embedded(last: u64) -> Program {
    let b = Builder::new();
    let table = b.input(DType::F32, &[128, 32]);
    let words = b.input(DType::S32, &[32]);
    let rows = b.push(Op::from(Take { axis: 0 }), &[table, words], &Type::new(DType::F32, &[32, 32]));
    let weights: Vec<Operand> = (0..4).map(|_| b.input(DType::F32, &[16, 32])).collect();
    let weights = b.concatenate(&weights, 0);
    let none: [&[usize]; 2] = [&[], &[]];
    let wide = b.input(DType::F32, &[64, 256]);
    let given = b.dot_axes([b.dot_axes([rows, weights], [&[1], &[1]], none), wide], [&[1], &[0]], none);
    let made = b.dot_axes([b.exp(given), b.input(DType::F32, &[256, 256])], [&[1], &[0]], none);
    let back = b.dot_axes([b.multiply(made, given), wide], [&[1], &[1]], none);
    let by_rows = b.dot_axes([back, weights], [&[1], &[0]], none);
    let by_weights = b.dot_axes([back, rows], [&[0], &[0]], none);
    let square = [b.broadcast(b.sum(by_rows, &[0, 1]), &[last, 1]), b.broadcast(b.sum(back, &[0, 1]), &[1, last])];
    let square = b.subtract(square[0], square[1]);
    b.finish(&[by_rows, by_weights, square]).unwrap()
}

/// How often the weights are put together, and rows taken.
fn made(program: &Program) -> (usize, usize) {
    let text = program.to_string();
    (text.matches("concatenate(").count(), text.matches("take(").count())
}

#[test]
fn what_is_put_together_and_taken_is_made_again() {
    let program = embedded(1);
    let again = optimize(program.clone(), &small()).unwrap();
    assert_eq!(made(&again), (2, 2), "{again}");
    let value = |ty: &Type, i: u64| match ty.dtype {
        DType::S32 => Value::Int(i128::from(i * 37 % 128)),
        _ => Value::Float((i * 7919 % 1001) as f64 / 4096.0 - 0.125),
    };
    let array = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| value(ty, i)));
    let inputs: Vec<Array> = program.inputs.iter().map(array).collect();
    assert_eq!(reference::run(&again, &inputs).unwrap(), reference::run(&program, &inputs).unwrap());
}

#[test]
fn operands_of_matrix_units_count_where_products_are() {
    // The last result takes most, unless operands of products are split before.
    let program = embedded(200);
    let with = |matrix_units: bool, unit_work: u64| {
        let joins = Joins { unit_work, ..small().joins };
        let again = optimize(program.clone(), &Target { matrix_units, joins, ..small() }).unwrap();
        made(&again)
    };
    assert_eq!(with(false, 1), (1, 1));
    assert_eq!(with(true, 1 << 30), (1, 1));
    assert_eq!(with(true, 1), (2, 2));
}

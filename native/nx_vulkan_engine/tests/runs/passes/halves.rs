//! Rows of f16 and bf16 in one kernel beside each op in a kernel of its own.

use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Builder, Operand, Reduction, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Value};

use super::{difference, gpu, run};
use crate::common::{self, Rng};

type Rows = fn(&Builder, Operand, u64) -> Operand;

fn softmax(b: &Builder, x: Operand, _columns: u64) -> Operand {
    let exp = b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true)));
    b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true))
}

/// In f32, where one sees which NaN they are.
fn exponentials(b: &Builder, x: Operand, _columns: u64) -> Operand {
    b.as_type(b.exp(b.subtract(x, b.reduce(Reduction::Max, x, &[1], true))), DType::F32)
}

fn layer_norm(b: &Builder, x: Operand, columns: u64) -> Operand {
    let mean = |y| b.divide(b.reduce(Reduction::Sum, y, &[1], true), columns as f64);
    let centered = b.subtract(x, mean(x));
    let variance = mean(b.multiply(centered, centered));
    let scaled = b.multiply(centered, b.unary(Unary::Rsqrt, b.add(variance, 1e-5)));
    b.add(b.multiply(scaled, 1.25), 0.375)
}

/// By quotients and roots, of elements that are activated before.
fn norm_of_activations(b: &Builder, x: Operand, columns: u64) -> Operand {
    let active = b.multiply(x, b.unary(Unary::Sigmoid, x));
    let mean = b.divide(b.reduce(Reduction::Sum, b.multiply(active, active), &[1], true), columns as f64);
    b.divide(active, b.unary(Unary::Sqrt, b.add(mean, 1e-6)))
}

/// Rows of ordinary numbers, of numbers of all sizes, and with some that are not ordinary, each in a place of its own.
fn rows(columns: u64, rng: &mut Rng) -> Vec<Value> {
    let others =
        [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3e38, -3e38, 1e-39, -1e-39, 1e-20, 1e20, -60.0];
    let mut row = |scale: f64| -> Vec<f64> {
        (0..columns).map(|_| (rng.below(20_001) as f64 / 10_000.0 - 1.0) * scale).collect()
    };
    let mut rows = [1.0, 30.0, 300.0, 1e-30, 1e30, 1e-39].map(&mut row).to_vec();
    for (i, &other) in others.iter().enumerate() {
        let mut mixed = row(4.0);
        mixed[(7 * i + 3) % columns as usize] = other;
        rows.push(mixed);
    }
    rows.push(vec![0.0; columns as usize]);
    rows.concat().into_iter().map(Value::Float).collect()
}

#[test]
fn rows_of_16_bits_have_the_bits_of_op_by_op() {
    let engine = common::engine();
    let mut rng = Rng(11);
    let programs: [(&str, Rows); 4] = [
        ("softmax", softmax),
        ("exponentials", exponentials),
        ("layer norm", layer_norm),
        ("norm of activations", norm_of_activations),
    ];
    for dtype in [DType::F16, DType::Bf16] {
        for columns in [128, 100] {
            let numbers = rows(columns, &mut rng);
            for (name, make) in programs {
                let b = Builder::new();
                let x = b.input(dtype, &[numbers.len() as u64 / columns, columns]);
                let result = make(&b, x, columns);
                let program = b.finish(&[result]).unwrap();
                let inputs = [Array::new(&program.inputs[0], numbers.iter().map(|x| x.cast(dtype)))];
                let fused = optimize(program.clone(), &gpu()).unwrap();
                assert_eq!(fused.instructions.len(), 1, "{name} of {dtype}: {fused}");
                let [want, got] = [&program, &fused].map(|program| run(program, &inputs));
                assert_eq!(difference(&got[0], &want[0]), None, "{name} of {columns} {dtype}");
            }
        }
    }
    common::assert_valid(&engine);
}

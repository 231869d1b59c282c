//! Arithmetic of integers that wraps inside of fused kernels: every value of narrow types, the ends of wide ones.

use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Reduction, Unary};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{DType, Value, value};

use super::{difference, gpu, run};

type Wrap = fn(&Builder, Operand) -> Operand;
type Read = fn(&Builder, Operand, Operand) -> Operand;

fn wraps() -> [(&'static str, Wrap); 8] {
    [
        ("negate", |b, x| b.unary(Unary::Negate, x)),
        ("abs", |b, x| b.unary(Unary::Abs, x)),
        ("0 - x", |b, x| b.subtract(0.0, x)),
        ("1 - x", |b, x| b.subtract(1.0, x)),
        ("x + 1", |b, x| b.add(x, 1.0)),
        ("x * 3", |b, x| b.multiply(x, 3.0)),
        ("-abs(x)", |b, x| b.unary(Unary::Negate, b.unary(Unary::Abs, x))),
        ("x * x - x", |b, x| b.subtract(b.binary(Binary::Multiply, x, x), x)),
    ]
}

const DTYPES: [DType; 8] = [DType::S2, DType::S4, DType::S8, DType::S16, DType::U2, DType::U4, DType::U8, DType::U16];

/// NVIDIA's driver 580.159 took -(-128) of s8 for 128 before a minimum, on an H200: it left the extension of the sign
/// out.
#[test]
fn extremes_of_wrapped_values_are_exact() {
    for dtype in DTYPES {
        // Rows and columns of all values in order, from the least on.
        let rows = 1u64 << (dtype.bits() / 2);
        let columns = (1u64 << dtype.bits()) / rows;
        for (name, wrap) in wraps() {
            for reduction in [Reduction::Min, Reduction::Max] {
                for axes in [[0].as_slice(), &[0, 1]] {
                    let b = Builder::new();
                    let x = b.input(dtype, &[rows, columns]);
                    let y = wrap(&b, x);
                    let reduced = b.reduce(reduction, y, axes, false);
                    let program = b.finish(&[reduced]).unwrap();
                    let (least, _) = value::range(dtype);
                    let values = (0..i128::from(rows * columns)).map(|i| Value::Int(least + i));
                    let inputs = [Array::new(&program.inputs[0], values)];
                    let expected = reference::run(&program, &inputs).unwrap();
                    let optimized = optimize(program, &gpu()).unwrap();
                    let got = run(&optimized, &inputs);
                    let differs = difference(&got[0], &expected[0]);
                    assert_eq!(differs, None, "{reduction:?} of {name} of {dtype}: {optimized}");
                }
            }
        }
    }
}

#[test]
fn wrapped_values_are_what_they_are_to_what_reads_them() {
    let reads: [Read; 9] = [
        |b, y, f| b.concatenate(&[f, y, f], 0),
        |b, y, _| b.as_type(y, DType::F32),
        |b, y, f| b.push(Op::Binary(Binary::Add), &[y, f], &b.ty(f)),
        |b, y, _| b.less(y, 0.0),
        |b, y, _| b.max(y, 0.0),
        |b, y, _| b.binary(Binary::RightShift, y, b.number(b.ty(y).dtype, 1.0)),
        |b, y, _| b.binary(Binary::Quotient, y, b.number(b.ty(y).dtype, 2.0)),
        |b, y, _| b.binary(Binary::Remainder, y, b.number(b.ty(y).dtype, 3.0)),
        |b, y, _| b.sign(y),
    ];
    for dtype in [DType::S8, DType::S32, DType::S64] {
        let (least, most) = value::range(dtype);
        let values = [least, least + 1, least / 2, -1, 0, 1, most / 2, most - 1, most].map(Value::Int);
        for (name, wrap) in wraps() {
            for (k, read) in reads.iter().enumerate() {
                let b = Builder::new();
                let (x, f) = (b.input(dtype, &[9]), b.input(DType::F32, &[9]));
                let y = wrap(&b, x);
                let result = read(&b, y, f);
                let program = b.finish(&[result]).unwrap();
                let zeros = values.map(|_| Value::Float(0.0));
                let inputs = [Array::new(&program.inputs[0], values), Array::new(&program.inputs[1], zeros)];
                let expected = reference::run(&program, &inputs).unwrap();
                let optimized = optimize(program, &gpu()).unwrap();
                let got = run(&optimized, &inputs);
                assert_eq!(difference(&got[0], &expected[0]), None, "read {k} of {name} of {dtype}: {optimized}");
            }
        }
    }
}

//! Losses of labels: elements that are taken from lines which are reduced, too.

use nx_vulkan_ir::program::attribute::Axes;
use nx_vulkan_ir::program::ops::index::TakeAlongAxis;
use nx_vulkan_ir::program::passes::{Saving, Target, optimize};
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_ir::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::{DType, Type, Value};

use crate::passes::target;

fn taken(b: &Builder, x: Operand, labels: Operand, axis: usize) -> Operand {
    let ty = Type { dtype: b.ty(x).dtype, shape: b.ty(labels).shape };
    b.push(Op::from(TakeAlongAxis { axis }), &[x, labels], &ty)
}

/// The loss of each line and the share of each element, of scores that are computed, by what `lines` are reduced as.
fn losses(scores: &Type, labels: &Type, axis: usize, lines: DType) -> Program {
    let b = Builder::new();
    let given = b.input(scores.dtype, &scores.shape);
    let x = b.push(Op::Reverse { axes: Axes::from_slice(&[axis]) }, &[given], scores);
    let label = b.input(labels.dtype, &labels.shape);
    let picked = taken(&b, x, label, axis);
    let wide = b.as_type(x, lines);
    let largest = b.reduce(Reduction::Max, wide, &[axis], true);
    let exp = b.exp(b.subtract(wide, largest));
    let total = b.reduce(Reduction::Sum, exp, &[axis], true);
    let loss = b.subtract(b.add(b.log(total), largest), b.as_type(picked, lines));
    let shares = b.divide(exp, total);
    b.finish(&[loss, shares]).unwrap()
}

fn inputs(program: &Program, axis: usize) -> Vec<Array> {
    let scores = &program.inputs[0];
    let special = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let value = |i: u64| match i % 97 {
        // Whole lines of one of them, too.
        at @ 0..5 => special[at as usize],
        at => (at as f64 - 48.0) / 16.0,
    };
    let size = scores.shape[axis] as i128;
    let label = |i: u64| Value::Int(i128::from(i) * 7 % (size + 4) - 2);
    let whole = |ty: &Type, value: &dyn Fn(u64) -> Value| Array::new(ty, (0..ty.elements()).map(value));
    let narrow = program.inputs[1].dtype.is_unsigned();
    let label = |i: u64| if narrow { Value::Int(i128::from(i % 256)) } else { label(i) };
    vec![whole(scores, &|i| Value::Float(value(i * i / 3))), whole(&program.inputs[1], &label)]
}

fn takes(program: &Program, target: &Target) -> bool {
    format!("{}", optimize(program.clone(), target).unwrap()).contains("take_along_axis")
}

#[test]
fn labels_are_found_where_lines_are_reduced() {
    let gpu = target(Saving::Nothing);
    let cases = [
        (DType::F32, DType::F32, DType::S64, [512, 600], 1),
        (DType::F32, DType::F32, DType::U8, [1024, 512], 1),
        (DType::F64, DType::F64, DType::S32, [2000, 300], 0),
        (DType::Bf16, DType::F32, DType::S64, [600, 1000], 1),
        (DType::F16, DType::F16, DType::U8, [300, 2000], 0),
    ];
    for (dtype, lines, index, shape, axis) in cases {
        let scores = Type::new(dtype, &shape);
        let mut one = shape;
        one[axis] = 1;
        let program = losses(&scores, &Type::new(index, &one), axis, lines);
        assert!(!takes(&program, &gpu), "{program}");
        let given = inputs(&program, axis);
        let bits = |program: &Program| -> Vec<Vec<u8>> {
            reference::run(program, &given).unwrap().iter().map(Array::to_nx_bytes).collect()
        };
        assert!(bits(&optimize(program.clone(), &gpu).unwrap()) == bits(&program), "{program}");
    }
}

#[test]
fn labels_are_taken_where_no_kernel_reads_the_lines_anyway() {
    let gpu = target(Saving::Nothing);
    let scores = Type::new(DType::F32, &[512, 600]);
    let labels = |n: u64| Type::new(DType::S64, &[512, n]);
    let all = losses(&scores, &labels(1), 1, DType::F32);
    assert!(takes(&losses(&scores, &labels(2), 1, DType::F32), &gpu), "two of a line");
    assert!(takes(&losses(&Type::new(DType::F32, &[512, 60]), &labels(1), 1, DType::F32), &gpu), "little memory");
    let few = RowLimits { planned_invocations: 8, ..gpu.rows };
    assert!(takes(&all, &Target { rows: few, ..gpu }), "lines that no kernel holds");
    // What moves numbers keeps a NaN as it is.
    let moved = |makes: &dyn Fn(&Builder, Operand, Operand) -> Vec<Operand>| {
        let b = Builder::new();
        let x = b.push(Op::Reverse { axes: Axes::from_slice(&[1]) }, &[b.input(DType::F32, &scores.shape)], &scores);
        let picked = taken(&b, x, b.input(DType::S64, &[512, 1]), 1);
        let results = makes(&b, x, picked);
        b.finish(&results).unwrap()
    };
    let largest = |b: &Builder, x: Operand| b.reduce(Reduction::Max, x, &[1], true);
    assert!(takes(&moved(&|b, x, picked| vec![largest(b, x), picked]), &gpu), "a result");
    let beside = |b: &Builder, x: Operand, picked: Operand| vec![b.concatenate(&[largest(b, x), picked], 1)];
    assert!(takes(&moved(&beside), &gpu), "what is put beside others");
    assert!(takes(&moved(&|b, x, picked| vec![b.add(picked, 1.0), b.exp(x)]), &gpu), "lines that are not reduced");
    assert!(!takes(&moved(&|b, x, picked| vec![b.subtract(largest(b, x), picked)]), &gpu));
}

//! Losses of labels: elements that are taken from lines which are reduced, too.

use nx_vulkan_ir::program::attribute::Axes;
use nx_vulkan_ir::program::ops::index::TakeAlongAxis;
use nx_vulkan_ir::program::ops::moved::Reverse;
use nx_vulkan_ir::program::passes::{Saving, Target, optimize};
use nx_vulkan_ir::program::rows::RowLimits;
use nx_vulkan_ir::program::{Builder, Instruction, Op, Operand, Program, Reduction};
use nx_vulkan_ir::reference::{self, Array};
use nx_vulkan_ir::value::range;
use nx_vulkan_ir::{DType, Type, Value};

use crate::passes::target;

fn taken(b: &Builder, x: Operand, labels: Operand, axis: usize) -> Operand {
    let ty = Type { dtype: b.ty(x).dtype, shape: b.ty(labels).shape };
    b.push(Op::from(TakeAlongAxis { axis }), &[x, labels], &ty)
}

/// The loss of each line, twice the score that is picked, and the share of each element, of scores that are computed.
/// Lines are reduced as `lines`.
fn losses(scores: &Type, labels: &Type, axis: usize, lines: DType) -> Program {
    let b = Builder::new();
    let given = b.input(scores.dtype, &scores.shape);
    let x = b.push(Op::from(Reverse { axes: Axes::from_slice(&[axis]) }), &[given], scores);
    let label = b.input(labels.dtype, &labels.shape);
    let picked = taken(&b, x, label, axis);
    let wide = b.as_type(x, lines);
    let largest = b.reduce(Reduction::Max, wide, &[axis], true);
    let exp = b.exp(b.subtract(wide, largest));
    let total = b.reduce(Reduction::Sum, exp, &[axis], true);
    let picked = b.as_type(picked, lines);
    let loss = b.subtract(b.add(b.log(total), largest), picked);
    let shares = b.divide(exp, total);
    let picked = b.add(picked, picked);
    b.finish(&[loss, picked, shares]).unwrap()
}

/// Scores of which some lines have special elements, or nothing else, and labels of which some are out of bounds.
fn inputs(program: &Program, axis: usize) -> Vec<Array> {
    let [scores, labels] = [&program.inputs[0], &program.inputs[1]];
    let special = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let (size, behind) = (scores.shape[axis], scores.shape[axis + 1..].iter().product::<u64>());
    let score = |i: u64| {
        let (line, at) = (i / (size * behind) * behind + i % behind, i / behind % size);
        let special = special[line as usize / 16 % 5];
        match line % 16 {
            0 => special,
            1 if at % 5 == 0 => special,
            _ => ((i * 7919 + line) % 97) as f64 / 16.0 - 3.0,
        }
    };
    let (least, most) = range(labels.dtype);
    let label = |line: u64| match line % 11 {
        3 => least.max(-7),
        4 => most,
        5 => i128::from(size),
        _ => i128::from(line * 37 % size),
    };
    let array = |ty: &Type, value: &dyn Fn(u64) -> Value| Array::new(ty, (0..ty.elements()).map(value));
    let label = |line: u64| Value::Int(label(line).clamp(least, most));
    vec![array(scores, &|i| Value::Float(score(i))), array(labels, &label)]
}

fn takes(program: &Program, target: &Target) -> bool {
    format!("{}", optimize(program.clone(), target).unwrap()).contains("take_along_axis")
}

#[test]
fn labels_are_found_where_lines_are_reduced() {
    let gpu = target(Saving::Nothing);
    let cases = [
        (DType::F32, DType::F32, DType::S64, [512, 600], 1),
        (DType::F32, DType::F32, DType::U8, [8192, 64], 1),
        (DType::F64, DType::F64, DType::S32, [100, 2000], 0),
        (DType::Bf16, DType::F32, DType::S8, [600, 1000], 1),
        (DType::F16, DType::F16, DType::U64, [400, 2000], 0),
    ];
    for (dtype, lines, index, shape, axis) in cases {
        let scores = Type::new(dtype, &shape);
        let mut one = shape;
        one[axis] = 1;
        let program = losses(&scores, &Type::new(index, &one), axis, lines);
        assert!(!takes(&program, &gpu), "{program}");
        let given = inputs(&program, axis);
        let expected = reference::run(&program, &given).unwrap();
        let finite = expected[0].values.iter().filter(|loss| loss.real().is_finite()).count();
        assert!(finite * 5 > expected[0].values.len() * 4, "{finite} losses are numbers");
        let bits = |arrays: &[Array]| -> Vec<Vec<u8>> { arrays.iter().map(Array::to_nx_bytes).collect() };
        let optimized = optimize(program.clone(), &gpu).unwrap();
        assert!(bits(&reference::run(&optimized, &given).unwrap()) == bits(&expected), "{program}");
        // Nothing but the shares is stored for all elements behind what is reversed.
        let whole = |i: &&Instruction| i.outs.iter().any(|out| out.shape == scores.shape);
        assert!(optimized.instructions.iter().filter(whole).count() <= 2, "{optimized}");
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
    assert!(takes(&all, &target(Saving::Reductions)), "nothing is reduced that is not stored");
    let [wide, columns] = [([64, 20_000], 1), ([2000, 300], 0)].map(|(shape, axis)| {
        let mut one = shape;
        one[axis] = 1;
        losses(&Type::new(DType::F64, &shape), &Type::new(DType::S64, &one), axis, DType::F64)
    });
    assert!(takes(&wide, &gpu) && takes(&columns, &gpu), "lines of f64 that no kernel holds");
    // What moves numbers keeps a NaN as it is.
    let moved = |makes: &dyn Fn(&Builder, Operand, Operand) -> Vec<Operand>| {
        let b = Builder::new();
        let x =
            b.push(Op::from(Reverse { axes: Axes::from_slice(&[1]) }), &[b.input(DType::F32, &scores.shape)], &scores);
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

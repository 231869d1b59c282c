//! Reductions of the same elements, and what follows them: one pass over memory, and the bits of each op alone.

use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::passes::optimize;
use nx_vulkan_engine::program::{Builder, Op, Operand, Program, Reduction};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, DeviceKind, Executable, Type, Value};

use super::known::check;
use super::{difference, download, engine, gpu, graphs, run, upload};
use crate::common::{self, Rng};

/// Launches of a program on the device at hand.
fn launches(program: &Program) -> Vec<String> {
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    let launches = executable.describe().into_iter().map(|described| match described {
        Described::Launch(launched) => launched.kernel,
        other => panic!("{other:?}"),
    });
    launches.collect()
}

fn of(shape: &[u64], function: impl FnOnce(&Builder, Operand) -> Vec<Operand>) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, shape);
    let outputs = function(&b, x);
    b.finish(&outputs).unwrap()
}

#[test]
fn means_and_variances_read_once() {
    // Whole rows, chunks of rows, all of a tensor, columns, chunks of columns.
    let cases: [(&[u64], &[usize], usize); 6] = [
        (&[64, 20_000], &[1], 1),
        (&[2, 70_000], &[1], 2),
        (&[300, 401], &[0, 1], 2),
        (&[40, 3000], &[0], 1),
        (&[30_000, 3], &[0], 2),
        (&[3, 700, 50], &[0, 1], 2),
    ];
    for (shape, axes, count) in cases {
        let program = of(shape, |b, x| {
            let (mean, square) = (b.mean(x, axes), b.mean(b.multiply(x, x), axes));
            vec![mean, b.sqrt(b.subtract(square, b.multiply(mean, mean)))]
        });
        check(&program, &["fused"], 2);
        let launches = launches(&program);
        // GPUs hold longer rows, and teams of invocations share columns.
        let is_gpu = engine().caps().kind != DeviceKind::Cpu;
        let reads_once = launches.len() == count || (is_gpu && launches.len() < count);
        assert!(reads_once, "{shape:?} along {axes:?}: {launches:?}");
        let is_reduction = |kernel: &String| kernel.starts_with("reduce.") || (is_gpu && kernel.starts_with("rows."));
        assert!(launches.iter().all(is_reduction), "{launches:?}");
    }
}

#[test]
fn what_follows_reductions_reads_an_element_for_each() {
    for shape in [[20_000, 40], [70_000, 2]] {
        let program = of(&shape, |b, x| {
            let (bias, scale) = (b.input(DType::F32, &shape[1..]), b.input(DType::F32, &[]));
            let turned = b.input(DType::F32, &[shape[1], 2]);
            let first = b.reshape(b.slice(turned, &[0, 1], &[shape[1], 1]), &[shape[1]]);
            let sum = b.sum(x, &[0]);
            vec![b.add(b.multiply(sum, scale), bias), b.max(first, b.reduce_max(x, &[0])), sum]
        });
        check(&program, &["fused"], 3);
    }
}

#[test]
fn reductions_that_wait_for_each_other_are_apart() {
    let program = of(&[300, 401], |b, x| {
        let max = b.reduce_max(x, &[0, 1]);
        vec![b.add(b.log(b.sum(b.exp(b.subtract(x, max)), &[0, 1])), max)]
    });
    check(&program, &["reduce_max", "fused"], 1);
    assert_eq!(launches(&program).len(), 4);
}

#[test]
fn what_is_the_same_for_a_row_is_not_computed_for_each_element() {
    // As in the gradient of batch normalization: a power of the variance of each channel among what is summed.
    let program = of(&[20_000, 40], |b, x| {
        let (mean, variance) = (b.input(DType::F32, &[40]), b.input(DType::F32, &[40]));
        let scale = b.pow(variance, -1.5);
        vec![b.sum(b.multiply(b.subtract(x, mean), scale), &[0])]
    });
    check(&program, &["fused", "fused"], 1);
    let launches = launches(&program);
    assert!(launches[0].starts_with("map.pow") && launches[1].starts_with("reduce.subtract_multiply"), "{launches:?}");
    // A few cheap steps are.
    let program = of(&[20_000, 40], |b, x| {
        let scale = b.input(DType::F32, &[40]);
        vec![b.sum(b.multiply(x, b.divide(b.multiply(scale, scale), 3.0)), &[0])]
    });
    check(&program, &["fused"], 1);
}

#[test]
fn accumulators_of_one_kernel_are_few() {
    let program = of(&[300, 401], |b, x| (1..=5).map(|k| b.sum(b.multiply(x, f64::from(k)), &[0, 1])).collect());
    check(&program, &["fused", "sum"], 5);
}

#[test]
fn reductions_that_are_laid_out_differently_alone_are_apart() {
    // The elements of a turned operand are no neighbours, those of its squares would be.
    let program = of(&[300, 401], |b, x| {
        let turned = b.transpose(x, &[1, 0]);
        let squares = b.sum(b.multiply(turned, turned), &[0, 1]);
        vec![b.divide(b.sum(turned, &[0, 1]), b.sqrt(squares))]
    });
    check(&program, &["fused"], 1);
    let launches = launches(&program);
    assert_eq!(launches.iter().filter(|kernel| kernel.starts_with("reduce.")).count(), 4, "{launches:?}");
}

/// Shapes and axes: around one workgroup, around where a second dispatch begins, and odd ones.
const CASES: [(&[u64], &[usize]); 16] = [
    (&[1, 1], &[0, 1]),
    (&[5, 3], &[1]),
    (&[7, 36], &[0]),
    (&[3, 255], &[1]),
    (&[2, 256], &[1]),
    (&[1, 1025], &[0, 1]),
    (&[129, 33], &[0]),
    (&[65, 257], &[0, 1]),
    (&[1, 32_767], &[1]),
    (&[8, 4096], &[0, 1]),
    (&[3, 32_771], &[1]),
    (&[181, 183], &[0, 1]),
    (&[700, 3], &[0]),
    (&[20_001, 2], &[0]),
    (&[5, 127, 9], &[0, 2]),
    (&[6, 50, 40], &[1]),
];

const TYPES: [DType; 9] =
    [DType::F32, DType::F32, DType::F64, DType::F16, DType::Bf16, DType::S64, DType::S32, DType::U8, DType::C64];

/// An operand of a shape, as it lies in memory or as a view of something else.
fn operand(b: &Builder, dtype: DType, shape: &[u64], rng: &mut Rng) -> Operand {
    let rank = shape.len();
    match rng.below(6) {
        0 => {
            let turned: Vec<u64> = shape.iter().rev().copied().collect();
            b.transpose(b.input(dtype, &turned), &(0..rank).rev().collect::<Vec<_>>())
        }
        1 => {
            let wider: Vec<u64> = shape.iter().map(|n| n + 3).collect();
            b.slice(b.input(dtype, &wider), &vec![2; rank], shape)
        }
        2 => b.broadcast(b.input(dtype, &shape[rank - 1..]), shape),
        3 => {
            let x = b.input(dtype, shape);
            b.push(Op::from(Reverse { axes: [rank - 1].as_slice().into() }), &[x], &Type::new(dtype, shape))
        }
        _ => b.input(dtype, shape),
    }
}

/// Reductions of an operand and of what is computed from it, and steps on some of them.
fn statistics(dtype: DType, shape: &[u64], axes: &[usize], rng: &mut Rng) -> Program {
    let b = Builder::new();
    let (x, y) = (operand(&b, dtype, shape, rng), operand(&b, dtype, shape, rng));
    let keeps = rng.below(2) == 0;
    let mut outputs = Vec::new();
    for _ in 0..1 + rng.below(5) {
        let of = match rng.below(5) {
            0 => b.multiply(x, x),
            1 => b.abs(b.subtract(x, y)),
            2 => b.multiply(x, y),
            _ => x,
        };
        let all = match b.ty(of).dtype.is_complex() {
            true => &[Reduction::Sum, Reduction::Any][..],
            false => Reduction::ALL,
        };
        let reduction = [Reduction::Sum, all[rng.below(all.len() as u64) as usize]][rng.below(2) as usize];
        let axes = match reduction {
            Reduction::ArgMax | Reduction::ArgMin if axes.len() > 1 => continue,
            _ => axes,
        };
        let tie_high = rng.below(2) == 0;
        let plain = b.reduce(reduction, of, axes, keeps);
        let reduced = match reduction {
            Reduction::ArgMax | Reduction::ArgMin => {
                let op = Op::Reduce { reduction, axes: axes.into(), tie_high };
                b.push(op, &[of], &b.ty(plain))
            }
            _ => plain,
        };
        match rng.below(4) {
            0 if !dtype.is_complex() => outputs.push(b.sqrt(reduced)),
            1 => outputs.push(b.divide(reduced, 3.0)),
            2 if !outputs.is_empty() => {
                let other = outputs[rng.below(outputs.len() as u64) as usize];
                outputs.push(b.subtract(reduced, other));
            }
            _ => {}
        }
        outputs.push(reduced);
    }
    if outputs.is_empty() {
        outputs.push(b.sum(x, axes));
    }
    b.finish(&outputs).unwrap()
}

/// Values of all sorts, or numbers alone, which add up to numbers.
fn values(ty: &Type, numbers: bool, rng: &mut Rng) -> Array {
    if !numbers {
        return graphs::values(ty, rng);
    }
    let number = |rng: &mut Rng| (rng.below(4001) as f64 - 2000.0) / 500.0;
    let value = |rng: &mut Rng| match ty.dtype {
        t if t.is_integer() => Value::Int(i128::from(rng.below(9)) - 2).cast(t),
        t if t.is_complex() => Value::Complex(number(rng), number(rng)),
        _ => Value::Float(number(rng)),
    };
    Array::new(ty, (0..ty.elements()).map(|_| value(rng)).collect::<Vec<_>>())
}

#[test]
fn statistics_have_the_bits_of_each_op_alone() {
    let seed = super::random::number("NX_VULKAN_TEST_SEED", 20_261_125);
    for case in 0..super::random::number("NX_VULKAN_PROGRAMS", 48) {
        let mut rng = Rng(((seed << 1) ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..4).for_each(|_| {
            rng.next();
        });
        let (shape, axes) = CASES[case as usize % CASES.len()];
        let dtype = TYPES[rng.below(TYPES.len() as u64) as usize];
        let program = statistics(dtype, shape, axes, &mut rng);
        let numbers = rng.below(3) > 0;
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| values(ty, numbers, &mut rng)).collect();
        let expected = run(&program, &inputs);
        let executable = Executable::compile(engine(), program.clone()).unwrap();
        for (name, got) in [
            ("as on GPUs", run(&optimize(program.clone(), &gpu()).unwrap(), &inputs)),
            ("here", run(&optimize(program.clone(), &engine().target()).unwrap(), &inputs)),
            ("executable", download(&executable.run(&upload(&inputs), Compile::Allowed).unwrap())),
        ] {
            for (k, (a, b)) in expected.iter().zip(&got).enumerate() {
                assert_eq!(difference(a, b), None, "case {case}, {name}, output {k} of {program}");
            }
        }
    }
    common::assert_valid(engine());
}

/// Steps on operands of a row or column are done once for it, or for each of its chunks.
#[test]
fn what_elements_share_has_the_bits_of_each_op_alone() {
    let mut rng = Rng(20_261_127);
    for (shape, axes) in [
        (&[500u64, 40][..], &[0usize][..]),
        (&[40, 500], &[1]),
        (&[3, 700, 50], &[0, 1]),
        (&[40_000, 5], &[0]),
        (&[3, 70_001], &[1]),
    ] {
        for dtype in [DType::F32, DType::Bf16, DType::S32, DType::F64] {
            let shares: Vec<u64> = (0..).zip(shape).map(|(k, &n)| if axes.contains(&k) { 1 } else { n }).collect();
            let b = Builder::new();
            let (x, total, scale) = (b.input(dtype, shape), b.input(dtype, &shares), b.input(dtype, &shares));
            let shifted = b.subtract(x, b.as_type(b.divide(total, 17.0), dtype));
            let sums = [b.multiply(shifted, shifted), b.multiply(shifted, scale)].map(|of| b.sum(of, axes));
            let program = b.finish(&sums).unwrap();
            let inputs: Vec<Array> = program.inputs.iter().map(|ty| values(ty, true, &mut rng)).collect();
            let executable = Executable::compile(engine(), program.clone()).unwrap();
            let got = download(&executable.run(&upload(&inputs), Compile::Allowed).unwrap());
            for (k, (a, b)) in run(&program, &inputs).iter().zip(&got).enumerate() {
                assert_eq!(difference(a, b), None, "{shape:?} along {axes:?}, output {k} of {program}");
            }
        }
    }
    common::assert_valid(engine());
}

#[test]
fn many_sums_of_one_operand_share_kernels() {
    let program = of(&[300], |b, x| (0..130).map(|i| b.sum(b.add(x, f64::from(i)), &[0])).collect());
    let launches = launches(&program);
    assert!(launches.len() <= 33, "{}: {launches:?}", launches.len());
}

/// What a deep network passes on from block to block is in memory at each product, so that the last blocks are fused as
/// the first ones.
#[test]
fn all_blocks_of_a_deep_network_are_fused_alike() {
    let blocks = |count: usize| {
        let program = of(&[64, 512], |b, x| {
            let weights = b.input(DType::F32, &[512, 512]);
            let block = |x: Operand, _| {
                let x = b.add(b.dot(x, weights), x);
                let centred = b.subtract(x, b.reshape(b.mean(x, &[1]), &[64, 1]));
                let variance = b.reshape(b.mean(b.multiply(centred, centred), &[1]), &[64, 1]);
                let normal = b.multiply(centred, b.rsqrt(b.add(variance, 1e-5)));
                b.add(b.multiply(normal, 1.5), 0.25)
            };
            vec![(0..count).fold(x, block)]
        });
        launches(&program).len()
    };
    let [few, more, many] = [4, 5, 16].map(blocks);
    assert_eq!(many - few, 12 * (more - few), "{few} launches of 4 blocks, {more} of 5, {many} of 16");
}

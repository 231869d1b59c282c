//! What is put at places of something larger as index maps of kernels: pads, slices put into tensors, concatenations
//! and stacks.

use nx_vulkan_engine::program::attribute::Scalar;
use nx_vulkan_engine::program::ops::moved::{Pad, Reverse};
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Binary, Builder, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::{Compile, DType, DeviceKind, Executable, Tensor, Type, Value, View, eager};
use smallvec::smallvec;

use super::known::ops;
use super::{difference, download, engine, gpu, graphs, run, upload};
use crate::common::{self, Rng};

fn pad(b: &Builder, a: Operand, value: f64, config: &[(i64, i64, u64)]) -> Operand {
    let ty = b.ty(a);
    let value = if ty.dtype.is_integer() { Scalar::Int(value as i128) } else { Scalar::Float(value) };
    let value = b.push(Op::Constant(value), &[], &Type::new(ty.dtype, &[]));
    let padded = |(&n, &(low, high, interior)): (&u64, &(i64, i64, u64))| {
        (n as i64 + n.saturating_sub(1) as i64 * interior as i64 + low + high) as u64
    };
    let shape: Vec<u64> = ty.shape.iter().zip(config).map(padded).collect();
    b.push(Op::from(Pad { config: config.into() }), &[a, value], &Type::new(ty.dtype, &shape))
}

fn put(b: &Builder, a: Operand, window: Operand, starts: &[i64]) -> Operand {
    let starts = starts.iter().map(|&start| Some(start)).collect();
    b.push(Op::PutSlice { starts }, &[a, window], &b.ty(a))
}

fn stack(b: &Builder, parts: &[Operand], axis: usize) -> Operand {
    let ty = b.ty(parts[0]);
    let mut shape = ty.shape.to_vec();
    shape.insert(axis, parts.len() as u64);
    b.push(Op::Stack { axis }, parts, &Type::new(ty.dtype, &shape))
}

fn reverse(b: &Builder, a: Operand, axis: usize) -> Operand {
    b.push(Op::from(Reverse { axes: smallvec![axis] }), &[a], &b.ty(a))
}

/// Checks the bits of a program that becomes one kernel, or another one for what is costly, on operands that lie in
/// memory in several ways.
fn check(program: &Program, rng: &mut Rng) {
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    let kernels = ops(&optimized);
    let computes = kernels.iter().filter(|name| **name != "fused").all(|name| ["add", "multiply"].contains(name));
    assert!(kernels.last() == Some(&"fused") && computes && kernels.len() <= 2, "{optimized}");
    let inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, rng)).collect();
    let expected = run(program, &inputs);
    let compare = |results: &[Tensor]| {
        for (got, want) in download(results).iter().zip(&expected) {
            assert_eq!(difference(got, want), None, "{optimized}");
        }
    };
    let tensors = upload(&inputs);
    // Memory that others left behind.
    drop((0..4).map(|_| upload(&[graphs::values(&program.inputs[0], rng)])).collect::<Vec<_>>());
    compare(&eager::run_program(engine(), &optimized, &tensors).unwrap());
    let scattered: Vec<Tensor> = tensors.iter().map(apart).collect();
    compare(&eager::run_program(engine(), &optimized, &scattered).unwrap());
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    compare(&executable.run(&tensors, Compile::Allowed).unwrap());
}

/// The same elements, backwards in memory and with others between and around them.
fn apart(tensor: &Tensor) -> Tensor {
    let b = Builder::new();
    let ty = tensor.view().ty();
    let mut a = b.input(ty.dtype, &ty.shape);
    for axis in 0..ty.shape.len() {
        a = reverse(&b, a, axis);
    }
    let config: Vec<(i64, i64, u64)> = ty.shape.iter().map(|_| (1, 2, 1)).collect();
    let spread = pad(&b, a, 1.0, &config);
    let spread = eager::run_program(engine(), &b.finish(&[spread]).unwrap(), std::slice::from_ref(tensor)).unwrap();
    let starts: Vec<u64> = ty.shape.iter().map(|_| 1).collect();
    let lengths: Vec<u64> = ty.shape.iter().map(|n| 2 * n - 1).collect();
    let steps: Vec<u64> = ty.shape.iter().map(|_| 2).collect();
    let all: Vec<usize> = (0..ty.shape.len()).collect();
    let view: View = spread[0].view().slice(&starts, &lengths, &steps).unwrap().reverse(&all).unwrap();
    Tensor::new(spread[0].buffer().clone(), view).unwrap()
}

const TYPES: [DType; 11] = [
    DType::F32,
    DType::U8,
    DType::F16,
    DType::S64,
    DType::F64,
    DType::C64,
    DType::S16,
    DType::Bf16,
    DType::U32,
    DType::F8E5M2,
    DType::S4,
];

#[test]
fn pads_are_index_maps() {
    let mut rng = Rng(81);
    // Vectors, halves of vectors and none; as few elements as one workgroup has, and as many as blocks take.
    for shape in [[12, 20], [13, 18], [9, 7], [250, 264], [251, 262]] {
        for (i, dtype) in TYPES.into_iter().enumerate() {
            let configs = [
                [(1, -1, 0), (0, 0, 0)],
                [(0, 0, 0), (1, -1, 0)],
                [(4, 4, 0), (8, 4, 0)],
                [(-2, 3, 0), (-3, 1, 0)],
                [(3, 0, 0), (0, 5, 0)],
                [(-1, -2, 0), (2, 2, 0)],
            ];
            let config = configs[(i + shape[0] as usize) % configs.len()];
            let b = Builder::new();
            let x = b.input(dtype, &shape);
            let around = pad(&b, b.add(x, 1.0), 3.0, &config);
            let y = b.input(dtype, &b.ty(around).shape);
            let sum = b.add(around, y);
            check(&b.finish(&[sum]).unwrap(), &mut rng);
        }
    }
    common::assert_valid(engine());
}

#[test]
fn pads_of_pads_and_parts_of_them() {
    let mut rng = Rng(82);
    for shape in [[12, 20], [250, 264]] {
        let [rows, columns] = shape;
        let b = Builder::new();
        let x = b.input(DType::F32, &shape);
        let (first, second) = ([(2, 1, 0), (3, 1, 0)], [(-1, 2, 0), (0, -2, 0)]);
        let twice = pad(&b, pad(&b, x, 2.0, &first), -1.0, &second);
        let turned = reverse(&b, b.transpose(twice, &[1, 0]), 0);
        let part = b.slice(turned, &[1, 2], &[columns, rows]);
        let result = b.exp(part);
        check(&b.finish(&[result]).unwrap(), &mut rng);

        // A stencil: slices of one pad.
        let b = Builder::new();
        let x = b.input(DType::F32, &shape);
        let around = pad(&b, x, 0.0, &[(1, 1, 0), (1, 1, 0)]);
        let near = |row, column| b.slice(around, &[row, column], &[rows, columns]);
        let sum = b.add(b.add(near(0, 1), near(2, 1)), b.add(near(1, 0), near(1, 2)));
        let result = b.subtract(sum, b.multiply(near(1, 1), 4.0));
        check(&b.finish(&[result]).unwrap(), &mut rng);
    }
    common::assert_valid(engine());
}

#[test]
fn what_lies_outside_of_an_axis_is_padding_alone() {
    let mut rng = Rng(83);
    for config in [[(-9, 9, 0), (0, 0, 0)], [(0, 0, 0), (7, -7, 0)], [(9, -8, 0), (-8, 9, 0)]] {
        let b = Builder::new();
        let x = b.input(DType::F32, &[8, 7]);
        let result = b.multiply(pad(&b, x, 5.0, &config), 2.0);
        check(&b.finish(&[result]).unwrap(), &mut rng);
    }
    // A scalar, and one element that repeats.
    let b = Builder::new();
    let x = b.input(DType::F32, &[]);
    let around = pad(&b, b.reshape(x, &[1, 1]), 1.0, &[(2, 3, 0), (0, 4, 0)]);
    let result = b.add(around, b.broadcast(b.slice(around, &[4, 0], &[1, 1]), &[6, 5]));
    check(&b.finish(&[result]).unwrap(), &mut rng);
    common::assert_valid(engine());
}

#[test]
fn concatenations_and_stacks_are_index_maps() {
    let mut rng = Rng(84);
    for (rows, columns) in [(12, 20), (9, 7), (200, 336)] {
        for dtype in TYPES {
            for axis in [0, 1] {
                let b = Builder::new();
                let x = b.input(dtype, &[rows, columns]);
                let y = b.input(dtype, if axis == 0 { &[3, 1] } else { &[1, 4] });
                let y = b.broadcast(y, &if axis == 0 { [3, columns] } else { [rows, 4] });
                let joined = b.concatenate(&[x, y, reverse(&b, x, axis)], axis);
                let result = b.multiply(joined, 2.0);
                check(&b.finish(&[result]).unwrap(), &mut rng);
            }
            let b = Builder::new();
            let [x, y] = [0, 1].map(|_| b.input(dtype, &[rows, columns]));
            let axis = rng.below(3) as usize;
            let result = b.add(stack(&b, &[x, b.add(x, y), y, x], axis), 1.0);
            check(&b.finish(&[result]).unwrap(), &mut rng);
        }
    }
    common::assert_valid(engine());
}

#[test]
fn slices_put_into_tensors_are_index_maps() {
    let mut rng = Rng(85);
    for (rows, columns) in [(12, 20), (9, 7), (251, 264)] {
        for (dtype, window) in [
            (DType::F32, DType::F32),
            (DType::F32, DType::S32),
            (DType::S64, DType::U8),
            (DType::F16, DType::F16),
            (DType::C64, DType::F32),
        ] {
            let b = Builder::new();
            let x = b.input(dtype, &[rows, columns]);
            let y = b.input(window, &[4, columns - 3]);
            // The second start is moved until the slice fits.
            let result = b.add(put(&b, x, y, &[3, columns as i64]), x);
            check(&b.finish(&[result]).unwrap(), &mut rng);
        }
    }
    common::assert_valid(engine());
}

#[test]
fn rows_are_made_of_parts() {
    let mut rng = Rng(86);
    for (rows, columns) in [(12, 20), (5, 7), (3, 1500)] {
        for axis in [0, 1] {
            let b = Builder::new();
            let [x, y] = [0, 1].map(|_| b.input(DType::F32, &[rows, columns]));
            let x = pad(&b, b.concatenate(&[x, y], axis), -2.0, &[(0, 1, 0), (3, 0, 0)]);
            let greatest = b.reduce(Reduction::Max, x, &[1], true);
            let exponentials = b.exp(b.subtract(x, greatest));
            let sums = b.reduce(Reduction::Sum, exponentials, &[1], true);
            let quotients = b.divide(exponentials, sums);
            check(&b.finish(&[quotients]).unwrap(), &mut rng);

            let b = Builder::new();
            let x = b.input(DType::S32, &[rows, columns]);
            let sums = b.sum(b.concatenate(&[x, x], axis), &[axis]);
            check(&b.finish(&[sums]).unwrap(), &mut rng);
        }
    }
    common::assert_valid(engine());
}

#[test]
fn indices_count_in_vectors() {
    let mut rng = Rng(87);
    for shape in [[12, 20], [13, 18], [9, 7], [250, 264], [251, 262]] {
        for dtype in [DType::F32, DType::U8, DType::S64, DType::F16] {
            for axis in [None, Some(0), Some(1)] {
                let b = Builder::new();
                let x = b.input(dtype, &shape);
                let counted = b.iota(dtype, &shape, axis);
                let (sum, below) = (b.add(x, counted), b.binary(Binary::Less, counted, x));
                let indices = b.add(b.iota(DType::S32, &shape, axis), 1.0);
                check(&b.finish(&[sum, below, indices]).unwrap(), &mut rng);
            }
            let b = Builder::new();
            let x = b.input(dtype, &shape);
            let result = b.select(b.eye(DType::U8, &shape), b.negate(x), reverse(&b, x, 1));
            check(&b.finish(&[result]).unwrap(), &mut rng);
        }
    }
    common::assert_valid(engine());
}

/// One kernel instead of two or more, where elements keep their bits in it.
#[test]
fn placements_alone() {
    let mut rng = Rng(88);
    let alone = |make: &dyn Fn(&Builder) -> Operand| {
        let b = Builder::new();
        let result = make(&b);
        b.finish(&[result]).unwrap()
    };
    for dtype in [DType::F32, DType::S64, DType::C64] {
        let program = alone(&|b| pad(b, b.input(dtype, &[9, 8]), 1.0, &[(1, 2, 0), (4, 4, 0)]));
        check(&program, &mut rng);
        let program = alone(&|b| put(b, b.input(dtype, &[9, 8]), b.input(dtype, &[3, 4]), &[1, 4]));
        check(&program, &mut rng);
        let program = alone(&|b| b.concatenate(&[b.input(dtype, &[9, 8]), b.input(dtype, &[2, 8])], 0));
        check(&program, &mut rng);
        let cpu = optimize(
            program,
            &Target { workgroups: false, ..nx_vulkan_engine::tuning::target::of(DeviceKind::Cpu, 1024, false) },
        )
        .unwrap();
        assert_eq!(ops(&cpu), ["concatenate"]);
    }
}

#[test]
fn other_placements_are_copies() {
    let names = |make: &dyn Fn(&Builder) -> Operand| {
        let b = Builder::new();
        let result = make(&b);
        ops(&optimize(b.finish(&[result]).unwrap(), &gpu()).unwrap())
    };
    let x = |b: &Builder, dtype| b.input(dtype, &[9, 8]);
    // Gaps between elements, too many parts, places that the device knows, and numbers whose bits arithmetic does not
    // keep.
    assert_eq!(names(&|b| b.exp(pad(b, x(b, DType::F32), 1.0, &[(0, 0, 1), (0, 0, 0)]))), ["pad", "exp"]);
    let parts = |b: &Builder| (0..5).map(|_| x(b, DType::F32)).collect::<Vec<_>>();
    assert_eq!(names(&|b| b.exp(b.concatenate(&parts(b), 0))), ["concatenate", "exp"]);
    let start = |b: &Builder| {
        let a = x(b, DType::F32);
        let operands = [a, b.input(DType::F32, &[2, 8]), b.input(DType::S32, &[])];
        b.exp(b.push(Op::PutSlice { starts: smallvec![None, Some(0)] }, &operands, &b.ty(a)))
    };
    assert_eq!(names(&start), ["put_slice", "exp"]);
    assert_eq!(names(&|b| pad(b, x(b, DType::F16), 1.0, &[(1, 1, 0), (0, 0, 0)])), ["pad"]);
    // What is costly is not computed for all of something twice as large.
    let costly = |b: &Builder| pad(b, b.unary(Unary::Erf, x(b, DType::F32)), 1.0, &[(9, 9, 0), (0, 0, 0)]);
    assert_eq!(names(&costly), ["erf", "fused"]);
}

/// Heads that are turned by halves and repeated for a cache, put where an operand says.
fn cached(dtype: DType, index: DType, [rows, heads, groups, width]: [u64; 4], turned: bool) -> Program {
    let b = Builder::new();
    let cache = b.input(dtype, &[1, rows, heads * groups, width]);
    let (x, start) = (b.input(dtype, &[1, 1, heads, width]), b.input(index, &[]));
    let half = width / 2;
    let part = |from: u64, count: u64| b.slice(x, &[0, 0, 0, from], &[1, 1, heads, count]);
    let row = match turned {
        true => {
            let halves = b.concatenate(&[b.negate(part(half, width - half)), part(0, half)], 3);
            b.add(b.multiply(x, 0.5), b.multiply(halves, 0.25))
        }
        false => x,
    };
    let spread = b.broadcast(b.reshape(row, &[1, 1, heads, 1, width]), &[1, 1, heads, groups, width]);
    let row = b.reshape(spread, &[1, 1, heads * groups, width]);
    let op = Op::PutSlice { starts: smallvec![Some(0), None, Some(0), Some(0)] };
    let put = b.push(op, &[cache, row, start], &b.ty(cache));
    b.finish(&[put]).unwrap()
}

#[test]
fn what_is_put_where_an_operand_says_is_computed_there() {
    let mut rng = Rng(20_261_127);
    for (k, dtype) in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::S32].into_iter().enumerate() {
        for (j, index) in [DType::S32, DType::S64, DType::U8, DType::U64, DType::S8].into_iter().enumerate() {
            let sizes = [[9, 2, 3, 8], [4, 1, 5, 7], [33, 3, 1, 16]][(k + j) % 3];
            for turned in [true, false] {
                let program = cached(dtype, index, sizes, turned);
                let optimized = optimize(program.clone(), &gpu()).unwrap();
                let kernels = ops(&optimized);
                // What is neither computed nor repeated is put as it is.
                if turned || sizes[2] > 1 {
                    assert_eq!(kernels.last(), Some(&"fused"), "{optimized}");
                    assert!(!kernels.contains(&"put_slice"), "{optimized}");
                }
                let mut inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
                for start in [0, 3, 100, -1] {
                    let start = Value::Int(start).cast(index);
                    inputs[2] = nx_vulkan_engine::reference::Array::new(&program.inputs[2], [start]);
                    let expected = run(&program, &inputs);
                    let scattered: Vec<Tensor> = upload(&inputs).iter().map(apart).collect();
                    let apart = download(&eager::run_program(engine(), &optimized, &scattered).unwrap());
                    let [wanted, got] = [&expected[0], &apart[0]];
                    assert_eq!(difference(got, wanted), None, "{dtype} at {start:?} of {index}: {optimized}");
                    assert_eq!(
                        difference(&run(&optimized, &inputs)[0], wanted),
                        None,
                        "{dtype} at {start:?} of {index}"
                    );
                }
            }
        }
    }
    common::assert_valid(engine());
}

/// Numbers of every type, of which kernels have as many bits as they compute with.
#[test]
fn constants_are_put_where_an_operand_says() {
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::S64, DType::U8] {
        let program = |fuses: bool| {
            let b = Builder::new();
            let (a, start) = (b.input(dtype, &[9, 5]), b.input(DType::S32, &[]));
            let rows = Type::new(dtype, &[2, 5]);
            let number = if dtype.is_float() { Scalar::Float(f64::NEG_INFINITY) } else { Scalar::Int(7) };
            let op = Op::PutSlice { starts: smallvec![None, Some(0)] };
            let put = |b: &Builder, a: Operand, start: Operand| {
                let row = b.push(Op::Constant(number), &[], &rows);
                b.push(op.clone(), &[a, row, start], &Type::new(dtype, &[9, 5]))
            };
            if !fuses {
                let result = put(&b, a, start);
                return b.finish(&[result]).unwrap();
            }
            let body = Builder::new();
            let operands = (body.input(dtype, &[9, 5]), body.input(DType::S32, &[]));
            let result = put(&body, operands.0, operands.1);
            let body = Op::Fused(Box::new(body.finish(&[result]).unwrap()));
            let result = b.push(body, &[a, start], &Type::new(dtype, &[9, 5]));
            b.finish(&[result]).unwrap()
        };
        let alone = program(false);
        let mut inputs: Vec<_> = alone.inputs.iter().map(|ty| graphs::values(ty, &mut Rng(3))).collect();
        inputs[1] = nx_vulkan_engine::reference::Array::new(&alone.inputs[1], [Value::Int(4)]);
        assert_eq!(difference(&run(&program(true), &inputs)[0], &run(&alone, &inputs)[0]), None, "{dtype}");
    }
    common::assert_valid(engine());
}

/// A row that something else reads, too, and one that is as large as a prompt, are computed before.
#[test]
fn what_is_put_is_computed_before_where_it_is_read_twice_or_large() {
    let names = |rows: u64, twice: bool| {
        let b = Builder::new();
        let (cache, start) = (b.input(DType::F32, &[2 * rows, 512]), b.input(DType::S32, &[]));
        let row = b.multiply(b.input(DType::F32, &[rows, 512]), 3.0);
        let op = Op::PutSlice { starts: smallvec![None, Some(0)] };
        let put = b.push(op, &[cache, row, start], &b.ty(cache));
        let outputs = if twice { vec![put, row] } else { vec![put] };
        ops(&optimize(b.finish(&outputs).unwrap(), &gpu()).unwrap())
    };
    assert_eq!(names(1, false), ["fused"]);
    assert_eq!(names(1, true), ["fused", "put_slice"]);
    assert_eq!(names(1024, false), ["fused", "put_slice"]);
}

/// A pad reads nothing but its operand, which ends where its memory does.
#[test]
fn operands_may_end_with_their_memory() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[1 << 14]);
    let result = b.add(pad(&b, x, 1.0, &[(1 << 14, 1 << 14, 0)]), 1.0);
    let program = b.finish(&[result]).unwrap();
    let optimized = optimize(program, &gpu()).unwrap();
    let input = nx_vulkan_engine::reference::Array::new(
        &Type::new(DType::F32, &[1 << 14]),
        (0..1 << 14).map(|i| Value::Float(f64::from(i))).collect::<Vec<_>>(),
    );
    let [got] = run(&optimized, &[input]).try_into().unwrap();
    for (i, value) in got.values.iter().enumerate() {
        let inside = (1 << 14..2 << 14).contains(&i);
        let expected = if inside { (i - (1 << 14)) as f64 + 1.0 } else { 2.0 };
        assert_eq!(value.real(), expected, "{i}");
    }
    common::assert_valid(engine());
}

/// NaN of narrow types keep their bits where they are moved: only what arithmetic gave may be rounded once more.
#[test]
fn narrow_numbers_that_are_computed_are_put_together_by_one_kernel() {
    let mut rng = Rng(23);
    for dtype in [DType::Bf16, DType::F16] {
        let b = Builder::new();
        let [x, y] = [0, 1].map(|_| b.input(dtype, &[4, 8]));
        let [u, v] = [[8, 6], [8, 5]].map(|shape| b.input(dtype, &shape));
        let whole = b.concatenate(&[b.dot(x, u), b.dot(y, v)], 1);
        let products = b.finish(&[whole]).unwrap();
        let moved = Builder::new();
        let [p, q] = [6, 5].map(|columns| moved.input(dtype, &[4, columns]));
        let whole = moved.concatenate(&[p, q], 1);
        let moved = moved.finish(&[whole]).unwrap();
        for (program, kernels) in [(products, &["dot", "dot", "fused"][..]), (moved, &["concatenate"][..])] {
            let optimized = optimize(program.clone(), &gpu()).unwrap();
            assert_eq!(ops(&optimized), kernels, "{optimized}");
            let inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
            let tensors = upload(&inputs);
            let [expected, got] =
                [&program, &optimized].map(|program| eager::run_program(engine(), program, &tensors).unwrap());
            for (got, expected) in got.iter().zip(&expected) {
                let [got, expected] = [got, expected].map(|tensor| tensor.to_nx_bytes(engine(), None).unwrap());
                assert_eq!(got, expected, "{optimized}");
            }
        }
    }
}

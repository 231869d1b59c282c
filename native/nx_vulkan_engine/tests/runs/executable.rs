//! Compiled programs: memory, order, and what runs leave behind.

use std::sync::Arc;

use nx_vulkan_engine::eager::run_program;
use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::ops::matrix::{Eigh, Svd};
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::order::{Cumulative, Scan};
use nx_vulkan_engine::program::passes::{Saving, Target, optimize};
use nx_vulkan_engine::program::{
    Binary, Branches, Builder, Conv, Instruction, Loop, Op, Operand, Program, Reduction, Unary,
};
use nx_vulkan_engine::reference::{self, Array};
use nx_vulkan_engine::{
    Compile, DType, DeviceKind, Engine, Error, Executable, Options, Tensor, Type, Value, View, tuning::target,
};
use smallvec::smallvec;

use crate::common;

/// What passes would know of a device of another kind.
fn as_kind(engine: &Engine, kind: DeviceKind) -> Target {
    target::of(kind, engine.caps().max_invocations, engine.target().matrix_units)
}

fn vector(n: u64) -> Type {
    Type::new(DType::F32, &[n])
}

/// A builder with these inputs.
fn builder(inputs: &[Type]) -> Builder {
    let b = Builder::new();
    inputs.iter().for_each(|ty| {
        b.input(ty.dtype, &ty.shape);
    });
    b
}

fn tensor(engine: &Arc<Engine>, values: &[f32]) -> Tensor {
    Tensor::from_nx_bytes(engine, &vector(values.len() as u64), bytemuck::cast_slice(values)).unwrap()
}

fn values(engine: &Engine, tensor: &Tensor) -> Vec<f32> {
    tensor.to_nx_bytes(engine, None).unwrap().as_chunks().0.iter().map(|&b| f32::from_ne_bytes(b)).collect()
}

/// x -> x + 1, `steps` times, each in a kernel of its own.
fn counting(n: u64, steps: usize) -> Program {
    let ty = vector(n);
    let program = builder(std::slice::from_ref(&ty));
    let one = program.number(DType::F32, 1.0);
    let last = (0..steps).fold(Operand::Input(0), |x, _| program.binary(Binary::Add, x, one));
    program.finish(&[last]).unwrap()
}

/// Nobody waits for it, and little is written: what counts is how long it takes.
#[test]
fn a_long_run_is_submitted_at_once_while_the_device_is_busy() {
    let engine = common::engine();
    let b = Builder::new();
    let (x, y) = (b.input(DType::F32, &[512, 8192]), b.input(DType::F32, &[8192, 512]));
    let product = b.dot(x, y);
    let executable = Executable::compile(&engine, b.finish(&[product]).unwrap()).unwrap();
    let zeros = vec![0f32; 512 * 8192];
    let inputs = [&[512, 8192], &[8192, 512]].map(|shape| Tensor::from_slice(&engine, shape, &zeros).unwrap());
    executable.run(&inputs, Compile::Allowed).unwrap();
    engine.wait().unwrap();
    let before = engine.stats().submissions;
    let results: Vec<_> = (0..3).map(|_| executable.run(&inputs, Compile::Allowed).unwrap()).collect();
    assert!(engine.stats().submissions - before >= 3);
    assert_eq!(results[2][0].to_vec::<f32>(&engine).unwrap(), vec![0.0; 512 * 512]);
}

#[test]
fn long_programs_take_little_memory_and_no_more_with_each_run() {
    let engine = common::engine();
    let executable = Executable::compile(&engine, counting(1000, 700)).unwrap();
    let summary = executable.summary();
    // 700 results would take 2.8 MB.
    assert!(summary.arena_bytes <= 1 << 16, "{summary:?}");
    assert_eq!(summary.own_bytes, 4000);
    let x = tensor(&engine, &[0.5; 1000]);
    for _ in 0..3 {
        let y = executable.run(std::slice::from_ref(&x), Compile::Refused).unwrap();
        assert_eq!(values(&engine, &y[0]), [700.5; 1000]);
    }
    let before = engine.stats();
    for _ in 0..20 {
        executable.run(std::slice::from_ref(&x), Compile::Refused).unwrap();
    }
    engine.wait().unwrap();
    let after = engine.stats();
    assert_eq!(after.reserved_bytes, before.reserved_bytes);
    assert_eq!(after.in_use_bytes, before.in_use_bytes);
    assert_eq!(after.pipelines, before.pipelines);
    assert_eq!(after.dispatches - before.dispatches, 20 * summary.commands);
    common::assert_valid(&engine);
}

/// Terms of several kernels each, made of vectors of their own or of multiples of the first, and added up one after the
/// other, with or without a kernel between two sums.
fn terms(elements: u64, n: usize, multiples: bool, between: bool) -> Program {
    let b = builder(&vec![vector(elements); n]);
    let sums = |x: Operand| {
        let op = Op::from(Scan { scan: Cumulative::Sum, axis: 0, reverse: false });
        b.push(op, &[x], &vector(elements))
    };
    let of =
        |i: usize| if multiples { b.multiply(Operand::Input(0), (i + 1) as f64) } else { Operand::Input(i as u32) };
    let term = |i: usize| sums(b.sin(sums(of(i))));
    let sum = (1..n).fold(term(0), |sum, i| {
        let sum = if between { b.sin(sums(sum)) } else { sum };
        b.add(sum, term(i))
    });
    b.finish(&[sum]).unwrap()
}

#[test]
fn programs_run_where_their_ops_one_by_one_do() {
    let options = Options { memory_limit_bytes: Some(80_000_000), ..common::options() };
    let limited = Engine::open_with(&options).unwrap();
    let engine = common::engine();
    for (multiples, between) in [(false, true), (true, false)] {
        let executable = Executable::compile(&limited, terms(1_000_000, 32, multiples, between)).unwrap();
        let summary = executable.summary();
        // The sum so far, and two results that a term is made of, where all terms take 256 MB.
        assert!(summary.arena_bytes < 4 * 4_000_000, "{multiples} {between} {summary:?}");
        let x = tensor(&limited, &vec![1e-6; 1_000_000]);
        let sum = executable.run(&vec![x; 32], Compile::Allowed).unwrap();
        assert!(values(&limited, &sum[0]).iter().all(|sum| sum.is_finite()));

        let few = terms(20_000, 32, multiples, between);
        let x = vec![tensor(&engine, &[1e-5; 20_000]); 32];
        let expected = run_program(&engine, &few, &x).unwrap();
        let got = Executable::compile(&engine, few).unwrap().run(&x, Compile::Allowed).unwrap();
        assert_eq!(values(&engine, &got[0]), values(&engine, &expected[0]), "{multiples} {between}");
    }
    common::assert_valid(&engine);
    common::assert_valid(&limited);
}

/// Runs a program of one input of so many elements alone on an engine. Answers what its summary says and what the run
/// took.
fn said_and_taken(elements: u64, make: impl FnOnce(&Builder, Operand) -> Vec<Operand>) -> (u64, u64) {
    let engine = common::engine();
    let b = builder(&[vector(elements)]);
    let outputs = make(&b, Operand::Input(0));
    let executable = Executable::compile(&engine, b.finish(&outputs).unwrap()).unwrap();
    let x = tensor(&engine, &vec![1.0; elements as usize]);
    let before = engine.stats();
    assert!(before.peak_bytes < before.in_use_bytes + (1 << 19), "what was compiled took memory: {before:?}");
    let results = executable.run(&[x], Compile::Allowed).unwrap();
    let taken = engine.stats().peak_bytes - before.in_use_bytes;
    drop(results);
    common::assert_valid(&engine);
    (executable.summary().peak_bytes, taken)
}

#[test]
fn the_peak_is_what_runs_take() {
    let n = 1 << 20;
    let sums = |b: &Builder, x: Operand| {
        b.push(Op::from(Scan { scan: Cumulative::Sum, axis: 0, reverse: false }), &[x], &vector(n))
    };
    let batch = said_and_taken(n, |b, x| vec![b.add(sums(b, b.sin(sums(b, x))), sums(b, b.cos(sums(b, x))))]);
    let goes_on = |b: &Builder, v: &[Operand]| b.less(b.reduce_max(v[0], &[0]), 4e6);
    let looped = said_and_taken(n, |b, x| b.while_loop(&[x], &[], goes_on, |b, v| vec![sums(b, b.add(v[0], 1.0))]));
    let counted = said_and_taken(n, |b, x| {
        let goes_on = |b: &Builder, v: &[Operand]| b.less(v[0], 700.0);
        let zero = b.number(DType::F32, 0.0);
        let step = |b: &Builder, v: &[Operand]| vec![b.add(v[0], 100.0), sums(b, b.sin(sums(b, v[1])))];
        b.while_loop(&[zero, x], &[], goes_on, step)
    });
    let svd_of = |count: u64, order: u64| {
        said_and_taken(count * order * order, |b, x| {
            let matrix = Type::new(DType::F32, &[count, order, order]);
            let outs = [matrix.clone(), Type::new(DType::F32, &[count, order]), matrix.clone()];
            let found = b.push_all(Op::from(Svd { full: true }), &[b.reshape(x, &matrix.shape)], &outs);
            vec![b.add(found[0], found[2])]
        })
    };
    let (svds, svd) = (svd_of(n / 256, 16), svd_of(16, 257));
    // Vectors that the host decides about one after the other: all lie around one wait only.
    let short = said_and_taken(n, |b, x| {
        let halves = |b: &Builder, v: &[Operand]| vec![sums(b, b.multiply(v[0], 0.5))];
        let last = (0..12).fold(x, |x, i| {
            let x = b.sin(sums(b, b.add(x, i as f64)));
            let goes_on = |b: &Builder, v: &[Operand]| b.greater(b.reduce_max(v[0], &[0]), 1e9);
            b.while_loop(&[x], &[], goes_on, halves)[0]
        });
        vec![b.sin(last)]
    });
    assert!(short.1 <= 4 << 22, "12 vectors that cross a wait take {} bytes", short.1);
    // What a factorization takes is estimated.
    for (name, (said, taken), slack) in [
        ("batch", batch, 100),
        ("while", looped, 100),
        ("counted while", counted, 100),
        // Its loops have no iterations, which would take more.
        ("short", short, 2),
        ("many svds", svds, 3),
        ("svd", svd, 3),
    ] {
        assert!(taken <= said && said <= taken + taken / slack, "{name}: said {said}, taken {taken}");
    }
}

#[test]
fn outputs_may_be_inputs_views_constants_and_each_other() {
    let engine = common::engine();
    let (ty, scalar) = (vector(6), Type::new(DType::F32, &[]));
    let program = builder(&[ty.clone(), ty.clone()]);
    let sum = program.binary(Binary::Add, Operand::Input(0), Operand::Input(1));
    let reversed = program.push(Op::from(Reverse { axes: Axes::from_slice(&[0]) }), &[sum], &ty);
    let part = Op::Slice { starts: smallvec![Some(4)], strides: smallvec![1], lengths: smallvec![1] };
    let part = program.push(part, &[sum], &vector(1));
    let seven = program.push(Op::Constant(Scalar::Float(7.0)), &[], &ty);
    let total = program.push(
        Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[0]), tie_high: false },
        &[sum],
        &scalar,
    );
    let program = program.finish(&[reversed, Operand::Input(1), seven, sum, sum, part, total]).unwrap();
    let executable = Executable::compile(&engine, program).unwrap();
    let x = tensor(&engine, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = tensor(&engine, &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    let first = executable.run(&[x.clone(), y.clone()], Compile::Allowed).unwrap();
    // A later run must not write into what an earlier one gave.
    executable.run(&[y.clone(), y.clone()], Compile::Allowed).unwrap();
    let got: Vec<Vec<f32>> = first.iter().map(|t| values(&engine, t)).collect();
    let sums = vec![11.0, 22.0, 33.0, 44.0, 55.0, 66.0];
    let reversed: Vec<f32> = sums.iter().rev().copied().collect();
    let same = vec![10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
    assert_eq!(got, [reversed, same, vec![7.0; 6], sums.clone(), sums, vec![55.0], vec![231.0]]);
    assert_eq!(first[5].buffer().size_bytes(), 4);
    common::assert_valid(&engine);
}

#[test]
fn inputs_may_lie_in_any_way() {
    let engine = common::engine();
    let ty = vector(5);
    let program = builder(std::slice::from_ref(&ty));
    let double = program.binary(Binary::Add, Operand::Input(0), Operand::Input(0));
    let executable = Executable::compile(&engine, program.finish(&[double]).unwrap()).unwrap();
    let long = tensor(&engine, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
    let view = |offset: u64, stride: i64| {
        let view = View { offset, strides: smallvec![stride], ..View::contiguous(DType::F32, &[5]) };
        Tensor::new(Arc::clone(long.buffer()), view).unwrap()
    };
    for (input, expected) in [
        (view(1, 1), [2.0, 4.0, 6.0, 8.0, 10.0]),
        (view(4, 1), [8.0, 10.0, 12.0, 14.0, 16.0]),
        (view(1, 2), [2.0, 6.0, 10.0, 14.0, 18.0]),
        (view(9, -2), [18.0, 14.0, 10.0, 6.0, 2.0]),
        (view(3, 0), [6.0; 5]),
    ] {
        let got = executable.run(&[input], Compile::Allowed).unwrap();
        assert_eq!(values(&engine, &got[0]), expected);
    }
    let wrong = [vec![], vec![tensor(&engine, &[1.0])], vec![long.clone()], vec![view(0, 1), view(0, 1)]];
    for inputs in wrong {
        assert!(matches!(executable.run(&inputs, Compile::Allowed), Err(Error::InvalidProgram { .. })));
    }
    common::assert_valid(&engine);
}

/// Doubles a vector until its sum is at least the limit, then adds or subtracts 1 by the sign of the limit.
fn branching() -> Program {
    let (ty, scalar) = (vector(3), Type::new(DType::F32, &[]));
    let inputs = [ty.clone(), scalar.clone()];
    let condition = builder(&inputs);
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[0]), tie_high: false };
    let sum = condition.push(sum, &[Operand::Input(0)], &scalar);
    let going_on = condition.binary(Binary::Less, sum, Operand::Input(1));
    let body = builder(&inputs);
    let double = body.binary(Binary::Add, Operand::Input(0), Operand::Input(0));
    let repeat = Loop::new(condition.finish(&[going_on]).unwrap(), body.finish(&[double]).unwrap());
    let branch = |op| {
        let steps = builder(std::slice::from_ref(&ty));
        let one = steps.number(DType::F32, 1.0);
        let result = steps.binary(op, Operand::Input(0), one);
        steps.finish(&[result]).unwrap()
    };
    let branches = Branches { on_true: branch(Binary::Add), on_false: branch(Binary::Subtract) };
    let program = builder(&inputs);
    let scaled = program.binary(Binary::Multiply, Operand::Input(0), Operand::Input(1));
    let start = program.binary(Binary::Divide, scaled, Operand::Input(1));
    let last = program.push(Op::While(Box::new(repeat)), &[start, Operand::Input(1)], &ty);
    let zero = program.number(DType::F32, 0.0);
    let positive = program.binary(Binary::Greater, Operand::Input(1), zero);
    let moved = program.push(Op::Cond(Box::new(branches)), &[positive, last], &ty);
    let total = program.binary(Binary::Add, moved, scaled);
    program.finish(&[total, last]).unwrap()
}

#[test]
fn loops_and_branches_take_values_across_batches() {
    let engine = common::engine();
    let executable = Executable::compile(&engine, branching()).unwrap();
    assert!(executable.waits());
    let scalar = |x: f32| Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[]), &x.to_ne_bytes()).unwrap();
    let x = tensor(&engine, &[1.0, 2.0, 3.0]);
    let refused = executable.run(&[x.clone(), scalar(4.0)], Compile::Refused);
    assert!(matches!(refused, Err(Error::NeedsCompile)));
    for (limit, last, total) in [
        (4.0f32, [1.0, 2.0, 3.0], [6.0, 11.0, 16.0]),
        (40.0, [8.0, 16.0, 24.0], [49.0, 97.0, 145.0]),
        (-8.0, [1.0, 2.0, 3.0], [-8.0, -15.0, -22.0]),
    ] {
        let got = executable.run(&[x.clone(), scalar(limit)], Compile::Allowed).unwrap();
        assert_eq!((values(&engine, &got[1]), values(&engine, &got[0])), (last.to_vec(), total.to_vec()), "{limit}");
    }
    common::assert_valid(&engine);
}

/// A window that follows a counter: its place is data, so that nothing waits for it.
#[test]
fn starts_that_are_data_cut_nothing() {
    let engine = common::engine();
    let b = Builder::new();
    let (x, at) = (b.input(DType::F32, &[600]), b.input(DType::S32, &[]));
    let slice = Op::Slice { starts: smallvec![None], strides: smallvec![1], lengths: smallvec![300] };
    let part = b.push(slice, &[x, at], &vector(300));
    let doubled = b.add(part, part);
    let next = b.add(at, 7.0);
    let put = b.push(Op::PutSlice { starts: smallvec![None] }, &[x, doubled, next], &vector(600));
    let executable = Executable::compile(&engine, b.finish(&[put]).unwrap()).unwrap();
    assert!(!executable.waits());
    let x: Vec<f32> = (0..600).map(|i| i as f32).collect();
    for (at, begin, to) in [(0i32, 0usize, 7usize), (200, 200, 207), (-5, 0, 2), (299, 299, 300), (1000, 300, 300)] {
        let index = Tensor::from_nx_bytes(&engine, &Type::new(DType::S32, &[]), &at.to_ne_bytes()).unwrap();
        let got = executable.run(&[tensor(&engine, &x), index], Compile::Allowed).unwrap();
        let mut expected = x.clone();
        (0..300).for_each(|i| expected[to + i] = 2.0 * x[begin + i]);
        assert_eq!(values(&engine, &got[0]), expected, "{at}");
    }
    common::assert_valid(&engine);
}

#[test]
fn ops_that_read_values_run_between_batches() {
    let engine = common::engine();
    let matrix = Type::new(DType::F32, &[2, 2]);
    let program = builder(std::slice::from_ref(&matrix));
    let double = program.binary(Binary::Add, Operand::Input(0), Operand::Input(0));
    let made = program.push_all(Op::from(Eigh), &[double], &[vector(2), matrix.clone()]);
    let values_out = program.binary(Binary::Add, made[0], made[0]);
    let executable = Executable::compile(&engine, program.finish(&[values_out]).unwrap()).unwrap();
    let a = Tensor::from_nx_bytes(&engine, &matrix, bytemuck::cast_slice(&[2.0f32, 1.0, 1.0, 2.0])).unwrap();
    let got = executable.run(&[a], Compile::Allowed).unwrap();
    let got = values(&engine, &got[0]);
    assert!((got[0] - 12.0).abs() < 1e-4 && (got[1] - 4.0).abs() < 1e-4, "{got:?}");
    common::assert_valid(&engine);
}

#[test]
fn threads_share_an_executable() {
    let engine = common::engine();
    let executable = Executable::compile(&engine, counting(512, 40)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (engine, executable) = (&engine, &executable);
            scope.spawn(move || {
                for round in 0..20 {
                    let start = (thread * 100 + round) as f32;
                    let x = tensor(engine, &[start; 512]);
                    let y = executable.run(&[x], Compile::Allowed).unwrap();
                    assert_eq!(values(engine, &y[0]), [start + 40.0; 512]);
                }
            });
        }
    });
    common::assert_valid(&engine);
}

#[test]
fn ops_of_one_level_share_a_barrier() {
    let engine = common::engine();
    let ty = vector(64);
    let program = builder(std::slice::from_ref(&ty));
    // Four chains of three ops, one after the other.
    let chain = |program: &Builder| (0..3).fold(Operand::Input(0), |x, _| program.binary(Binary::Multiply, x, x));
    let ends: Vec<Operand> = (0..4).map(|_| chain(&program)).collect();
    let executable = Executable::compile(&engine, program.finish(&ends).unwrap()).unwrap();
    let summary = executable.summary();
    assert!(summary.barriers <= 2, "{summary:?}");
    let x = tensor(&engine, &[2.0; 64]);
    for result in executable.run(&[x], Compile::Allowed).unwrap() {
        assert_eq!(values(&engine, &result), [256.0; 64]);
    }
    common::assert_valid(&engine);
}

/// Rows that registers just hold: vectors would need more invocations than a workgroup has.
#[test]
fn long_rows_of_many_values_are_one_kernel() {
    let engine = common::engine();
    let mut rng = common::Rng(5);
    for n in [1028, 2052, 3000, 3072] {
        let ty = Type::new(DType::F64, &[n]);
        let program = builder(&vec![ty.clone(); 4]);
        let inputs: Vec<Operand> = (0..4).map(Operand::Input).collect();
        let total = inputs[1..].iter().fold(inputs[0], |sum, &x| program.add(sum, x));
        let sum = program.sum(total, &[0]);
        let outputs: Vec<Operand> = inputs.iter().map(|&x| program.multiply(x, sum)).collect();
        let program = program.finish(&outputs).unwrap();
        // As on GPUs: CPU devices take several kernels.
        let target = Target { workgroups: false, ..as_kind(&engine, DeviceKind::Discrete) };
        let fused = optimize(program.clone(), &target).unwrap();
        assert_eq!(fused.instructions.len(), 1, "{n} elements");
        let mut numbers = || (0..n).map(|_| Value::Float(rng.below(1000) as f64)).collect::<Vec<Value>>();
        let arrays: Vec<Array> = (0..4).map(|_| Array::new(&ty, numbers())).collect();
        let tensors: Vec<Tensor> =
            arrays.iter().map(|a| Tensor::from_nx_bytes(&engine, &ty, &a.to_nx_bytes()).unwrap()).collect();
        let expected = reference::run(&program, &arrays).unwrap();
        for (got, want) in run_program(&engine, &fused, &tensors).unwrap().iter().zip(&expected) {
            assert_eq!(got.to_nx_bytes(&engine, None).unwrap(), want.to_nx_bytes(), "{n} elements");
        }
    }
    common::assert_valid(&engine);
}

/// A padded convolution of `[images, channels, 8, 12]`, or its gradient by the kernel for axes that are exchanged.
fn convolution(axes: &[usize]) -> Op {
    let axes = Axes::from_slice(axes);
    Op::Conv(Box::new(Conv {
        strides: smallvec![1, 1],
        padding: smallvec![(1, 1), (1, 1)],
        input_dilation: smallvec![1, 1],
        kernel_dilation: smallvec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
        input_axes: axes.clone(),
        kernel_axes: axes.clone(),
        output_axes: axes,
    }))
}

/// A convolution and its gradient by the kernel read one padded copy of the input; what a branch copies is its own.
#[test]
fn copies_are_not_shared_where_memory_is_short() {
    let engine = common::engine();
    let ty = |shape: &[u64]| Type::new(DType::F32, shape);
    let (x, k) = (ty(&[8, 16, 64, 64]), ty(&[16, 16, 3, 3]));
    let (forward, by_kernel) = (convolution(&[0, 1, 2, 3]), convolution(&[1, 0, 2, 3]));
    // Of six inputs all convolutions, then all gradients by the kernel, which take the same copies.
    let program = {
        let b = builder(&[]);
        let inputs: Vec<Operand> = (0..6).map(|_| b.input(DType::F32, &x.shape)).collect();
        let kernel = b.input(DType::F32, &k.shape);
        let sums = |op: &Op, y: Operand, out: &Type| {
            let op = |&input: &Operand| b.push(op.clone(), &[input, y], out);
            inputs.iter().map(op).reduce(|sum, term| b.add(sum, term)).unwrap()
        };
        let whole = sums(&forward, kernel, &x);
        let gradient = sums(&by_kernel, whole, &k);
        b.finish(&[gradient]).unwrap()
    };
    let copy_bytes = 8 * 16 * 66 * 66 * 4;
    let peak_bytes = Executable::compile(&engine, program.clone()).unwrap().summary().peak_bytes;
    assert!(peak_bytes <= 4 * copy_bytes, "{peak_bytes} for copies of {copy_bytes}");
    let within = Executable::compile_within(&engine, program, &[], 4 * copy_bytes).unwrap();
    assert!(within.summary().peak_bytes <= 4 * copy_bytes);
}

/// Activations that a device has no room for are computed again, though nobody gave a budget; where nothing fits, the
/// error says how much would.
#[test]
fn programs_larger_than_the_device_take_less_memory() {
    let roomy = common::engine();
    let program = {
        let b = builder(&[]);
        let mut h = b.input(DType::F32, &[1 << 15, 128]);
        let weights: Vec<Operand> = (0..6).map(|_| b.input(DType::F32, &[128, 128])).collect();
        let mut kept = vec![];
        for &w in &weights {
            let a = b.dot(h, w);
            kept.push((h, a, w));
            h = b.multiply(b.unary(Unary::Erf, a), a);
        }
        let mut gradients = vec![];
        for (input, a, w) in kept.into_iter().rev() {
            let gradient = b.multiply(h, b.unary(Unary::Erf, a));
            gradients.push(b.dot_axes([input, gradient], [&[0], &[0]], [&[], &[]]));
            h = b.dot(gradient, w);
        }
        b.finish(&gradients).unwrap()
    };
    let peak_bytes = Executable::compile(&roomy, program.clone()).unwrap().summary().peak_bytes;
    let limited =
        |bytes: u64| Engine::open_with(&Options { memory_limit_bytes: Some(bytes), ..common::options() }).unwrap();
    let engine = limited(peak_bytes);
    let executable = Executable::compile(&engine, program.clone()).unwrap();
    let taken = executable.summary().peak_bytes;
    assert!(taken < peak_bytes, "{taken} as before: {peak_bytes}");
    let mut rng = common::Rng(5);
    let arrays: Vec<Array> = program
        .inputs
        .iter()
        .map(|ty| {
            let one = |_| Value::Float(rng.below(2000) as f64 / 8000.0 - 0.125).cast(DType::F32);
            Array::new(ty, (0..ty.elements()).map(one).collect::<Vec<_>>())
        })
        .collect();
    let results = |engine: &Arc<Engine>, executable: &Executable| {
        let upload = |a: &Array| Tensor::from_nx_bytes(engine, &a.ty, &a.to_nx_bytes()).unwrap();
        let inputs: Vec<Tensor> = arrays.iter().map(upload).collect();
        let results = executable.run(&inputs, Compile::Allowed).unwrap();
        results.iter().map(|t| t.to_nx_bytes(engine, None).unwrap()).collect::<Vec<_>>()
    };
    let wanted = results(&roomy, &Executable::compile(&roomy, program.clone()).unwrap());
    assert!(results(&engine, &executable) == wanted);
    let error = Executable::compile(&limited(64 << 20), program).unwrap_err();
    assert!(matches!(error.cause(), Error::OverBudget { needed_bytes, .. } if *needed_bytes > 64 << 20), "{error}");
    common::assert_valid(&engine);
}

#[test]
fn convolutions_share_the_copy_of_their_input() {
    let engine = common::engine();
    let ty = |shape: &[u64]| Type::new(DType::F32, shape);
    let (x, k, y) = (ty(&[8, 16, 8, 12]), ty(&[16, 16, 3, 3]), ty(&[8, 16, 8, 12]));
    let (forward, by_kernel) = (convolution(&[0, 1, 2, 3]), convolution(&[1, 0, 2, 3]));
    let build = |forwards: bool, gradients: bool| {
        let b = builder(&[x.clone(), k.clone(), y.clone()]);
        let [x, kernel, y_in] = [0, 1, 2].map(Operand::Input);
        let mut outputs = vec![];
        if forwards {
            outputs.push(b.push(forward.clone(), &[x, kernel], &y));
        }
        if gradients {
            outputs.push(b.push(by_kernel.clone(), &[x, y_in], &k));
        }
        b.finish(&outputs).unwrap()
    };
    let mut rng = common::Rng(7);
    let array = |ty: &Type, rng: &mut common::Rng| {
        let values = (0..ty.elements()).map(|_| Value::Float(rng.below(2000) as f64 / 1000.0 - 1.0).cast(DType::F32));
        Array::new(ty, values)
    };
    let arrays = [&x, &k, &y].map(|ty| array(ty, &mut rng));
    let upload = |a: &Array| Tensor::from_nx_bytes(&engine, &a.ty, &a.to_nx_bytes()).unwrap();
    let inputs: Vec<Tensor> = arrays.iter().map(upload).collect();
    let commands = |program: &Program| Executable::compile(&engine, program.clone()).unwrap().summary().commands;
    let (one, other, both) = (build(true, false), build(false, true), build(true, true));
    assert_eq!(commands(&both), commands(&one) + commands(&other) - 1);
    let apart = |program: &Program| {
        let results = run_program(&engine, program, &inputs).unwrap();
        results.iter().map(|t| t.to_nx_bytes(&engine, None).unwrap()).collect::<Vec<_>>()
    };
    let expected = [apart(&one), apart(&other)].concat();
    let together = Executable::compile(&engine, both).unwrap().run(&inputs, Compile::Allowed).unwrap();
    for (got, want) in together.iter().zip(&expected) {
        assert!(got.to_nx_bytes(&engine, None).unwrap() == *want);
    }
    // The branch that is not taken must not be the one that makes the copy.
    let b = builder(&[x.clone(), k.clone(), y.clone(), ty(&[])]);
    let [input, kernel, _, flag] = [0, 1, 2, 3].map(Operand::Input);
    let convolve = |b: &Builder, o: &[Operand]| vec![b.push(forward.clone(), &[o[0], o[1]], &y)];
    let chosen = b.cond(flag, &[input, kernel], convolve, |b, o| {
        let twice = convolve(b, o)[0];
        vec![b.add(twice, twice)]
    });
    let program = b.finish(&chosen).unwrap();
    let executable = Executable::compile(&engine, program.clone()).unwrap();
    assert!(!executable.waits());
    for flag in [0f32, 1.0, 0.0] {
        // Other inputs than before: memory of earlier runs must not hold the right copy.
        let flag = Array::new(&ty(&[]), [Value::Float(flag.into())]);
        let arrays = [array(&x, &mut rng), array(&k, &mut rng), array(&y, &mut rng), flag];
        let inputs: Vec<Tensor> = arrays.iter().map(upload).collect();
        let eager = run_program(&engine, &program, &inputs).unwrap();
        for (got, want) in executable.run(&inputs, Compile::Allowed).unwrap().iter().zip(&eager) {
            assert!(got.to_nx_bytes(&engine, None).unwrap() == want.to_nx_bytes(&engine, None).unwrap());
        }
    }
    common::assert_valid(&engine);
}

#[test]
fn programs_that_break_a_rule_are_refused() {
    let engine = common::engine();
    let ty = vector(4);
    let add = Instruction {
        op: Op::Binary(Binary::Add),
        operands: smallvec![Operand::Input(0), Operand::Result(1)],
        outs: smallvec![ty.clone()],
    };
    let program = Program { inputs: vec![ty.clone()], instructions: vec![add], outputs: vec![] };
    assert!(matches!(Executable::compile(&engine, program), Err(Error::InvalidProgram { .. })));
    let program = Program { inputs: vec![ty], instructions: vec![], outputs: vec![Operand::Input(1)] };
    assert!(Executable::compile(&engine, program).is_err());
}

#[test]
fn tensors_of_another_engine_are_refused() {
    let engine = common::engine();
    let other = Engine::open_with(&common::options()).unwrap();
    let b = builder(&[vector(100)]);
    let sum = b.add(Operand::Input(0), 1.0);
    let executable = Executable::compile(&engine, b.finish(&[sum]).unwrap()).unwrap();
    let error = executable.run(&[tensor(&other, &[0.5; 100])], Compile::Allowed).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { what: "buffer", .. }), "{error}");
    common::assert_valid(&engine);
}

#[test]
fn what_saves_memory_keeps_the_order_of_the_program() {
    let engine = common::engine();
    for kind in [DeviceKind::Discrete, DeviceKind::Cpu] {
        let target = Target { saving: Saving::Kernels, ..as_kind(&engine, kind) };
        let program = optimize(terms(1_000_000, 32, true, false), &target).unwrap();
        let read_last = |result: u32| {
            program
                .instructions
                .iter()
                .rposition(|i| i.operands.contains(&Operand::Result(result)))
                .unwrap_or(usize::MAX)
        };
        // Each instruction has one result.
        let alive = |at: usize| (0..=at as u32).filter(|&result| read_last(result) >= at).count();
        let most = (0..program.instructions.len()).map(alive).max();
        assert!(most <= Some(4), "{kind:?}: {most:?}");
    }
}

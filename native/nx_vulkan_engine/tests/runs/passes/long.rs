//! Programs of very many small ops, as loops that were written out: few kernels, which many launches share, and the
//! bits of single ops.

use std::collections::HashSet;

use nx_vulkan_engine::executable::Described;
use nx_vulkan_engine::program::{Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Executable, Type, Value};

use super::{difference, download, engine, run, upload};

const N: u64 = 40;

/// Steps with a number of their own each, and their gradients.
fn steps(dtype: DType, count: usize) -> Program {
    let b = Builder::new();
    let x = b.input(dtype, &[N]);
    let number = |i: usize| 1.0 - i as f64 / 1024.0;
    let (mut before, mut inner) = (x, Vec::new());
    for i in 0..count {
        let scaled = b.multiply(before, number(i));
        inner.push(scaled);
        before = b.add(b.sin(scaled), before);
    }
    let ones = b.broadcast(b.number(dtype, 1.0), &[N]);
    let gradient = inner.iter().enumerate().rev().fold(ones, |gradient, (i, &scaled)| {
        b.add(gradient, b.multiply(b.multiply(gradient, b.cos(scaled)), number(i)))
    });
    b.finish(&[before, gradient]).unwrap()
}

/// Steps that all read what is computed once, and of which each is a result or the last one alone.
fn sharing(count: usize, all: bool) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, &[N]);
    let shared = b.exp(x);
    let step = |x: Operand, i: usize| b.sin(b.add(b.multiply(x, 1.0 - i as f64 / 1024.0), shared));
    let results: Vec<Operand> = match all {
        true => (0..count).map(|i| step(x, i)).collect(),
        false => vec![(0..count).fold(x, step)],
    };
    b.finish(&results).unwrap()
}

/// Whole numbers that wrap, compared with others.
fn integers(dtype: DType, count: usize) -> Program {
    let b = Builder::new();
    let x = b.input(dtype, &[N]);
    let next = |x: Operand, i: usize| {
        let power = b.binary(nx_vulkan_engine::program::Binary::Pow, x, 1.0 + (i % 3) as f64);
        b.select(b.less(x, (i % 100) as f64), b.add(power, i as f64 % 90.0), b.remainder(x, 3.0 + i as f64 % 50.0))
    };
    let last = (0..count).fold(x, next);
    b.finish(&[last]).unwrap()
}

/// Elements that are put into a vector one after the other.
fn puts(dtype: DType, count: usize) -> Program {
    let b = Builder::new();
    let ty = Type::new(dtype, &[count as u64]);
    let (x, y) = (b.input(dtype, &ty.shape), b.input(dtype, &[1]));
    let put = |x: Operand, i: usize| {
        let starts = [Some(i as i64)].into_iter().collect();
        b.push(Op::PutSlice { starts }, &[x, b.add(y, (i % 100) as f64)], &ty)
    };
    let last = (0..count).fold(x, put);
    b.finish(&[last]).unwrap()
}

/// A sum of elements that are taken one by one.
fn slices(dtype: DType, count: usize) -> Program {
    let b = Builder::new();
    let x = b.input(dtype, &[count as u64]);
    let elements: Vec<Operand> = (0..count).map(|i| b.slice(x, &[i as u64], &[1])).collect();
    let sum = elements.into_iter().reduce(|sum, element| b.add(b.sin(element), sum)).unwrap();
    b.finish(&[sum]).unwrap()
}

/// Launches of a run, and kernels among them. The results have the bits of each op alone.
fn check(program: &Program) -> (usize, usize) {
    let number = |ty: &Type, i: u64| match ty.dtype.is_integer() {
        true => Value::Int((i % 100).into()),
        false => Value::Float(i as f64 / 16.0 - 1.0),
    };
    let fill = |ty: &Type| Array::new(ty, (0..ty.elements()).map(|i| number(ty, i)));
    let inputs: Vec<Array> = program.inputs.iter().map(fill).collect();
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    let got = download(&executable.run(&upload(&inputs), Compile::Allowed).unwrap());
    for (got, want) in got.iter().zip(&run(program, &inputs)) {
        assert_eq!(difference(got, want), None, "{program}");
    }
    let launches = executable.describe();
    let kernels: HashSet<&str> = launches
        .iter()
        .filter_map(|part| match part {
            Described::Launch(launch) => Some(&launch.kernel[..]),
            Described::Wait { .. } => None,
        })
        .collect();
    (launches.len(), kernels.len())
}

#[test]
fn twice_as_many_ops_are_twice_as_many_launches_of_the_same_kernels() {
    let programs: [(&str, &dyn Fn(usize) -> Program); 10] = [
        ("steps of f32", &|count| steps(DType::F32, count)),
        ("steps of f64", &|count| steps(DType::F64, count)),
        ("steps of f16", &|count| steps(DType::F16, count)),
        ("s32", &|count| integers(DType::S32, count)),
        ("s64", &|count| integers(DType::S64, count)),
        ("puts of f32", &|count| puts(DType::F32, count)),
        ("puts of u8", &|count| puts(DType::U8, count)),
        ("slices", &|count| slices(DType::F32, count)),
        ("what all steps read", &|count| sharing(count, false)),
        ("what all results read", &|count| sharing(count, true)),
    ];
    for (name, program) in programs {
        let ((once, kernels), (twice, same)) = (check(&program(100)), check(&program(200)));
        println!("{name}: {once} and {twice} launches of {kernels} and {same} kernels");
        // Numbers that come again after 100 are stored, ten launches of them.
        assert!(twice <= 2 * once + 10, "{name}: {once} launches, then {twice}");
        assert!(same <= kernels.max(12) && same * 4 <= twice, "{name}: {kernels} kernels, then {same} of {twice}");
    }
}

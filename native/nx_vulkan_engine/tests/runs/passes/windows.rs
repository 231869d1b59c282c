//! Windows that lie side by side, which become reductions and elementwise ops.

use nx_vulkan_engine::program::ops::window::{Window, WindowScatter};
use nx_vulkan_engine::program::passes::{Target, optimize};
use nx_vulkan_engine::program::{Builder, Op, Program, Reduction, Windows};
use nx_vulkan_engine::{DType, Type, reference};

use super::known::ops;
use super::{difference, download, engine, gpu, graphs, run, upload};
use crate::common::Rng;

fn windows(sizes: &[u64], strides: &[u64]) -> Windows {
    Windows {
        sizes: sizes.into(),
        padding: sizes.iter().map(|_| (0, 0)).collect(),
        strides: strides.into(),
        dilations: sizes.iter().map(|_| 1).collect(),
    }
}

/// The extremes of windows over `shape` of an operand that was computed, and sources at them: two outputs.
fn pool(dtype: DType, shape: &[u64], windows: &Windows, max: bool, zero: bool) -> Program {
    let counts = windows.counts(shape).unwrap();
    let b = Builder::new();
    let x = b.input(dtype, shape);
    let source = b.input(dtype, &counts);
    let initial = if zero { b.number(DType::S32, 0.0) } else { b.input(dtype, &[]) };
    let x = b.max(x, -1.0);
    let reduction = if max { Reduction::Max } else { Reduction::Min };
    let extremes = Op::from(Window { reduction, windows: windows.clone() });
    let extremes = b.push(extremes, &[x], &Type::new(dtype, &counts));
    let scatter = Op::from(WindowScatter { max, windows: windows.clone() });
    let scattered = b.push(scatter, &[x, source, initial], &Type::new(dtype, shape));
    let scattered = b.multiply(scattered, x);
    b.finish(&[extremes, scattered]).unwrap()
}

/// Checks the bits of the optimized program on a GPU's target and on the device against the reference and single ops.
fn check(program: &Program, rng: &mut Rng) -> Vec<&'static str> {
    let optimized = optimize(program.clone(), &gpu()).unwrap();
    let inputs: Vec<_> = program.inputs.iter().map(|ty| graphs::values(ty, rng)).collect();
    let expected = reference::run(program, &inputs).unwrap();
    let plain = Target { fusion: false, ..engine().target() };
    let unfused = optimize(program.clone(), &plain).unwrap();
    let executable = nx_vulkan_engine::Executable::compile(engine(), program.clone()).unwrap();
    let ran = executable.run(&upload(&inputs), nx_vulkan_engine::Compile::Allowed).unwrap();
    for results in
        [reference::run(&optimized, &inputs).unwrap(), run(&unfused, &inputs), run(&optimized, &inputs), download(&ran)]
    {
        for (got, want) in results.iter().zip(&expected) {
            assert_eq!(difference(got, want), None, "{optimized}");
        }
    }
    ops(&optimized)
}

#[test]
fn windows_side_by_side_join_the_kernels_around_them() {
    let mut rng = Rng(71);
    for dtype in [DType::F32, DType::F16, DType::S32, DType::U8, DType::F64, DType::S64] {
        for (sizes, shape) in
            [(&[1, 1, 2, 2][..], &[3, 5, 6, 8][..]), (&[3], &[21]), (&[2, 1, 2], &[4, 7, 2]), (&[4, 1], &[8, 9])]
        {
            for (max, zero) in [(true, true), (false, true), (true, false)] {
                let program = pool(dtype, shape, &windows(sizes, sizes), max, zero);
                let left = check(&program, &mut rng);
                // What takes conversions is computed once for each window.
                let kernels = left.iter().filter(|&&op| op != "reshape").count();
                let most = if dtype == DType::F16 { 4 } else { 2 };
                assert!(kernels <= most && left.contains(&"fused"), "{left:?} {dtype} {sizes:?}");
                assert!(!left.iter().any(|op| op.contains("window")), "{left:?} {dtype} {sizes:?}");
            }
        }
    }
}

/// The ops in each fused op of a program, by name.
fn bodies(program: &Program) -> Vec<Vec<&'static str>> {
    let bodies = program.instructions.iter().filter_map(|instruction| match &instruction.op {
        Op::Fused(body) => Some(ops(body)),
        _ => None,
    });
    bodies.collect()
}

#[test]
fn what_windows_chose_is_read_where_it_is_stored_anyway() {
    let shape = [2, 128, 128, 32];
    let windows = windows(&[1, 2, 2, 1], &[1, 2, 2, 1]);
    let b = Builder::new();
    let x = b.input(DType::F32, &shape);
    let source = b.input(DType::F32, &windows.counts(&shape).unwrap());
    let y = b.max(b.add(b.multiply(b.subtract(x, 0.5), 3.0), 1.0), 0.0);
    let scatter = Op::from(WindowScatter { max: true, windows });
    let scattered = b.push(scatter, &[y, source, b.number(DType::F32, 0.0)], &Type::new(DType::F32, &shape));
    let sums = b.sum(scattered, &[0, 1, 2]);
    let scaled = b.multiply(scattered, b.broadcast(sums, &shape));
    let program = b.finish(&[scattered, scaled]).unwrap();
    let optimized = optimize(program, &gpu()).unwrap();
    let choosing = bodies(&optimized).iter().filter(|body| body.contains(&"select")).count();
    assert_eq!(choosing, 1, "{optimized}");
}

#[test]
fn other_windows_keep_their_kernels() {
    let mut rng = Rng(72);
    let padded = Windows { padding: [(1, 1), (0, 0)].as_slice().into(), ..windows(&[2, 2], &[2, 2]) };
    for (windows, shape) in [
        (windows(&[2, 2], &[1, 2]), [5, 4]),
        (windows(&[2, 2], &[3, 2]), [8, 4]),
        (windows(&[2, 2], &[2, 2]), [5, 4]),
        (windows(&[3, 2], &[3, 2]), [6, 4]),
        (windows(&[1, 1], &[1, 1]), [5, 4]),
        (padded, [4, 4]),
    ] {
        let left = check(&pool(DType::F32, &shape, &windows, true, true), &mut rng);
        assert!(left.contains(&"window_scatter_max"), "{left:?} {windows:?}");
    }
}

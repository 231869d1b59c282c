//! Sizes that no memory holds are errors, wherever they come from: no panic, no size that wraps, no element outside of
//! a buffer.

use std::path::Path;
use std::sync::Arc;

use nx_vulkan_engine::program::file::Recording;
use nx_vulkan_engine::program::ops::index::Gather;
use nx_vulkan_engine::program::{Builder, Op, Program};
use nx_vulkan_engine::shape::MAX_ELEMENTS;
use nx_vulkan_engine::{Compile, DType, Engine, Error, Executable, Tensor, Type, View, eager};
use serde_json::Value;
use smallvec::smallvec;

use crate::common;

fn is_too_large<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        Err(error) if matches!(error.cause(), Error::TooLarge { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn tensors_of_sizes_that_wrap_are_errors() {
    let engine = common::engine();
    // The product is 2^64, so that wrapped sizes are 0.
    for shape in [&[1 << 32, 1 << 32][..], &[1 << 63, 2], &[u64::MAX, u64::MAX], &[0, 1 << 63, 1 << 63]] {
        is_too_large(Tensor::from_slice::<f32>(&engine, shape, &[]));
        is_too_large(Tensor::from_nx_bytes(&engine, &Type::new(DType::U2, shape), &[]));
        is_too_large(Tensor::uninitialized(&engine, &Type::new(DType::C128, shape)));
    }
    is_too_large(Tensor::uninitialized(&engine, &Type::new(DType::U8, &[MAX_ELEMENTS])));
    // The elements fit 64 bits, their bytes don't.
    is_too_large(Tensor::from_slice::<f64>(&engine, &[1 << 61], &[]));
}

#[test]
fn views_stay_within_their_buffers() {
    let engine = common::engine();
    let tensor = Tensor::from_slice(&engine, &[6], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let part = |view| Tensor::new(Arc::clone(tensor.buffer()), view);
    let turned = part(View::contiguous(DType::F32, &[2, 3]).transpose(&[1, 0]).unwrap()).unwrap();
    assert_eq!(turned.to_vec::<f32>(&engine).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    for view in [
        View::contiguous(DType::F32, &[7]),
        View::contiguous(DType::F64, &[6]),
        View { offset: 1, ..View::contiguous(DType::F32, &[6]) },
        View { offset: u64::MAX, ..View::contiguous(DType::F32, &[]) },
        View::contiguous(DType::F32, &[1 << 32, 1 << 32]),
    ] {
        assert!(matches!(part(view), Err(Error::InvalidArgument { what: "view", .. })));
    }
}

#[test]
fn what_the_host_has_no_memory_for_is_an_error() {
    let engine = common::engine();
    for dtype in [DType::F32, DType::U2] {
        let one =
            Tensor::from_nx_bytes(&engine, &Type::new(dtype, &[]), &[0; 4][..dtype.size_bytes() as usize]).unwrap();
        let view = one.view().broadcast(&[MAX_ELEMENTS], &[]).unwrap();
        let many = Tensor::new(Arc::clone(one.buffer()), view).unwrap();
        assert!(matches!(many.to_nx_bytes(&engine, None), Err(Error::InvalidArgument { .. })));
        assert_eq!(many.to_nx_bytes(&engine, Some(1)).unwrap().len(), dtype.size_bytes() as usize);
        if dtype == DType::F32 {
            assert!(matches!(many.to_vec::<f32>(&engine), Err(Error::InvalidArgument { .. })));
        }
    }
}

#[test]
fn uniform_tensors_of_types_below_a_byte_are_read() {
    let engine = common::engine();
    let one = Tensor::from_nx_bytes(&engine, &Type::new(DType::U2, &[]), &[0b1000_0000]).unwrap();
    for (elements, expected) in [(2, &[0b1010_0000][..]), (4, &[0b1010_1010]), (5, &[0b1010_1010, 0b1000_0000])] {
        let view = one.view().broadcast(&[elements], &[]).unwrap();
        let many = Tensor::new(Arc::clone(one.buffer()), view).unwrap();
        assert_eq!(many.to_nx_bytes(&engine, None).unwrap(), expected);
    }
}

#[test]
fn programs_of_huge_shapes_are_errors() {
    let huge = [1 << 40, 1 << 40];
    let build = |make: &dyn Fn(&Builder) -> nx_vulkan_engine::program::Operand| {
        let b = Builder::new();
        let out = make(&b);
        b.finish(&[out])
    };
    is_too_large(build(&|b| b.input(DType::F32, &huge)));
    is_too_large(build(&|b| b.iota(DType::F32, &huge, None)));
    is_too_large(build(&|b| b.broadcast(b.number(DType::F32, 1.0), &huge)));
    is_too_large(build(&|b| b.dot(b.input(DType::F32, &[1 << 40, 1]), b.input(DType::F32, &[1, 1 << 40]))));
    let half = &[1 << 47];
    is_too_large(build(&|b| {
        b.concatenate(&[b.input(DType::U8, half), b.input(DType::U8, half), b.input(DType::U8, half)], 0)
    }));
    is_too_large(build(&|b| b.mean(b.broadcast(b.number(DType::F32, 1.0), &[u64::MAX, u64::MAX]), &[0, 1])));
    // What a tensor may be, and no device holds.
    let program = build(&|b| b.exp(b.iota(DType::F64, half, None))).unwrap();
    is_too_large(Executable::compile(&common::engine(), program));
}

#[test]
fn index_vectors_of_no_components_are_errors() {
    let engine = common::engine();
    let a = Tensor::from_slice(&engine, &[3], &[1f32, 2.0, 3.0]).unwrap();
    let indices = Tensor::from_slice::<i32>(&engine, &[2, 0], &[]).unwrap();
    let gather = Op::from(Gather { axes: smallvec![] });
    let out = Type::new(DType::F32, &[2, 3]);
    let operands = [a, indices];
    assert!(matches!(
        eager::run(&engine, &gather, &operands, &out, Compile::Allowed),
        Err(Error::InvalidProgram { .. })
    ));
    let b = Builder::new();
    let operands = [b.input(DType::F32, &[3]), b.input(DType::S32, &[2, 0])];
    let gathered = b.push(gather, &operands, &out);
    assert!(matches!(b.finish(&[gathered]), Err(Error::InvalidProgram { .. })));
}

/// The next number of a sequence that a seed gives.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn integers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| integers(item, found)),
        Value::Number(number) if !number.is_f64() => found.push(value),
        _ => {}
    }
}

/// Programs read from bytes in which a number, or all that are like it, became another.
#[test]
fn no_number_in_a_recorded_program_panics() {
    const NUMBERS: [i128; 12] =
        [0, 1, -1, 1 << 31, 1 << 32, 1 << 47, 1 << 48, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1];
    let seed = std::env::var("NX_VULKAN_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_122);
    println!("NX_VULKAN_TEST_SEED={seed}");
    let mut state: u64 = seed;
    let engine = common::engine();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let program = Recording::read(&path).unwrap().program.to_bytes().unwrap();
        let program: Value = serde_json::from_slice(&program).unwrap();
        for _ in 0..200 {
            let mut changed = program.clone();
            let mut found = Vec::new();
            integers(&mut changed, &mut found);
            let before = found[random(&mut state) as usize % found.len()].clone();
            let all = random(&mut state).is_multiple_of(2);
            let number = NUMBERS[random(&mut state) as usize % NUMBERS.len()];
            let after = i64::try_from(number).map_or_else(|_| Value::from(number as u64), Value::from);
            let start = random(&mut state) as usize % found.len();
            let count = found.len();
            let places = (0..count).map(|i| (start + i) % count);
            let same: Vec<usize> = places.filter(|&i| *found[i] == before).collect();
            same.iter().take(if all { count } else { 1 }).for_each(|&i| *found[i] = after.clone());
            check(&engine, &changed);
        }
    }
}

/// A program that is none is refused; one that is compiles, or is refused.
fn check(engine: &Arc<Engine>, changed: &Value) {
    let bytes = serde_json::to_vec(changed).unwrap();
    let Ok(program) = Program::from_bytes(&bytes) else { return };
    let large = |ty: &Type| ty.elements() > 1 << 20;
    if program.inputs.iter().chain(program.results()).any(large) {
        let _ = Executable::compile(engine, program);
    }
}

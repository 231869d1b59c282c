//! Seeing inside: what launches move and compute, modules by name.

use std::collections::HashSet;
use std::process::Command;

use nx_vulkan_engine::executable::{Described, Launched};
use nx_vulkan_engine::program::ops::order::Sort;
use nx_vulkan_engine::program::{Builder, Op, Program, Reduction};
use nx_vulkan_engine::{Compile, DType, DeviceKind, Engine, Error, Executable, Options, Tensor, Type};

use crate::common;

fn launches(parts: &[Described]) -> Vec<Launched> {
    let mut found = vec![];
    for part in parts {
        match part {
            Described::Launch(launched) => found.push(launched.clone()),
            Described::Wait { parts, .. } => found.extend(parts.iter().flat_map(|(_, inner)| launches(inner))),
        }
    }
    found
}

/// The only launch whose kernel's name begins so.
fn only(all: &[Launched], name: &str) -> Launched {
    let found: Vec<&Launched> = all.iter().filter(|l| l.kernel.starts_with(name)).collect();
    assert_eq!(found.len(), 1, "{name} in {all:#?}");
    found[0].clone()
}

fn described(engine: &std::sync::Arc<Engine>, program: Program) -> Vec<Launched> {
    launches(&Executable::compile(engine, program).unwrap().describe())
}

#[test]
fn launches_say_what_they_move_and_compute() {
    let engine = common::engine();
    // A dense layer is one product with its epilogue, softmax one kernel over rows.
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[96, 80]), b.input(DType::F32, &[80, 48]));
    let y = b.max(b.add(b.dot(x, w), b.input(DType::F32, &[48])), 0.0);
    let all = described(&engine, b.finish(&[y]).unwrap());
    let dot = only(&all, "dot_add_max.");
    assert_eq!(dot.work.flops, Some(2 * 96 * 80 * 48 + 2 * 96 * 48));
    assert_eq!(dot.work.written_bytes, 4 * 96 * 48);
    assert_eq!(dot.work.read_bytes, 4 * (96 * 80 + 80 * 48 + 48));
    let b = Builder::new();
    let y = b.input(DType::F32, &[96, 48]);
    let exp = b.exp(b.subtract(y, b.reduce(Reduction::Max, y, &[1], true)));
    let softmax = b.divide(exp, b.reduce(Reduction::Sum, exp, &[1], true));
    let all = described(&engine, b.finish(&[softmax]).unwrap());
    let rows = only(&all, "rows.reduce_max_subtract_exp_sum_and_1_more.f32");
    assert_eq!(rows.work.flops, Some(5 * 96 * 48));
    assert_eq!((rows.work.read_bytes, rows.work.written_bytes), (4 * 96 * 48, 4 * 96 * 48));

    // Repeated and narrow operands count by the elements that are in memory.
    let b = Builder::new();
    let (x, row) = (b.input(DType::F16, &[40, 30]), b.input(DType::U8, &[30]));
    let y = b.multiply(x, row);
    let all = described(&engine, b.finish(&[y]).unwrap());
    let map = only(&all, "map.multiply.f16");
    assert_eq!((map.work.read_bytes, map.work.written_bytes, map.work.flops), (2430, 2400, Some(1200)));

    // Reductions, alone and in two dispatches.
    let b = Builder::new();
    let x = b.input(DType::F32, &[7, 300_000]);
    let sum = b.sum(b.multiply(x, x), &[0, 1]);
    let all = described(&engine, b.finish(&[sum]).unwrap());
    let first = only(&all, "reduce.multiply_sum.first.f32");
    assert_eq!((first.work.read_bytes, first.work.flops), (4 * 7 * 300_000, Some(2 * 7 * 300_000)));
    let last = only(&all, "reduce.sum.last.f32");
    assert!(last.barrier && last.work.written_bytes == 4);
    assert_eq!(last.work.read_bytes, first.work.written_bytes);

    // What indices choose counts as often as it is written.
    let b = Builder::new();
    let (table, indices) = (b.input(DType::F32, &[1000, 16]), b.input(DType::S32, &[5]));
    let rows = b.take(table, indices, 0);
    let all = described(&engine, b.finish(&[rows]).unwrap());
    let take = only(&all, "take.");
    assert_eq!((take.work.read_bytes, take.work.written_bytes), (5 * 16 * 4 + 5 * 4, 5 * 16 * 4));
    assert_eq!(take.work.flops, Some(0));
    common::assert_valid(&engine);
}

#[test]
fn operations_of_launches_are_those_of_the_program() {
    let engine = common::engine();
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[33, 65]), b.input(DType::F32, &[65, 129]));
    let hidden = b.tanh(b.dot(x, w));
    let (mean, centered) = (b.mean(hidden, &[0]), b.subtract(hidden, 0.5));
    let program = b.finish(&[mean, centered, hidden]).unwrap();
    let expected = program.flops();
    let total: Option<u64> = described(&engine, program).iter().map(|l| l.work.flops).sum();
    assert_eq!(total, expected);
}

#[test]
fn loops_are_described_with_their_parts() {
    let engine = common::engine();
    let b = Builder::new();
    let (x, limit) = (b.input(DType::F32, &[2000]), b.input(DType::F32, &[]));
    let last = b.while_loop(
        &[x],
        &[limit],
        |b, v| b.less(b.sum(v[0], &[0]), v[1]),
        |b, v| vec![b.multiply(v[0], b.number(DType::F32, 2.0))],
    );
    let executable = Executable::compile(&engine, b.finish(&last).unwrap()).unwrap();
    let described = executable.describe();
    let Some(Described::Wait { op: "while", parts }) = described.iter().find(|d| matches!(d, Described::Wait { .. }))
    else {
        panic!("{described:#?}")
    };
    assert_eq!(parts.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["condition", "body"]);
    assert!(parts.iter().all(|(_, inner)| !launches(inner).is_empty()), "{parts:#?}");
}

#[test]
fn errors_name_the_op_and_its_types() {
    let engine = common::engine();
    // One launch can't index what is sorted.
    let b = Builder::new();
    let x = b.broadcast(b.input(DType::F32, &[3, 1]), &[3, 1 << 40]);
    let sorted = b.push(Op::from(Sort { axis: 0, descending: false }), &[x], &b.ty(x));
    let error = Executable::compile(&engine, b.finish(&[sorted]).unwrap()).unwrap_err();
    assert!(matches!(error.cause(), Error::TooLarge { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.ends_with("in sort of f32[3, 1099511627776] giving f32[3, 1099511627776]"), "{text}");

    // What can never fit is known before anything runs.
    let b = Builder::new();
    let sum = b.add(b.input(DType::F64, &[1 << 20, 1]), b.input(DType::F64, &[1 << 20]));
    let error = Executable::compile(&engine, b.finish(&[sum]).unwrap()).unwrap_err();
    assert!(matches!(error.cause(), Error::TooLarge { .. }), "{error:?}");
    let expected = "in add of f64[1048576, 1], f64[1048576] giving f64[1048576, 1048576]";
    assert!(error.to_string().ends_with(expected), "{error}");

    // The memory of a run is the program's.
    let small = Engine::open_with(&Options { memory_limit_bytes: Some(64 << 20), ..common::options() }).unwrap();
    let b = Builder::new();
    let (x, y) = (b.input(DType::F64, &[1 << 10, 1]), b.input(DType::F64, &[6 << 10]));
    let (sum, product) = (b.add(x, y), b.multiply(x, y));
    let executable = Executable::compile(&small, b.finish(&[sum, product]).unwrap()).unwrap();
    let tensor = |shape: &[u64]| Tensor::uninitialized(&small, &Type::new(DType::F64, shape)).unwrap();
    let run = executable.run(&[tensor(&[1 << 10, 1]), tensor(&[6 << 10])], Compile::Allowed);
    // GPUs have memory of the host besides.
    if small.caps().kind == DeviceKind::Cpu {
        let error = run.unwrap_err();
        assert!(matches!(error.cause(), Error::OutOfMemory { .. }), "{error:?}");
        let expected = "in program of f64[1024, 1], f64[6144] giving f64[1024, 6144], f64[1024, 6144]";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    // What the device as a whole fails with is no op's.
    let values = [1f32, 2.0, 3.0];
    let b = Builder::new();
    let y = b.exp(b.input(DType::F32, &[3]));
    let executable = Executable::compile(&engine, b.finish(&[y]).unwrap()).unwrap();
    engine.fail_next_submission();
    let run =
        || executable.run(&[Tensor::from_slice(&engine, &[3], &values)?], Compile::Allowed)?[0].to_vec::<f32>(&engine);
    assert_eq!(run(), Err(Error::DeviceLost));
}

#[test]
fn modules_are_written_by_name() {
    let folder = common::TempDir::new("dump");
    let options = Options { dump_spirv: Some(folder.0.clone()), ..common::options() };
    let engine = Engine::open_with(&options).unwrap();
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[20, 30]), b.input(DType::F32, &[30, 40]));
    let y = b.sum(b.exp(b.dot(x, w)), &[1]);
    let sorted = b.push(Op::from(Sort { axis: 0, descending: false }), &[y], &Type::new(DType::F32, &[20]));
    let executable = Executable::compile(&engine, b.finish(&[sorted]).unwrap()).unwrap();
    let names: HashSet<String> = launches(&executable.describe())
        .into_iter()
        .filter(|l| l.groups != [0; 3])
        .map(|l| format!("{}.spv", l.kernel))
        .collect();
    let files: HashSet<String> =
        std::fs::read_dir(&folder.0).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.is_empty() && names.is_subset(&files), "{names:?} in {files:?}");
    for file in &files {
        let safe = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c);
        assert!(file.chars().all(safe), "{file}");
        match Command::new("spirv-val").args(["--target-env", "vulkan1.2"]).arg(folder.0.join(file)).output() {
            Ok(out) => assert!(out.status.success(), "{file}: {}", String::from_utf8_lossy(&out.stderr)),
            Err(_) => crate::tools::skipped_without_spirv_val(),
        }
    }
    // A folder that can't be written is an error, not silence.
    let path = folder.0.join("file");
    std::fs::write(&path, "").unwrap();
    let engine = Engine::open_with(&Options { dump_spirv: Some(path), ..common::options() }).unwrap();
    let x = Tensor::from_slice(&engine, &[3], &[1f32, 2.0, 3.0]).unwrap();
    let b = Builder::new();
    let y = b.exp(b.input(DType::F32, &[3]));
    let run = Executable::compile(&engine, b.finish(&[y]).unwrap()).and_then(|e| e.run(&[x], Compile::Allowed));
    assert!(matches!(run, Err(Error::Io { .. })), "{run:?}");
}

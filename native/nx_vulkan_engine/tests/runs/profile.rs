//! Profiles: what is counted, and that nothing changes while times are taken.

use std::sync::Arc;
use std::time::Duration;

use nx_vulkan_engine::profile::ProfileRow;
use nx_vulkan_engine::program::ops::order::Sort;
use nx_vulkan_engine::program::{Builder, Op, Unary};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Limits, Options, Profile, Profiling, Tensor, eager};

use crate::common;

fn row<'a>(profile: &'a Profile, name: &str) -> &'a ProfileRow {
    let found: Vec<&ProfileRow> = profile.rows.iter().filter(|row| row.kernel.starts_with(name)).collect();
    assert_eq!(found.len(), 1, "{name} in {profile}");
    found[0]
}

/// tanh(x w) twice over, in several launches.
fn layers(engine: &Arc<Engine>) -> Executable {
    let b = Builder::new();
    let (x, w) = (b.input(DType::F32, &[64, 64]), b.input(DType::F32, &[64, 64]));
    let y = b.tanh(b.dot(b.tanh(b.dot(x, w)), w));
    let sorted = b.push(Op::from(Sort { axis: 1, descending: false }), &[y], &b.ty(y));
    Executable::compile(engine, b.finish(&[sorted]).unwrap()).unwrap()
}

fn inputs(engine: &Engine) -> Vec<Tensor> {
    let values = |seed: u32| (0..4096).map(|i: u32| ((i * seed) % 211) as f32 / 211.0 - 0.5).collect::<Vec<f32>>();
    [7, 31].map(|seed| Tensor::from_slice(engine, &[64, 64], &values(seed)).unwrap()).to_vec()
}

#[test]
fn executables_and_single_ops_are_counted_with_their_times() {
    let engine = common::engine();
    let executable = layers(&engine);
    let inputs = inputs(&engine);
    let run = || executable.run(&inputs, Compile::Allowed).unwrap()[0].to_vec::<f32>(&engine).unwrap();
    let expected = run();
    engine.start_profile().unwrap();
    for _ in 0..5 {
        assert_eq!(run(), expected);
    }
    let exp = |n: usize| {
        let x = &inputs[..1];
        let result = eager::run(&engine, &Op::Unary(Unary::Exp), x, &x[0].view().ty(), Compile::Allowed).unwrap();
        for _ in 1..n {
            eager::run(&engine, &Op::Unary(Unary::Exp), x, &x[0].view().ty(), Compile::Allowed).unwrap();
        }
        result
    };
    exp(3);
    let buffer = engine.alloc(1 << 20).unwrap();
    engine.fill(&buffer, 0, 1 << 20, 1).unwrap();
    let other = engine.alloc(1 << 20).unwrap();
    engine.copy(&buffer, 0, &other, 0, 1 << 20).unwrap();
    let profile = engine.profile().unwrap();
    let dot = row(&profile, "dot_tanh.");
    assert_eq!((dot.calls, dot.flops), (10, Some(10 * (2 * 64 * 64 * 64 + 64 * 64))));
    assert_eq!(dot.read_bytes, 10 * 2 * 64 * 64 * 4);
    assert_eq!(row(&profile, "sort.rows").calls, 5);
    let exp_row = row(&profile, "map.exp.f32");
    assert_eq!((exp_row.calls, exp_row.flops), (3, Some(3 * 4096)));
    assert_eq!((row(&profile, "fill").calls, row(&profile, "fill").written_bytes), (1, 1 << 20));
    // Where the host can't read the device's memory, each of the five results is copied, too.
    let copies = (row(&profile, "copy").calls, row(&profile, "copy").read_bytes);
    assert!([(1, 1 << 20), (6, (1 << 20) + 5 * 64 * 64 * 4)].contains(&copies), "{copies:?}");
    assert_eq!(profile.unmeasured, 0);
    assert!(profile.rows.iter().all(|row| row.time > Duration::ZERO), "{profile}");
    assert!(profile.rows.is_sorted_by(|a, b| a.time >= b.time));
    assert_eq!(profile.limits, None);
    assert!(profile.to_string().lines().count() == 2 + profile.rows.len(), "{profile}");

    engine.stop_profile().unwrap();
    run();
    exp(1);
    assert_eq!(engine.profile().unwrap(), profile);
    engine.reset_profile().unwrap();
    assert!(engine.profile().unwrap().rows.is_empty());
    common::assert_valid(&engine);
}

#[test]
fn long_recordings_and_many_threads_lose_no_launch() {
    let engine = Engine::open_with(&Options { profile: Profiling::On, ..common::options() }).unwrap();
    let b = Builder::new();
    let x = b.input(DType::F32, &[3]);
    let last = (0..700).fold(x, |x, _| b.push(Op::from(Sort { axis: 0, descending: true }), &[x], &b.ty(x)));
    let executable = Executable::compile(&engine, b.finish(&[last]).unwrap()).unwrap();
    let launches = executable.summary().commands;
    assert!(launches >= 700);
    engine.reset_profile().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let x = Tensor::from_slice(&engine, &[3], &[2f32, 1.0, 3.0]).unwrap();
                for _ in 0..3 {
                    let y = executable.run(std::slice::from_ref(&x), Compile::Allowed).unwrap();
                    assert_eq!(y[0].to_vec::<f32>(&engine).unwrap(), [3.0, 2.0, 1.0]);
                }
            });
        }
    });
    let profile = engine.profile().unwrap();
    assert_eq!((row(&profile, "sort.rows").calls, profile.unmeasured), (12 * launches, 0));
    common::assert_valid(&engine);
}

#[test]
fn limits_are_measured_once_or_given() {
    let engine = common::engine();
    engine.start_profile().unwrap();
    let measured = engine.measure_limits().unwrap().unwrap();
    assert!(measured.bytes_per_second > 1e8 && measured.flops_per_second > 1e8, "{measured:?}");
    assert_eq!(engine.measure_limits().unwrap(), Some(measured));
    // What measures is not in the profile, and times are still taken afterwards.
    assert!(engine.profile().unwrap().rows.is_empty());
    let buffer = engine.alloc(64).unwrap();
    engine.fill(&buffer, 0, 64, 1).unwrap();
    let given = Limits { bytes_per_second: 1e12, flops_per_second: 2e12 };
    engine.set_limits(given);
    let profile = engine.profile().unwrap();
    assert_eq!((profile.limits, row(&profile, "fill").calls), (Some(given), 1));
    let (share, is_memory) = row(&profile, "fill").share(&given).unwrap();
    assert!(share > 0.0 && share < 1.0 && is_memory);
    common::assert_valid(&engine);
    // Where memory is short, shares are not known; nothing else fails.
    let small = Engine::open_with(&Options { memory_limit_bytes: Some(1 << 20), ..common::options() }).unwrap();
    small.start_profile().unwrap();
    assert_eq!(small.measure_limits().unwrap(), None);
}

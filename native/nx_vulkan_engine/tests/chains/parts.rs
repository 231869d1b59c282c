//! How much of a run of chains is one submission, one dispatch, and what a profile sees of it.

use std::sync::Arc;
use std::time::Duration;

use nx_vulkan_engine::chain::Form;
use nx_vulkan_engine::chain::transition::Transition;
use nx_vulkan_engine::program::{Binary, Builder, Linalg, Op, Program};
use nx_vulkan_engine::{Compile, DType, DeviceKind, Engine, Error, Tensor, Type};

use crate::common;

/// x' = sin(x + a), `times` over in a loop.
fn waves(d: u64, times: u32) -> Program {
    let b = Builder::new();
    let (_, x, a) = (b.input(DType::U32, &[]), b.input(DType::F32, &[d]), b.input(DType::F32, &[]));
    let none = b.number(DType::U32, 0.0);
    let last = b.while_loop(
        &[x, none],
        &[a],
        |b, v| b.less(v[1], f64::from(times)),
        |b, v| vec![b.sin(b.add(v[0], v[2])), b.add(v[1], 1.0)],
    );
    b.finish(&last[..1]).unwrap()
}

/// The factor of a matrix and half of what is before it.
fn factors(n: u64) -> Program {
    let b = Builder::new();
    let (_, x, a) = (b.input(DType::U32, &[]), b.input(DType::F32, &[n, n]), b.input(DType::F32, &[n, n]));
    let sum = b.add(a, b.multiply(x, 1e-3));
    let factor = b.push(Op::from(Linalg::Cholesky), &[sum], &b.ty(sum));
    b.finish(&[factor]).unwrap()
}

fn f32s(engine: &Engine, shape: &[u64], value: impl Fn(u64) -> f32) -> Tensor {
    let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|i| value(i).to_ne_bytes()).collect();
    Tensor::from_nx_bytes(engine, &Type::new(DType::F32, shape), &bytes).unwrap()
}

/// Submissions, dispatches and results of a run of one chain.
fn run(engine: &Arc<Engine>, transition: &Transition, inputs: &[Tensor], draws: u32) -> (u64, u64, Vec<u8>) {
    engine.wait().unwrap();
    let before = engine.stats();
    let results = transition.run(engine, inputs, 1, draws, Compile::Allowed).unwrap();
    engine.wait().unwrap();
    let after = engine.stats();
    let bytes = results[0].to_nx_bytes(engine, None).unwrap();
    (after.submissions - before.submissions, after.dispatches - before.dispatches, bytes)
}

/// The first draws are the same in few parts and in many.
fn check_prefix(few: &[u8], many: &[u8]) {
    assert!(few.len() < many.len() && few == &many[..few.len()]);
}

#[test]
fn few_long_steps_are_several_submissions() {
    let engine = common::engine();
    // A step takes 1 ms of a GPU by the estimate, and is one command.
    let long = Transition::compile(&engine, waves(256, 1000), 1, &[true, false], Some(Form::Device)).unwrap();
    let inputs = [f32s(&engine, &[1, 256], |i| i as f32), f32s(&engine, &[], |_| 0.5)];
    let (one, _, few) = run(&engine, &long, &inputs, 1);
    let (several, _, many) = run(&engine, &long, &inputs, 300);
    assert!(one == 1 && several >= 2, "{one} and {several} submissions of loops");
    check_prefix(&few, &many);

    let n = 600;
    let factored = Transition::compile(&engine, factors(n), 1, &[true, false], Some(Form::Device)).unwrap();
    let matrix = f32s(&engine, &[n, n], |i| if i % (n + 1) == 0 { 2.0 } else { 1.0 / n as f32 });
    let inputs = [f32s(&engine, &[1, n, n], |_| 0.0), matrix];
    let (_, _, few) = run(&engine, &factored, &inputs, 1);
    let (several, _, many) = run(&engine, &factored, &inputs, 8);
    assert!(several >= 3, "{several} submissions of factorizations");
    check_prefix(&few, &many);
    common::assert_valid(&engine);
}

#[test]
fn many_steps_of_one_workgroup_are_one_dispatch_unless_they_take_long() {
    let engine = common::engine();
    let inputs = [f32s(&engine, &[1, 8], |i| i as f32), f32s(&engine, &[], |_| 0.5)];
    let small = Transition::compile(&engine, waves(8, 10), 1, &[true, false], None).unwrap();
    assert_eq!(small.form(), Form::Workgroup);
    let (submissions, dispatches, few) = run(&engine, &small, &inputs, 1024);
    assert_eq!((submissions, dispatches), (1, 1));
    check_prefix(&few, &run(&engine, &small, &inputs, 65_536).2);

    let long = Transition::compile(&engine, waves(8, 500), 1, &[true, false], Some(Form::Workgroup)).unwrap();
    let (submissions, dispatches, few) = run(&engine, &long, &inputs, 100);
    assert_eq!((submissions, dispatches), (1, 1));
    // By the estimate, a CPU device takes 0.9 ms for a step, and a GPU 0.1 ms.
    let draws = if engine.caps().kind == DeviceKind::Cpu { 1000 } else { 10_000 };
    let (submissions, dispatches, many) = run(&engine, &long, &inputs, draws);
    assert!(submissions >= 2 && dispatches >= 2, "{submissions} submissions of {dispatches} dispatches");
    check_prefix(&few, &many);
    assert_eq!(many, run(&engine, &long, &inputs, draws).2);
    common::assert_valid(&engine);
}

#[test]
fn a_step_of_many_chains_is_several_dispatches() {
    let engine = common::engine();
    let chains = 1024u64;
    let transition = Transition::compile(&engine, waves(8, 500), 1, &[true, false], Some(Form::Workgroup)).unwrap();
    let (x, a) = (f32s(&engine, &[chains, 8], |i| i as f32), f32s(&engine, &[], |_| 0.5));
    let before = engine.stats();
    let results = transition.run(&engine, &[x, a.clone()], chains, 1, Compile::Allowed).unwrap();
    let all = results[0].to_nx_bytes(&engine, None).unwrap();
    let dispatches = engine.stats().dispatches - before.dispatches;
    // By the estimate, a CPU device takes 0.9 ms for one chain.
    if engine.caps().kind == DeviceKind::Cpu && std::thread::available_parallelism().unwrap().get() < 4 {
        assert!(dispatches >= 2, "{dispatches} dispatches");
    }
    for chain in [0, 1, chains / 2, chains - 1] {
        let alone = [f32s(&engine, &[1, 8], |i| (chain * 8 + i) as f32), a.clone()];
        assert_eq!(run(&engine, &transition, &alone, 1).2, all[chain as usize * 32..][..32], "chain {chain}");
    }
    common::assert_valid(&engine);
}

/// x' is x after so many iterations as data say.
fn long_loop() -> Program {
    let b = Builder::new();
    let (_, x, times) = (b.input(DType::U32, &[]), b.input(DType::F32, &[8]), b.input(DType::F32, &[]));
    let none = b.number(DType::F32, 0.0);
    let last = b.while_loop(
        &[x, none],
        &[times],
        |b, v| b.binary(Binary::Less, v[1], v[2]),
        |b, v| vec![b.sin(b.add(v[0], b.sum(v[0], &[0]))), b.add(v[1], 1.0)],
    );
    b.finish(&[last[0], last[1]]).unwrap()
}

#[test]
fn a_draw_of_a_loop_that_nobody_knows_is_several_dispatches() {
    let engine = common::engine();
    let transition = Transition::compile(&engine, long_loop(), 1, &[true, false], Some(Form::Workgroup)).unwrap();
    let inputs = [f32s(&engine, &[1, 8], |i| i as f32), f32s(&engine, &[], |_| 50_000.0)];
    // Nobody knows yet how fast it is.
    let (submissions, dispatches, first) = run(&engine, &transition, &inputs, 1);
    assert!(submissions >= 2 && dispatches >= 2, "{submissions} submissions of {dispatches} dispatches");
    let before = engine.stats().dispatches;
    let start = transition.begin(&engine, &inputs, 1, 1, Compile::Allowed).unwrap();
    let many = start.in_parts_that_take(Duration::from_micros(500)).finish().unwrap();
    let parts = engine.stats().dispatches - before;
    assert!(parts >= 10, "{parts} parts, {dispatches} before");
    let last = many[1].to_nx_bytes(&engine, None).unwrap();
    assert_eq!(last, 50_000f32.to_ne_bytes());
    assert_eq!(many[0].to_nx_bytes(&engine, None).unwrap(), first);
    // It is recorded by who may wait.
    let refused = transition.begin(&engine, &inputs, 1, 1, Compile::Refused).map(|_| ());
    assert_eq!(refused, Err(Error::NeedsCompile));
    common::assert_valid(&engine);
}

#[test]
fn profiles_see_all_commands_of_a_run() {
    let engine = common::engine();
    let transition = Transition::compile(&engine, waves(8, 3), 1, &[true, false], Some(Form::Device)).unwrap();
    let inputs = [f32s(&engine, &[1, 8], |i| i as f32), f32s(&engine, &[], |_| 0.5)];
    let (_, dispatches, wanted) = run(&engine, &transition, &inputs, 1500);
    let commands = || engine.stats().dispatches + engine.stats().transfers;
    let before = commands();
    engine.start_profile().unwrap();
    assert_eq!(run(&engine, &transition, &inputs, 1500).2, wanted);
    let profile = engine.profile().unwrap();
    let measured = commands() - before;
    assert!(dispatches > 1024);
    assert_eq!(profile.unmeasured, 0);
    assert_eq!(profile.rows.iter().map(|row| row.calls).sum::<u64>(), measured);
    common::assert_valid(&engine);
}

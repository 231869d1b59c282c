//! Engines that make more kernels than they keep: idle ones go, those in use stay, and results are right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nx_vulkan_engine::program::{Builder, Op, Unary};
use nx_vulkan_engine::{
    Buffer, Compile, DType, Engine, Executable, Interface, Options, Pipeline, PipelineKey, Tensor, Type, eager,
};

use crate::common::{self, assert_valid, options, run_axpb};

const LIMIT: usize = 16;
const WORDS: u32 = 100;

fn engine() -> Arc<Engine> {
    Engine::open_with(&Options { max_pipelines: LIMIT, ..options() }).unwrap()
}

/// The key of a kernel that multiplies and adds; each number is another pipeline, by a constant that the module does
/// not have.
fn parts(number: u32) -> (Vec<u32>, [(u32, u32); 2], Interface, PipelineKey) {
    let spirv = common::words(common::AXPB);
    let spec = [(0, 0), (99, number)];
    let interface = Interface::Addresses { push_bytes: 32 };
    let key = PipelineKey::new(&spirv, &spec, interface);
    (spirv, spec, interface, key)
}

fn pipeline(engine: &Engine, number: u32) -> Arc<Pipeline> {
    let (spirv, spec, interface, key) = parts(number);
    // SAFETY: the module is one of the tests, for this interface.
    unsafe { engine.pipeline(key, &spirv, &spec, interface) }.unwrap()
}

fn is_cached(engine: &Engine, number: u32) -> bool {
    engine.cached_pipeline(parts(number).3).is_some()
}

fn ascending(engine: &Engine) -> Arc<Buffer> {
    let words: Vec<u32> = (0..WORDS).collect();
    let buffer = engine.alloc(u64::from(WORDS) * 4).unwrap();
    engine.upload(&buffer, 0, bytemuck::cast_slice(&words)).unwrap();
    buffer
}

fn assert_product(engine: &Engine, result: &Arc<Buffer>, (mul, add): (u32, u32)) {
    let mut words = vec![0u32; WORDS as usize];
    engine.download(result, 0, bytemuck::cast_slice_mut(&mut words)).unwrap();
    let expected: Vec<u32> = (0..WORDS).map(|i| i * mul + add).collect();
    assert_eq!(words, expected);
}

#[test]
fn the_number_of_pipelines_is_bounded() {
    let engine = engine();
    let source = ascending(&engine);
    let results: Vec<_> = (0..5 * LIMIT as u32)
        .map(|number| {
            let result = engine.alloc(u64::from(WORDS) * 4).unwrap();
            run_axpb(&engine, &pipeline(&engine, number), &source, &result, WORDS, (number, 7), false).unwrap();
            assert!(engine.stats().pipelines <= LIMIT as u64, "{} pipelines", engine.stats().pipelines);
            result
        })
        .collect();
    for (number, result) in (0..).zip(&results) {
        assert_product(&engine, result, (number, 7));
    }
    assert_valid(&engine);
}

#[test]
fn what_was_launched_last_and_what_is_held_stays() {
    let engine = engine();
    let source = ascending(&engine);
    let result = engine.alloc(u64::from(WORDS) * 4).unwrap();
    let held = pipeline(&engine, 1000);
    let launch = |number: u32| {
        run_axpb(&engine, &pipeline(&engine, number), &source, &result, WORDS, (3, number), false).unwrap();
        engine.wait().unwrap();
    };
    launch(1001);
    for number in 0..3 * LIMIT as u32 {
        launch(1002);
        launch(number);
    }
    assert!(Arc::ptr_eq(&held, &pipeline(&engine, 1000)));
    assert!(is_cached(&engine, 1002) && !is_cached(&engine, 1001));
    // Where most are held, more have to be there.
    let more: Vec<_> = (2000..2000 + 2 * LIMIT as u32).map(|number| pipeline(&engine, number)).collect();
    assert!((2000..2000 + 2 * LIMIT as u32).all(|number| is_cached(&engine, number)));
    drop(more);
    for number in 0..2 * LIMIT as u32 {
        launch(number);
    }
    assert!(engine.stats().pipelines <= LIMIT as u64, "{} pipelines", engine.stats().pipelines);
    assert_valid(&engine);
}

#[test]
fn what_is_recorded_runs_though_its_pipeline_is_gone() {
    // Fewer than make a submission.
    const LAUNCHES: u32 = 7;
    let engine = Engine::open_with(&Options { max_pipelines: 4, ..options() }).unwrap();
    let source = ascending(&engine);
    let results: Vec<_> = (0..LAUNCHES).map(|_| engine.alloc(u64::from(WORDS) * 4).unwrap()).collect();
    engine.wait().unwrap();
    let submissions = engine.stats().submissions;
    for (number, result) in (0..).zip(&results) {
        run_axpb(&engine, &pipeline(&engine, number), &source, result, WORDS, (number, 9), false).unwrap();
    }
    // They are nowhere any more.
    (100..120).for_each(|number| drop(pipeline(&engine, number)));
    assert!((0..LAUNCHES).filter(|&number| is_cached(&engine, number)).count() <= 4);
    assert_eq!(engine.stats().submissions, submissions);
    for (number, result) in (0..).zip(&results) {
        assert_product(&engine, result, (number, 9));
    }
    assert_valid(&engine);
}

/// A tensor of 1, 2, .. 7 in each type, and ops on them: more kernels than are kept.
#[test]
fn ops_and_executables_give_the_same_again_and_again() {
    let engine = engine();
    let ty = |dtype: DType| Type::new(dtype, &[7]);
    let seven = |dtype: DType| {
        let floats: Vec<u8> = (1..=7).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let floats = Tensor::from_nx_bytes(&engine, &ty(DType::F32), &floats).unwrap();
        eager::run(&engine, &Op::AsType, &[floats], &ty(dtype), Compile::Allowed).unwrap()
    };
    let ops =
        [Unary::Negate, Unary::Abs, Unary::Sign, Unary::Sqrt, Unary::Exp, Unary::Tanh, Unary::Floor, Unary::Round];
    let build = Builder::new();
    let x = build.input(DType::F32, &[7]);
    let result = build.exp(build.multiply(x, 0.5));
    let executable = Executable::compile(&engine, build.finish(&[result]).unwrap()).unwrap();
    let round = || {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            for op in ops {
                let result =
                    eager::run(&engine, &Op::Unary(op), &[seven(dtype)], &ty(dtype), Compile::Allowed).unwrap();
                results.push(result);
            }
            results.extend(executable.run(&[seven(DType::F32)], Compile::Refused).unwrap());
            assert!(engine.stats().pipelines <= LIMIT as u64, "{} pipelines", engine.stats().pipelines);
        }
        results.iter().map(|t| t.to_nx_bytes(&engine, None).unwrap()).collect::<Vec<_>>()
    };
    let first = round();
    assert_eq!(round(), first);
    assert_valid(&engine);
}

#[test]
fn many_threads_share_few_pipelines() {
    const THREADS: u32 = 4;
    let engine = engine();
    let source = ascending(&engine);
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, source, most) = (&engine, &source, &most);
            scope.spawn(move || {
                let mut rng = common::Rng(u64::from(thread) * 2 + 1);
                for step in 0..120 {
                    // Some at once, so that many are not yet complete.
                    let results: Vec<_> = (0..6)
                        .map(|_| {
                            let number = rng.below(3 * LIMIT as u64) as u32;
                            let result = engine.alloc(u64::from(WORDS) * 4).unwrap();
                            let pipeline = pipeline(engine, number);
                            run_axpb(engine, &pipeline, source, &result, WORDS, (number, step), false).unwrap();
                            (number, result)
                        })
                        .collect();
                    most.fetch_max(engine.stats().pipelines, Relaxed);
                    for (number, result) in results {
                        assert_product(engine, &result, (number, step));
                    }
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most <= (LIMIT as u32 + THREADS).into(), "{most} pipelines");
    assert_valid(&engine);
}

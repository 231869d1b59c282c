//! Copies of weights in other layouts, which are kept from run to run with the weights.

use std::cell::Cell;
use std::sync::Arc;

use nx_vulkan_engine::program::{Builder, Op, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Options, Tensor, Type};

use crate::common::{self, Rng, conv_3x3};

const IMAGES: u64 = 4;
const SIDE: u64 = 24;

fn image_shape(images: u64) -> [u64; 4] {
    [images, 16, SIDE, SIDE]
}

const KERNEL: [u64; 4] = [16, 16, 3, 3];

/// Two convolutions, with a kernel each, of images: both kernels have to lie in another order.
fn program(images: u64) -> Program {
    let b = Builder::new();
    let x = b.input(DType::F32, &image_shape(images));
    let kernels = [(); 2].map(|()| b.input(DType::F32, &KERNEL));
    let op = Op::Conv(Box::new(conv_3x3([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]])));
    let ty = Type::new(DType::F32, &image_shape(images));
    let y = b.push(op.clone(), &[x, kernels[0]], &ty);
    let z = b.push(op, &[b.sin(y), kernels[1]], &ty);
    b.finish(&[z]).unwrap()
}

fn random(engine: &Arc<Engine>, rng: &mut Rng, shape: &[u64]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect();
    Tensor::from_slice(engine, shape, &values).unwrap()
}

/// An engine with an executable of it, and one that keeps nothing.
struct Pair {
    engines: [Arc<Engine>; 2],
    executables: [Executable; 2],
    rng: Rng,
}

impl Pair {
    fn new(options: &Options) -> Pair {
        let engines =
            [true, false].map(|keeps_copies| Engine::open_with(&Options { keeps_copies, ..options.clone() }).unwrap());
        let executables = engines.each_ref().map(|engine| Executable::compile(engine, program(IMAGES)).unwrap());
        assert!(executables[0].summary().kept_bytes > 0 && executables[1].summary().kept_bytes == 0);
        Pair { engines, executables, rng: Rng(0x9E37_79B9_97F4_A7C1) }
    }

    fn random(&mut self, shape: &[u64]) -> Tensor {
        random(&self.engines[0], &mut self.rng, shape)
    }

    fn images(&mut self) -> Tensor {
        self.random(&image_shape(IMAGES))
    }

    fn kernels(&mut self) -> [Tensor; 2] {
        [(); 2].map(|()| self.random(&KERNEL))
    }

    /// The launches of a run, whose results are those of the engine that keeps nothing.
    fn run(&self, x: &Tensor, kernels: &[Tensor; 2]) -> u64 {
        let [engine, plain] = &self.engines;
        let before = engine.stats().dispatches;
        let inputs = [x.clone(), kernels[0].clone(), kernels[1].clone()];
        let result = self.executables[0].run(&inputs, Compile::Allowed).unwrap();
        let launches = engine.stats().dispatches - before;
        let copied = inputs.each_ref().map(|t| {
            let values = t.to_vec::<f32>(engine).unwrap();
            Tensor::from_slice(plain, &t.view().shape, &values).unwrap()
        });
        let expected = self.executables[1].run(&copied, Compile::Allowed).unwrap();
        assert!(result[0].to_nx_bytes(engine, None).unwrap() == expected[0].to_nx_bytes(plain, None).unwrap());
        launches
    }
}

#[test]
fn copies_of_weights_are_made_once() {
    let mut pair = Pair::new(&common::options());
    let kernels = pair.kernels();
    let xs = [(); 5].map(|()| pair.images());
    let launches = xs.each_ref().map(|x| pair.run(x, &kernels));
    // The second run finds that the kernels come again, and what it makes is there from the third one on.
    let all = launches[0];
    assert_eq!(launches, [all, all, all - 2, all - 2, all - 2]);
    // Another kernel has copies of its own; where all inputs are others, nothing comes again.
    let others = [kernels[0].clone(), pair.random(&KERNEL)];
    let launches = [&others, &others, &others, &kernels].map(|kernels| {
        let x = pair.images();
        pair.run(&x, kernels)
    });
    assert_eq!(launches, [all - 1, all - 1, all - 2, all - 1]);
    let kernels = pair.kernels();
    let x = pair.images();
    assert_eq!(pair.run(&x, &kernels), all);
    common::assert_valid(&pair.engines[0]);
}

#[test]
fn what_is_called_again_with_the_same_inputs_is_computed_again() {
    let mut pair = Pair::new(&common::options());
    let (x, kernels) = (pair.images(), pair.kernels());
    let launches = [(); 4].map(|()| pair.run(&x, &kernels));
    assert_eq!(launches, [launches[0]; 4]);
}

#[test]
fn programs_share_what_they_keep() {
    let mut pair = Pair::new(&common::options());
    let kernels = pair.kernels();
    for _ in 0..3 {
        let x = pair.images();
        pair.run(&x, &kernels);
    }
    let engine = &pair.engines[0];
    let other = Executable::compile(engine, program(IMAGES * 2)).unwrap();
    let launches = [(); 2].map(|()| {
        let x = random(engine, &mut pair.rng, &image_shape(IMAGES * 2));
        let before = engine.stats().dispatches;
        other.run(&[x, kernels[0].clone(), kernels[1].clone()], Compile::Allowed).unwrap();
        engine.stats().dispatches - before
    });
    assert_eq!(launches[1], launches[0] - 2);
}

#[test]
fn copies_go_with_the_weights() {
    let mut pair = Pair::new(&common::options());
    let in_use = |pair: &Pair| pair.engines[0].stats().in_use_bytes;
    let before = in_use(&pair);
    let kernels = pair.kernels();
    let with_kernels = in_use(&pair);
    for _ in 0..3 {
        let x = pair.images();
        pair.run(&x, &kernels);
    }
    assert!(in_use(&pair) > with_kernels);
    drop(kernels);
    assert_eq!(in_use(&pair), before);
}

/// A kernel whose memory becomes a result's has no copies of what it was.
#[test]
fn what_is_written_loses_its_copies() {
    let mut pair = Pair::new(&common::options());
    let mut kernels = pair.kernels();
    let engine = Arc::clone(&pair.engines[0]);
    let step = {
        let b = Builder::new();
        let k = b.input(DType::F32, &KERNEL);
        let half = b.multiply(k, 0.5);
        b.finish(&[half]).unwrap()
    };
    let step = Executable::compile_donating(&engine, step, &[true]).unwrap();
    let mut launches = Vec::new();
    for round in 0..6 {
        let x = pair.images();
        launches.push(pair.run(&x, &kernels));
        if round == 2 {
            let [first, second] = kernels;
            let (address, spent) = (first.address(), Cell::new(false));
            let mut results = step.run_donating(&[first], Compile::Allowed, &|| true, &spent).unwrap();
            let first = results.remove(0);
            assert!(spent.get() && first.address() == address);
            kernels = [first, second];
        }
    }
    let all = launches[0];
    assert_eq!(launches, [all, all, all - 2, all - 1, all - 2, all - 2]);
}

/// Tensors that need all of the memory get what copies had.
#[test]
fn copies_make_room_where_memory_is_short() {
    let mut pair = Pair::new(&Options { memory_limit_bytes: Some(64 << 20), ..common::options() });
    let kernels = pair.kernels();
    let mut launches: Vec<u64> = Vec::new();
    for _ in 0..3 {
        let x = pair.images();
        launches.push(pair.run(&x, &kernels));
    }
    let engine = Arc::clone(&pair.engines[0]);
    engine.wait().unwrap();
    let mut held = Vec::new();
    // Until nothing is left: a GPU spills to memory of the host then.
    let tensor = || Tensor::uninitialized(&engine, &Type::new(DType::U8, &[1 << 20]));
    while let Ok(tensor) = tensor()
        && engine.stats().in_use_bytes < engine.stats().budget_bytes
    {
        held.push(tensor);
    }
    drop(held);
    for _ in 0..2 {
        let x = pair.images();
        launches.push(pair.run(&x, &kernels));
    }
    let all = launches[0];
    assert_eq!(launches, [all, all, all - 2, all, all - 2]);
}

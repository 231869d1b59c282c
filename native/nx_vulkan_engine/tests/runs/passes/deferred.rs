//! Deferred ops beside the same ops run at once: the same bits, whatever is read, dropped and repeated.

use std::sync::Arc;

use nx_vulkan_engine::deferred::{Lazy, defer};
use nx_vulkan_engine::program::attribute::{Axes, Scalar};
use nx_vulkan_engine::program::{Binary, Op, Operand, Program, Reduction, Unary};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{DType, Engine, Error, Executable, Result, Tensor, Type};
use smallvec::{SmallVec, smallvec};

use super::{difference, engine, graphs, run};
use crate::common::{self, Rng};

/// More than the runs after which a structure is compiled.
const REPEATS: usize = 20;

fn compile(engine: &Arc<Engine>, program: Program) -> Result<Executable> {
    Executable::compile(engine, program)
}

fn ready(array: &Array) -> Lazy {
    Tensor::from_nx_bytes(engine(), &array.ty, &array.to_nx_bytes()).unwrap().into()
}

fn read(lazy: &Lazy) -> Array {
    let tensor = lazy.tensor(engine(), compile).unwrap();
    Array::from_nx_bytes(&lazy.ty(), &tensor.to_nx_bytes(engine(), None).unwrap()).unwrap()
}

/// All results of a program, pending.
fn deferred(program: &Program, inputs: &[Lazy]) -> Vec<Lazy> {
    let mut made: Vec<Lazy> = Vec::new();
    for instruction in &program.instructions {
        let find = |operand: &Operand| match *operand {
            Operand::Input(i) => inputs[i as usize].clone(),
            Operand::Result(r) => made[r as usize].clone(),
        };
        let operands = instruction.operands.iter().map(find).collect();
        made.extend(defer(engine(), instruction.op.clone(), operands, instruction.outs.clone()).results);
    }
    made
}

fn vector(values: &[f32]) -> Lazy {
    let ty = Type::new(DType::F32, &[values.len() as u64]);
    Tensor::from_nx_bytes(engine(), &ty, bytemuck::cast_slice(values)).unwrap().into()
}

fn values(lazy: &Lazy) -> Vec<f64> {
    read(lazy).values.iter().map(|v| v.real()).collect()
}

fn op(op: Op, operands: &[&Lazy]) -> Lazy {
    let ty = operands.first().map_or(Type::new(DType::F32, &[]), |lazy| lazy.ty());
    made(op, operands, ty)
}

fn made(op: Op, operands: &[&Lazy], ty: Type) -> Lazy {
    let operands: SmallVec<[Lazy; 3]> = operands.iter().map(|&lazy| lazy.clone()).collect();
    defer(engine(), op, operands, smallvec![ty]).results.remove(0)
}

fn number(value: f64) -> Lazy {
    op(Op::Constant(Scalar::Float(value)), &[])
}

fn add(a: &Lazy, b: &Lazy) -> Lazy {
    op(Op::Binary(Binary::Add), &[a, b])
}

/// The programs and inputs of `cases` seeds, from `first` on.
fn cases(first: u64, cases: u64, mut test: impl FnMut(&Program, &[Array], &mut Rng)) {
    for case in first..first + cases {
        let mut rng = Rng(case.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| {
            rng.next();
        });
        let length = 4 + rng.below(14) as usize;
        let program = graphs::program(&mut rng, length, false);
        let inputs: Vec<Array> = program.inputs.iter().map(|ty| graphs::values(ty, &mut rng)).collect();
        test(&program, &inputs, &mut rng);
    }
}

#[test]
fn whatever_is_read_has_the_bits_of_ops_run_at_once() {
    cases(1, 20, |program, inputs, rng| {
        let all = Program {
            outputs: (0..program.results().count() as u32).map(Operand::Result).collect(),
            ..program.clone()
        };
        let expected = run(&all, inputs);
        let inputs: Vec<Lazy> = inputs.iter().map(ready).collect();
        let mut made: Vec<Option<Lazy>> = deferred(program, &inputs).into_iter().map(Some).collect();
        for _ in 0..made.len() {
            let at = rng.below(made.len() as u64) as usize;
            let Some(lazy) = made[at].take_if(|_| rng.below(2) == 0) else { continue };
            if rng.below(3) > 0 {
                assert_eq!(difference(&read(&lazy), &expected[at]), None, "result {at} of {program}");
            }
        }
    });
    common::assert_valid(engine());
}

#[test]
fn a_structure_that_repeats_is_compiled_and_keeps_its_bits() {
    cases(1001, 3, |program, inputs, _| {
        let expected = run(program, inputs);
        let inputs: Vec<Lazy> = inputs.iter().map(ready).collect();
        let before = engine().deferred_counters().compiled;
        for _ in 0..REPEATS {
            let made = deferred(program, &inputs);
            for (output, expected) in program.outputs.iter().zip(&expected) {
                let Operand::Result(r) = *output else { continue };
                assert_eq!(difference(&read(&made[r as usize]), expected), None, "{program}");
            }
        }
        assert!(engine().deferred_counters().compiled > before, "{program}");
    });
    common::assert_valid(engine());
}

#[test]
fn numbers_that_vary_are_compiled_once() {
    let engine = common::engine();
    let x =
        Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[3]), bytemuck::cast_slice(&[1f32, 2.0, 3.0])).unwrap();
    for step in 0..REPEATS * 3 {
        let rate = step as f64 / 8.0;
        let scaled = op(Op::Binary(Binary::Multiply), &[&x.clone().into(), &number(rate)]);
        let result = add(&scaled, &number(0.5)).tensor(&engine, compile).unwrap();
        let bytes = result.to_nx_bytes(&engine, None).unwrap();
        let expected = [1.0, 2.0, 3.0].map(|x| (x * rate + 0.5) as f32);
        assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(&expected));
    }
    let counters = engine.deferred_counters();
    assert_eq!((counters.compiled, counters.one_by_one), (1, 16));
    assert_eq!(counters.replayed as usize, REPEATS * 3 - 16);
}

#[test]
fn results_within_a_program_can_be_read_later_and_are_computed_at_most_three_times() {
    let engine = common::engine();
    let read = |lazy: &Lazy| {
        let tensor = lazy.tensor(&engine, compile).unwrap();
        f32::from_ne_bytes(tensor.to_nx_bytes(&engine, None).unwrap()[..4].try_into().unwrap())
    };
    // Two elements: the host computes with one that it knows.
    let ones = [1f32; 2].map(f32::to_ne_bytes).concat();
    let x: Lazy = Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[2]), &ones).unwrap().into();
    let hidden = op(Op::Unary(Unary::Negate), &[&x]);
    let sums: Vec<Lazy> = (0..8).map(|_| add(&hidden, &hidden)).collect();
    let total = sums.iter().skip(1).fold(sums[0].clone(), |sum, next| add(&sum, next));
    // The first kernel of an engine is launched after a probe.
    assert_eq!(read(&op(Op::Unary(Unary::Negate), &[&x])), -1.0);
    let before = engine.stats().dispatches;
    assert_eq!(read(&total), -16.0);
    let after = engine.stats().dispatches;
    assert_eq!(after - before, 1 + 8 + 7);
    assert_eq!(sums.iter().map(read).sum::<f32>(), -16.0);
    assert_eq!(read(&hidden), -1.0);
    // Each sum once more, and what they share once for the first of them.
    assert_eq!(engine.stats().dispatches - after, 8 + 2);
}

#[test]
fn long_chains_are_dropped_and_computed_on_small_stacks() {
    std::thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(|| {
            let chain = |length: usize| (0..length).fold(vector(&[1.0, 2.0]), |x, _| add(&x, &x));
            drop(chain(100_000));
            let tree = (0..16).map(|_| chain(1000)).reduce(|a, b| add(&a, &b)).unwrap();
            assert_eq!(values(&op(Op::Unary(Unary::Negate), &[&tree])), [f64::NEG_INFINITY; 2]);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn much_that_is_pending_asks_to_be_computed() {
    let mut x = vector(&[0.0; 8]);
    let mut flushes = 0;
    for _ in 0..5000 {
        let next =
            defer(engine(), Op::Binary(Binary::Add), smallvec![x, number(1.0)], smallvec![Type::new(DType::F32, &[8])]);
        x = next.results[0].clone();
        if next.full {
            x.tensor(engine(), compile).unwrap();
            flushes += 1;
        }
    }
    assert!(flushes >= 4, "{flushes}");
    assert_eq!(values(&x), [5000.0; 8]);
    // 64 MiB of results.
    let wide = Type::new(DType::F32, &[1 << 20]);
    let wide = made(Op::Iota { axis: None }, &[], wide);
    let fulls = (0..17).fold((wide, 0), |(x, fulls), _| {
        let next = defer(engine(), Op::Unary(Unary::Negate), smallvec![x.clone()], smallvec![x.ty()]);
        (next.results[0].clone(), fulls + usize::from(next.full))
    });
    assert!(fulls.1 >= 1);
}

#[test]
fn an_op_that_fails_is_named_by_those_who_need_it_and_hurts_no_others() {
    let x = vector(&[1.0, 2.0, 3.0]);
    let shared = add(&x, &x);
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[5]), tie_high: false };
    let bad = made(sum, &[&shared], Type::new(DType::F32, &[]));
    let worse = op(Op::Unary(Unary::Exp), &[&bad]);
    let good = op(Op::Unary(Unary::Negate), &[&shared]);
    for _ in 0..REPEATS {
        assert_eq!(values(&good), [-2.0, -4.0, -6.0]);
        for lazy in [&bad, &worse] {
            let error = lazy.tensor(engine(), compile).unwrap_err();
            assert!(
                matches!(&error, Error::InOp { op, operands, .. } if op == "sum" && operands == &[x.ty()]),
                "{error:?}"
            );
            assert!(error.to_string().contains("in sum of f32[3]"), "{error}");
        }
    }
}

#[test]
fn any_number_of_threads_read_what_hangs_together() {
    for _ in 0..REPEATS {
        let x = vector(&[0.5; 100]);
        let shared = op(Op::Unary(Unary::Exp), &[&x]);
        let results: Vec<Lazy> = (0..8).map(|i| add(&shared, &number(f64::from(i)))).collect();
        let expected: Vec<f64> = (0..8).map(|i| f64::from(0.5f32.exp() + i as f32)).collect();
        std::thread::scope(|scope| {
            for k in 0..16 {
                let (results, expected) = (&results, &expected);
                scope.spawn(move || {
                    let at = k % results.len();
                    let (value, got) = (expected[at], values(&results[at]));
                    assert!(got.iter().all(|x| (x - value).abs() < 1e-5) && got.len() == 100);
                    let more = add(&results[at], &results[(k + 1) % results.len()]);
                    assert_eq!(values(&more).len(), 100);
                });
            }
        });
    }
    common::assert_valid(engine());
}

#[test]
fn one_element_in_memory_stays_one() {
    let engine = common::engine();
    let wide = Type::new(DType::F32, &[1 << 20]);
    let x: Lazy = Tensor::from_nx_bytes(&engine, &Type::new(DType::F32, &[]), &2f32.to_ne_bytes()).unwrap().into();
    let repeated = made(Op::Broadcast { axes: Axes::new() }, &[&x], wide.clone());
    let repeated: Lazy = repeated.tensor(&engine, compile).unwrap().into();
    let sum = Op::Reduce { reduction: Reduction::Sum, axes: Axes::from_slice(&[0]), tie_high: false };
    for _ in 0..REPEATS {
        let before = engine.stats().in_use_bytes;
        let result = made(sum.clone(), &[&repeated], Type::new(DType::F32, &[])).tensor(&engine, compile).unwrap();
        assert_eq!(result.to_nx_bytes(&engine, None).unwrap(), f32::to_ne_bytes(2097152.0));
        assert!(engine.stats().in_use_bytes - before < 1 << 18);
    }
    assert_eq!(engine.deferred_counters().compiled, 1);
}

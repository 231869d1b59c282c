//! Fences: what is computed behind one is computed again, when it is needed, with no launch and no memory of its own.

use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::eager::run_program;
use nx_vulkan_engine::program::ops::order::{Cumulative, Scan};
use nx_vulkan_engine::program::{Builder, Op, Operand, Program};
use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor, Type, Value};

use crate::common;

const N: u64 = 1 << 18;
const BYTES: u64 = 4 * N;

fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(common::engine)
}

/// A step that nothing fuses with.
fn step(b: &Builder, x: Operand) -> Operand {
    let ty = b.ty(x);
    b.push(Op::from(Scan { scan: Cumulative::Max, axis: 0, reverse: false }), &[x], &ty)
}

/// The values of a block: its input, and what each of its steps gives.
fn block(b: &Builder, x: Operand) -> Vec<Operand> {
    let mut values = vec![x];
    for _ in 0..4 {
        values.push(step(b, values[values.len() - 1]));
    }
    values
}

/// Blocks, and back through all their steps, of which each needs its input: as they are, or computed again.
fn back_and_forth(blocks: usize, is_fenced: bool) -> Program {
    let b = Builder::new();
    let mut x = b.input(DType::F32, &[N]);
    let mut kept = Vec::new();
    for _ in 0..blocks {
        let values = block(&b, x);
        x = values[values.len() - 1];
        kept.push(values);
    }
    let mut back = x;
    for values in kept.into_iter().rev() {
        let first = values[0];
        let ty = b.ty(first);
        let values = if is_fenced { block(&b, b.push(Op::After, &[first, back], &ty)) } else { values };
        for value in values[..4].iter().rev() {
            back = step(&b, b.multiply(back, *value));
        }
    }
    b.finish(&[back]).unwrap()
}

fn bits(tensors: Vec<Tensor>) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_nx_bytes(engine(), None).unwrap()).collect()
}

fn input() -> Tensor {
    let ty = Type::new(DType::F32, &[N]);
    let array = Array::new(&ty, (0..N).map(|i| Value::Float(((i * 7919) % 1000) as f64 / 1000.0)));
    Tensor::from_nx_bytes(engine(), &ty, &array.to_nx_bytes()).unwrap()
}

#[test]
fn what_is_behind_a_fence_is_computed_again_when_it_is_needed() {
    let (plain, fenced) = (back_and_forth(4, false), back_and_forth(4, true));
    let compiled = |program: &Program| Executable::compile(engine(), program.clone()).unwrap();
    let (kept, again) = (compiled(&plain), compiled(&fenced));
    let inputs = [input()];
    let expected = bits(run_program(engine(), &plain, &inputs).unwrap());
    assert_eq!(bits(run_program(engine(), &fenced, &inputs).unwrap()), expected);
    assert_eq!(bits(kept.run(&inputs, Compile::Allowed).unwrap()), expected);
    assert_eq!(bits(again.run(&inputs, Compile::Allowed).unwrap()), expected);
    // Of 16 steps each of 4 blocks computes 3 again: what its last step gives is there.
    let launches = |executable: &Executable| executable.summary().commands;
    let steps = launches(&kept) / (16 + 16 + 16);
    assert!(launches(&again) > launches(&kept));
    assert!(launches(&again) <= launches(&kept) + 12 * steps.max(3), "{} {}", launches(&again), launches(&kept));
    let arena = |executable: &Executable| executable.summary().arena_bytes;
    assert!(arena(&kept) >= 15 * BYTES, "{}", arena(&kept));
    // The inputs of 3 blocks, 3 steps of one, what goes back and what that is made of.
    assert!(arena(&again) <= 9 * BYTES, "{}", arena(&again));
}

#[test]
fn small_programs_run_in_one_workgroup_with_their_fences() {
    let b = Builder::new();
    let x = b.input(DType::F32, &[16]);
    let twice = |x: Operand| b.sum(b.multiply(x, b.sum(x, &[0])), &[0]);
    let sum = twice(x);
    let ty = b.ty(x);
    let again = twice(b.push(Op::After, &[x, sum], &ty));
    let product = b.multiply(sum, again);
    let program = b.finish(&[product]).unwrap();
    let executable = Executable::compile(engine(), program.clone()).unwrap();
    let ty = Type::new(DType::F32, &[16]);
    let array = Array::new(&ty, (0..16).map(|i| Value::Float(f64::from(i))));
    let inputs = [Tensor::from_nx_bytes(engine(), &ty, &array.to_nx_bytes()).unwrap()];
    let got = bits(executable.run(&inputs, Compile::Allowed).unwrap());
    assert_eq!(got, bits(run_program(engine(), &program, &inputs).unwrap()));
    assert!(executable.summary().commands <= 2, "{:?}", executable.summary());
}

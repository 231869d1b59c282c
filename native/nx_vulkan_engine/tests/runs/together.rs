//! Results in one piece of memory, in which lies before what is larger than one of them: the bits of the ops one by
//! one, and each result as long as somebody holds it.

use nx_vulkan_engine::program::{Builder, Operand, Program};
use nx_vulkan_engine::{Compile, DType, Engine, Executable, Tensor};

use crate::in_place::{checked, sums};

const SHAPE: [u64; 3] = [4, 512, 3072];
const RESULT_BYTES: u64 = 8 * SHAPE[1] * SHAPE[2];
const RESULTS: usize = 5;

/// Something of 48 MiB, its sum, and five results of 12 MiB each, one of the other.
fn program() -> Program {
    let b = Builder::new();
    let x = b.input(DType::F64, &[SHAPE[0], SHAPE[1], 1]);
    let large = sums(&b, b.broadcast(x, &SHAPE));
    let sum = b.sum(large, &[0]);
    let results = std::iter::successors(Some(sums(&b, sum)), |&result| Some(sums(&b, result)));
    let results: Vec<Operand> = results.take(RESULTS).collect();
    b.finish(&results).unwrap()
}

#[test]
fn what_is_larger_than_a_result_lies_where_several_will_be() {
    let summary = checked(&program());
    assert_eq!(summary.own_bytes, RESULTS as u64 * RESULT_BYTES);
    // A copy of what is broadcast is as large, and one of the two lies with the results.
    assert_eq!(summary.arena_bytes, SHAPE[0] * RESULT_BYTES, "{summary:?}");
    assert!(summary.peak_bytes <= (RESULTS as u64 + SHAPE[0]) * RESULT_BYTES, "{summary:?}");
}

#[test]
fn results_stay_while_others_of_their_run_are_gone() {
    // An engine of its own, whose memory nothing else takes.
    let engine = Engine::open(None).unwrap();
    let executable = Executable::compile(&engine, program()).unwrap();
    let numbers: Vec<f64> = (0..SHAPE[0] * SHAPE[1]).map(|i| (i % 64) as f64 / 64.0 - 0.5).collect();
    let x = Tensor::from_slice(&engine, &[SHAPE[0], SHAPE[1], 1], &numbers).unwrap();
    let run = || executable.run(std::slice::from_ref(&x), Compile::Allowed).unwrap();
    let bits = |tensor: &Tensor| tensor.to_nx_bytes(&engine, None).unwrap();
    let expected: Vec<Vec<u8>> = run().iter().map(bits).collect();
    let mut kept: Vec<Tensor> = Vec::new();
    let which = [0, RESULTS / 2, RESULTS - 1];
    for k in which {
        kept.push(run().swap_remove(k));
    }
    for (k, tensor) in which.into_iter().zip(&kept) {
        assert!(bits(tensor) == expected[k], "result {k}");
    }
    drop(kept);
    // Runs whose results are gone before the next one take nothing more.
    let reserved = || {
        (0..2).for_each(|_| drop(run()));
        engine.stats().reserved_bytes
    };
    let before = reserved();
    assert_eq!(reserved(), before);
}

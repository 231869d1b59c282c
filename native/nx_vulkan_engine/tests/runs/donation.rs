//! Results in the memory of donated inputs, where nobody else holds that.

use std::cell::Cell;
use std::sync::Arc;

use nx_vulkan_engine::eager::run_program;
use nx_vulkan_engine::program::ops::moved::Reverse;
use nx_vulkan_engine::program::ops::order::{Cumulative, Scan};
use nx_vulkan_engine::program::{Builder, Op, Operand, Program};
use nx_vulkan_engine::{Compile, DType, DeviceKind, Engine, Error, Executable, Options, Result, Tensor, Type, View};
use smallvec::smallvec;

use crate::common;

const N: u64 = 100_000;

fn sums(b: &Builder, x: Operand) -> Operand {
    let ty = b.ty(x);
    b.push(Op::from(Scan { scan: Cumulative::Sum, axis: 0, reverse: false }), &[x], &ty)
}

/// Parameters, two moments and a batch become the next parameters, moments and a loss.
fn adam(n: u64) -> Program {
    let b = Builder::new();
    let [p, m, v, x] = [(); 4].map(|()| b.input(DType::F32, &[n]));
    let error = b.subtract(sums(&b, b.multiply(p, x)), x);
    let gradient = b.multiply(sums(&b, error), 1e-4);
    let m = b.add(b.multiply(m, 0.9), b.multiply(gradient, 0.1));
    let v = b.add(b.multiply(v, 0.99), b.multiply(b.multiply(gradient, gradient), 0.01));
    let p = b.subtract(p, b.divide(b.multiply(m, 1e-3), b.add(b.sqrt(v), 1e-6)));
    let loss = b.sum(b.multiply(error, error), &[0]);
    b.finish(&[p, m, v, loss]).unwrap()
}

fn random(engine: &Arc<Engine>, n: u64) -> Vec<Tensor> {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {nanos}");
    let mut rng = common::Rng(nanos | 1);
    let mut tensor = || {
        let values: Vec<f32> = (0..n).map(|_| rng.below(1000) as f32 / 1000.0).collect();
        Tensor::from_slice(engine, &[n], &values).unwrap()
    };
    (0..4).map(|_| tensor()).collect()
}

fn copy(engine: &Arc<Engine>, tensor: &Tensor) -> Tensor {
    Tensor::from_slice(engine, &tensor.view().shape, &values(engine, tensor)).unwrap()
}

fn values(engine: &Engine, tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>(engine).unwrap()
}

fn bits(engine: &Engine, tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_nx_bytes(engine, None).unwrap()).collect()
}

/// Runs with inputs that it gives up. Answers the results too where the run fails, and whether memory of inputs was
/// written.
fn donate(executable: &Executable, inputs: &[Tensor]) -> (Result<Vec<Tensor>>, bool) {
    let spent = Cell::new(false);
    let results = executable.run_donating(inputs, Compile::Allowed, &|| true, &spent);
    (results, spent.get())
}

#[test]
fn what_a_run_copies_of_donated_inputs_becomes_results() {
    let n = 1 << 20;
    let engine = common::engine();
    let donating = Executable::compile_donating(&engine, adam(n), &[true, true, true, false]).unwrap();
    let state = random(&engine, n);
    // Moments begin as one number each, of which runs make tensors.
    let b = Builder::new();
    let zeros = b.broadcast(b.input(DType::F32, &[]), &[n]);
    let zero = Tensor::from_slice(&engine, &[], &[0f32]).unwrap();
    let zeros = run_program(&engine, &b.finish(&[zeros]).unwrap(), &[zero]).unwrap().remove(0);
    let expected = donating.run(&[&state[0], &zeros, &zeros, &state[3]].map(Tensor::clone), Compile::Allowed).unwrap();
    let expected = bits(&engine, &expected);
    let parameters = copy(&engine, &state[0]);
    let inputs = [parameters, zeros.clone(), zeros.clone(), state[3].clone()];
    engine.wait().unwrap();
    let before = engine.stats();
    let (results, spent) = donate(&donating, &inputs);
    let results = results.unwrap();
    assert!(spent && results[0].address() == inputs[0].address());
    assert_eq!(bits(&engine, &results), expected);
    assert_eq!(values(&engine, &zeros), vec![0.0; n as usize]);
    let taken = engine.stats().in_use_bytes - before.in_use_bytes;
    assert!(taken <= 2 * 4 * n + 4096, "{taken}");
    let moments = [1, 2].map(|k| results[k].address());
    assert!(moments[0] != moments[1] && !moments.contains(&zeros.address()));
}

#[test]
fn training_takes_no_second_copy_of_what_is_donated() {
    for n in [1, 1001, N, (1 << 17) + 3] {
        let engine = common::engine();
        let plain = Executable::compile(&engine, adam(n)).unwrap();
        let donating = Executable::compile_donating(&engine, adam(n), &[true, true, true, false]).unwrap();
        let (said, without) = (donating.summary(), plain.summary());
        assert_eq!((said.own_bytes, without.donated_bytes), (without.own_bytes, 0));
        assert_eq!(said.donated_bytes, 3 * 4 * n);
        assert!(said.own_bytes - said.donated_bytes <= 4);
        assert!(said.peak_bytes <= without.peak_bytes, "{said:?} {without:?}");
        let mut state = random(&engine, n);
        let mut expected = state.clone();
        let batch = state.pop().unwrap();
        expected.pop();
        state = state.iter().map(|t| copy(&engine, t)).collect();
        let addresses: Vec<u64> = state.iter().map(Tensor::address).collect();
        let in_use = engine.stats().in_use_bytes;
        for step in 0..5 {
            let mut inputs = std::mem::take(&mut state);
            inputs.push(batch.clone());
            let (results, spent) = donate(&donating, &inputs);
            state = results.unwrap();
            drop(inputs);
            assert!(spent);
            let loss = state.pop().unwrap();
            let got: Vec<u64> = state.iter().map(Tensor::address).collect();
            let mut same = got.clone();
            same.sort_unstable();
            let mut before = addresses.clone();
            before.sort_unstable();
            assert!(same == before, "step {step}: {got:x?}, not {addresses:x?}");
            expected.push(batch.clone());
            expected = plain.run(&expected, Compile::Allowed).unwrap();
            assert_eq!(bits(&engine, &[loss]), bits(&engine, &[expected.pop().unwrap()]), "step {step}");
            assert_eq!(bits(&engine, &state), bits(&engine, &expected), "step {step}");
        }
        drop(expected);
        engine.wait().unwrap();
        // The first state is kept by nobody.
        assert!(engine.stats().in_use_bytes <= in_use, "{} of {in_use}", engine.stats().in_use_bytes);
        common::assert_valid(&engine);
    }
}

#[test]
fn memory_that_others_hold_is_left_alone() {
    let engine = common::engine();
    let b = Builder::new();
    let (x, y) = (b.input(DType::F32, &[N]), b.input(DType::F32, &[N]));
    let sum = b.add(b.multiply(x, 2.0), y);
    let program = b.finish(&[sum]).unwrap();
    let executable = Executable::compile_donating(&engine, program, &[true, true]).unwrap();
    assert_eq!(executable.summary().donated_bytes, 4 * N);
    let fresh = || random(&engine, N).into_iter().take(2).collect::<Vec<Tensor>>();
    let check = |inputs: Vec<Tensor>, held: &[Tensor], shares: bool| {
        let expected: Vec<f32> =
            values(&engine, &inputs[0]).iter().zip(values(&engine, &inputs[1])).map(|(x, y)| x * 2.0 + y).collect();
        let before = bits(&engine, held);
        let (results, spent) = donate(&executable, &inputs);
        assert_eq!(values(&engine, &results.unwrap()[0]), expected);
        assert_eq!(bits(&engine, held), before);
        assert_eq!(spent, shares);
    };
    check(fresh(), &[], true);
    // One is held by others: the result has the memory that was planned for it, or its own.
    let inputs = fresh();
    check(inputs.clone(), &inputs, false);
    // The same tensor twice.
    let one = fresh().remove(0);
    check(vec![one.clone(), one], &[], false);
    let one = fresh().remove(0);
    let turned = Tensor::new(Arc::clone(one.buffer()), View::contiguous(DType::F32, &[N / 2, 2])).unwrap();
    let other = fresh().remove(0);
    check(vec![one, other], &[turned], false);
    // Parts of memory, and what lies in another order.
    let long = Tensor::from_slice(&engine, &[2 * N], &vec![0.25f32; 2 * N as usize]).unwrap();
    let parts = [N, 0].map(|offset| {
        let view = View { offset, ..View::contiguous(DType::F32, &[N]) };
        Tensor::new(Arc::clone(long.buffer()), view).unwrap()
    });
    drop(long);
    check(parts.to_vec(), &[], false);
    let reversed = fresh().into_iter().map(|t| {
        let view = View { offset: N - 1, strides: smallvec![-1], ..View::contiguous(DType::F32, &[N]) };
        Tensor::new(Arc::clone(t.buffer()), view).unwrap()
    });
    check(reversed.collect(), &[], false);
    // Whoever knows an address may find it again.
    let shared: Vec<Tensor> = fresh().iter().map(|t| t.share(&engine, 7).unwrap()).collect();
    engine.unshare(7);
    check(shared, &[], false);
    // Without the caller's consent for this run.
    let inputs = fresh();
    let before = bits(&engine, &inputs);
    executable.run(&inputs, Compile::Allowed).unwrap();
    assert_eq!(bits(&engine, &inputs), before);
    common::assert_valid(&engine);
}

#[test]
fn what_is_read_after_a_result_begins_is_not_donated() {
    let engine = common::engine();
    let ty = Type::new(DType::F32, &[N]);
    let donated = |make: &dyn Fn(&Builder, Operand) -> Vec<Operand>| {
        let b = Builder::new();
        let x = b.input(ty.dtype, &ty.shape);
        let outputs = make(&b, x);
        let program = b.finish(&outputs).unwrap();
        let plain = Executable::compile(&engine, program.clone()).unwrap();
        let executable = Executable::compile_donating(&engine, program, &[true]).unwrap();
        let inputs = random(&engine, N).into_iter().take(1).collect::<Vec<Tensor>>();
        let expected = bits(&engine, &plain.run(&inputs, Compile::Allowed).unwrap());
        let (results, spent) = donate(&executable, &inputs);
        assert_eq!(bits(&engine, &results.unwrap()), expected);
        let bytes = executable.summary().donated_bytes;
        assert_eq!(spent, bytes > 0);
        bytes
    };
    let reversed = |b: &Builder, x: Operand| b.push(Op::from(Reverse { axes: smallvec![0] }), &[x], &ty);
    // Read in two ways, or by another kind of kernel, or before another result is written, or it is a result.
    assert_eq!(donated(&|b, x| vec![b.subtract(x, reversed(b, x))]), 0);
    assert_eq!(donated(&|b, x| vec![sums(b, x)]), 0);
    assert_eq!(donated(&|b, x| vec![b.add(x, 1.0), x]), 0);
    assert_eq!(donated(&|b, x| vec![b.as_type(x, DType::F64)]), 0);
    assert_eq!(donated(&|b, x| vec![sums(b, b.sin(sums(b, x)))]), 4 * N);
    assert_eq!(donated(&|b, x| vec![b.sin(x), b.cos(x)]), 4 * N);
    assert_eq!(donated(&|b, x| vec![b.as_type(x, DType::S32)]), 4 * N);
    // The chain of two kernels lies in it all the time.
    assert_eq!(donated(&|b, x| vec![b.multiply(sums(b, b.sin(x)), x)]), 4 * N);
    // A loop of no iterations gives its operand back, which is read later.
    let goes_on = |b: &Builder, v: &[Operand]| b.greater(b.reduce_max(v[0], &[0]), 1e9);
    let looped = |b: &Builder, x| b.while_loop(&[x], &[], goes_on, |b, v| vec![sums(b, b.multiply(v[0], 0.5))])[0];
    assert_eq!(
        donated(&|b, x| {
            let last = looped(b, x);
            vec![b.add(sums(b, b.cos(sums(b, last))), last)]
        }),
        0
    );
    // What is written before a loop might be spent when that fails.
    assert_eq!(
        donated(&|b, x| {
            let y = b.sin(sums(b, x));
            vec![y, looped(b, y)]
        }),
        0
    );
    assert_eq!(donated(&|b, x| vec![b.multiply(looped(b, sums(b, x)), 2.0)]), 0);
    common::assert_valid(&engine);
}

#[test]
fn a_run_that_fails_leaves_what_was_donated() {
    let options = Options { memory_limit_bytes: Some(24 << 20), ..common::options() };
    let engine = Engine::open_with(&options).unwrap();
    let n = 1 << 20;
    let b = Builder::new();
    let x = b.input(DType::F32, &[n]);
    let all = sums(&b, x);
    let sum = b.subtract(x, all);
    let wide = b.concatenate(&[all; 5], 0);
    let program = b.finish(&[sum, wide]).unwrap();
    let executable = Executable::compile_donating(&engine, program, &[true]).unwrap();
    assert_eq!(executable.summary().donated_bytes, 4 * n);
    let inputs = [Tensor::from_slice(&engine, &[n], &vec![0.5f32; n as usize]).unwrap()];
    let (results, spent) = donate(&executable, &inputs);
    // A GPU spills to memory of the host.
    if results.is_ok() && engine.caps().kind != DeviceKind::Cpu {
        return;
    }
    let error = results.unwrap_err();
    assert!(
        matches!(
            &error,
            Error::InOp { cause, .. } if matches!(**cause, Error::OutOfMemory { .. } | Error::TooLarge { .. })
        ),
        "{error}"
    );
    assert!(!spent);
    assert_eq!(values(&engine, &inputs[0]), vec![0.5; n as usize]);
}
